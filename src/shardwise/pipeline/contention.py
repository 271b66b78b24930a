"""The best order where messages on one link wait for each other.

Builds and annealing know a message as a delay, so candidates are made without contention: for the messages as they are,
and for longer ones, whose orders leave time between messages. They, the named orders and what is known already are
re-timed by the engine with contention, and the best are polished: actions are moved inside their rows, and every move
is replayed. The bound is of messages that never wait, so it holds for those that do.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shardwise.kernels import library
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.arrays import Objective
from shardwise.pipeline.costs import ROUNDING, Costs
from shardwise.pipeline.engine import Prepared, replay, simulate
from shardwise.pipeline.faults import find_fault
from shardwise.pipeline.optimise import OrderAnswer, optimise, published, value_of
from shardwise.pipeline.timeline import action_bytes

LONGER = ((0.5, 0.2), (1.0, 0.3), (3.0, 0.2))
"""Messages so many times their transfer longer, and the share of the effort that their search gets."""
SCOPE = "any order on this placement, even if messages never wait for each other"
_POLISHED, _MOVES, _WORK, _FAR = 2, 40_000, 2e7, 4
"""Orders that are polished; moves of each, and actions replayed in all of them, at effort 1; places of a move."""
_SEED = 20240503


def contends(costs: Costs) -> bool:
    """Whether messages can wait for each other at all."""
    return costs.contention and any(costs.transfer)


def linked(found: Sequence[Costs], transfer: float | None, *, contention: bool) -> tuple[Costs, ...]:
    """The costs with the transfer time of the command line, where there is one; contention as asked, or as they say."""
    return tuple(
        replace(
            one, contention=contention or one.contention,
            transfer=one.transfer if transfer is None else (float(transfer),) * (one.chunks - 1),
        )
        for one in found
    )  # fmt: skip


def optimise_contended(
    costs: Costs,
    *,
    effort: float,
    time_limit: float | None,
    known: Sequence[Schedule],
    **asked: Any,  # noqa: ANN401 - of optimise
) -> OrderAnswer:
    """The best order found, timed with contention; never slower than plain auto's, or a named one that fits, is so."""
    began = time.process_time()
    until = began + time_limit if time_limit else math.inf
    plain = replace(costs, contention=False)
    first = optimise(plain, effort=effort, time_limit=time_limit and time_limit / 2, known=known, **asked)
    search = _ContendedOrders(costs=costs, objective=first.objective, rank_of=first.schedule.rank_of)
    search.add(first.schedule)
    tried, stopped = first.evaluated, first.interrupted
    try:
        shape = {name: asked[name] for name in ("pp", "vpp", "microbatches", "placement")}
        for order in (*known, *published(plain, **shape)):
            search.add(order)
        for more, share in LONGER:
            if stopped or search.best <= first.value * (1 + ROUNDING) or time.process_time() > until:
                break  # waiting costs nothing: this is what the order takes when messages never wait
            longer = replace(plain, transfer=tuple((1 + more) * one for one in plain.transfer))
            left = time_limit and max(0.05, (until - time.process_time()) / 2)
            answer = optimise(longer, effort=share * effort, time_limit=left, known=known, **asked)
            search.add(answer.schedule)
            tried, stopped = tried + answer.evaluated, answer.interrupted
        if not stopped:  # Ctrl-C in a search within stops that one alone
            search.polish(effort, until, first.value)
    except KeyboardInterrupt:  # the best so far is an answer
        stopped = True
    line = simulate(replace(search.order, name="auto"), costs)
    return replace(
        first, timeline=line, value=value_of(line, first.objective), bound=replace(first.bound, scope=SCOPE),
        evaluated=tried + search.looked, seconds=time.process_time() - began, interrupted=stopped,
        out_of_time=first.out_of_time or time.process_time() >= until,
    )  # fmt: skip


@dataclass(slots=True, kw_only=True, eq=False)
class _ContendedOrders:
    """Orders and what they take with contention."""

    costs: Costs
    objective: Objective
    rank_of: tuple[int, ...]
    pool: list[tuple[float, Schedule]] = field(default_factory=list)
    """The best first."""
    looked: int = 0

    @property
    def best(self) -> float:
        return self.pool[0][0]

    @property
    def order(self) -> Schedule:
        return self.pool[0][1]

    def add(self, order: Schedule) -> None:
        """Keep an order of these chunks that runs and fits, its backwards apart."""
        if order.rank_of != self.rank_of or (self.pool and order.microbatches != self.order.microbatches):
            return
        made = order.split()
        self.looked += 1
        if find_fault(made, self.costs) is None:
            self.pool.append((value_of(simulate(made, self.costs), self.objective), made))
            self.pool.sort(key=lambda one: one[0])  # stable: the first of equal ones stays first

    def polish(self, effort: float, until: float, aim: float) -> None:
        if library() is None or self.best <= aim * (1 + ROUNDING):  # without kernels it would take minutes
            return
        moves = int(effort * min(_MOVES, _WORK / self.order.actions))
        for value, order in self.pool[:_POLISHED]:
            polisher = _Polisher(order=order, costs=self.costs, objective=self.objective, value=value)
            polisher.run(moves, until, aim)
            self.looked += polisher.looked
            self.add(polisher.best)


class _Polisher:
    """Moves inside the rows of an order, each replayed with contention; while hot, worse ones are kept by chance."""

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
            self._try(0.3 * self.unit * (1 - k / moves) ** 2)

    def _try(self, heat: float) -> None:
        """Move one action a few places in its row and keep that if it pays, or by chance."""
        dice = self.dice
        rank = dice.randrange(self.order.pp)
        row = self.rows[rank]
        a = dice.randrange(len(row))
        b = min(len(row) - 1, max(0, a + dice.choice((-1, 1)) * dice.randint(1, _FAR)))
        if a == b or not self._allowed(rank, a, b):
            return
        _shift(row, a, b)
        self.looked += 1
        value = self._timed()
        if value <= self.value or dice.random() < math.exp((self.value - value) / max(heat, 1e-12)):
            _shift(self.taken[rank], a, b)
            self.value = value
            if value < self.least:
                self.least, self.kept = value, self.data.codes.copy()
        else:
            _shift(row, b, a)

    def _timed(self) -> float:
        data = self.data
        if replay(data) < len(data.codes):
            return math.inf
        first, last = data.start[data.offset[:-1]], data.end[data.offset[1:] - 1]
        return float((last - first).max() if self.objective == "period" else last.max() - first.min())

    def _allowed(self, rank: int, a: int, b: int) -> bool:
        """Whether the moved action keeps its place among its own stream and cell, and the row fits its memory."""
        row, m, cells = self.rows[rank], self.order.microbatches, self.order.chunks * self.order.microbatches
        low, high = min(a, b), max(a, b) + 1
        passed = row[low:high]
        code = row[a]
        alike = (passed // m == code // m) | (passed % cells == code % cells)
        if int(alike.sum()) > 1:
            return False
        if self.room[rank] == math.inf:
            return True
        part = self.taken[rank][low:high].copy()
        _shift(part, a - low, b - low)
        return bool(self.taken[rank][:low].sum() + np.cumsum(part).max() <= self.room[rank])


def _shift(row: Any, a: int, b: int) -> None:  # noqa: ANN401 - an array of codes or of bytes
    """Move the entry at a to b; those between make room."""
    one = row[a]
    if a < b:
        row[a:b] = row[a + 1 : b + 1].copy()
    else:
        row[b + 1 : a + 1] = row[b:a].copy()
    row[b] = one
