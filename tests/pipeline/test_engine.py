import dataclasses
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.errors import InputError
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.costs import Costs, costs
from shardwise.pipeline.engine import Prepared, replay, replay_slowly, simulate
from shardwise.pipeline.generate import generate
from shardwise.pipeline.optimise import optimise

from .slow_simulator import slow_times

NAMES = (
    "gpipe",
    "1f1b",
    "interleaved",
    "zb-h1",
    "zb-h2",
    "zb-1p",
    "zb-v",
    "v-half",
    "v-min",
    "dualpipe-v",
    "low-memory",
)


@st.composite
def pipelines(draw):
    """A schedule with random costs: a published one, or one whose rows were stirred within what order allows."""
    pp, groups = draw(st.integers(1, 4)), draw(st.integers(2, 3))
    schedule = generate(draw(st.sampled_from(NAMES)), pp=pp, microbatches=pp * groups)
    dice = random.Random(draw(st.integers(0, 10**6)))  # noqa: S311 - a test

    def some(count):
        return tuple(round(dice.uniform(0, 20), 2) for _ in range(count))

    c = schedule.chunks
    return schedule, Costs(f=some(c), i=some(c), w=some(c), hop=some(c - 1), transfer=some(c - 1))


@given(pipelines())
@settings(max_examples=60, deadline=None)
def test_fast_engine_equals_the_slow_one(pair):
    schedule, given_costs = pair
    timeline, truth = simulate(schedule, given_costs), slow_times(schedule, given_costs)
    for rank, row in enumerate(schedule.rows):
        for k, action in enumerate(row):
            assert (timeline.start[rank][k], timeline.end[rank][k]) == pytest.approx(truth[str(action)], abs=1e-9)


@given(pipelines(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_both_engines_agree_bit_for_bit(pair, contention):
    schedule, given_costs = pair
    given_costs = dataclasses.replace(given_costs, contention=contention)
    results = []
    for engine in (replay, replay_slowly):
        data = Prepared(schedule, given_costs)
        assert engine(data) == schedule.actions
        results.append((data.start, data.end, data.cause))
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


@given(pipelines())
@settings(max_examples=40, deadline=None)
def test_bubble_parts_sum_to_the_bubble(pair):
    timeline = simulate(*pair)
    if timeline.makespan > 0:
        parts = timeline.bubbles()
        assert sum(parts.values()) == pytest.approx(timeline.bubble, abs=1e-9)
        assert min(parts.values()) >= -1e-12
        stacked = timeline.period_bubbles()
        assert sum(stacked.values()) == pytest.approx(timeline.period_bubble, abs=1e-9)
        assert stacked["warm-up"] == stacked["drain"] == 0


def test_hand_sized_case():
    schedule = Schedule.parse("0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,2W0,1I0,1W0\n")
    timeline = simulate(schedule, costs(pp=2, vpp=2, f=10, i=11, w=9, hop=1))
    assert timeline.makespan == 106
    assert timeline.peak == (2, 2)
    path = timeline.critical_path()
    assert [str(step.action) for step in path] == ["0F0", "1F0", "2F0", "3F0", "3I0", "2I0", "2W0", "1I0", "0I0", "0W0"]
    assert [step.waited_for for step in path][:4] == ["start", "data", "rank", "data"]


def test_critical_path_has_no_gap_but_messages():
    timeline = simulate(generate("zb-v", pp=4, microbatches=8), costs(pp=4, vpp=2, f=10, i=11, w=9, hop=1))
    path = timeline.critical_path()
    assert path[0].start == 0
    assert path[-1].end == timeline.makespan
    for before, after in pairwise(path):
        assert after.start - before.end == (1 if before.rank != after.rank else 0)


def test_one_f_one_b_bubble_is_the_textbook_one():
    for pp, m in ((2, 2), (4, 8), (8, 5)):
        timeline = simulate(generate("1f1b", pp=pp, microbatches=m), costs(pp=pp, f=3, i=4, w=2))
        assert timeline.makespan == (m + pp - 1) * 9


def test_link_contention_delays_the_second_message():
    schedule = Schedule.parse("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n")
    base = Costs(f=(1, 1), i=(1, 1), w=(1, 1), hop=(0.5,), transfer=(3.0,))
    free = simulate(schedule, base)
    shared = simulate(schedule, dataclasses.replace(base, contention=True))
    assert free.start[1].tolist()[:2] == [4.5, 5.5]
    assert shared.start[1].tolist()[:2] == [4.5, 7.5]  # the second waits on the link until 4, then 3 + 0.5


def test_memory_is_taken_at_the_start_and_freed_by_shares():
    schedule = Schedule.parse("0F0,0F1,0I0,0F2,0W0,0I1,0W1,0I2,0W2\n")
    timeline = simulate(
        schedule, Costs(f=(1,), i=(1,), w=(1,), activation=(8,), free_at_input_grad=0.25, static=(100,))
    )
    assert timeline.levels(0).tolist() == [108, 116, 116, 122, 122, 116, 114, 108, 106]
    assert timeline.peak == (122,)
    assert timeline.memory(0)[1][-1] == 100


def test_iteration_adds_reduction_and_optimizer():
    schedule = generate("1f1b", pp=2, microbatches=2)
    base = Costs(f=(1, 1), i=(1, 1), w=(1, 1), reduce=(5, 0), optimizer=2)
    assert simulate(schedule, base).iteration == 9 + 5 + 2
    assert simulate(schedule, dataclasses.replace(base, barrier=False)).iteration == 9 + 5 + 2
    late = dataclasses.replace(base, reduce=(0, 5))
    assert simulate(schedule, late).iteration == 7 + 5 + 2  # rank 1 ends at 7, rank 0 at 10


def test_deadlock_is_said():
    with pytest.raises(InputError, match="deadlock: 2 ranks wait"):
        simulate(Schedule.parse("0B0,0F0\n1F0,1B0\n"), costs(pp=2, f=1, i=1, w=1))


def test_sizes_must_match():
    with pytest.raises(InputError, match="costs are of 4 chunks"):
        simulate(generate("1f1b", pp=2, microbatches=2), costs(pp=2, vpp=2, f=1, i=1, w=1))


def test_all_faults_of_costs_at_once():
    with pytest.raises(InputError) as error:
        costs(pp=2, vpp=2, f=[1, 2, 3], i=-1, w=1, free_at_input_grad=2)
    assert {fault.path for fault in error.value.faults} == {"f", "i", "free_at_input_grad"}


@pytest.mark.parametrize("kernels", [True, False])
def test_optimised_schedule_is_replayed_the_same_without_kernels(kernels):
    answer = optimise(costs(pp=3, vpp=2, f=10, i=11, w=9, hop=1), pp=3, vpp=2, microbatches=6, effort=0.02)
    data = Prepared(answer.schedule, answer.timeline.costs)
    assert (replay if kernels else replay_slowly)(data) == answer.schedule.actions
    assert data.end.max() == answer.value
