"""Orders improved by moving actions inside their rows, where only the engine tells what an order takes.

Builds and annealing (order_search.py) time orders by themselves, and know neither messages that wait for each other nor
passes that run together. Here every move is replayed. Backwards stand as I and W, so rows keep their length, and a pair
is a forward right before the two.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shardwise.pipeline.action import B, Codes, F, I, Schedule, W
from shardwise.pipeline.arrays import Objective
from shardwise.pipeline.costs import ROUNDING, Costs
from shardwise.pipeline.engine import Prepared, replay
from shardwise.pipeline.timeline import action_bytes

_FAR = 4
"""Places of a move."""
_PAIRED, _FLIPPED = 0.4, 0.1
"""Share of the moves that bring a forward and a backward together, and that take one pair apart or allow it again."""
_SEED = 20240503
Move = tuple[tuple[int, int], ...]
"""Shifts inside a row, from place to place, one after the other."""


class Polisher:
    """Moves inside the rows of an order, each replayed; while hot, worse ones are kept by chance."""

    def __init__(self, *, order: Schedule, costs: Costs, objective: Objective, value: float) -> None:
        self.order, self.costs, self.objective = order, costs, objective
        self.data = Prepared(order, costs)
        self.rows = [self.data.codes[a:b] for a, b in zip(self.data.offset[:-1], self.data.offset[1:], strict=True)]
        self.taken = [action_bytes(row, order, costs) for row in self.rows]
        self.room = [limit * (1 + ROUNDING) for limit in costs.limits(order.pp)]
        self.value = self.least = value
        self.kept = self.data.codes.copy()
        self.looked = 0
        self.dice = random.Random(_SEED)  # noqa: S311 - a search, not a secret
        self.unit = float(self.data.duration[self.data.duration > 0].mean())

    @property
    def best(self) -> Schedule:
        cuts = self.data.offset[1:-1]
        return replace(self.order, codes=tuple(one.copy() for one in np.split(self.kept, cuts)))

    def run(self, moves: int, until: float, aim: float) -> None:
        for k in range(moves):
            if self.least <= aim * (1 + ROUNDING) or (k % 256 == 0 and time.process_time() > until):
                return
            rank = self.dice.randrange(self.order.pp)
            self._try(rank, self._move(rank), 0.3 * self.unit * (1 - k / moves) ** 2)

    def _move(self, rank: int) -> Move:
        """One action, a few places on or back."""
        dice, count = self.dice, len(self.rows[rank])
        a = dice.randrange(count)
        return ((a, min(count - 1, max(0, a + dice.choice((-1, 1)) * dice.randint(1, _FAR)))),)

    def _try(self, rank: int, move: Move, heat: float) -> None:
        """Make a move and keep it if it pays, or by chance."""
        if not self._moved(rank, move):
            return
        self.looked += 1
        value = self._timed()
        if value <= self.value or self.dice.random() < math.exp((self.value - value) / max(heat, 1e-12)):
            self.value = value
            if value < self.least:
                self.least = value
                self._keep()
        else:
            self._back(rank, move)

    def _moved(self, rank: int, move: Move) -> bool:
        """Make the shifts of a move, unless one is not allowed or the row would break its limit."""
        for k, (a, b) in enumerate(move):
            if a == b or not self._in_order(self.rows[rank], a, b):
                self._unshift(rank, move[:k])
                return False
            _shift(self.rows[rank], a, b)
            _shift(self.taken[rank], a, b)
        if self._fits(rank, move):
            return True
        self._unshift(rank, move)
        return False

    def _unshift(self, rank: int, move: Move) -> None:
        for a, b in reversed(move):
            _shift(self.rows[rank], b, a)
            _shift(self.taken[rank], b, a)

    def _back(self, rank: int, move: Move) -> None:
        self._unshift(rank, move)

    def _keep(self) -> None:
        self.kept = self.data.codes.copy()

    def _timed(self) -> float:
        data = self.data
        if replay(data) < len(data.codes):
            return math.inf
        first, last = data.start[data.offset[:-1]], data.end[data.offset[1:] - 1]
        return float((last - first).max() if self.objective == "period" else last.max() - first.min())

    def _in_order(self, row: Codes, a: int, b: int) -> bool:
        """Whether the moved action keeps its place among its own stream and cell."""
        m, cells = self.order.microbatches, self.order.chunks * self.order.microbatches
        passed, code = row[min(a, b) : max(a, b) + 1], row[a]
        return int(((passed // m == code // m) | (passed % cells == code % cells)).sum()) == 1

    def _fits(self, rank: int, move: Move) -> bool:
        if self.room[rank] == math.inf or not move:
            return True
        ends = [place for shift in move for place in shift]
        low, high = min(ends), max(ends) + 1
        taken = self.taken[rank]
        return bool(taken[:low].sum() + np.cumsum(taken[low:high]).max() <= self.room[rank])


class PairPolisher(Polisher):
    """The same with passes that run together: some moves bring a forward and a backward together or apart."""

    def __init__(self, *, order: Schedule, costs: Costs, objective: Objective, value: float) -> None:
        super().__init__(order=order.split(), costs=costs, objective=objective, value=value)
        self.cells = order.chunks * order.microbatches
        self.wants = np.zeros(self.cells, dtype=bool)
        """Forwards that run together with the backward after them, where there is one."""
        for row, own in zip(order.codes, order.pairs, strict=False):
            self.wants[row[list(own)]] = True
        self.flipped: list[int] = []
        """Forwards of which the move at hand changes that."""
        self.kept_wants = self.wants.copy()
        chunks = range(order.chunks)
        self.both = np.array([[costs.both(one, other) for other in chunks] for one in chunks])
        self.data.pair = np.full(len(self.data.codes), -1.0)
        for rank in range(order.pp):
            self._mark(rank)

    @property
    def best(self) -> Schedule:
        """The order with its pairs, whose backwards are full ones."""
        rows, places = list[Codes](), list[tuple[int, ...]]()
        for row in super().best.codes:
            at = _pairs(row, self.cells, self.order.microbatches, self.kept_wants)
            made = row.copy()
            made[at + 1] += (B - I) * self.cells
            rows.append(np.delete(made, at + 2))
            places.append(tuple((at - np.arange(len(at))).tolist()))
        return replace(self.order, codes=tuple(rows), pairs=tuple(places) if any(places) else ())

    def _mark(self, rank: int) -> None:
        """Write the times of a rank's pairs."""
        assert self.data.pair is not None  # noqa: S101 - for the type checker
        row, m = self.rows[rank], self.order.microbatches
        at = _pairs(row, self.cells, m, self.wants)
        own = self.data.pair[self.data.offset[rank] : self.data.offset[rank + 1]]
        own[:] = -1.0
        own[at] = self.both[row[at] // m % self.order.chunks, row[at + 1] // m % self.order.chunks]

    def _move(self, rank: int) -> Move:
        self.flipped = []
        drawn = self.dice.random()
        if drawn < _PAIRED:
            return self._together(rank)
        if drawn < _PAIRED + _FLIPPED:
            forwards = np.flatnonzero(self.rows[rank] < self.cells)
            self.flipped = [int(self.rows[rank][self.dice.choice(forwards.tolist())])]
            return ()
        return super()._move(rank)

    def _together(self, rank: int) -> Move:
        """Shifts that put a backward in one piece, and a forward that is near right before it."""
        row = self.rows[rank]
        k = self.dice.choice(np.flatnonzero(row // self.cells == I).tolist())
        near = np.flatnonzero(row[max(0, k - _FAR) : k + 2 * _FAR] < self.cells) + max(0, k - _FAR)
        if not len(near):
            return ()
        a, w = self.dice.choice(near.tolist()), int(np.flatnonzero(row == row[k] + (W - I) * self.cells)[0])
        if not self.wants[row[a]]:
            self.flipped = [int(row[a])]
        moves = [(w, k + 1)] if w != k + 1 else []
        if a > k:
            moves.append((a + (a < w), k))
        elif a < k - 1:
            moves.append((a, k - 1))
        return tuple(moves)

    def _moved(self, rank: int, move: Move) -> bool:
        if not (move or self.flipped) or not super()._moved(rank, move):
            return False
        self.wants[self.flipped] ^= True
        self._mark(rank)
        return True

    def _back(self, rank: int, move: Move) -> None:
        super()._back(rank, move)
        self.wants[self.flipped] ^= True
        self._mark(rank)

    def _keep(self) -> None:
        super()._keep()
        self.kept_wants = self.wants.copy()


def _pairs(row: Codes, cells: int, microbatches: int, wants: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Places of forwards that run together with the I and W after them."""
    kind, cell, m = row // cells, row % cells, row % microbatches
    found = (kind[:-2] == F) & (kind[1:-1] == I) & (kind[2:] == W) & (cell[1:-1] == cell[2:]) & (m[:-2] != m[1:-1])
    return np.flatnonzero(found & wants[cell[:-2]])


def _shift(row: npt.NDArray[np.int64] | npt.NDArray[np.float64], a: int, b: int) -> None:
    """Move the entry at a to b; those between make room."""
    one = row[a]
    if a < b:
        row[a:b] = row[a + 1 : b + 1].copy()
    else:
        row[b + 1 : a + 1] = row[b:a].copy()
    row[b] = one
