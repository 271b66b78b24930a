"""One stage solved in a moment: the cheapest paths at prices of memory, and a change from one to the other on the way.

A price per byte stands for the memory limit, and the cheapest path over layouts and recompute flags is that of a short
dynamic programme, for all prices at once. At the right price two paths cost the same: one fits, the other is faster.
The stage takes the one up to some operator and the other from there on, so that it just fits. With many equal layers
that is near the best. The cheapest path at any price, less the price of the limit, bounds every choice that fits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from shardwise.per_op.breaks import broken
from shardwise.per_op.evaluate import in_flight, stage_cost
from shardwise.per_op.question import OperatorQuestion
from shardwise.per_op.relaxed import prices_of
from shardwise.per_op.stage import UNKNOWN, SolvedStage, StageTask
from shardwise.per_op.tables import NEVER, Array, tables_of

FINER = 8
"""Prices between two of the round before."""
ROUNDS = 2
BESIDE = 14
"""Operators to change at beside the first that fits: about a layer."""


class _Path(NamedTuple):
    """A choice for every operator, and what comes of it."""

    layouts: Array
    recompute: Array
    seconds: float
    memory: float


class _Walker:
    """Paths of one stage."""

    def __init__(self, question: OperatorQuestion, task: StageTask) -> None:
        self.question, self.task = question, task
        self.tables = tables_of(question, task.samples, task.gpus)
        self.rows = self.tables.rows[task.first : task.end]
        self.held = in_flight(question, task.behind, task.samples) + 1
        self.lower = 0.0
        """No choice that fits is faster."""

    def _reserve(self) -> float:
        """The least that is taken beside what the operators keep."""
        t, rows = self.tables, self.rows
        high = sum(float(column[:, rows[:-1]].min(axis=0).max(initial=0.0)) for column in (t.reserved_f, t.reserved_b))
        return max(high, float(t.weights[:, rows].min(axis=0).sum())) + t.fixed

    def paths(self, prices: Array, limit: float) -> list[_Path]:
        """The cheapest at every price per byte of all micro batches held."""
        size = len(self.tables.layouts)
        opened = np.tile(np.arange(size), len(prices))  # a stage sends as its first operator is split
        value, choices = self._backward(np.repeat(prices, size), opened)
        own = value[:, np.arange(len(opened)), opened]
        least = own.min(axis=0).reshape(len(prices), size)
        best = least.argmin(axis=1)
        self.lower = max(self.lower, float((least.min(axis=1) + prices * (self._reserve() - limit)).max()))
        every = np.arange(len(prices)) * size + best
        states = [own[:, every].argmin(axis=0) * size + best]
        for choice in reversed(choices):
            states.append(choice[states[-1] // size, every, states[-1] % size])
        return [self.path(chosen % size, chosen >= size) for chosen in np.array(states).T]

    def _backward(self, prices: Array, opened: Array) -> tuple[Array, list[Array]]:
        """[flag, price, layout] least cost from the first operator on, and from the last operator back the best next
        state (flag x layouts + layout) of every state. `opened`: the first operator's layout, per price.
        """
        t, rows, per = self.tables, self.rows, prices[:, None]
        sends = t.leave[self.task.crossing[1]][:, :, rows[-1]][opened]
        value = self._own(rows[-1], per) + sends - per * self.held * t.sent[:, rows[-1]]
        choices = []
        for before, row in zip(rows[-2::-1], rows[:0:-1], strict=True):
            ahead = value[:, :, None, :] + t.cross[row]  # [flag, price, layout before, layout]
            saves = not t.starts[row] or t.shared[before]
            saved = per[:, :, None] * self.held * t.act[:, before][:, None] if saves else 0.0
            both = np.array([np.concatenate([ahead[0], ahead[1] - cut], axis=-1) for cut in (0.0, saved)])
            picks = both.argmin(axis=-1)
            choices.append(picks)
            value = np.take_along_axis(both, picks[..., None], axis=-1)[..., 0] + self._own(before, per)
        entry = t.enter[self.task.crossing[0]][:, rows[0]] + per * self.held * t.entry[:, rows[0]]
        return value + entry, choices

    def _own(self, row: int, per: Array) -> Array:
        """[flag, price, layout] of one operator."""
        t = self.tables
        kept = t.work[:, row] + per * (t.static[:, row] + self.held * t.act[:, row])
        again = kept + t.forward[:, row] if t.may[row] else np.full_like(kept, NEVER * NEVER)
        return np.array([kept, again])

    def path(self, layouts: Array, recompute: Array) -> _Path:
        """Where it does not fit, with its long runs broken."""
        made = self._priced(layouts, recompute)
        if made.memory <= self.question.limit:
            return made
        flags = broken(self.tables, self.rows, layouts, recompute, self.held)
        return made if flags is None else min(made, self._priced(layouts, flags), key=lambda own: own.memory)

    def _priced(self, layouts: Array, recompute: Array) -> _Path:
        task = self.task
        cost = stage_cost(
            self.question, self.tables, task.first, layouts, recompute, task.behind, task.crossing, task.samples
        )
        return _Path(layouts, recompute, cost.seconds, cost.memory)

    def joined(self, one: _Path, other: _Path, at: int) -> _Path:
        return self.path(
            np.concatenate([one.layouts[:at], other.layouts[at:]]),
            np.concatenate([one.recompute[:at], other.recompute[at:]]),
        )


def crossed(question: OperatorQuestion, task: StageTask, less: float = 0.0) -> SolvedStage:
    """A fast choice for a stage that fits, `less` bytes left free; infinite seconds: none was found."""
    walker, limit = _Walker(question, task), question.limit - less
    prices = prices_of(walker.tables) / walker.held
    small: _Path | None = None
    large: _Path | None = None
    for _ in range(ROUNDS):
        found = walker.paths(prices, limit)
        first = next((place for place, path in enumerate(found) if path.memory <= limit), len(found))
        small = found[first] if first < len(found) else small
        large = found[first - 1] if first else large
        if small is None or large is None:
            break
        prices = np.linspace(prices[max(0, first - 1)], prices[min(first, len(prices) - 1)], FINER + 2)[1:-1]
    best = small if small is None or large is None else _between(walker, small, large, limit)
    if best is None or best.seconds >= NEVER:
        return replace(UNKNOWN, lower=walker.lower)
    lower = min(walker.lower, best.seconds)
    return SolvedStage(seconds=best.seconds, lower=lower, layouts=best.layouts, recompute=best.recompute)


def _between(walker: _Walker, small: _Path, large: _Path, limit: float) -> _Path:
    """The fastest that fits of those which begin as one and end as the other."""
    best, count = small, len(small.layouts)
    for one, other in ((small, large), (large, small)):
        fits, over = (count, 0) if one is small else (0, count)
        while abs(fits - over) > 1:
            middle = (fits + over) // 2
            fits, over = (middle, over) if walker.joined(one, other, middle).memory <= limit else (fits, middle)
        sign = 1 if one is small else -1
        for at in range(fits, fits + sign * BESIDE, sign):
            made = walker.joined(one, other, at) if 0 < at < count else small
            if made.memory <= limit and made.seconds < best.seconds:
                best = made
    return best
