"""The order of work that a partition is simulated under.

The interleaves of `shardwise.schedule` want micro batches in whole groups of pp. MindFormers runs any number: the
remainder joins the first group and the warm-up grows with it (SAPP's simulator, seed 001); that order is made here.
"""

from __future__ import annotations

import numpy as np

from shardwise.errors import InputError
from shardwise.partition.problem import Problem
from shardwise.schedule.generate import generate
from shardwise.simulate.action import B, Codes, Schedule
from shardwise.simulate.costs import Costs
from shardwise.simulate.engine import simulate


def order_of(problem: Problem) -> Schedule:
    """The schedule of a problem; one that cannot run to its end is refused."""
    if problem.order is not None:
        return _matching(problem, problem.order)
    pp, vpp, m = problem.pp, problem.vpp, problem.microbatches
    if problem.schedule in {"interleaved", "low-memory"} and vpp > 1 and m % pp:
        return _ragged(pp, vpp, m, low=problem.schedule == "low-memory")
    return generate(problem.schedule, pp=pp, vpp=vpp, microbatches=m, splits=problem.splits)


def _matching(problem: Problem, order: Schedule) -> Schedule:
    if (order.pp, order.chunks, order.microbatches) != (problem.pp, problem.chunks, problem.microbatches):
        raise InputError(
            f"the order has {order.pp} ranks, {order.chunks} chunks and {order.microbatches} micro batches; "
            f"the problem has {problem.pp}, {problem.chunks} and {problem.microbatches}"
        )
    return order


def _ragged(pp: int, vpp: int, microbatches: int, *, low: bool) -> Schedule:
    """Micro batches that are no multiple of pp: the remainder joins the first group, or is the only one."""
    rest = microbatches % pp
    first = min(microbatches, pp + rest)
    groups = [np.arange(first), *(np.arange(k, k + pp) for k in range(first, microbatches, pp))]
    ahead = (vpp - 1) * (first if microbatches > pp else pp)
    for short in (True, False) if low else (False,):
        warmups = [ahead + (pp - r - 1 if short else 2 * (pp - r - 1)) for r in range(pp)]
        rows = tuple(_row(r, pp, vpp, microbatches, groups, warmups[r]) for r in range(pp))
        name = "low-memory" if short else "interleaved"
        schedule = Schedule(codes=rows, chunks=pp * vpp, microbatches=microbatches, name=name)
        if runs_through(schedule):
            return schedule
    raise InputError(f"{microbatches} micro batches on pp {pp} x vpp {vpp} deadlock; use a multiple of {pp}")


def _row(rank: int, pp: int, vpp: int, microbatches: int, groups: list[Codes], warmup: int) -> Codes:
    own = [rank + j * pp for j in range(vpp)]
    forwards = np.concatenate([c * microbatches + group for group in groups for c in own])
    back = B * pp * vpp
    backwards = np.concatenate([(back + c) * microbatches + group for group in groups for c in reversed(own)])
    warmup = min(warmup, len(forwards))
    steady = np.stack((forwards[warmup:], backwards[: len(forwards) - warmup]), axis=1).ravel()
    return np.concatenate((forwards[:warmup], steady, backwards[len(forwards) - warmup :]))


def runs_through(schedule: Schedule) -> bool:
    """Whether no rank waits for ever."""
    ones = (1.0,) * schedule.chunks
    try:
        simulate(schedule, Costs(f=ones, i=ones, w=ones))
    except InputError:
        return False
    return True
