"""Where nothing fits: every way out, planned again, fits at its price; there is none only with a reason."""

from __future__ import annotations

from random import Random

import pytest

from shardwise import api
from shardwise.search.ladder import RUNG_GAP
from shardwise.units import show_bytes

CONDITIONS = ["", "recompute=none", "zero0", "zero0 recompute=none", "mbs>=4", "cp=1 tp=1", "pp=1 recompute=none"]
MODELS = ["llama-3.2-3b", "llama-3-8b", "llama-2-13b", "mistral-7b"]


def drawn(seed):
    """A question that is too large for its GPUs, more often than not."""
    chance = Random(seed)  # noqa: S311 - questions, not secrets
    model, gpu = chance.choice(MODELS), chance.choice(["a100-40", "h100", "l40s"])
    where = f"{chance.choice([1, 2, 4, 8])}x{gpu}"
    return {
        "model": model, "cluster": where, "global_batch": 32, "seq": chance.choice([2048, 8192]),
        "only": chance.choice(CONDITIONS),
    }  # fmt: skip


QUESTIONS = [drawn(seed) for seed in range(12)]


def again(question, rung):
    other = {**question, "cluster": rung.cluster, "only": rung.conditions}
    return api.plan(**other, fastest=True, gap=RUNG_GAP)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: "-".join(map(str, one.values())).replace(" ", "+"))
def test_every_rung_planned_again_fits_at_its_price(question):
    answer = api.plan(**question, gap=0.05)
    if answer.best is not None or answer.closest is None:
        pytest.skip("something fits, or no strategy is valid")
    near, text = answer.closest, api.why_nothing(answer)
    assert near.ladder_finished
    assert near.ladder or "is enough; shorten the sequence" in text
    assert show_bytes(near.missing) in text
    for rung in near.ladder:
        assert rung.change in text
        found = again(question, rung).best
        assert found.strategy == rung.strategy
        assert found.iteration_seconds == pytest.approx(rung.seconds)
        assert found.total_bytes == pytest.approx(rung.total_bytes)
        assert found.fits != "no"
        assert rung.total_bytes <= rung.memory
        assert rung.slower == pytest.approx(rung.seconds / near.seconds - 1)
    own = [rung.seconds for rung in near.ladder if rung.cluster == answer.question.cluster.name]
    assert own == sorted(own)


def test_a_condition_that_stands_in_the_way_is_a_way_out():
    answer = api.plan("llama-3-8b", "8xh100", global_batch=64, only="recompute=none zero0 tp1 pp1 cp1")
    changes = {rung.change: rung for rung in answer.closest.ladder}
    assert "zero" not in changes["ZeRO as needed"].conditions
    assert "recompute=none" in changes["ZeRO as needed"].conditions


def test_changes_are_joined_where_none_is_enough_alone():
    answer = api.plan("llama-3-8b", "2xa100-40", global_batch=32, seq=2048)
    assert answer.best is None
    here = [rung for rung in answer.closest.ladder if rung.cluster == answer.question.cluster.name]
    assert here
    assert all(" and " in rung.change or "host memory" in rung.change for rung in here)


def test_the_ledger_of_the_closest_adds_up():
    near = api.plan("llama-3-70b", "8xh100", global_batch=64, only="tp8").closest
    assert sum(part.value for part in near.ledger.parts) == pytest.approx(near.ledger.value)
    assert "optimizer moments" in api.why_nothing(api.plan("llama-3-70b", "8xh100", global_batch=64, only="tp8"))


def test_told_to_stop_it_says_what_it_has():
    answer = api.plan("llama-3-8b", "1xh100", global_batch=8, only="recompute=none", time_limit=1e-9)
    assert "more time" in api.why_nothing(answer)


def changes(*asked, **options):
    """The ways out of a question by their changes, and how it is told."""
    answer = api.plan(*asked, **options)
    return {rung.change: rung for rung in answer.closest.ladder}, api.why_nothing(answer)


def test_another_gpu_is_of_the_same_maker_and_not_missed_behind_small_ones():
    assert (
        changes("llama-3-8b", "1xa100-40", global_batch=8, seq=8192, only="offload-optimizer grad-bf16")[0][
            "another GPU"
        ].cluster
        == "1xa100"
    )
    found, _ = changes("mixtral-8x7b", "8xa100", global_batch=128, only="tp=1 pp=1 mbs=1 recompute=none")
    assert found["another GPU"].cluster == "8xh200"


def test_a_limit_that_was_asked_for_is_named_and_lifting_it_is_a_way_out():
    only = "tp1 pp1 zero1 recompute=full"
    found, told = changes("llama-3-8b", "8xh100", global_batch=64, only=only, memory="20GiB")
    assert "20.00 GiB may be used, as was asked" in told
    assert "with the usual margin it would fit" in told
    assert "memory model's error" not in told
    lifted = found["no limit of memory but the usual margin"]
    assert lifted.unlimited
    assert lifted.total_bytes > 20 * 2**30
    assert "another GPU" not in found


def test_a_mixed_cluster_has_a_ladder_too():
    """Settings, conditions, and more of one kind; planned again, one takes no longer than it was priced at."""
    asked = {"global_batch": 8, "seq": 2048}
    found, told = changes("llama-3-8b", "1xh100 + 1xa100", only="recompute=none mbs=1 cp=1 zero=0", **asked)
    assert {"moments of the optimizer in bf16", "2 times as many h100", "2 times as many a100"} <= set(found)
    assert '-c "1xa100 + 2xh100"' in told or '-c "2xh100 + 1xa100"' in told
    assert all(rung.total_bytes < rung.memory for rung in found.values())
    more = [rung for rung in found.values() if " times as many " in rung.change]
    assert more == sorted(more, key=lambda one: one.seconds * one.gpus)
    rung = found["moments of the optimizer in bf16"]
    again = api.plan("llama-3-8b", rung.cluster, only=rung.conditions, **asked)
    assert again.fastest.iteration_seconds <= rung.seconds * (1 + 1e-9)


def test_more_of_the_same_gpus_come_before_others():
    found, told = changes("llama-3-8b", "1xa100-40", global_batch=8, seq=8192)
    assert list(found)[-2:] == ["more GPUs", "another GPU"]
    assert told.count("GPU-seconds") == 1
