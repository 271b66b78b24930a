from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "inputs"))
from cases import DENSE, MOE, cluster, strategies

from shardwise.errors import FileError, InputError
from shardwise.estimate.estimate import estimate
from shardwise.estimate.predictions import Rehearsed, RehearsedLine, Searched, predictions_of
from shardwise.inputs.serialise import to_json
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.write import write_text
from shardwise.plan.file import SCHEMA, diff, plan_from, plan_table, plan_text, read_plan, write_plan
from shardwise.plan.plan import Balance, Plan, ProofPart, Provenance, Recomputed
from shardwise.plan.proof import proof_of

PLAN = Plan(model=DENSE, cluster=cluster(8), strategy=Strategy(tp=8, global_batch=8))


FIGURES = predictions_of(estimate(DENSE, cluster(8), PLAN.strategy))
WHOLE = replace(
    PLAN,
    predictions=replace(
        FIGURES, bound=FIGURES.iteration_seconds / 2, gap=1.0, memory_limit=8e10,
        search=Searched(strategies=9, simulated=3, left_open=0, axes={"tp": {"8": 9}}),
        rehearsed=(Rehearsed(rank=0, device="h100", lines=(RehearsedLine(what="peak", predicted=1.0, measured=2.0),)),),
    ),
    balance=Balance(problem="mine", recompute=(Recomputed(choices={"full": (1,)}),), simulated=2.5, peak=(3.0,)),
    provenance=Provenance(shardwise="0.1.0", costs="roofline"),
    run={"seconds": 3.25},
)  # fmt: skip


def test_a_plan_is_read_back_the_same(tmp_path):
    plan = replace(WHOLE, proof=proof_of(WHOLE, [ProofPart(bound=1.0), ProofPart(bound=2.0, strategy="tp8")]))
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    assert hash(plan) == hash(read_plan(tmp_path / "plan.json"))


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(strategies(st.integers(1, 4096)).filter(lambda s: s.straggler > 0 and (s.lora is None or s.lora.rank > 0)))
def test_every_strategy_is_read_back_the_same(tmp_path, strategy):
    plan = replace(PLAN, strategy=strategy)
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan


def test_parts_that_are_not_known_are_absent():
    data = json.loads(plan_text(PLAN))
    assert list(data) == ["schema", "inputs"]
    assert data["schema"] == SCHEMA == "shardwise/plan/2"
    assert "null" not in plan_text(PLAN)


def test_the_same_plan_is_the_same_bytes():
    assert plan_text(PLAN) == plan_text(replace(PLAN))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schema": "shardwise/plan/3"}', "newer Shardwise (plan schema 3, this one reads up to 2); update it"),
        ('{"schema": "shardwise/plan/0"}', "never was"),
        ('{"schema": "other"}', "is not a plan: its schema is 'other'"),
        ('{"schema": 1}', "is not a plan"),
        ("{}", "it has no schema"),
        ("[1]", "keys and values"),
        ("not json", "not valid JSON"),
        ('{"schema": "shardwise/plan/2"}', "inputs: is missing"),
        ('{"schema": "shardwise/plan/2", "inputs": {}}', "inputs.model: is missing"),
        ('{"schema": "shardwise/plan/2", "inputs": 5, "extra": 1}', "extra: is not a known key"),
        ('{"schema": "shardwise/plan/2", "inputs": {"x": 1}, "run": 5}', "run: must be a table"),
        ('{"schema": "shardwise/plan/2", "inputs": {}, "schedule": {}}', "schedule: is not a known key"),
        ('{"schema": "shardwise/plan/1", "inputs": {}, "run": null}', "run: must be a table"),
        ('{"schema": "shardwise/plan/1", "inputs": {}, "partition": {"x": 1}}', "partition.x: is not a known key"),
        (
            '{"schema": "shardwise/plan/2", "inputs": {"model": {}, "cluster": {}, "strategy": {"tp": "2"}}}',
            "strategy.tp",
        ),
    ],
)
def test_what_is_not_a_plan_is_refused_with_a_sentence(tmp_path, text, said):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_plan(path)
    assert said in str(caught.value)
    assert "plan.json" in str(caught.value)


def test_a_file_that_is_too_large_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    with path.open("wb") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(FileError, match=r"65\.00 MiB"):
        read_plan(path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    write_plan(PLAN, path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FileError, match="No space left"):
        write_plan(replace(PLAN, model=MOE), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(FileError, match="is a folder"):
        write_plan(PLAN, tmp_path)
    with pytest.raises(FileError, match="does not exist; make it first"):
        write_plan(PLAN, tmp_path / "no" / "plan.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="is a file, not a folder"):
        write_plan(PLAN, tmp_path / "file" / "plan.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_permissions_are_a_sentence(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(FileError, match="permission denied"):
        write_plan(PLAN, tmp_path / "locked" / "plan.json")


def test_links_and_modes_are_kept(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    write_text(real, "old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o640


def test_diff_tells_every_value_and_not_the_run():
    other = replace(PLAN, strategy=Strategy(tp=4, dp=2, global_batch=8), run={"seconds": 1})
    assert [str(one) for one in diff(PLAN, other)] == ["strategy.tp: 8 -> 4", "strategy.dp: 1 -> 2"]
    less = replace(WHOLE, predictions=replace(WHOLE.predictions, mfu=0.5, search=None), run=None)
    assert [one.path for one in diff(WHOLE, less)] == ["predictions.mfu", "predictions.search"]
    assert diff(PLAN, PLAN) == ()


def test_json_has_no_nan():
    with pytest.raises(InputError, match="not a number that JSON has"):
        to_json({"x": float("nan")})


@pytest.mark.parametrize(
    ("way", "value", "said"),
    [
        (("iteration_seconds",), "2 s", "iteration_seconds: must be a number"),
        (("iteration_seconds",), 0, "iteration_seconds: 0 is too small"),
        (("bound",), -1, "bound: -1"),
        (("bound",), True, "bound: must be"),
        (("fits",), "maybe", "fits: 'maybe' is none of"),
        (("mfu",), None, "mfu: is null"),
        (("stages", 0, "forward"), 1e31, "stages.0.forward: 1e+31 is too large"),
        (("memory", 0, "peak", "value"), "x", "memory.0.peak.value: must be"),
        (
            ("memory", 0, "peak", "parts", 0, "extra"),
            1,
            "memory.0.peak.parts.0.extra: is not a known key; known keys: name, value, parts",
        ),
        (("search", "strategies"), 1.5, "search.strategies: must be a whole number"),
        (("unknown",), 1, "unknown: is not a known key"),
    ],
)
def test_predictions_that_were_edited_are_told(way, value, said):
    table = plan_table(WHOLE)
    inner = table["predictions"]
    for step in way[:-1]:
        inner = inner[step]
    inner[way[-1]] = value
    with pytest.raises(InputError) as caught:
        plan_from(table, "plan.json")
    assert f"predictions.{said}" in str(caught.value)


def test_all_faults_are_told_at_once():
    table = plan_table(WHOLE)
    table["inputs"]["strategy"]["tp"] = "2"
    table["predictions"]["mfu"] = "x"
    del table["predictions"]["makespan"]
    table["extra"] = 1
    with pytest.raises(InputError) as caught:
        plan_from(table, "plan.json")
    paths = {fault.path for fault in caught.value.faults}
    assert paths == {"inputs.strategy.tp", "predictions.mfu", "predictions.makespan", "extra"}
    assert "leave predictions out" in str(caught.value)
