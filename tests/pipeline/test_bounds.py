import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.exact_orders import Tiny, least_makespan
from shardwise.pipeline.action import Schedule, placed
from shardwise.pipeline.arrays import _reachable, make_problem
from shardwise.pipeline.bounds import jackson, lower_bound
from shardwise.pipeline.costs import Costs, costs, limit_of
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.faults import find_fault
from shardwise.pipeline.generate import generate
from shardwise.pipeline.memory_bounds import limited_heads, limited_tails
from shardwise.pipeline.mix_case import Chunks, MixCase, reachable
from shardwise.pipeline.optimise import bound_of
from shardwise.pipeline.rederive import rederived


def test_jackson_on_a_known_case():
    """Carlier (1982), 7 jobs: heads, durations, tails; the preemptive optimum is 49."""
    heads, work, tails = [10, 13, 11, 20, 30, 0, 30], [5, 6, 7, 4, 3, 6, 2], [7, 26, 24, 21, 8, 17, 0]
    assert jackson(np.array(heads, float), np.array(work, float), np.array(tails, float)) == 49


@pytest.mark.parametrize(("pp", "m"), [(4, 8), (8, 16), (16, 32), (8, 32)])
@pytest.mark.parametrize(("f", "i", "w", "hop"), [(10, 10, 10, 0), (10, 11, 9, 1), (61, 72, 71, 3)])
def test_closed_forms_on_a_v(pp, m, f, i, w, hop):
    """Equal chunks, vpp 2: A = (pp-1)(F+c) + 2m(F+I+W); at 1p B = 2(pp-1)c + (pp-1)(I+c) + 2m(F+I+W)."""
    given_costs = costs(pp=pp, vpp=2, f=f, i=i, w=w, hop=hop)
    ranks = placed(pp, 2, "v")
    free = lower_bound(make_problem(given_costs, ranks, m)).value
    assert free >= (pp - 1) * (f + hop) + 2 * m * (f + i + w)
    tight = dataclasses.replace(given_costs, memory_limit=limit_of(given_costs, ranks, 1.0))
    assert lower_bound(make_problem(tight, ranks, m)).value >= (pp - 1) * (i + 3 * hop) + 2 * m * (f + i + w)


# (costs, pp, micro batches, limit in 1F1B's, optimum) settled by CP-SAT in the study, section 6
SETTLED = [
    ((10, 11, 9, 1), 2, 4, 1, 254), ((10, 11, 9, 1), 2, 8, 1, 494), ((10, 11, 9, 1), 3, 6, 1, 388),
    ((10, 11, 9, 1), 4, 4, 1, 282), ((10, 11, 9, 1), 4, 8, 1, 522), ((10, 11, 9, 1), 4, 8, None, 513),
    ((10, 11, 9, 1), 6, 12, None, 775), ((10, 11, 9, 1), 8, 16, None, 1037), ((10, 20, 10, 1), 4, 8, None, 673),
    ((10, 20, 10, 1), 4, 8, 1, 709), ((10, 20, 10, 1), 6, 12, None, 1015), ((9, 9, 6, 1), 8, 16, None, 838),
]  # fmt: skip


@pytest.mark.parametrize(("times", "pp", "m", "limit", "optimum"), SETTLED)
def test_bound_equals_the_settled_optimum(times, pp, m, limit, optimum):
    f, i, w, hop = times
    given_costs, ranks = costs(pp=pp, vpp=2, f=f, i=i, w=w, hop=hop), placed(pp, 2, "v")
    if limit:
        given_costs = dataclasses.replace(given_costs, memory_limit=limit_of(given_costs, ranks, limit))
    assert lower_bound(make_problem(given_costs, ranks, m)).value == optimum


# (pp, vpp, micro batches, limit in 1F1B's, what the bound must reach, optimum by CP-SAT; of the last two the best
# known) with costs 10, 11, 9 and no hops
BELOW_1P = [
    (4, 1, 8, 0.5, 402, 420), (4, 1, 8, 0.75, 309, 318), (4, 2, 4, 0.5, 350, 360), (8, 1, 8, 0.5, 444, 444),
    (8, 1, 8, 0.75, 384, 384), (8, 1, 16, 0.5, 798, 822), (8, 2, 16, 0.5, 1182, 1212),
]  # fmt: skip


@pytest.mark.parametrize(("pp", "vpp", "m", "limit", "reached", "optimum"), BELOW_1P)
def test_what_the_bound_reaches_below_1f1bs_memory(pp, vpp, m, limit, reached, optimum):
    given_costs, ranks = costs(pp=pp, vpp=vpp, f=10, i=11, w=9), placed(pp, vpp, "v")
    given_costs = dataclasses.replace(given_costs, memory_limit=limit_of(given_costs, ranks, limit))
    for objective in ("makespan", "period"):
        assert reached <= lower_bound(make_problem(given_costs, ranks, m), objective).value <= optimum


def test_a_forward_waits_for_the_work_that_makes_its_room():
    """One rank, room for two micro batches: F of the third waits for I and W of the first, or two I."""
    given_costs = costs(pp=1, f=10, i=11, w=9, memory_limit=2)
    problem = make_problem(given_costs, (0,), 4)
    head = limited_heads(problem, [0])[0]
    assert head[0, 0].tolist() == [0, 10, 40, 70]
    tail = limited_tails(problem, np.zeros((1, 1)))[0]
    assert tail[1, 0].tolist() == [89, 59, 29, 9]


def test_many_micro_batches_need_the_area_of_their_bytes():
    """Of a V of three chunks, rank 0 has room for 12 and holds 1,224.5 bytes x time for each micro batch.

    That is 3,265 for 32. Before the room can be full and after it no longer is, some of it stays unused; without that
    3,485 was known.
    """
    given_costs, ranks = costs(pp=8, vpp=3, f=10, i=11, w=9, hop=5), placed(8, 3, "v")
    given_costs = dataclasses.replace(given_costs, memory_limit=limit_of(given_costs, ranks, 0.5))
    case = MixCase(
        chunks=Chunks(given_costs.f, given_costs.i, given_costs.w, (1.0,) * 24), rank_of=ranks, microbatches=32,
        hop=given_costs.hop, free=0.5, room=given_costs.limits(8),
    )  # fmt: skip
    for objective in ("makespan", "period"):
        bound = lower_bound(make_problem(given_costs, ranks, 32), objective)
        assert (bound.kind, bound.rank) == ("memory", 0)
        assert 3602 < bound.value < 3603
    assert bound.value <= rederived(case, "makespan") < 3610


def tiny(seed):
    """Unequal chunks, any map, limits by rank, actions that take no time, whole numbers and broken ones."""
    dice = np.random.default_rng(seed)
    pp, vpp, m = [(1, 1, 4), (1, 2, 2), (1, 3, 2), (2, 1, 2), (2, 1, 3), (2, 2, 2), (3, 1, 2)][seed % 7]
    chunks = pp * vpp
    ranks = tuple(int(r) for r in dice.permutation(np.repeat(np.arange(pp), vpp)))
    low = int(dice.integers(0, 2))
    times = [tuple(map(float, dice.integers(low, 9, chunks))) for _ in range(3)]
    held = tuple(map(float, dice.integers(low, 5, chunks)))
    share = tuple(map(float, dice.choice([0, 0.25, 0.5, 1], chunks)))
    if dice.random() < 0.5:
        times = [tuple(map(float, dice.uniform(0, 9, chunks))) for _ in range(3)]
        held, share = tuple(map(float, dice.uniform(0, 5, chunks))), (float(dice.random()),) * chunks
    one = [sum(held[c] for c in range(chunks) if ranks[c] == rank) for rank in range(pp)]
    room = tuple(base * float(dice.choice([1, 1.3, 1.5, 2, 2.5])) for base in one)
    return Tiny(ranks, m, *times, float(dice.integers(0, 4)), held, share, room)


def bounds_of(q):
    hop = (q.hop,) * (len(q.rank_of) - 1)
    given_costs = Costs(
        f=q.f, i=q.i, w=q.w, hop=hop, activation=q.held, free_at_input_grad=q.share, memory_limit=q.room
    )
    case = MixCase(
        chunks=Chunks(q.f, q.i, q.w, q.held), rank_of=q.rank_of, microbatches=q.microbatches, hop=hop, free=q.share,
        room=q.room,
    )  # fmt: skip
    return lower_bound(make_problem(given_costs, q.rank_of, q.microbatches)).value, rederived(case, "makespan")


def test_no_order_of_a_tiny_pipeline_beats_the_bound_under_memory():
    """Nor what the checker derives, which is never less."""
    for seed in range(140):
        question = tiny(seed)
        ours, theirs = bounds_of(question)
        assert ours <= theirs * (1 + 1e-9)
        assert theirs <= least_makespan(question) * (1 + 1e-9), seed


def every_order(pp, vpp, m, ranks):
    """All orders of a tiny pipeline with first in, first out inside each stream."""
    chunks = pp * vpp
    rows = []
    for rank in range(pp):
        streams = [[f"{c}{kind}{k}" for k in range(m)] for c in range(chunks) if ranks[c] == rank for kind in "FIW"]
        rows.append(list(_merges(tuple(tuple(stream) for stream in streams))))
    return itertools.product(*rows)


def _merges(streams):
    if not any(streams):
        yield ()
        return
    for k, stream in enumerate(streams):
        if stream and not (stream[0][-2] == "W" and any(stream[0].replace("W", "I") in s for s in streams)):
            rest = (*streams[:k], stream[1:], *streams[k + 1 :])
            for tail in _merges(rest):
                yield (stream[0], *tail)


@given(st.lists(st.integers(1, 9), min_size=6, max_size=6), st.sampled_from([1.0, 1.5, 2.0]), st.integers(0, 3))
@settings(max_examples=12, deadline=None)
def test_bound_holds_for_every_order_of_a_tiny_pipeline(times, limit, hop):
    pp, vpp, m = 2, 1, 2
    ranks = placed(pp, vpp, "loop")
    given_costs = costs(pp=pp, f=times[:2], i=times[2:4], w=times[4:], hop=hop, memory_limit=limit)
    best = {"makespan": float("inf"), "period": float("inf")}
    for rows in every_order(pp, vpp, m, ranks):
        schedule = Schedule.parse("\n".join(",".join(row) for row in rows))
        if find_fault(schedule, given_costs) is None:
            timeline = simulate(schedule, given_costs)
            best["makespan"] = min(best["makespan"], timeline.makespan)
            best["period"] = min(best["period"], timeline.period)
    problem = make_problem(given_costs, ranks, m)
    for objective, value in best.items():
        assert lower_bound(problem, objective).value <= value + 1e-9


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_no_published_schedule_beats_the_bound(seed):
    dice = np.random.default_rng(seed)
    pp = int(dice.integers(1, 5))
    name = str(dice.choice(["zb-v", "v-half", "v-min", "zb-h1", "zb-h2", "interleaved", "dualpipe-v"]))
    schedule = generate(name, pp=pp, microbatches=pp * int(dice.integers(2, 4)))
    times = dice.uniform(1, 10, (3, schedule.chunks)).tolist()
    given_costs = costs(pp=pp, vpp=schedule.vpp, f=times[0], i=times[1], w=times[2], hop=float(dice.uniform(0, 2)))
    timeline = simulate(schedule, given_costs)
    given_costs = dataclasses.replace(given_costs, memory_limit=timeline.peak)  # the tightest limit it meets
    assert bound_of(given_costs, schedule=schedule).value <= timeline.makespan * (1 + 1e-9)
    assert bound_of(given_costs, schedule=schedule, objective="period").value <= timeline.period * (1 + 1e-9)


@pytest.mark.parametrize(
    ("room", "sizes", "used"),
    [
        (6.7, [1.0, 0.5, 0.5], 6.5),
        (6.99, [1.0, 1.0, 0.0], 6.0),
        (0.7, [0.3, 0.3, 0.0], 0.6),
        (7.0, [2.0, 0.6, 1.4], 7.0),
        (7.3, [3.0, 1.5, 1.5, 2.0, 1.0, 1.0], 7.0),
        (7.3, [3.1415926, 1.5, 1.6415926], 7.3),
    ],
)
def test_room_between_two_levels_is_never_used(room, sizes, used):
    held = np.array(sizes)
    assert reachable(room, sizes) == pytest.approx(used)
    assert _reachable(room, held) == pytest.approx(used)


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_a_limit_between_levels_bounds_as_the_level_below(seed):
    dice = np.random.default_rng(seed)
    pp, vpp, m = int(dice.integers(2, 5)), int(dice.integers(1, 4)), int(dice.integers(2, 7))
    given_costs = costs(pp=pp, vpp=vpp, f=10, i=11, w=9, hop=int(dice.integers(0, 6)))
    levels = [vpp + int(dice.integers(0, 2 * pp * vpp)) / 2 for _ in range(pp)]
    between = [level + float(dice.uniform(0, 0.499)) for level in levels]
    low, high = (dataclasses.replace(given_costs, memory_limit=tuple(limits)) for limits in (levels, between))
    ranks = placed(pp, vpp, "v")
    bounds = [lower_bound(make_problem(one, ranks, m)).value for one in (low, high)]
    assert bounds[0] == pytest.approx(bounds[1])
