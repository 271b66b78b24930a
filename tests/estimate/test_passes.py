"""The passes of an estimate are the event simulator's, for every schedule."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from shardwise.estimate.estimate import estimate
from shardwise.estimate.passes import one_f_one_b
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.strategy import Strategy
from shardwise.pipeline.costs import costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.generate import generate

MODEL, CLUSTER = load_model("llama-3-8b"), load_cluster("32xh100")


def test_1f1b_is_the_simulators_over_500_unequal_pipelines():
    draw = random.Random(1)  # noqa: S311 - the same pipelines every time
    for _ in range(500):
        pp = draw.choice([2, 3, 4, 8, 16])
        count = draw.choice([1, 2, pp, 2 * pp, 40, 100])
        forward = [draw.uniform(0.4, 1.6) for _ in range(pp)]
        backward = [draw.uniform(0.8, 3.2) for _ in range(pp)]
        hop = draw.choice([0.0, 0.02, 0.3])
        given = costs(pp=pp, f=forward, i=backward, w=0.0, hop=hop)
        exact = simulate(generate("1f1b", pp=pp, microbatches=count), given).makespan
        assert one_f_one_b(forward, backward, hop, count) == pytest.approx(exact, rel=1e-3)


BASE = Strategy(pp=4, dp=8, micro_batch=1, global_batch=128, seq=8192)


@pytest.mark.parametrize(
    ("schedule", "vpp"), [("interleaved", 2), ("zb-h1", 1), ("zb-1p", 1), ("zb-v", 2), ("v-half", 2), ("gpipe", 1)]
)
def test_other_schedules_are_replayed(schedule, vpp):
    runtime = "megatron-2021" if schedule != "gpipe" else "torchtitan"
    zero = 2 if runtime == "torchtitan" else 1
    placement = "v" if schedule in {"zb-v", "v-half"} else "loop"
    strategy = replace(BASE, schedule=schedule, vpp=vpp, placement=placement, runtime=runtime, zero=zero)
    found = estimate(MODEL, CLUSTER, strategy, checked=True)
    assert 0 <= found.bubble < 0.5
    assert all(rank.in_flight >= 1 for rank in found.memory)


def test_zero_bubble_beats_1f1b_and_v_half_keeps_less():
    plain = estimate(MODEL, CLUSTER, BASE, checked=True)
    split = estimate(MODEL, CLUSTER, replace(BASE, schedule="zb-1p"), checked=True)
    half = estimate(MODEL, CLUSTER, replace(BASE, schedule="v-half", vpp=2, placement="v"), checked=True)
    assert split.iteration_seconds < plain.iteration_seconds
    assert half.memory[0].in_flight / 2 < 0.75 * plain.memory[0].in_flight


def test_more_micro_batches_take_longer_and_shrink_the_bubble():
    few = estimate(MODEL, CLUSTER, BASE, checked=True)
    many = estimate(MODEL, CLUSTER, replace(BASE, global_batch=512), checked=True)
    assert many.iteration_seconds > few.iteration_seconds
    assert many.bubble < few.bubble
