"""What is wrong is said, soon: options that cannot be followed, memory that nothing fits, plans that others misread."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import shardwise
from shardwise.cli.main import run
from shardwise.errors import InfeasibleError
from shardwise.frameworks.aceso.ask import OperatorOptions
from shardwise.frameworks.aceso.write_profile import write_profile
from shardwise.per_op.evaluate import evaluate
from shardwise.per_op.layer_bound import longest_stage
from shardwise.per_op.question import PerOpPlan, SplitStage
from shardwise.per_op.search import OperatorSearch
from shardwise.per_op.tables import layouts_of, sample_counts
from shardwise.plan.file import read_plan

from .conftest import question, random_profile
from .test_engines import middling
from .test_verb import folder, plan  # noqa: F401 - fixtures


@pytest.mark.parametrize("space", ["compatible", "full"])
@pytest.mark.parametrize("part", [0.01, 0.1])
def test_too_little_memory_is_proven_without_solving_a_stage(space, part):
    asked = middling(1, space=space, layers=2)
    work = OperatorSearch(replace(asked, memory=part * asked.memory))
    with pytest.raises(InfeasibleError, match="no plan of the per-operator space fits"):
        work.run()
    assert len(work.stages) == 0


@pytest.mark.parametrize("seed", range(6))
def test_no_stage_takes_longer_than_the_longest(seed):
    asked = question(random_profile(seed), layers=3, space="full")
    draw = np.random.default_rng(seed)
    count = len(asked.chain.rows)
    for size in sample_counts(asked):
        layouts = layouts_of(asked, size, asked.gpus)
        if not layouts:
            continue
        for _ in range(20):
            picks = tuple(layouts[index] for index in draw.integers(0, len(layouts), count))
            again = tuple(bool(flag) for flag in draw.integers(0, 2, count))
            made = PerOpPlan(stages=(SplitStage(gpus=asked.gpus, layouts=picks, recompute=again),), samples=size)
            assert evaluate(asked, made).stages[0].seconds <= longest_stage(asked, size)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "tp<=2"), "No such option"),
        (("--micro-batch", "2"), "with --write-operators"),
        (("--compatible", "--zero", "1"), "--zero: is not part of Aceso's cost model"),
        (("--compatible", "--p2p-overlap", "0.5"), "--p2p-overlap: is not part of Aceso's cost model"),
        (("--compatible", "--schedule", "gpipe"), "--schedule: is not part of Aceso's cost model"),
        (("--out", "plan.json"), "give MODEL and --cluster"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_the_search(plan, words, said):  # noqa: F811
    code, out, err = plan(*words)
    assert (code, out) == (2, "")
    assert said in err


def test_another_length_than_the_profiled_is_refused(plan, folder):  # noqa: F811
    tags = "[tags]\nlayers = 2\nseq = 2048\nhidden = 64\nheads = 4\n"
    side = folder / "profile.toml"
    side.write_text((side.read_text() if side.is_file() else "").replace("[tags]\n", tags) or tags)
    if "seq" not in side.read_text():
        side.write_text(side.read_text() + tags)
    code, _, err = plan("--seq", "4096")
    assert code == 2
    assert "was profiled with 2048" in err
    assert plan("--seq", "2048")[0] == plan()[0] == 0


@pytest.mark.parametrize("more", [[], ["--compatible"], ["--write-operators", "request.json"], ["--show-start"]])
def test_a_length_beyond_the_learned_positions_is_refused_as_check_does(capfd, tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    said = "strategy.seq: 4096 tokens are more than the 2048 learned positions; use at most 2048"
    assert run(["estimate", "gpt-3-13b", "-c", "8xh100", "-s", "dp8 gbs8 seq4096"]) == 2
    assert said in capfd.readouterr().err
    for length in (["--seq", "4096"], []):  # also where it is the default
        assert run(["plan-operators", "gpt-3-13b", "-c", "8xh100", *length, *more]) == 2
        assert said in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_no_split_can_train_is_refused():
    broken = replace(shardwise.load_model("llama-3-8b"), kv_heads=7)
    with pytest.raises(shardwise.InputError, match="7 does not divide heads 32"):
        shardwise.plan_operators(broken, "8xh100", global_batch=8)
    with pytest.raises(shardwise.InputError) as caught:
        shardwise.plan_operators("llama-3-8b", "8xh100", global_batch=0, seq=0, schedule="zb-v")
    assert [fault.path for fault in caught.value.faults] == ["schedule", "strategy.global_batch", "strategy.seq"]


def test_no_gpus_is_one_fault(plan):  # noqa: F811
    code, _, err = plan("--gpus", "0")
    assert code == 2
    assert err.count("--gpus") == 1


def test_a_tensor_parallel_size_that_was_lost_is_told(plan, tmp_path):  # noqa: F811
    write_profile(random_profile(3, tps=(1, 2, 4)), tmp_path / "holed")
    for file in (tmp_path / "holed").glob("*_tp2_*.csv"):
        file.unlink()
    code, _, err = plan(profiles=tmp_path / "holed")
    assert code == 2
    assert "_tp2_algo*.csv: are missing; the set has tp 1, 4" in err


def test_show_start_shows_the_plan_of_the_file(plan, tmp_path):  # noqa: F811
    assert plan("--compatible", "--aceso", tmp_path / "own.json", "--json", tmp_path / "a.json")[0] == 0
    assert plan("--compatible", "--start", tmp_path / "own.json", "--show-start", "--json", tmp_path / "b.json")[0] == 0
    answer, shown = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert [start["stages"] for start in shown["starts"]] == [answer["plan"]]
    assert shown["starts"][0]["cost"] == answer["cost"]


def test_verbs_for_whole_strategies_refuse_a_per_operator_plan(plan, capfd, tmp_path):  # noqa: F811
    file = str(tmp_path / "plan.json")
    code, _, err = plan("llama-3-8b", "-c", "2xh100", "--out", file)
    assert code == 0, err
    for words in (["check", file], ["estimate", file], ["why", file, "tp2"], ["what-if", file, "--gpus", "4"]):
        assert run(words) == 2
        assert "is a per-operator plan" in capfd.readouterr().err
    assert run(["show", file]) == 0
    with pytest.raises(shardwise.InputError, match="is a per-operator plan, which load_strategy cannot take"):
        shardwise.load_strategy(file)
    with pytest.raises(shardwise.InputError, match="is a per-operator plan"):
        shardwise.estimate("llama-3-8b", "2xh100", file)


def test_show_refuses_the_files_that_it_does_not_write(plan, capfd, tmp_path):  # noqa: F811
    file = str(tmp_path / "plan.json")
    assert plan("llama-3-8b", "-c", "2xh100", "--out", file)[0] == 0
    before = sorted(tmp_path.rglob("*"))
    for flag in ("--html", "--svg", "--trace", "--md"):
        assert run(["show", file, flag, str(tmp_path / "report"), "--json", str(tmp_path / "told.json")]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert f"{flag}: {file} is a per-operator plan, of which there are no such files" in err
    assert sorted(tmp_path.rglob("*")) == before


def test_the_plan_file_keeps_the_sequence_length(tmp_path, capfd):
    file = tmp_path / "plan.json"
    words = ["plan-operators", "llama-3-8b", "-c", "8xh100", "--global-batch", "8", "--microbatches", "1"]
    assert run([*words, "--stages", "1", "--seq", "2048", "--time-limit", "0s", "--out", str(file)]) == 0
    assert read_plan(file).strategy.seq == 2048
    capfd.readouterr()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_stages", 7, "num_stages: is 7, but num_gpus has"),
        ("num_ops_in_each_stage", [1], "num_ops_in_each_stage: is [1], but the lists per operator hold"),
        ("num_ops_in_each_stage", None, "num_ops_in_each_stage: is None"),
        ("recompute_ops", None, "recompute_ops: must be a list of"),
        ("shardwise", {"made_for": [1]}, ""),
    ],
)
def test_a_file_that_says_two_things_is_refused(plan, tmp_path, key, value, said):  # noqa: F811
    file = tmp_path / "own.json"
    assert plan("--compatible", "--aceso", file)[0] == 0
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    code, _, err = plan("--compatible", "--start", file, "--show-start")
    assert code == (2 if said else 0)
    assert said in err


def test_recompute_flags_are_0_or_1(plan, tmp_path):  # noqa: F811
    file = tmp_path / "own.json"
    assert plan("--compatible", "--aceso", file)[0] == 0
    told = json.loads(file.read_text())
    told["recompute_ops"][0][0] = 7
    file.write_text(json.dumps(told))
    code, _, err = plan("--compatible", "--start", file, "--show-start")
    assert code == 2
    assert "recompute_ops: must hold 0 (kept) and 1 (recomputed)" in err


def test_a_bare_memory_is_mib_for_aceso_only(plan):  # noqa: F811
    """Without --compatible a number without a unit is refused, in the words of `plan`."""
    assert plan("--compatible", "--memory", "28000")[1:2] == plan("--compatible", "--memory", "28000MiB")[1:2]
    code, out, err = plan("--memory", "28000")
    assert (code, out) == (2, "")
    with pytest.raises(shardwise.InputError) as caught:
        shardwise.plan_operators("llama-3-8b", "8xh100", memory=28000)
    assert caught.value.faults[0].message in err
    assert run(["plan", "llama-3-8b", "-c", "8xh100", "--memory", "28000"]) == 2


def test_columns_have_the_words_of_every_verb(plan, tmp_path):  # noqa: F811
    told = tmp_path / "told.json"
    _, out, _ = plan("--compatible", "--explain", "--aceso", tmp_path / "own.json", "--json", told)
    parts = json.loads(told.read_text())["cost"]["stages"][0]["parts"]
    assert {"recompute", "recomputed_peak"} < set(parts)
    assert not [name for name in parts if "again" in name]
    assert "memory MiB" in out
    assert "recompute" in out
    assert "again" not in out
    assert "MB" not in out
    stage = json.loads((tmp_path / "own.json").read_text())["shardwise"]["stages"][0]
    assert {"memory_MiB", "reserved_MiB"} < set(stage)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"zero": 3}, "zero: 3 gathers whole layers"),
        ({"zero": 7}, "zero: 7 is too large"),
        ({"method": "nope"}, "method: 'nope' is no way to search; choose auto, exact, alleviate"),
        ({"stages": (3, 2)}, "stages: (3, 2): write a number, or the fewest and the most such as 2-8"),
        ({"stages": 2}, "stages: must be a text or a list, each a whole number, not 2"),
        ({"stages": (0, 2)}, "stages: (0, 2)"),
        ({"stages": "0"}, "stages: '0'"),
        ({"memory": "40"}, "memory: 40 means 40 bytes"),
        ({"memory": [40]}, "memory: must be a number or a text, not a list"),
        ({"gpus": 2.5}, "gpus: must be a whole number, not 2.5"),
        ({"most_tp": -1}, "most_tp: -1 is too small"),
        ({"p2p_overlap": 7}, "p2p_overlap: 7 is too large"),
        ({"microbatches": 3}, "microbatches: must be a text or a list, each a whole number, not 3"),
        ({"runs_with": 3}, "runs_with: must be a text or a table, not 3"),
        ({"time_limit": -3}, "time_limit: -3 is too small"),
        ({"hops": 0, "best": 0}, "hops: 0 is too small"),
    ],
)
def test_what_python_gives_is_refused_with_a_sentence(given, said):
    with pytest.raises(shardwise.InputError) as caught:
        shardwise.plan_operators("llama-3.2-1b", "2xh100", **({"global_batch": 8, "time_limit": 1.0} | given))
    assert said in str(caught.value)


def test_memory_may_be_a_text_in_python():
    assert asked_of(memory="40GiB").memory == 40 * 2**30


def asked_of(**more):
    from shardwise.api import operators

    asked = {"model": "llama-3.2-1b", "cluster": "2xh100", "global_batch": 8, "runtime": "megatron"}
    names = operators.plan_operators.__kwdefaults__.keys() & OperatorOptions.__dataclass_fields__.keys()
    given = {name: operators.plan_operators.__kwdefaults__[name] for name in names}
    return operators.operator_question(**given | asked | more)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"runtime": "torchtitan", "zero": 1}, "strategy.zero: 1 is not in runtime torchtitan; use 0, 2 or 3"),
        ({"runtime": "zero-bubble", "zero": 2}, "strategy.zero: 2 is not in runtime zero-bubble; use 0 or 1"),
    ],
)
def test_sharding_that_the_runtime_lacks_is_refused_by_the_checks_own_sentence(given, said):
    with pytest.raises(shardwise.InputError, match=said):
        shardwise.plan_operators("llama-3-8b", "16xh100", global_batch=64, **given)


@pytest.mark.parametrize(("runtime", "zeros"), [("torchtitan", (0, 2)), ("megatron-local", ()), ("automodel", ())])
def test_sharding_that_nobody_asked_for_is_one_that_the_runtime_has(runtime, zeros):
    """That of torchtitan was refused for want of ZeRO 1, which nobody had asked for."""
    found = asked_of(runtime=runtime)
    assert found.zeros == zeros
    assert found.pricing.zero in found.runtime.can.zero
