"""The timeline of an estimate is the estimate: same seconds, same bubble, same memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwise
from shardwise.inputs.complete import complete
from shardwise.inputs.strategy_text import parse
from shardwise.plan.predictions import plan_of
from shardwise.plan.timeline import iteration, plan_iteration

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
    timeline = iteration(estimate)
    passes = estimate.time.value - sum(
        estimate.time.part(name) for name in ("gradient reduction", "weight gathering", "optimizer", "framework")
    )
    assert timeline.makespan == pytest.approx(passes, rel=1e-9)
    assert timeline.bubble == pytest.approx(estimate.bubble, abs=1e-9)
    assert timeline.peak == pytest.approx([rank.total for rank in estimate.memory], rel=1e-9)
    assert timeline.costs.memory_limit == (CLUSTER.gpu.memory,) * estimate.strategy.pp


def test_an_order_that_the_plan_carries_is_replayed():
    estimate = found("pp4 gbs32 seq4096")
    plan = plan_of(estimate)
    rows = iteration(estimate).schedule.csv().splitlines()
    swapped = [row.replace("0F0,0F1", "0F1,0F0") for row in rows]
    timeline = plan_iteration(replace(plan, schedule={"name": "mine", "rows": swapped}), estimate)
    assert timeline.schedule.name == "mine"
    assert str(timeline.schedule.rows[0][0]) == "0F1"
    assert plan_iteration(plan, estimate).makespan == iteration(estimate).makespan
