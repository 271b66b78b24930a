"""Heads and tails of the actions where memory binds, for the bounds of bounds.py.

Let a set of actions of one rank come before x. For any time t, those of the set that cannot start before t take all
their time after t and before x, so head(x) >= t + their time; the best t counts. The set is told by the offsets of
streams.py. Where it is open whether I or W makes room for a forward, the least time for the missing bytes is taken.
Tails are the same read backwards: what memory keeps from running before a gradient runs after it.

Every precedence leads to the same or a later micro batch, so one sweep over the micro batches settles all heads, and
one backwards all tails. Arrays are by variant, rank, kind (F, I, W), position and micro batch; variants are the same
problem seen from different ranks (for the period).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shardwise.pipeline.arrays import Floats, Ints, OrderArrays
from shardwise.pipeline.streams import Streams, every

_UNKNOWN = -np.inf
_COMPARED, _COMPARED_MOST = 60_000, 1_500_000
"""Times compared in one sweep, wished for in a variant and at most in all. Above the first, memory is looked at on some
of the ranks only; above the second, for some of the micro batches. The others follow along the chain and in the order
of their streams."""
_FEWEST = 4
"""Ranks that are looked at in any case."""


def limited_heads(problem: OrderArrays, first: list[int]) -> Floats:
    """Earliest starts by variant, kind, chunk and micro batch; of chunks before `first` no forward is known."""
    p, (ranks, step) = problem, _looked_at(problem, len(first))
    head = np.full((len(first), p.pp, 3, p.vpp, p.microbatches), _UNKNOWN)
    known = (np.arange(p.chunks) >= np.array(first)[:, None])[:, p.chunk_of]
    sweep = _Heads(every(p), Streams(p, ranks), head, known)
    for m in range(p.microbatches):
        sweep.forwards(m, looks=(p.microbatches - 1 - m) % step == 0)
        sweep.gradients(m)
    return _by_chunk(p, head)


def limited_tails(problem: OrderArrays, ends: Floats) -> Floats:
    """Least time after each action; `ends`, by variant and rank: 0 where the end of the rank counts, else -inf."""
    p, (ranks, step) = problem, _looked_at(problem, len(ends))
    tail = np.full((len(ends), p.pp, 3, p.vpp, p.microbatches), _UNKNOWN)
    sweep = _Tails(every(p), Streams(p, ranks), tail, ends[:, :, None])
    for m in reversed(range(p.microbatches)):
        sweep.gradients(m, looks=m % step == 0)
        sweep.forwards(m)
    return _by_chunk(p, tail)


def _by_chunk(problem: OrderArrays, times: Floats) -> Floats:
    return times[:, problem.rank_of, :, problem.position].transpose(1, 2, 0, 3)


def _looked_at(problem: OrderArrays, variants: int) -> tuple[Ints, int]:
    """Ranks where memory is looked at (from first to last, and where it is scarcest), and every how many micro batches.

    Any choice is sound.
    """
    one = 1.5 * problem.vpp * (problem.vpp * problem.microbatches) ** 2
    count = min(max(_FEWEST, int(_COMPARED / one)), problem.pp)
    step = 1 + int(variants * one * count / _COMPARED_MOST)
    if count == problem.pp:
        return np.arange(problem.pp, dtype=np.int32), step
    spread = np.linspace(0, problem.pp - 1, (count + 1) // 2).astype(np.int32)
    scarce = np.argsort(-every(problem).pressure, kind="stable")[: count // 2].astype(np.int32)
    return np.union1d(spread, scarce), step


class _Line:
    """The actions of some micro batches by time, for every variant and rank; the last axis goes along the line."""

    def __init__(self, streams: Streams, times: Floats, begin: int) -> None:
        variants, ranks, kinds, positions, count = times.shape
        flat = times.reshape(variants, ranks, -1)
        order = np.argsort(flat, axis=2)
        self.time = np.take_along_axis(flat, order, axis=2)
        stream, self.microbatch = np.divmod(order, count)
        self.microbatch += begin
        self.kind, position = np.divmod(stream, positions)
        self._stream = stream + np.arange(ranks)[:, None] * (kinds * positions)
        self.upto = position <= np.arange(positions)[:, None, None, None]
        """By position: whether the chunk of the action comes no later."""
        self.takes = self.pick(streams.time)

    def pick(self, values: Floats) -> Floats:
        """Of values by rank, kind and position."""
        return np.asarray(values.reshape(-1)[self._stream])

    def picks(self, values: Floats) -> Floats:
        """The same with one more axis in front."""
        return values.reshape(len(values), -1)[:, self._stream]

    def from_here(self, work: Floats) -> Floats:
        return np.cumsum(work[..., ::-1], axis=-1)[..., ::-1]

    def before(self, values: Floats) -> Floats:
        return np.cumsum(values, axis=-1) - values

    def best(self, work: Floats) -> Floats:
        """Time of a place + work from there on, at the best place with any."""
        return np.asarray(np.where(work > 0, self.time + work, _UNKNOWN).max(axis=-1))

    def since(self, when: Floats, work: Floats) -> Floats:
        """The work where it is no earlier than a place; both by variant and rank."""
        return np.where(when[..., None] >= self.time, work[:, None], 0.0)


@dataclass(frozen=True, eq=False)
class _Heads:
    streams: Streams
    looked: Streams
    """Of the ranks where memory is looked at."""
    head: Floats
    known: npt.NDArray[np.bool_]
    """By variant, rank and position: whether anything is known of the forwards."""

    def forwards(self, m: int, *, looks: bool) -> None:
        floor = np.where(self.known, 0.0, _UNKNOWN)
        if m:
            floor = np.maximum(self.head[:, :, 0, :, m - 1] + self.streams.time[:, 0], self._own_forwards(m))
        self._arrive(floor, m)
        if m and looks:
            self._make_room(floor, m)

    def _make_room(self, floor: Floats, m: int) -> None:
        s, ranks = self.looked, self.looked.ranks
        needed = np.maximum((m + 1) * s.taken - s.room[:, None], 0.0)
        if not needed.any():
            return
        earlier = self.head[:, ranks, ..., :m]
        line = _Line(s, earlier, 0)
        work = self._work_before(line, m, needed)
        after = np.maximum(self._after_each(earlier, m), self._given_back(earlier, needed))
        for j in range(s.problem.vpp):
            floor[:, ranks, j] = np.maximum(floor[:, ranks, j], np.maximum(line.best(work[j]), after[j]))
            self._arrive(floor, m)
            work[j + 1 :] += line.since(self.head[:, ranks, 0, j, m], s.time[:, 0, j])

    def _arrive(self, floor: Floats, m: int) -> None:
        """No forward is earlier than its input."""
        p, lag = self.streams.problem, self.streams.forward_lag
        along = np.maximum.accumulate(floor[:, p.rank_of, p.position] - lag, axis=1) + lag
        self.head[:, :, 0, :, m] = along[:, p.chunk_of]

    def _own_forwards(self, m: int) -> Floats:
        """After the forwards that the own rank must have run, from the first of them that is known."""
        return np.where(self.known, self._begin + (m + 1) * self._known_work - self.streams.time[:, 0], _UNKNOWN)

    @cached_property
    def _known_work(self) -> Floats:
        """Of one micro batch, in the forwards up to each position."""
        return np.cumsum(np.where(self.known, self.streams.time[:, 0], 0.0), axis=2)

    @cached_property
    def _begin(self) -> Floats:
        """The first known forward of every rank; asked for when the first micro batch is settled."""
        begin = np.where(self.known, self.head[:, :, 0, :, 0], np.inf).min(axis=2, keepdims=True)
        return np.where(np.isinf(begin), _UNKNOWN, begin)

    def _work_before(self, line: _Line, m: int, needed: Floats) -> Floats:
        """By position: what runs after each place in the line and before F of micro batch m."""
        offset = line.picks(self.looked.before_forward)
        ahead = np.where(line.microbatch + offset <= m, line.takes, 0.0)
        freeing = (line.kind > 0) & line.upto
        least = np.maximum(line.from_here(ahead * freeing), self._freeing(line, freeing, needed))
        return np.asarray(line.from_here(ahead * ~freeing) + least)

    def _freeing(self, line: _Line, freeing: npt.NDArray[np.bool_], needed: Floats) -> Floats:
        """Least time of I and W for the bytes that those before a place in the line cannot have given back.

        Counted from below: where I is before the place, W alone may give; any other micro batch gives by its I first.
        Counted from above: all of theirs but what there is room for beside the new one must be given back; that is left
        out where it saves most time.
        """
        s, by_position = self.looked, np.s_[:, None, :, None]
        useful = line.pick(s.useful) * freeing
        missing = needed.T[by_position] - line.before(line.pick(s.freed) * freeing)
        kept = line.pick(s.opened)
        alone = np.minimum(missing, np.maximum(line.before(kept * freeing), 0.0))
        weight, gradient, _, most = (rate.T[by_position] for rate in s.rates)
        spare = (s.room[:, None] - s.taken).T[by_position]
        least = np.maximum(missing * gradient - alone * (gradient - weight), line.from_here(useful) - spare * most)
        return np.where(missing > s.noise[:, None], least, 0.0)

    def _after_each(self, earlier: Floats, m: int) -> Floats:
        """By position, variant and rank: after the last action of every stream that must come before."""
        place = m - self.looked.offsets[:, :, :, 0]
        there = (place >= 0) & (place < m)
        last = np.take_along_axis(earlier, np.where(there, place, 0).astype(int)[None], axis=4)
        ends = np.where(there, last + self.looked.time[..., None], _UNKNOWN)
        return np.moveaxis(ends.max(axis=(2, 3)), -1, 0)

    def _given_back(self, earlier: Floats, needed: Floats) -> Floats:
        """By position: when the bytes that F needs can have been given back, every action at its earliest."""
        s, m = self.looked, earlier.shape[-1]
        ends = (earlier[:, :, 1:] + s.time[:, 1:, :, None]).reshape(len(earlier), len(needed), -1)
        order = np.argsort(ends, axis=2)
        stream = order // m
        given = np.take_along_axis(s.freed[None, :, 1:].reshape(1, len(needed), -1), stream, axis=2)
        upto = stream % s.problem.vpp <= np.arange(s.problem.vpp)[:, None, None, None]
        surely = np.maximum(needed - s.noise[:, None], 0.0).T[:, None, :, None]
        last = (np.cumsum(given * upto, axis=3) >= surely).argmax(axis=3)
        found = np.take_along_axis(np.take_along_axis(ends, order, axis=2)[None], last[..., None], axis=3)
        return np.where(surely > 0, found, _UNKNOWN)[..., 0]

    def gradients(self, m: int) -> None:
        s, p = self.streams, self.streams.problem
        _, g, w = s.time.transpose(1, 0, 2)
        late = s.from_here[:, 1]
        floor = self._begin + (m + 1) * (self._known_work[:, :, -1:] + late) - g
        if m:
            floor = np.maximum(floor, self.head[:, :, 1, :, m - 1] + g)
            floor = np.maximum(floor, self.head[:, :, 1, -1, 0, None] + (m + 1) * late - g)
        along, lag = floor[:, p.rank_of, p.position], s.gradient_lag
        along[:, -1] = np.maximum(along[:, -1], self.head[:, p.rank_of[-1], 0, p.position[-1], m] + p.f[-1])
        ends = np.maximum.accumulate((along + p.i + lag)[:, ::-1], axis=1)[:, ::-1] - lag
        self.head[:, :, 1, :, m] = (ends - p.i)[:, p.chunk_of]
        self.head[:, :, 2, :, m] = ends[:, p.chunk_of]
        if m:
            self.head[:, :, 2, :, m] = np.maximum(self.head[:, :, 2, :, m], self.head[:, :, 2, :, m - 1] + w)


@dataclass(frozen=True, eq=False)
class _Tails:
    streams: Streams
    looked: Streams
    tail: Floats
    ends: Floats
    """By variant, rank and 1."""

    def gradients(self, m: int, *, looks: bool) -> None:
        s, left = self.streams, self.streams.problem.microbatches - m
        _, g, w = s.time.transpose(1, 0, 2)
        self.tail[:, :, 2, :, m] = (left - 1) * w + self.ends
        back = np.maximum(left * s.taken - s.room[:, None], 0.0)
        floor = left * (s.up_to[:, 1] + s.up_to[:, 2]) - g + back * s.rates[2] + self.ends
        floor = np.maximum(floor, self.tail[:, :, 2, :, m] + w)
        if left > 1:
            floor = np.maximum(floor, self.tail[:, :, 1, :, m + 1] + g)
            floor = np.maximum(floor, left * s.up_to[:, 1] - g + self.tail[:, :, 1, 0, -1, None])
        self._pass_on(floor, m)
        if left > 1 and looks and back.any():
            self._keep_back(floor, m, back[self.looked.ranks])

    def _keep_back(self, floor: Floats, m: int, back: Floats) -> None:
        s, ranks = self.looked, self.looked.ranks
        line = _Line(s, self.tail[:, ranks, ..., m + 1 :], m + 1)
        work = self._work_after(line, m, back)
        for j in range(s.problem.vpp):
            work[j:] += line.since(self.tail[:, ranks, 2, j, m], s.time[:, 2, j])
            floor[:, ranks, j] = np.maximum(floor[:, ranks, j], line.best(work[j]))
            self._pass_on(floor, m)
            work[j + 1 :] += line.since(self.tail[:, ranks, 1, j, m], s.time[:, 1, j])

    def _pass_on(self, floor: Floats, m: int) -> None:
        """The gradient goes on to the chunk before."""
        p, lag = self.streams.problem, self.streams.gradient_lag
        along = np.maximum.accumulate(floor[:, p.rank_of, p.position] - lag, axis=1) + lag
        self.tail[:, :, 1, :, m] = along[:, p.chunk_of]

    def _work_after(self, line: _Line, m: int, back: Floats) -> Floats:
        """By position: what follows I of micro batch m and has at least the tail of each place in the line.

        Until then this rank's chunks up to the position have given back at most m micro batches each, so of their
        forwards `back` bytes are still to come, and those before the place are at most so many of them.
        """
        s, by_position = self.looked, np.s_[:, None, :, None]
        offset = line.picks(s.after_gradient)
        behind = np.where(line.microbatch - offset >= m, line.takes, 0.0)
        forward = (line.kind == 0) & line.upto
        missing = back.T[by_position] - line.before(line.pick(s.took) * forward)
        kept_back = np.where(missing > s.noise[:, None], missing * s.rates[2].T[by_position], 0.0)
        least = np.maximum(line.from_here(behind * forward), kept_back)
        return np.asarray(line.from_here(behind * ~forward) + least)

    def forwards(self, m: int) -> None:
        s, p, left = self.streams, self.streams.problem, self.streams.problem.microbatches - m
        f, late, gradients = s.time[:, 0], s.from_here[:, 0], s.up_to[:, 1, -1:]
        floor = left * (late + gradients + s.up_to[:, 2, -1:]) - f + self.ends
        floor = np.maximum(floor, left * (late + gradients) - f + self.tail[:, :, 1, 0, -1, None])
        if left > 1:
            floor = np.maximum(floor, self.tail[:, :, 0, :, m + 1] + f)
            floor = np.maximum(floor, left * late - f + self.tail[:, :, 0, -1, -1, None])
        along, lag = floor[:, p.rank_of, p.position], s.forward_lag
        along[:, -1] = np.maximum(along[:, -1], self.tail[:, p.rank_of[-1], 1, p.position[-1], m] + p.i[-1])
        starts = np.maximum.accumulate((along + p.f + lag)[:, ::-1], axis=1)[:, ::-1] - lag
        self.tail[:, :, 0, :, m] = (starts - p.f)[:, p.chunk_of]
