"""The order of work that a partition is simulated under.

The interleaves of `shardwise.pipeline` want micro batches in whole groups of pp. MindFormers runs any number: the
remainder joins the first group and the warm-up grows with it (SAPP's simulator, seed 001); that order is made here.
So is the interleave of pieces of sequences: groups hold whole micro batches, and the pieces of one go back last first.
"""

from __future__ import annotations

import numpy as np

from shardwise.errors import InputError
from shardwise.partition.problem import PIECES, Problem
from shardwise.pipeline.action import B, Codes, Schedule
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.generate import generate


def order_of(problem: Problem) -> Schedule:
    """The schedule of a problem; one that cannot run to its end is refused."""
    if problem.order is not None:
        return _matching(problem, problem.order)
    pp, vpp, m = problem.pp, problem.vpp, problem.microbatches
    if vpp > 1 and problem.schedule in PIECES and (m % pp or problem.splits > 1):
        return _ragged(pp, vpp, m, problem.splits, low=problem.schedule == "low-memory")
    return generate(problem.schedule, pp=pp, vpp=vpp, microbatches=m, splits=problem.splits)


def _matching(problem: Problem, order: Schedule) -> Schedule:
    if (order.pp, order.chunks, order.microbatches) != (problem.pp, problem.chunks, problem.microbatches):
        raise InputError(
            f"the order has {order.pp} ranks, {order.chunks} chunks and {order.microbatches} micro batches; "
            f"the problem has {problem.pp}, {problem.chunks} and {problem.microbatches}"
        )
    return order


def _ragged(pp: int, vpp: int, microbatches: int, splits: int, *, low: bool) -> Schedule:
    """Groups of pp pieces or a little more, in whole micro batches; the remainder joins the first group."""
    units, size = microbatches * splits, -(-pp // splits) * splits
    first = min(units, size + units % size)
    groups = [np.arange(first), *(np.arange(k, k + size) for k in range(first, units, size))]
    ahead = (vpp - 1) * (first if units > size else size) + splits - 1
    for short in (True, False) if low else (False,):
        warmups = [ahead + (pp - r - 1 if short else 2 * (pp - r - 1)) for r in range(pp)]
        rows = tuple(_row(r, pp, vpp, splits, groups, warmups[r]) for r in range(pp))
        name = "low-memory" if short else "interleaved"
        schedule = Schedule(codes=rows, chunks=pp * vpp, microbatches=units, name=name)
        if runs_through(schedule):
            return schedule
    raise InputError(f"{microbatches} micro batches on pp {pp} x vpp {vpp} deadlock; use a multiple of {pp}")


def _row(rank: int, pp: int, vpp: int, splits: int, groups: list[Codes], warmup: int) -> Codes:
    own, units = [rank + j * pp for j in range(vpp)], sum(map(len, groups))
    forwards = np.concatenate([c * units + group for group in groups for c in own])
    back, turned = B * pp * vpp, [group.reshape(-1, splits)[:, ::-1].ravel() for group in groups]
    backwards = np.concatenate([(back + c) * units + group for group in turned for c in reversed(own)])
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
