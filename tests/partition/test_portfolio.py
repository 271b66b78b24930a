"""The portfolio of balance: no plain annealer beats it, time limits hold, and steps decide where that is asked."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice

import pytest
from balance_cases import instance
from drawn_problems import drawn
from plain_annealer import anneal_plainly

from shardwise.partition import Kind, KindRun, solve
from shardwise.partition.graph import Ready
from shardwise.partition.improve import improve
from shardwise.partition.least_memory import spread_evenly
from shardwise.partition.portfolio import luby

BEATEN = 5e-4


@pytest.mark.parametrize("number", [0, 1, 2, 11, 22, 24])
def test_no_plain_annealer_beats_it(number):
    """Steps in place of seconds: the kernel takes some hundred steps in the time of one in Python; here 5 and more."""
    problem = drawn(number)
    ours = solve(problem, seconds=1e4, effort=0.02, prove=False)
    plain = anneal_plainly(Ready(problem), seed=number, steps=3000)
    assert ours.best.fits
    assert ours.bound <= min(ours.simulated, plain) * (1 + 1e-9)
    assert ours.simulated <= plain * (1 + BEATEN)


def test_no_single_long_run_beats_it():
    problem = instance("P4")
    ours = solve(problem, seconds=1e4, effort=0.2, prove=False)
    ready, value = Ready(problem), ours.simulated
    start = spread_evenly(ready)
    for seed in range(3):
        run = improve(
            ready, start, steps=ours.evaluations, hot=5e-3 * value, cold=3e-5 * value, seed=seed, fine=10.0
        )  # fmt: skip
        assert value <= run.time * (1 + BEATEN)


def test_the_time_limit_is_used_and_kept():
    """CPU seconds, so whatever else runs: unproven, the search goes on to the end, and never far beyond it."""
    began = time.process_time()
    answer = solve(instance("S2"), seconds=3.0)
    taken = time.process_time() - began
    assert answer.out_of_time
    assert not answer.proven
    assert 3.0 <= taken <= 3.0 * 1.5


def test_what_is_proven_stops_early():
    answer = solve(instance("S1"), seconds=1e4)
    assert answer.proven
    assert not answer.out_of_time


def test_with_an_effort_steps_decide_whatever_the_limit():
    """The same answer however much time there is."""
    one, two = (solve(instance("P4"), effort=0.02, seconds=seconds, prove=False) for seconds in (1e3, 1e4))
    assert one.best.partition == two.best.partition
    assert one.evaluations == two.evaluations
    assert not one.out_of_time


def test_whole_numbers_in_place_of_fractions_are_the_same():
    """Static memory given as an int was read by the kernel as nothing, and what it found did not fit."""
    problem = drawn(22)
    rounded = [
        replace(run.kind, static=kind(run.kind.static))
        for kind in (int, lambda static: float(int(static)))
        for run in problem.runs
    ]
    half = len(problem.runs)
    found = [
        solve(replace(problem, runs=_runs(problem, kinds)), effort=0.01, prove=False)
        for kinds in (rounded[:half], rounded[half:])
    ]
    assert found[0].best.partition == found[1].best.partition
    assert found[0].simulated < Ready(problem).times(spread_evenly(Ready(problem))[None])[0]


def _runs(problem, kinds: list[Kind]):
    return tuple(KindRun(kind=kind, count=run.count) for kind, run in zip(kinds, problem.runs, strict=True))


def test_lengths_are_lubys():
    assert list(islice(luby(), 15)) == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]
    assert max(islice(luby(), 100)) == 8
