"""Orders with passes that run together, built rank by rank in the order of time.

A rank that is free runs a forward and a full backward together where both inputs are there (or come soon), else I, else
a forward, and W where nothing else is to be done. New micro batches are admitted up to a window, and a forward only
where its rank keeps room for one micro batch in its later chunks, so that none is stuck.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from shardwise.pipeline.action import B, F, I, Schedule, W
from shardwise.pipeline.costs import ROUNDING, Costs


class PairPoint(NamedTuple):
    """What a build is made by."""

    window: int
    """Micro batches that are in flight at most."""
    patience: float
    """Time that a pass waits for its partner."""
    late_first: bool
    """Of several forwards that are ready, the one of the later chunk goes first."""
    whole: bool
    """A backward that is alone is a full one."""


@dataclass(slots=True, kw_only=True, eq=False)
class _RankBuilt:
    """A rank while an order is built."""

    own: list[int]
    room: float
    at: float = 0.0
    """Now."""
    busy: float = 0.0
    """Until then it runs something."""
    held: float = 0.0
    row: list[int] = field(default_factory=list)
    pairs: list[int] = field(default_factory=list)
    weights: list[tuple[int, int]] = field(default_factory=list)
    """W that wait, by chunk and micro batch."""


class PairBuilder:
    """Builds orders of one problem."""

    def __init__(self, costs: Costs, rank_of: tuple[int, ...], microbatches: int) -> None:
        self.costs, self.rank_of, self.m = costs, rank_of, microbatches
        self.pp, self.chunks = 1 + max(rank_of), len(rank_of)
        self.hops = [self._hop(c) for c in range(self.chunks - 1)]
        self.later = [sum(costs.held(d) for d in range(c + 1, self.chunks) if rank_of[d] == rank_of[c])
                      for c in range(self.chunks)]  # fmt: skip
        """Bytes of one micro batch in the later chunks of the same rank."""
        self.unit = sum(map(sum, (costs.f, costs.i, costs.w))) / (3 * self.chunks)

    def _hop(self, c: int) -> float:
        parts = (self.costs.hop, self.costs.transfer)
        return sum(part[c] for part in parts if part) if self.rank_of[c] != self.rank_of[c + 1] else 0.0

    def plain(self) -> list[PairPoint]:
        windows = sorted({self.pp, 2 * self.pp, self.pp + self.pp // 2, self.chunks, self.m})
        return [
            PairPoint(window, patience * self.unit, late, whole)
            for window, patience, late, whole in product(windows, (0.0, 1.0), (True, False), (True, False))
        ]

    def drawn(self, dice: random.Random) -> PairPoint:
        most = min(self.m, 2 * self.chunks)
        return PairPoint(dice.randint(1, most), dice.random() * 2 * self.unit, dice.random() < 0.5, dice.random() < 0.5)

    def build(self, point: PairPoint) -> Schedule | None:
        """The order of a point; None where it gets stuck."""
        return _PairOrder(self, point).run()


class _PairOrder:
    def __init__(self, maker: PairBuilder, point: PairPoint) -> None:
        self.to, self.point = maker, point
        costs, chunks = maker.costs, maker.chunks
        own = [[c for c in range(chunks) if maker.rank_of[c] == rank] for rank in range(maker.pp)]
        rooms = [room * (1 + ROUNDING) for room in costs.limits(maker.pp)]
        self.ranks = [_RankBuilt(own=each, room=room) for each, room in zip(own, rooms, strict=True)]
        self.ready = {kind: [[math.inf] * maker.m for _ in range(chunks)] for kind in (F, I)}
        self.ready[F][0] = [0.0] * maker.m
        self.next = {kind: [0] * chunks for kind in (F, I)}
        self.queue = [(0.0, rank) for rank in range(maker.pp)]

    def run(self) -> Schedule | None:
        while self.queue:
            now, rank = heapq.heappop(self.queue)
            one = self.ranks[rank]
            if now >= one.busy:
                one.at = now
                self._step(rank, one)
        to = self.to
        if any(n < to.m for n in self.next[I]):
            return None
        for one in self.ranks:
            one.row += [self._code(W, c, m) for c, m in one.weights]
        codes = tuple(np.array(one.row, dtype=np.int64) for one in self.ranks)
        pairs = tuple(tuple(one.pairs) for one in self.ranks)
        return Schedule(codes=codes, chunks=to.chunks, microbatches=to.m, pairs=pairs if any(pairs) else ())

    def _step(self, rank: int, one: _RankBuilt) -> None:
        soon = one.at + self.point.patience
        forward, backward = self._forward(one, soon), self._backward(one, soon)
        if forward and backward and forward[2] != backward[2]:
            self._pair(rank, one, forward, backward)
        elif backward and backward[0] <= one.at:
            self._alone(rank, one, I, backward[1], backward[2])
        elif forward and forward[0] <= one.at:
            self._alone(rank, one, F, forward[1], forward[2])
        elif one.weights:
            c, m = one.weights.pop(0)
            one.row.append(self._code(W, c, m))
            one.held -= self.to.costs.held(c) - self.to.costs.freed(c)
            self._free(rank, one, one.at + self.to.costs.w[c])
        elif wait := [each[0] for each in (forward, backward) if each]:
            heapq.heappush(self.queue, (min(wait), rank))

    def _forward(self, one: _RankBuilt, soon: float) -> tuple[float, int, int] | None:
        """When it may start, chunk and micro batch of the forward that comes first by the rule."""
        found = [
            (self.ready[F][c][m], c, m)
            for c in one.own
            if (m := self.next[F][c]) < self.to.m and self.ready[F][c][m] <= soon and self._admitted(one, c)
        ]
        return max(found, key=lambda each: each[1] if self.point.late_first else -each[1], default=None)

    def _admitted(self, one: _RankBuilt, c: int) -> bool:
        if c == 0 and self.next[F][0] - self.next[I][0] >= self.point.window:
            return False
        return one.held + self.to.costs.held(c) + self.to.later[c] <= one.room

    def _backward(self, one: _RankBuilt, soon: float) -> tuple[float, int, int] | None:
        found = [
            (self.ready[I][c][m], c, m)
            for c in one.own
            if (m := self.next[I][c]) < self.to.m and self.ready[I][c][m] <= soon
        ]
        return min(found, key=lambda each: (max(each[0], one.at), each[1]), default=None)

    def _pair(
        self, rank: int, one: _RankBuilt, forward: tuple[float, int, int], backward: tuple[float, int, int]
    ) -> None:
        (ready, c, m), (other, d, n) = forward, backward
        one.pairs.append(len(one.row))
        one.row += [self._code(F, c, m), self._code(B, d, n)]
        one.held += self.to.costs.held(c) - self.to.costs.held(d)
        self.next[F][c] += 1
        self.next[I][d] += 1
        end = max(one.at, ready, other) + self.to.costs.both(c, d)
        self._free(rank, one, end)
        self._sent(F, c, m, end)
        self._sent(I, d, n, end)

    def _alone(self, rank: int, one: _RankBuilt, kind: int, c: int, m: int) -> None:
        costs, whole = self.to.costs, self.point.whole
        self.next[kind][c] += 1
        one.row.append(self._code(B if kind == I and whole else kind, c, m))
        if kind == F:
            one.held += costs.held(c)
            end = one.at + costs.f[c]
        elif whole:
            one.held -= costs.held(c)
            end = one.at + costs.i[c] + costs.w[c]
        else:
            one.held -= costs.freed(c)
            one.weights.append((c, m))
            end = one.at + costs.i[c]
        self._free(rank, one, end)
        self._sent(kind, c, m, end)

    def _free(self, rank: int, one: _RankBuilt, when: float) -> None:
        one.busy = when
        heapq.heappush(self.queue, (when, rank))

    def _sent(self, kind: int, c: int, m: int, end: float) -> None:
        """The result of a pass goes on; its rank looks when it is there."""
        last = self.to.chunks - 1
        if kind == F and c == last:
            to, kind, at = c, I, end
        else:
            to = c + 1 if kind == F else c - 1
            if to < 0:
                return
            at = end + self.to.hops[min(c, to)]
        self.ready[kind][to][m] = at
        rank = self.to.rank_of[to]
        heapq.heappush(self.queue, (max(at, self.ranks[rank].busy), rank))

    def _code(self, kind: int, c: int, m: int) -> int:
        return (kind * self.to.chunks + c) * self.to.m + m
