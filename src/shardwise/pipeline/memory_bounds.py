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

import numpy as np
import numpy.typing as npt

from shardwise.pipeline.arrays import Floats
from shardwise.pipeline.streams import Streams

_UNKNOWN = -np.inf
_COMPARED = 3_000_000
"""Times compared in one sweep; where there are more, memory is looked at for some of the micro batches only, and the
others follow in the order of their streams."""


def limited_heads(streams: Streams, first: list[int]) -> Floats:
    """Earliest starts by variant, kind, chunk and micro batch; of chunks before `first` no forward is known."""
    p = streams.problem
    head = np.full((len(first), p.pp, 3, p.vpp, p.microbatches), _UNKNOWN)
    sweep = _Heads(streams, head, (np.arange(p.chunks) >= np.array(first)[:, None])[:, p.chunk_of])
    step = _step(streams, len(first))
    for m in range(p.microbatches):
        sweep.forwards(m, looks=(p.microbatches - 1 - m) % step == 0)
        sweep.gradients(m)
    return _by_chunk(streams, head)


def limited_tails(streams: Streams, ends: Floats) -> Floats:
    """Least time after each action; `ends`, by variant and rank: 0 where the end of the rank counts, else -inf."""
    p = streams.problem
    tail = np.full((len(ends), p.pp, 3, p.vpp, p.microbatches), _UNKNOWN)
    sweep, step = _Tails(streams, tail, ends[:, :, None]), _step(streams, len(ends))
    for m in reversed(range(p.microbatches)):
        sweep.gradients(m, looks=m % step == 0)
        sweep.forwards(m)
    return _by_chunk(streams, tail)


def _by_chunk(streams: Streams, times: Floats) -> Floats:
    p = streams.problem
    return times[:, p.rank_of, :, p.position].transpose(1, 2, 0, 3)


def _step(streams: Streams, variants: int) -> int:
    """Every so many micro batches memory is looked at."""
    p = streams.problem
    return 1 + int(1.5 * variants * p.chunks * (p.vpp * p.microbatches) ** 2 / _COMPARED)


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


@dataclass(frozen=True, slots=True, eq=False)
class _Heads:
    streams: Streams
    head: Floats
    known: npt.NDArray[np.bool_]
    """By variant, rank and position: whether anything is known of the forwards."""

    def forwards(self, m: int, *, looks: bool) -> None:
        floor = np.where(self.known, 0.0, _UNKNOWN)
        if m:
            floor = np.maximum(self.head[:, :, 0, :, m - 1] + self.streams.time[:, 0], self._own_forwards(m))
        self._arrive(floor, m)
        needed = np.maximum((m + 1) * self.streams.taken - self.streams.room[:, None], 0.0)
        if not m or not looks or not needed.any():
            return
        line = _Line(self.streams, self.head[..., :m], 0)
        work = self._work_before(line, m, needed)
        for j in range(self.streams.problem.vpp):
            for k in range(j):
                work[j] += line.since(self.head[:, :, 0, k, m], self.streams.time[:, 0, k])
            after = np.maximum(self._after_each(j, m), self._given_back(j, m, needed[:, j]))
            floor[:, :, j] = np.maximum(floor[:, :, j], np.maximum(line.best(work[j]), after))
            self._arrive(floor, m)

    def _arrive(self, floor: Floats, m: int) -> None:
        """No forward is earlier than its input."""
        p, lag = self.streams.problem, self.streams.forward_lag
        along = np.maximum.accumulate(floor[:, p.rank_of, p.position] - lag, axis=1) + lag
        self.head[:, :, 0, :, m] = along[:, p.chunk_of]

    def _own_forwards(self, m: int) -> Floats:
        """After the forwards that the own rank must have run, from the first of them that is known."""
        time = self.streams.time[:, 0]
        work = (m + 1) * np.cumsum(np.where(self.known, time, 0.0), axis=2) - time
        return np.where(self.known, self._begin + work, _UNKNOWN)

    @property
    def _begin(self) -> Floats:
        """The first known forward of every rank."""
        begin = np.where(self.known, self.head[:, :, 0, :, 0], np.inf).min(axis=2, keepdims=True)
        return np.where(np.isinf(begin), _UNKNOWN, begin)

    def _work_before(self, line: _Line, m: int, needed: Floats) -> Floats:
        """By position: what runs after each place in the line and before F of micro batch m."""
        offset = line.picks(np.moveaxis(self.streams.offsets[:, :, :, 0], -1, 0))
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
        s, by_position = self.streams, np.s_[:, None, :, None]
        given, useful = line.pick(s.freed) * freeing, line.pick(s.useful) * freeing
        missing = needed.T[by_position] - line.before(given)
        kept = line.pick(s.freed[:, [2, 2, 2]]) * np.array([0.0, 1.0, -1.0])[line.kind]
        alone = np.minimum(missing, np.maximum(line.before(kept * freeing), 0.0))
        weight, gradient, _, most = (rate.T[by_position] for rate in s.rates)
        spare = (s.room[:, None] - s.taken).T[by_position]
        least = np.maximum(missing * gradient - alone * (gradient - weight), line.from_here(useful) - spare * most)
        return np.where(missing > s.noise[:, None], least, 0.0)

    def _after_each(self, j: int, m: int) -> Floats:
        """After the last action of every stream that must come before."""
        place = m - self.streams.offsets[:, :, :, 0, j]
        rank, kind, position = np.nonzero(place >= 0)
        ends = np.full((len(self.head), *place.shape), _UNKNOWN)
        last = self.head[:, rank, kind, position, place[rank, kind, position].astype(int)]
        ends[:, rank, kind, position] = last + self.streams.time[rank, kind, position]
        return np.asarray(ends.max(axis=(2, 3)))

    def _given_back(self, j: int, m: int, needed: Floats) -> Floats:
        """The earliest time by which the bytes that F needs can have been given back, every action at its earliest."""
        s, shape = self.streams, (len(self.head), len(needed), -1)
        ends = (self.head[:, :, 1:, : j + 1, :m] + s.time[:, 1:, : j + 1, None]).reshape(shape)
        order = np.argsort(ends, axis=2)
        given = s.freed[:, 1:, : j + 1].reshape(len(needed), -1)
        given = np.take_along_axis(given[None], order // m, axis=2)
        surely = np.maximum(needed - s.noise, 0.0)[:, None]
        enough = np.cumsum(given, axis=2) >= surely
        last = np.take_along_axis(ends, np.take_along_axis(order, enough.argmax(axis=2)[..., None], axis=2), axis=2)
        return np.where(surely > 0, last, _UNKNOWN)[..., 0]

    def gradients(self, m: int) -> None:
        s, p = self.streams, self.streams.problem
        f, g, w = s.time.transpose(1, 0, 2)
        late = np.cumsum(g[:, ::-1], axis=1)[:, ::-1]
        own = np.where(self.known, f, 0.0).sum(axis=2, keepdims=True)
        floor = self._begin + (m + 1) * (own + late) - g
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


@dataclass(frozen=True, slots=True, eq=False)
class _Tails:
    streams: Streams
    tail: Floats
    ends: Floats
    """By variant, rank and 1."""

    def gradients(self, m: int, *, looks: bool) -> None:
        s, left = self.streams, self.streams.problem.microbatches - m
        _, g, w = s.time.transpose(1, 0, 2)
        self.tail[:, :, 2, :, m] = (left - 1) * w + self.ends
        back = np.maximum(left * s.taken - s.room[:, None], 0.0)
        floor = left * np.cumsum(g + w, axis=1) - g + back * s.rates[2] + self.ends
        floor = np.maximum(floor, self.tail[:, :, 2, :, m] + w)
        if left > 1:
            floor = np.maximum(floor, self.tail[:, :, 1, :, m + 1] + g)
            floor = np.maximum(floor, left * np.cumsum(g, axis=1) - g + self.tail[:, :, 1, 0, -1, None])
        self._pass_on(floor, m)
        if left == 1 or not looks or not back.any():
            return
        line = _Line(s, self.tail[..., m + 1 :], m + 1)
        work = self._work_after(line, m, back)
        for j in range(s.problem.vpp):
            for k, kind in ((k, kind) for k in range(j + 1) for kind in (1, 2) if (k, kind) != (j, 1)):
                work[j] += line.since(self.tail[:, :, kind, k, m], s.time[:, kind, k])
            floor[:, :, j] = np.maximum(floor[:, :, j], line.best(work[j]))
            self._pass_on(floor, m)

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
        s, by_position = self.streams, np.s_[:, None, :, None]
        offset = line.picks(np.moveaxis(s.offsets[:, 1], 1, 0))
        behind = np.where(line.microbatch - offset >= m, line.takes, 0.0)
        forward = (line.kind == 0) & line.upto
        taken = line.pick(np.repeat(s.held[:, None], 3, axis=1))
        missing = back.T[by_position] - line.before(taken * forward)
        kept_back = np.where(missing > s.noise[:, None], missing * s.rates[2].T[by_position], 0.0)
        least = np.maximum(line.from_here(behind * forward), kept_back)
        return np.asarray(line.from_here(behind * ~forward) + least)

    def forwards(self, m: int) -> None:
        s, p, left = self.streams, self.streams.problem, self.streams.problem.microbatches - m
        f, g, w = s.time.transpose(1, 0, 2)
        late, gradients = np.cumsum(f[:, ::-1], axis=1)[:, ::-1], g.sum(axis=1)[:, None]
        floor = left * (late + gradients + w.sum(axis=1)[:, None]) - f + self.ends
        floor = np.maximum(floor, left * (late + gradients) - f + self.tail[:, :, 1, 0, -1, None])
        if left > 1:
            floor = np.maximum(floor, self.tail[:, :, 0, :, m + 1] + f)
            floor = np.maximum(floor, left * late - f + self.tail[:, :, 0, -1, -1, None])
        along, lag = floor[:, p.rank_of, p.position], s.forward_lag
        along[:, -1] = np.maximum(along[:, -1], self.tail[:, p.rank_of[-1], 1, p.position[-1], m] + p.i[-1])
        starts = np.maximum.accumulate((along + p.f + lag)[:, ::-1], axis=1)[:, ::-1] - lag
        self.tail[:, :, 0, :, m] = (starts - p.f)[:, p.chunk_of]
