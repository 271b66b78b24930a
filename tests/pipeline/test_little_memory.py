"""Below 1F1B's memory, with limits of each rank's own, and at scale: `auto` is never behind what it can make itself."""

import dataclasses
import random

import pytest

from shardwise.errors import InputError
from shardwise.pipeline.action import Schedule, placed
from shardwise.pipeline.costs import costs, limit_of
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.faults import find_fault
from shardwise.pipeline.generate import SHAPES, generate
from shardwise.pipeline.optimise import optimise, published

from .window_greedy import window_greedy


def drawn(seed):
    """Unequal chunks, limits from 0.4 to 1.6 of 1F1B's memory by rank, any placement."""
    dice = random.Random(seed)  # noqa: S311 - a test
    pp, vpp = dice.choice((2, 3, 4, 6)), dice.choice((1, 2, 2, 3))
    placement = dice.choice(("v", "loop")) if vpp > 1 else "loop"
    m, ranks = dice.choice((pp, 2 * pp, 2 * pp + 1)), placed(pp, vpp, placement)
    spread = dice.choice((0.0, 0.5))
    times = [[x * dice.uniform(1 - spread, 1 + spread) for _ in ranks] for x in (10, 11, dice.choice((0.1, 9, 15)))]
    given = costs(pp=pp, vpp=vpp, f=times[0], i=times[1], w=times[2], hop=dice.choice((0, 1, 5)),
                  free_at_input_grad=dice.choice((0.5, 0.0, 1.0)))  # fmt: skip
    whole = limit_of(given, ranks, 1.0)
    limits = [max(1 / pp, dice.uniform(0.4, 1.6)) * room for room in whole]
    if dice.random() < 0.2:
        return given, pp, vpp, m, placement
    return dataclasses.replace(given, memory_limit=tuple(limits)), pp, vpp, m, placement


@pytest.mark.parametrize("part", range(10))
def test_auto_is_never_behind_what_it_can_generate(part):
    """500 drawn pipelines: no order by name that fits, and no window greedy, is faster."""
    rivals = 0
    for seed in range(50 * part, 50 * part + 50):
        given, pp, vpp, m, placement = drawn(seed)
        answer = optimise(given, pp=pp, vpp=vpp, microbatches=m, placement=placement, effort=0.02)
        assert find_fault(answer.schedule, given) is None
        assert answer.value >= answer.bound.value * (1 - 1e-9)
        for rival in published(given, pp=pp, vpp=vpp, microbatches=m, placement=placement):
            if find_fault(rival, given) is None:
                rivals += 1
                assert answer.value <= simulate(rival, given).makespan * (1 + 1e-9), (seed, rival.name)
        for window in (pp // 2, pp, 2 * pp) if seed % 5 == 0 else ():
            found = window_greedy(given, placed(pp, vpp, placement), m, max(1, window))
            assert found is None or answer.value <= found * (1 + 1e-9), (seed, window)
    assert rivals > 20


@pytest.mark.parametrize("part", range(4))
def test_every_generator_gives_a_valid_order_of_unequal_costs(part):
    """1,000 drawn pipelines with heavy ranks, through every schedule by name."""
    made = dict.fromkeys(SHAPES, 0)
    for seed in range(250 * part, 250 * part + 250):
        dice = random.Random(seed)  # noqa: S311 - a test
        pp, m = dice.choice((1, 2, 3, 4, 8)), dice.choice((1, 2, 4, 8, 16))
        for name, shape in SHAPES.items():
            vpp = shape.vpp or dice.choice((2, 3))
            times = [[float(dice.choice((x, dice.randint(0, 30)))) for _ in range(pp * vpp)] for x in (10, 11, 9)]
            heavy = dice.randrange(pp * vpp)
            for values, most in zip(times, (15, 1, 22), strict=True):
                values[heavy] = most
            given = costs(pp=pp, vpp=vpp, f=times[0], i=times[1], w=times[2], hop=dice.choice((0, 1, 30)))
            try:
                schedule = generate(name, pp=pp, vpp=vpp, microbatches=m, costs=given)
            except InputError:  # not for this number of micro batches
                continue
            made[name] += 1
            if name != "seq-1f1b":  # its micro batches are pieces, with costs of their own
                assert find_fault(schedule, given) is None, (seed, name)
    assert min(made.values()) > 50


def test_the_heavy_first_rank_of_the_report_is_planned():
    given = costs(pp=8, f=[15, *[10] * 7], i=[1, *[11] * 7], w=[22, *[9] * 7])
    assert find_fault(generate("zb-2p", pp=8, microbatches=16, costs=given), given) is None


@pytest.mark.parametrize(
    ("vpp", "m", "placement", "hop", "w", "chunks", "most"),
    [
        (2, 64, "v", 1, 9, 24, 5994),  # V-Min
        (4, 64, "v", 0, 9, 64, 13588),  # a window greedy
        (4, 64, "v", 5, 9, 64, 17148),
        (2, 32, "loop", 0, 0.5, 32, 4728),
    ],
)
def test_large_pipelines_with_little_memory_are_not_behind_their_rivals(vpp, m, placement, hop, w, chunks, most):
    given = costs(pp=32, vpp=vpp, f=10, i=11, w=w, hop=hop, memory_limit=chunks)
    answer = optimise(given, pp=32, vpp=vpp, microbatches=m, placement=placement, effort=0.2)
    assert answer.value <= most
    assert max(answer.timeline.peak) <= chunks


def test_a_large_pipeline_with_recompute_is_not_behind_pytorchs():
    """11016 by PyTorch's InterleavedZeroBubble at 1F1B's memory."""
    given = costs(pp=32, vpp=2, f=10, i=20, w=10, hop=1)
    given = dataclasses.replace(given, memory_limit=limit_of(given, placed(32, 2, "v"), 1.0))
    assert optimise(given, pp=32, vpp=2, microbatches=128, effort=0.02).value <= 11016


def test_orders_with_full_backwards_are_starts_too():
    """Interleaved's own peaks as limits of the ranks: auto is not slower than it."""
    given = costs(pp=32, vpp=4, f=10, i=11, w=9, hop=5)
    rival = simulate(generate("interleaved", pp=32, vpp=4, microbatches=64), given)
    limited = dataclasses.replace(given, memory_limit=rival.peak)
    answer = optimise(limited, pp=32, vpp=4, microbatches=64, placement="loop", effort=0.05)
    assert answer.value <= rival.makespan


def test_a_full_backward_is_split_in_place():
    schedule = Schedule.parse("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1I1,1W1\n").split()
    assert schedule.csv() == "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1W0,1F1,1I1,1W1\n"
