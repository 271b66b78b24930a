"""Views: what the page shows adds up to what the command line prints."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

import shardwise
from shardwise.inputs.serialise import to_plain
from shardwise.partition.compare import Compared
from shardwise.partition.problem import Choice, Kind, KindRun, Problem
from shardwise.partition.solver import solve
from shardwise.pipeline.costs import costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.generate import generate
from shardwise.plan.predict import plan_of
from shardwise.report.view import balance_views, plan_view, schedule_view
from shardwise.report.view import schedule as timeline_module
from shardwise.search.api import plan_file_of

MODEL, CLUSTER = shardwise.load_model("llama-3-8b"), shardwise.load_cluster("16xh100")
LINES = (
    "tp2 pp4 dp2 mbs1 gbs64 seq4096",
    "tp1 pp1 dp16 zero2 mbs1 gbs64 seq4096 recompute=attention-norm+mlp-norm",
    "tp2 pp2x2 dp4 mbs1 gbs64 seq4096 interleaved",
    "tp2 pp4x2 dp2 zero2 mbs1 gbs64 seq4096 zb-v runtime=torchtitan",
    "tp1 pp2 dp8 mbs2 gbs64 seq4096 seq-1f1b recompute=full runtime=mindformers",
)


def planned(text):
    return shardwise.estimate(MODEL, CLUSTER, shardwise.Strategy.parse(text))


@pytest.mark.parametrize("text", LINES)
def test_times_and_memory_add_up_to_the_estimate(text):
    found = planned(text)
    view = plan_view(plan_of(found))
    json.dumps(to_plain(view), allow_nan=False)
    assert view["numbers"]["iteration_seconds"] == found.iteration_seconds
    for stage, memory in zip(view["stages"], found.memory, strict=True):
        assert sum(stage["time"].values()) == pytest.approx(found.iteration_seconds, rel=1e-9)
        assert sum(stage["memory"].values()) == pytest.approx(memory.total, rel=1e-12)
        assert stage["total"] == memory.total
        assert min(stage["time"].values()) >= 0
        assert min(stage["memory"].values()) >= 0
    for ledger, memory in zip(view["ledger"]["memory"], found.memory, strict=True):
        assert sum(part["value"] for part in ledger["parts"]) == pytest.approx(memory.total, rel=1e-12)
    assert sum(stage["layers"][0] for stage in view["stages"]) <= MODEL.layers


@pytest.mark.parametrize("text", LINES)
def test_the_timeline_is_the_one_the_estimate_replayed(text):
    found = planned(text)
    line = plan_view(plan_of(found))["timeline"]
    waits = next((p.value for p in found.time.parts if p.name == "pipeline waits and sends"), 0.0)
    work = sum(p.value for p in found.time.parts if p.name in {"forward", "backward", "recompute"})
    assert line["makespan"] >= work + waits - 1e-9
    assert line["bubble"] == pytest.approx(found.bubble, abs=1e-9)
    assert line["peaks"] == pytest.approx([one.total for one in found.memory])
    assert line["limit"] == CLUSTER.gpu.memory
    assert [len(rank["codes"]) for rank in line["ranks"]] == [len(rank["start"]) for rank in line["ranks"]]


def test_a_search_brings_its_candidates_and_its_proof():
    answer = shardwise.plan("llama-3-8b", "8xh100", global_batch=16, seq=4096, only="tp<=2 pp<=2 vpp=1")
    view = plan_view(plan_file_of(answer), answer)
    assert view["numbers"]["bound"] == answer.bound
    assert [point["best"] for point in view["candidates"]].count(True) == 1
    best = next(point for point in view["candidates"] if point["best"])
    assert best["strategy"] == view["strategy"]
    assert best["tokens_per_second_per_gpu"] == pytest.approx(view["numbers"]["tokens_per_second_per_gpu"])


def test_a_plan_with_its_own_order_shows_that_order():
    plan = plan_of(planned("tp2 pp4 dp2 mbs1 gbs64 seq4096"))
    view = plan_view(replace(plan, order=generate("gpipe", pp=4, microbatches=32)))
    assert view["timeline"]["ranks"][0]["codes"][:32] == list(range(32))
    assert view["numbers"]["total_bytes"] > plan.predictions.total_bytes


def test_a_schedule_has_its_causes_and_its_limit():
    timeline = simulate(
        generate("zb-v", pp=2, microbatches=4), costs(pp=2, vpp=2, f=10, i=11, w=9, hop=1, memory_limit=4)
    )
    view = schedule_view(timeline, {"bubble": "x"}, bound=timeline.makespan / 2)
    assert view["unit"] == "units"
    assert view["numbers"]["gap"] == pytest.approx(1.0)
    for stage in view["stages"]:
        assert sum(stage["time"].values()) == pytest.approx(timeline.makespan)
        assert stage["limit"] == 4
    parts = view["ledger"]["time"]["parts"]
    assert sum(part["value"] for part in parts) == pytest.approx(timeline.makespan)


def test_the_critical_path_leads_from_the_first_start_to_the_last_end():
    timeline = simulate(generate("1f1b", pp=4, microbatches=8), costs(pp=4, f=1, i=1, w=1, hop=0.25))
    line = schedule_view(timeline)["timeline"]
    where = {code: (r, k) for r, rank in enumerate(line["ranks"]) for k, code in enumerate(rank["codes"])}
    rows = [(line["ranks"][r]["start"][k], line["ranks"][r]["end"][k]) for r, k in map(where.get, line["critical"])]
    assert rows[0][0] == 0
    assert rows[-1][1] == line["makespan"]
    assert all(0 <= after[0] - before[1] <= 0.25 for before, after in pairwise(rows))


def test_long_timelines_are_left_out_with_a_note(monkeypatch):
    timeline = simulate(generate("1f1b", pp=4, microbatches=8), costs(pp=4, f=1, i=1, w=1))
    monkeypatch.setattr(timeline_module, "MOST_ACTIONS", 63)
    view = schedule_view(timeline)
    assert view["timeline"] is None
    assert "64 actions" in view["notes"][0]


def test_a_balance_stands_beside_what_it_is_compared_with():
    kind = Kind(name="layer", static=1.0, choices=(
        Choice(name="none", f=1, i=1, w=1, activation=2), Choice(name="full", f=1, i=2, w=1, activation=1),
    ))  # fmt: skip
    problem = Problem(pp=2, microbatches=4, runs=(KindRun(kind=kind, count=6),), limits=(12.0,), name="toy")
    answer = solve(problem, seconds=5)
    views = balance_views(answer, [Compared(name="other", problem=problem, evaluation=answer.best)])
    assert [view["title"] for view in views] == ["toy", "other"]
    assert sum(stage["layers"][0] for stage in views[0]["stages"]) == 6
    assert views[0]["numbers"]["makespan"] == answer.simulated
    json.dumps(to_plain(views), allow_nan=False)
