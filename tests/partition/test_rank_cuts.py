"""Cuts of what whole layers cost a rank: every partition that fits keeps them, and they are worth their name."""

from __future__ import annotations

import time

import numpy as np
import pytest
from balance_cases import INSTANCES
from hypothesis import given, settings
from hypothesis import strategies as st
from test_brute_force import enumerated, problems

from shardwise.partition import Choice, Kind, KindRun, Problem
from shardwise.partition.bound import Bounder
from shardwise.partition.graph import Path, Ready
from shardwise.partition.least_memory import tightest
from shardwise.partition.rank_cuts import RankCuts, RankPoints
from shardwise.partition.readers.problem_file import problem_from


@given(problems(), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_every_partition_that_fits_keeps_every_cut(problem, seed):
    ready, rng = Ready(problem), np.random.default_rng(seed)
    tables = np.array(list(enumerated(ready)), dtype=np.int32)
    fitting = tables[ready.fits(tables)]
    if not len(fitting):
        return
    path = Path(time=0.0, times=rng.integers(0, 4, (4, ready.chunks)).astype(float), lag=0.0)
    mixed = tables[rng.integers(0, len(tables), 3)].mean(axis=0)
    for cut in RankCuts(ready).violated(mixed, path, -np.inf):
        left = fitting.reshape(len(fitting), -1)[:, cut.columns] @ cut.values
        assert (left <= cut.most + 1e-6 * (1 + abs(cut.most))).all()


@given(problems())
@settings(max_examples=25, deadline=None)
def test_a_bound_with_cuts_is_below_the_optimum(problem):
    ready = Ready(problem)
    tables = np.array(list(enumerated(ready)), dtype=np.int32)
    fitting = tables[ready.fits(tables)]
    if not len(fitting):
        return
    times = ready.times(fitting)
    bounder = bounded(ready, fitting[times.argmin()], rank_cuts=True)
    assert bounder.bound <= times.min() * (1 + 1e-9)


def bounded(ready, incumbent, *, rank_cuts):
    bounder = Bounder(
        ready=ready, incumbent=incumbent, deadline=time.process_time() + 1e4, found=lambda *_: False,
        rank_cuts=rank_cuts,
    )  # fmt: skip
    bounder.relax()
    return bounder


def layers(memory, count=4):
    choices = (
        Choice(name="none", f=1.0, i=2.0, w=0.0, activation=10.0),
        Choice(name="full", f=1.0, i=3.0, w=0.0, activation=4.0),
    )
    runs = (KindRun(kind=Kind(name="layer", choices=choices), count=count),)
    return Ready(Problem(pp=2, microbatches=4, runs=runs, limits=(memory,)))


def test_by_hand():
    """Rank 0 holds two micro batches: 8 a layer at least, so 3 of them in 30; 20 a layer when nothing is recomputed."""
    rank = RankPoints(layers(30.0), 0)
    assert rank.points.ravel().tolist() == [1.0, 2.0, 3.0]
    weights = np.array([[3.0, 4.0]])
    # 1 layer fits as it is; 2 hold 40, 10 too much, which 10 / 12 of a layer recomputed make good; 3 lack 30.
    assert rank.cost(weights) == pytest.approx([3.0, 6.0 + 10 / 12, 9.0 + 30 / 12])


def test_they_tighten_the_bound_where_memory_is_short():
    """With pp 32 x vpp 2, so full that ranks hold 4 to 8 layers: half of the gap of 18% is whole layers."""
    data = {**INSTANCES["S2"]["problem"], "pp": 32, "vp": 2, "mb": 32, "layers": 192, "mem_limit": 90000}
    ready = Ready(problem_from(data))
    start = tightest(ready).counts
    plain, cut = (bounded(ready, start, rank_cuts=one).bound for one in (False, True))
    assert cut >= 1.08 * plain
    assert cut <= 3424  # which is reached
