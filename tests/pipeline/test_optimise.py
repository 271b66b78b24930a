import dataclasses
import os
import random
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.errors import InfeasibleError, InputError
from shardwise.pipeline.action import placed
from shardwise.pipeline.alternatives import optimise_alternatives
from shardwise.pipeline.arrays import make_problem
from shardwise.pipeline.bounds import lower_bound, tails
from shardwise.pipeline.build import Builder, BuildRule, build_slowly
from shardwise.pipeline.costs import costs, limit_of
from shardwise.pipeline.faults import find_fault
from shardwise.pipeline.generate import generate
from shardwise.pipeline.mixes import mix
from shardwise.pipeline.optimise import optimise

SEED = {"f": 10, "i": 11, "w": 9, "hop": 1}


def limited(pp, vpp, times, placement="v", **given_costs):
    base = costs(pp=pp, vpp=vpp, **given_costs)
    return dataclasses.replace(base, memory_limit=limit_of(base, placed(pp, vpp, placement), times))


def test_the_seeds_instance_is_solved_and_proven():
    answer = optimise(costs(pp=8, vpp=2, **SEED), pp=8, vpp=2, microbatches=16)
    assert answer.value == 1037
    assert answer.proven


@pytest.mark.parametrize(
    ("pp", "m", "times", "best_rival"),
    [
        (2, 4, 1, 254),
        (2, 8, 1, 494),
        (4, 8, 1, 526),
        (4, 8, 1.5, 522),
        (4, 4, 1, 289),
        (8, 16, 1, 1070),
        (8, 16, 1.5, 1047),
    ],
)
def test_the_seeds_instances_are_never_behind_a_rival(pp, m, times, best_rival):
    given_costs = limited(pp, 2, times, **SEED)
    answer = optimise(given_costs, pp=pp, vpp=2, microbatches=m, effort=0.1)
    assert answer.value <= best_rival
    assert find_fault(answer.schedule, given_costs) is None
    assert max(answer.timeline.peak) <= given_costs.memory_limit[0]


def test_one_p_holds_exactly_its_forwards():
    """Seed 002: at 1p sixteen forwards fit, 32 of 32 in its units (F +2, I -1, W -1), never seventeen."""
    answer = optimise(limited(8, 2, 1, **SEED), pp=8, vpp=2, microbatches=16, effort=0.2)
    assert [2 * peak for peak in answer.timeline.peak] == [32] * 8
    for row in answer.schedule.rows:
        kinds = [action.kind for action in row]
        assert kinds.index("I") <= 16
        assert kinds[: kinds.index("I")].count("F") == 16


def test_period_objective_beats_the_printed_rates():
    answer = optimise(costs(pp=8, vpp=2, **SEED), pp=8, vpp=2, microbatches=16, objective="period", effort=0.3)
    assert answer.value <= 971
    assert answer.timeline.seed_rate <= 11 / 960


@pytest.mark.parametrize(("chunks", "most"), [(6, 558), (4, 660)])
def test_below_1f1bs_memory(chunks, most):
    given_costs = costs(pp=4, vpp=2, **SEED, free_at_input_grad=0, memory_limit=chunks)
    answer = optimise(given_costs, pp=4, vpp=2, microbatches=8)
    assert answer.value <= most
    assert max(answer.timeline.peak) <= chunks


@pytest.mark.parametrize(("vpp", "placement"), [(1, "loop"), (3, "v"), (3, "loop"), (4, "v"), (4, "loop")])
def test_any_number_of_chunks(vpp, placement):
    given_costs = limited(4, vpp, 1.5, placement, f=20 / vpp, i=22 / vpp, w=18 / vpp, hop=1)
    answer = optimise(given_costs, pp=4, vpp=vpp, microbatches=8, placement=placement, effort=0.2)
    assert answer.gap <= 0.015


def test_unequal_chunks():
    gaps = []
    for seed in range(6):
        dice = random.Random(seed)  # noqa: S311 - a test
        times = [[x * dice.uniform(0.7, 1.3) for _ in range(16)] for x in (10, 11, 9)]
        given_costs = limited(8, 2, 1.5, f=times[0], i=times[1], w=times[2], hop=1)
        gaps.append(optimise(given_costs, pp=8, vpp=2, microbatches=16, effort=0.2).gap)
    assert np.mean(gaps) <= 0.007


def test_too_little_memory_names_the_smallest_limit():
    with pytest.raises(InfeasibleError, match=r"smallest feasible limit is 2\.5"):
        optimise(
            dataclasses.replace(costs(pp=2, vpp=2, **SEED, static=[0.5, 0]), memory_limit=(2.0, 2.0)),
            pp=2, vpp=2, microbatches=4,
        )  # fmt: skip
    exact = dataclasses.replace(costs(pp=2, vpp=2, **SEED, static=[0.5, 0]), memory_limit=(2.5, 2.5))
    assert optimise(exact, pp=2, vpp=2, microbatches=4, effort=0.05).value > 0


def test_same_input_same_schedule():
    given_costs = limited(4, 2, 0.75, **SEED)
    first, second = (optimise(given_costs, pp=4, vpp=2, microbatches=8, effort=0.05) for _ in range(2))
    assert first.schedule == second.schedule
    assert not first.out_of_time


def test_progress_improves_and_interrupt_keeps_the_best():
    values = []

    def report(value, bound, looked):
        values.append(value)
        assert value >= bound
        if looked > 30:
            raise KeyboardInterrupt

    given_costs = costs(pp=8, vpp=2, f=14407, i=14380, w=9676, hop=1610)
    answer = optimise(given_costs, pp=8, vpp=2, microbatches=8, report=report)
    assert answer.interrupted
    assert values == sorted(values, reverse=True)
    assert answer.value == values[-1]


def test_without_kernels_the_answer_is_sound_and_near():
    program = (
        "from shardwise.pipeline.optimise import optimise\n"
        "from shardwise.pipeline.costs import costs\n"
        "c = costs(pp=4, vpp=2, f=10, i=11, w=9, hop=1, memory_limit=8)\n"
        "print(optimise(c, pp=4, vpp=2, microbatches=8, effort=0.02).value)\n"
    )
    plain = os.environ | {"SHARDWISE_NO_KERNELS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=plain, capture_output=True, text=True, check=True)
    assert 522 <= float(done.stdout) <= 526


def test_a_time_limit_that_binds_is_said():
    given_costs = costs(pp=8, vpp=2, f=14407, i=14380, w=9676, hop=1610)
    answer = optimise(given_costs, pp=8, vpp=2, microbatches=8, time_limit=1e-9)
    assert answer.out_of_time
    assert answer.value > 0


def test_known_schedules_are_a_start():
    given_costs = limited(4, 2, 1, **SEED)
    known = generate("zb-v", pp=4, microbatches=8)
    answer = optimise(given_costs, pp=4, vpp=2, microbatches=8, effort=0.01, known=[known])
    assert answer.value <= 526


def test_mixing_recompute_beats_either_choice():
    plain = costs(pp=4, vpp=2, **SEED, free_at_input_grad=0, memory_limit=4)
    again = dataclasses.replace(plain, i=(21.0,) * 8, activation=(0.2,) * 8)
    options = {"pp": 4, "vpp": 2, "microbatches": 8, "effort": 0.2}
    mixed = optimise_alternatives([plain, again], **options)
    alone = min(optimise(one, **options).value for one in (plain, again))
    assert mixed.value < alone
    assert find_fault(mixed.schedule, mix([plain, again], mixed.choice)) is None


def test_bad_questions_are_refused():
    with pytest.raises(InputError, match="objective 'speed' is unknown"):
        optimise(costs(pp=2, vpp=2, **SEED), pp=2, vpp=2, microbatches=4, objective="speed")
    with pytest.raises(InputError, match="costs are of 4 chunks"):
        optimise(costs(pp=2, vpp=2, **SEED), pp=2, vpp=3, microbatches=4)
    with pytest.raises(InputError, match="at least 1"):
        optimise(costs(pp=2, vpp=2, **SEED), pp=2, vpp=2, microbatches=0)


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_compiled_and_plain_builder_agree_and_keep_every_rule(seed):
    dice = random.Random(seed)  # noqa: S311 - a test
    pp, vpp, m = dice.choice((1, 2, 3, 4)), dice.choice((1, 2, 3)), dice.choice((1, 2, 5, 8))
    ranks = placed(pp, vpp, dice.choice(("v", "loop")))
    times = [[dice.uniform(0, 15) for _ in range(pp * vpp)] for _ in range(4)]
    given_costs = costs(
        pp=pp, vpp=vpp, f=times[0], i=times[1], w=times[2], activation=times[3], hop=dice.uniform(0, 3),
        free_at_input_grad=dice.random(),
    )  # fmt: skip
    if dice.random() < 0.7:
        limit = max(1 / pp, dice.choice((0.5, 0.75, 1, 1.5)))
        given_costs = dataclasses.replace(given_costs, memory_limit=limit_of(given_costs, ranks, limit))
    problem = make_problem(given_costs, ranks, m)
    bound = lower_bound(problem).value
    rule = BuildRule(
        horizon=bound * dice.choice((0.5, 1, 1.1)), reserve=dice.choice((0, 1)), inherit=dice.uniform(-1, 1),
        window=dice.choice((1, 2, 3.5, 100)), pace=dice.choice((0, 0, 5)), patience=dice.choice((-1, 0, 4)),
    )  # fmt: skip
    builder, tail = Builder(problem), tails(problem).ravel()
    built = builder.build(rule, tail)
    rows, start = np.zeros(problem.actions, dtype=np.int32), np.zeros(problem.actions)
    assert build_slowly(problem, rule, tail, builder.lag, rows, start) == built.value
    assert np.array_equal(rows, built.rows)
    assert np.array_equal(start, builder.start)
    assert built.value >= bound * (1 - 1e-9)
    assert find_fault(problem.schedule(rows, "test"), given_costs) is None


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_more_memory_is_never_slower_by_the_bound(seed):
    dice = random.Random(seed)  # noqa: S311 - a test
    pp, m = dice.choice((2, 3, 4)), dice.choice((4, 8))
    times = [[dice.uniform(5, 15) for _ in range(2 * pp)] for _ in range(3)]
    bounds = []
    for limit in (0.5, 0.75, 1, 1.5, 2):
        given_costs = limited(pp, 2, limit, f=times[0], i=times[1], w=times[2], hop=1)
        bounds.append(lower_bound(make_problem(given_costs, placed(pp, 2, "v"), m)).value)
    assert all(more <= less * (1 + 1e-12) for less, more in pairwise(bounds))


@pytest.mark.parametrize("times", [0.3, 0.5, 0.75])
@pytest.mark.parametrize(("vpp", "placement", "free"), [(1, "loop", 0.5), (2, "v", 0.0), (2, "loop", 0.5)])
def test_mixes_below_1f1bs_memory(times, vpp, placement, free):
    """Never slower than one alternative everywhere, within the limit, and the bound over all mixes is below."""
    plain = limited(4, vpp, times, placement, **SEED, free_at_input_grad=free)
    again = costs(pp=4, vpp=vpp, **(SEED | {"i": 21}), activation=0.2, free_at_input_grad=free)
    again = dataclasses.replace(again, memory_limit=plain.memory_limit)
    shape = {"pp": 4, "vpp": vpp, "microbatches": 6, "placement": placement, "effort": 0.05}
    found = optimise_alternatives([plain, again], **shape)
    assert find_fault(found.schedule, mix([plain, again], found.choice)) is None
    assert found.bound.value <= found.value * (1 + 1e-9)
    assert found.value <= optimise(again, **shape).value * (1 + 1e-9)
    try:
        assert found.value <= optimise(plain, **shape).value * (1 + 1e-9)
    except InfeasibleError:
        assert any(found.choice)
