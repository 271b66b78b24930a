"""The timeline of an estimate is the estimate: same seconds, same bubble, same memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwise
from shardwise.inputs.strategy_text import complete, parse
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.generate import generate
from shardwise.plan.file import plan_from, plan_table
from shardwise.plan.predict import estimate_of, plan_iteration, plan_of

MODEL, CLUSTER = shardwise.load_model("llama-3-8b"), shardwise.load_cluster("16xh100")


def found(text):
    return shardwise.estimate(MODEL, CLUSTER, complete(parse(text), CLUSTER))


@pytest.mark.parametrize(
    "text",
    [
        "pp4 gbs64 seq4096",
        "tp2 pp4x2 gbs64 seq4096",
        "pp4x2 gbs64 seq4096 zb-v zero2 runtime=torchtitan",
        "pp4 gbs16 seq4096 auto zero2 runtime=torchtitan",
        "pp1 gbs64 seq4096 zero2",
    ],
)
def test_it_is_what_the_estimate_was_made_of(text):
    estimate = found(text)
    timeline = plan_iteration(plan_of(estimate))
    passes = estimate.time.value - sum(
        estimate.time.part(name) for name in ("gradient reduction", "weight gathering", "optimizer", "framework")
    )
    passes -= estimate.update.slowed
    assert timeline.makespan == pytest.approx(passes, rel=1e-9)
    assert timeline.bubble == pytest.approx(estimate.bubble, abs=1e-9)
    assert timeline.peak == pytest.approx([rank.total for rank in estimate.memory], rel=1e-9)
    assert timeline.costs.memory_limit == (CLUSTER.gpu.memory,) * estimate.strategy.pp


def test_an_order_that_the_plan_carries_is_replayed_and_estimated():
    plan = plan_of(found("pp4 gbs32 seq4096"))
    rows = [",".join(f"{rank}F{n}" for n in range(8)) + "," + ",".join(f"{rank}B{n}" for n in range(8))
            for rank in range(4)]  # fmt: skip
    own = replace(plan, order=Schedule.parse("\n".join(rows), name="mine"))
    timeline, plain, ordered = plan_iteration(own), estimate_of(plan), estimate_of(own)
    assert timeline.schedule.name == "mine"
    assert timeline.makespan == pytest.approx(ordered.makespan)
    assert timeline.peak == pytest.approx([rank.total for rank in ordered.memory])
    assert ordered.memory[3].total > plain.memory[3].total  # all forwards first


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["0F0,0B0"] * 2, "order: the rows have 2 ranks, 1 chunks and 1 micro batches; the strategy has 4, 4 and 8"),
        ([7], "order.0: must be a text"),
        (["0F0"], "leave them out"),
        (["nonsense"], "is not an action"),
        ([], "no actions"),
        ("0F0", "order: must be a list"),
    ],
)
def test_an_order_that_is_not_the_plans_is_refused(rows, said):
    table = plan_table(plan_of(found("pp4 gbs32 seq4096")))
    with pytest.raises(shardwise.ShardwiseError, match=said):
        plan_from({**table, "order": rows}, "plan.json")


def test_an_order_that_waits_for_itself_is_refused():
    plan = plan_of(found("pp4 gbs32 seq4096"))
    rows = generate("gpipe", pp=4, microbatches=8).csv().splitlines()
    own = replace(plan, order=Schedule.parse("\n".join(rows)))
    assert plan_from(plan_table(own), "plan.json") == own
    stuck = [",".join(reversed(row.split(","))) for row in rows]
    with pytest.raises(shardwise.ShardwiseError):
        plan_from({**plan_table(plan), "order": stuck}, "plan.json")
