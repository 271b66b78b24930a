"""Bounds by seams between kinds of layers: no partition gets lost between the parts, and the parts are worth it."""

from __future__ import annotations

import time

import numpy as np
import pytest
from drawn_problems import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from test_brute_force import enumerated, problems

from shardwise.partition.bound import Bounder
from shardwise.partition.graph import Ready
from shardwise.partition.least_memory import tightest
from shardwise.partition.seams import SeamSearch, allowed, split


@given(problems(), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_every_partition_is_in_one_part(problem, seed):
    ready, rng = Ready(problem), np.random.default_rng(seed)
    if len(ready.run_counts) == 1:
        return
    tables = np.array(list(enumerated(ready)), dtype=np.int32)
    tables = tables[rng.integers(0, len(tables), 20)]
    parts = [((0, ready.chunks - 1),)]
    while any(first < last for ((first, last),) in parts):
        ranges = parts.pop(0)
        halves = list(split(ready, ranges, rng.random((ready.chunks, ready.options))))
        parts += halves or [ranges]
    runs = np.stack([tables[:, :, ready.run_of == run].sum(axis=2) for run in range(2)], axis=2)
    ends = [max(np.flatnonzero(one[:, 0]).tolist()) for one in runs]
    for one, end in zip(runs, ends, strict=True):
        assert [ranges for ranges in parts if ranges == ((end, end),)] == [((end, end),)]
        assert not one[~allowed(ready, ((end, end),))].any()


def test_where_a_seam_stands_by_hand():
    """Four chunks of three kinds: the first ends in chunk 1, the second in chunk 2 or 3."""
    ready = Ready(drawn(3))
    table = allowed(ready, ((1, 1), (2, 3)))
    assert table[:4].astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 1, 1]]
    assert not table[4:, :2].any()


@given(problems())
@settings(max_examples=25, deadline=None)
def test_a_bound_by_seams_is_below_the_optimum(problem):
    ready = Ready(problem)
    tables = np.array(list(enumerated(ready)), dtype=np.int32)
    fitting = tables[ready.fits(tables)]
    if not len(fitting):
        return
    times = ready.times(fitting)
    best, told = float(times.min()), list[float]()

    def found(bound, _counts):
        told.append(bound)
        return bound >= best

    SeamSearch(ready=ready, found=found).run(fitting[times.argmin()], best, time.process_time() + 1e4, whole=True)
    assert max(told) <= best * (1 + 1e-9)
    assert told == sorted(told)


def test_three_kinds_have_a_tighter_bound():
    """Few whole numbers fit a rank of one kind (pp 16 x vpp 2): 2,178 where kinds may mix, 2,221 where they do not."""
    ready = Ready(drawn(19))
    start, limit = tightest(ready).counts, 2409.0
    until = time.process_time() + 1e4
    mixed = Bounder(ready=ready, incumbent=start, deadline=until, found=lambda *_: False, rank_cuts=True)
    mixed.relax(ordered=False)
    told = list[float]()

    def found(bound, _counts):
        told.append(bound)
        return False

    SeamSearch(ready=ready, found=found).run(start, limit, until, whole=False)
    assert told[0] == pytest.approx(mixed.bound, rel=1e-3)
    assert 2215 < told[-1] < limit
