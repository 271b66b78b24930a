"""Small problems by enumeration through the simulator: the solver finds the optimum, its bound is never above it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from improve_slowly import improve_slowly

from shardwise.errors import InfeasibleError
from shardwise.partition import Choice, End, Kind, KindRun, Problem, evaluate, solve
from shardwise.partition.graph import Ready, critical_slowly, longest_slowly
from shardwise.partition.improve import improve
from shardwise.partition.least_memory import spread_evenly

SHAPES = [("1f1b", 2, 1), ("1f1b", 3, 1), ("gpipe", 2, 1), ("interleaved", 2, 2), ("low-memory", 2, 2), ("zb-h1", 3, 1),
          ("zb-v", 2, 2)]  # fmt: skip


@st.composite
def problems(draw):
    schedule, pp, vpp = draw(st.sampled_from(SHAPES))
    times = st.integers(1, 9).map(float)
    runs = []
    for k in range(draw(st.integers(1, 2))):
        f, w, held = draw(times), draw(times), draw(st.integers(2, 9))
        choices = [Choice(name="none", f=f, i=draw(times), w=w, activation=float(held))]
        if draw(st.booleans()):
            extra = draw(st.integers(1, 3))
            choices.append(Choice(name="full", f=f, i=choices[0].i + extra, w=w, activation=float(held // 2)))
        kind = Kind(name=f"kind {k}", choices=tuple(choices), static=float(draw(st.integers(0, 3))))
        runs.append(KindRun(kind=kind, count=draw(st.integers(1, 4))))
    m = draw(st.sampled_from([2, 4])) if vpp > 1 else draw(st.integers(1, 4))
    empty = tuple(range(pp * vpp)) if sum(run.count for run in runs) < pp * vpp or draw(st.booleans()) else ()
    return Problem(
        pp=pp, vpp=vpp, microbatches=m, runs=tuple(runs), schedule=schedule, empty=empty,
        head=End(f=draw(times), i=1.0, w=1.0, static=2.0), tail=End(f=1.0, i=draw(times), w=2.0, static=1.0),
        limits=(float(draw(st.integers(8, 120))),), hop=float(draw(st.integers(0, 2))),
    )  # fmt: skip


def enumerated(ready: Ready):
    """Every partition, as counts."""
    problem, layers = ready.problem, [k for k, run in enumerate(ready.problem.runs) for _ in range(run.count)]
    for cuts in product(range(len(layers) + 1), repeat=ready.chunks - 1):
        ends = (0, *cuts, len(layers))
        if any(b - a < least for a, b, least in zip(ends, ends[1:], problem.least, strict=False)):
            continue
        yield from _chosen(ready, layers, ends)


def _chosen(ready: Ready, layers, ends):
    parts = []
    for c in range(ready.chunks):
        inside = layers[ends[c] : ends[c + 1]]
        rows = set()
        options = [np.flatnonzero(ready.run_of == run).tolist() for run in inside]
        for picked in product(*options):
            rows.add(tuple(np.bincount(picked, minlength=ready.options).tolist()) if picked else (0,) * ready.options)
        parts.append(sorted(rows))
    yield from product(*parts)


@given(problems())
@settings(max_examples=40, deadline=None)
def test_the_optimum_by_enumeration(problem):
    ready = Ready(problem)
    tables = np.array(list(enumerated(ready)), dtype=np.int32)
    fitting = tables[ready.fits(tables)]
    if not len(fitting):
        with pytest.raises(InfeasibleError):
            solve(problem)
        return
    best = float(ready.times(fitting).min())
    answer = solve(problem, effort=0.1)
    assert answer.simulated == pytest.approx(best, rel=1e-9)
    assert answer.bound <= best * (1 + 1e-9)
    assert answer.best.fits


@given(problems(), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_the_fast_evaluation_is_the_simulator(problem, seed):
    ready = Ready(problem)
    start = spread_evenly(ready)
    found = improve(Ready(free(problem)), start, steps=50, hot=1e9, cold=1e9, seed=seed).counts
    said = evaluate(problem, ready.partition(found))
    assert said.simulated == ready.times(found[None])[0]
    assert said.peak == pytest.approx(ready.peaks(found))
    assert ready.critical(ready.durations(found)).time == said.simulated
    assert longest_slowly(ready, ready.durations(found).reshape(1, -1))[0] == said.simulated
    slow, fast = critical_slowly(ready, ready.durations(found)), ready.critical(ready.durations(found))
    assert (slow.times == fast.times).all()
    assert fast.under(ready.durations(found)) == pytest.approx(said.simulated)


def free(problem: Problem) -> Problem:
    from dataclasses import replace

    return replace(problem, limits=())


@given(problems(), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_annealing_is_its_reference(problem, seed):
    ready = Ready(problem)
    start = spread_evenly(ready)
    if not ready.fits(start):
        ready = Ready(free(problem))
    words = {"steps": 120, "hot": 5.0, "cold": 0.1, "seed": seed, "goal": 0.0, "fine": 0.3}
    fast, slow = improve(ready, start, **words), improve_slowly(ready, start, **words)
    assert fast.time == slow.time
    assert (fast.counts == slow.counts).all()
    assert fast.evaluations == slow.evaluations


@given(problems())
@settings(max_examples=25, deadline=None)
def test_more_memory_is_never_slower(problem):
    from dataclasses import replace

    try:
        tight = solve(problem, effort=0.1)
    except InfeasibleError:
        return
    roomy = solve(replace(problem, limits=(2 * problem.limits[0],)), effort=0.1)
    assert roomy.simulated <= tight.simulated * (1 + 1e-9)
