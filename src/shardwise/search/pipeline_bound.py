"""Lower bounds on the passes of a pipeline, however its layers are cut.

Let t_r = f_r + b_r be stage r's seconds per micro batch, T the sum over stages, m the micro batches. In 1F1B rank r
runs min(m, p - r) forwards before its first backward, which waits for micro batch 0 to go down and come back, so

    makespan >= T + (m - 1) t_r - min(m - 1, p - 1 - r) f_r        for every r                             (1)

In any order that keeps B whole, rank r waits for the first chunks of ranks before it, and they follow it at the end:

    makespan >= sum of t_c over chunks c < r + m t_r                                                        (2)

The slowest stage takes `slowest` or more. If it takes no more, all but `slack` layers' worth of stages are full, so one
of the last slack + 1 is; else some stage takes `next` or more. The smaller of both cases is a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from shardwise.search.frame import Frame
from shardwise.search.memory_bound import Room
from shardwise.search.question import Layout
from shardwise.search.stage_work import Work
from shardwise.search.table import Floats


class Pipes(NamedTuple):
    """Pipelines of one schedule, as columns [pipeline, 1]."""

    pp: Floats
    vpp: Floats
    m: Floats
    hop: Floats
    """Seconds of one send."""
    shown: Floats
    """What a pass of a rank shows of its sends."""

    def of(self, at: list[int]) -> Pipes:
        """Some of them."""
        return Pipes(*(column[at] for column in self))


def pipes_of(layouts: Sequence[Layout], hops: list[float], overlap: float) -> Pipes:
    def column(values: list[float]) -> Floats:
        return np.array(values, dtype=float)[:, None]

    shown = [hop * (1 - overlap) * one.vpp for one, hop in zip(layouts, hops, strict=True)]
    return Pipes(
        column([one.pp for one in layouts]),
        column([one.vpp for one in layouts]),
        column([one.microbatches for one in layouts]),
        column(hops),
        column(shown),
    )


def makespan(schedule: str, pipes: Pipes, work: Work) -> Floats:
    """Seconds of all passes at least: [pipeline, choice]."""
    slow = pipes.m * (np.maximum(work.slowest, _block_mean(pipes, work)) + 2 * pipes.shown)
    bound = _BOUNDS.get(schedule)
    found = slow if bound is None else np.maximum(slow, bound(pipes, work))
    return np.asarray(np.where(pipes.pp > 1, found, pipes.m * work.total))


def _block_mean(pipes: Pipes, work: Work) -> Floats:
    """Mean over ranks where the first N layers of every chunk are recomputed: every chunk has one such layer or more,
    beside what `total` counts already.
    """
    more = pipes.pp * pipes.vpp - 1 - np.maximum(pipes.pp - 3, 0)
    several = np.where((pipes.vpp > 1) & (work.block > 0), more, 0.0)
    return np.asarray((work.total + work.again * several) / pipes.pp)


def mixed_passes(pipes: Pipes, frame: Frame, work: Work, freed: Floats) -> Floats:
    """The same where recomputing as needed must free `freed` bytes: [pair, choice].

    Whatever stage it falls on, it adds to the sum T over all stages, and the slowest stage takes T / p or more.
    """
    at, cell = frame.of_pair.tolist(), frame.cell_of_pair
    some = pipes.of(at)
    p, m, stage = some.pp, some.m, 2 * some.shown
    total = work.total[cell] + freed * work.price[cell]
    mean = total / p + stage
    share = np.maximum(work.share[cell], 0.5)
    first = total + p * stage + np.maximum((m - 1) - np.minimum(m - 1, p - 1) * share, 0.0) * mean
    chain = np.array([[frame.layouts[index].schedule == "1f1b"] for index in at]) & (p > 1)
    return np.where(freed > 0, np.where(chain, np.maximum(first, m * mean), m * mean), 0.0)


def crowded(pipes: Pipes, frame: Frame, work: Work, room: Room, layers: float) -> Floats:
    """The same where ranks have room for so many layers only: [pair, choice] of the room; infinite: no cut fits.

    Ranks j and later take what those before have no room for, and the slowest of them the mean or more. Its place
    counts as j: later ones wait longer. `layers`: those that need room.
    """
    at = frame.of_pair[room.pairs]
    some, cell = Pipes(*(column[:, :, None] for column in pipes.of(at.tolist()))), frame.cell_of_pair[room.pairs]
    part = Work(*(array[np.ix_(cell, room.choices)][:, :, None] for array in work))
    ranks = np.arange(room.layers.shape[2], dtype=float)
    before = np.cumsum(room.layers, axis=2) - room.layers
    left, after = np.maximum(layers - before, 0.0), some.pp - ranks
    longest = np.ceil(left / after - 1e-9)
    again = np.minimum(longest, part.block + np.where(part.block > 0, some.vpp - 1, 0.0)) * part.again
    slowest = np.maximum(longest * part.layer + again, (left * part.layer + part.last) / after)
    stage = 2 * some.shown
    found = some.m * (slowest + stage)
    schedules = np.array([frame.layouts[index].schedule for index in at])
    chains, looped = schedules == "1f1b", schedules == "interleaved"
    if chains.any():
        share = np.where(stage > 0, np.maximum(part.share, 0.5), part.share)
        passes = (some.m - 1) - np.minimum(some.m - 1, after - 1) * share
        whole = part.total + some.pp * stage + passes * (slowest + stage) + 2 * (some.pp - 1) * some.hop
        found = np.where(chains[:, None, None], np.maximum(found, whole), found)
    if looped.any():
        found = found + np.where(looped[:, None, None], _ahead(some, part, ranks), 0.0)
    fits = (room.layers >= 0).all(axis=2) & (room.layers.sum(axis=2) >= layers)
    return np.where(fits, found.max(axis=2), np.inf)


def _ahead(pipes: Pipes, work: Work, ranks: Floats | float) -> Floats:
    """Seconds of the first chunks of the ranks before one, and of the messages between them."""
    each = 2 * pipes.shown / pipes.vpp
    chunk = work.layer + np.minimum(1.0, work.block) * work.again + each
    begin = np.maximum(0.0, work.layer + work.first) + each
    before = np.asarray(ranks, dtype=float)
    return np.where(before > 0, begin + np.maximum(before - 1, 0) * chunk, 0.0) + 2 * before * pipes.hop


def _one_f_one_b(pipes: Pipes, work: Work) -> Floats:
    """(1) in both cases."""
    p, m, stage = pipes.pp, pipes.m, 2 * pipes.shown
    total = work.total + p * stage
    share = np.where(stage > 0, np.maximum(work.share, 0.5), work.share)

    def bound(seconds: Floats, after: Floats | float) -> Floats:
        return np.asarray(total + ((m - 1) - np.minimum(m - 1, after) * share) * (seconds + stage))

    reach = np.minimum(work.slack, p - 1)
    inner = bound(work.full, np.maximum(1.0, np.minimum(reach, p - 2)))
    full = _cases(p, reach, bound(work.full_last, 0.0), inner, bound(work.full_first, p - 1))
    # leading layers outside the first stage make a full one shorter than it looks
    full = np.where((work.leading > 0) & (reach >= p - 2), bound(work.slowest, p - 1), full)
    return np.minimum(full, bound(work.next, p - 1)) + 2 * (p - 1) * pipes.hop


def _cases(p: Floats, reach: Floats, last: Floats, inner: Floats, first: Floats) -> Floats:
    """One of the last `reach` + 1 stages is full; with none to spare, all are."""
    full = np.where(p > 2, np.where(reach > 0, np.minimum(last, inner), np.maximum(last, inner)), last)
    return np.where(reach >= p - 1, np.minimum(full, first), full)


def _gpipe(pipes: Pipes, work: Work) -> Floats:
    stage = 2 * pipes.shown
    passes = work.total + pipes.pp * stage + (pipes.m - 1) * (work.slowest + stage)
    return passes + 2 * (pipes.pp - 1) * pipes.hop


def _interleaved(pipes: Pipes, work: Work) -> Floats:
    """(2) in both cases; every chunk holds one layer or more."""
    p, m, stage = pipes.pp, pipes.m, 2 * pipes.shown

    def bound(seconds: Floats, rank: Floats | float) -> Floats:
        return np.asarray(m * (seconds + stage) + _ahead(pipes, work, rank))

    reach = np.minimum(work.slack, p - 1)
    inner = bound(work.full, np.maximum(p - 1 - np.maximum(reach, 1.0), 0.0))
    full = _cases(p, reach, bound(work.full_last, p - 1.0), inner, bound(work.full_first, 0.0))
    return np.where(work.leading > 0, 0.0, np.minimum(full, bound(work.next, 0.0)))


def _zb_h1(pipes: Pipes, work: Work) -> Floats:
    """As (1), but only forwards of other ranks are sure to come before: W fills the rest."""
    share = np.where(pipes.shown > 0, np.maximum(work.share, 0.5), work.share)
    passes = np.maximum(pipes.m - pipes.pp * share, 0.0) * (work.slowest + 2 * pipes.shown)
    return work.total_forward + pipes.pp * pipes.shown + passes


_BOUNDS: dict[str, Callable[[Pipes, Work], Floats]] = {
    "1f1b": _one_f_one_b, "gpipe": _gpipe, "interleaved": _interleaved, "zb-h1": _zb_h1,
}  # fmt: skip
