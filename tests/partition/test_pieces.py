"""Sequences in pieces (`-seq`, `-train`): the order of pieces with one chunk a rank and several, and what they hold."""

from __future__ import annotations

import pytest
import yaml
from balance_cases import INSTANCES

from shardwise.errors import InputError
from shardwise.partition import solve
from shardwise.partition.orders import order_of
from shardwise.partition.readers.problem_file import problem_from
from shardwise.partition.readers.training_file import in_pieces, read_training
from shardwise.pipeline.action import B, F

Q1 = INSTANCES["Q1"]["problem"]


@pytest.mark.parametrize(("pp", "vpp", "m", "splits"), [(8, 2, 32, 2), (4, 3, 8, 2), (4, 2, 6, 3), (4, 2, 3, 4)])
@pytest.mark.parametrize("low", [0, 1])
def test_pieces_go_forward_in_order_and_back_last_first(pp, vpp, m, splits, low):
    data = {**Q1, "pp": pp, "vp": vpp, "mb": m, "layers": 4 * pp * vpp, "seq_split": splits, "low_mem": low}
    order = order_of(problem_from({**data, "mem_limit": 10**6}))
    units = m * splits
    assert order.microbatches == units
    for row in order.codes:
        assert len(row) == 2 * vpp * units
        kind, chunk, unit = row // (units * order.chunks), row // units % order.chunks, row % units
        for c in set(chunk.tolist()):
            assert unit[(kind == F) & (chunk == c)].tolist() == list(range(units))
            back = unit[(kind == B) & (chunk == c)].reshape(m, splits)
            assert (back[:, ::-1] == back.min(axis=1, keepdims=True) + range(splits)).all()


def test_more_chunks_a_rank_shorten_the_iteration_of_pieces():
    one, two = (solve(problem_from({**Q1, "vp": vpp, "mem_limit": 60000}), effort=0.1) for vpp in (1, 2))
    assert two.simulated < one.simulated
    assert two.best.fits


def test_other_schedules_do_not_cut_sequences():
    with pytest.raises(InputError, match="does not cut sequences"):
        problem_from({**Q1, "schedule": "1f1b"})


TRAINING = {
    "runner_config": {"batch_size": 1},
    "parallel_config": {"data_parallel": 4, "model_parallel": 8},
    "model": {"model_config": {"num_heads": 96, "hidden_size": 12288, "seq_length": 8192, "vocab_size": 160000}},
}


def test_keys_and_values_are_held_whole(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(TRAINING), encoding="utf-8")
    training = read_training(path)
    assert training.keys == pytest.approx(2 * 8192 * 12288 / 8 / 2**20)
    assert training.logits == pytest.approx(4 * 8192 * 160000 / 8 / 2**20)
    whole, made = Q1["model"], in_pieces(Q1["model"], training, 2)
    body, tail = made["layers_description"][1:]
    assert body["memory_parameter"] == pytest.approx(368 + 4 * training.keys)
    # A piece holds (activation - 2 K) / 2 + 2 K: both together hold this much.
    assert body["memory_activation"] == pytest.approx(2 * ((4229 - 2 * training.keys) / 2 + 2 * training.keys))
    assert tail["memory_parameter"] == pytest.approx(10030 - training.logits)
    assert whole["layers_description"][1]["memory_activation"] == 4229


@pytest.mark.parametrize(
    ("section", "word"),
    [({"model": {}}, "num_heads"), ({"parallel_config": {"model_parallel": 0}}, "model_parallel: 0 is too small"),
     ({"runner_config": {"batch_size": "one"}}, "batch_size")],
)  # fmt: skip
def test_a_broken_training_file_is_a_sentence(tmp_path, section, word):
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump({**TRAINING, **section}), encoding="utf-8")
    with pytest.raises(InputError) as told:
        read_training(path)
    assert word in str(told.value)
