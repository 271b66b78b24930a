"""A stage without its memory limit: every byte has a price instead, and the cheapest path over layouts and recompute
flags is a lower bound (Lagrangian relaxation). Prices are the seconds per byte at which recompute pays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwise.per_op.evaluate import in_flight
from shardwise.per_op.question import OperatorQuestion
from shardwise.per_op.tables import Array, Tables

INFINITE = 1e-3
"""Seconds per byte that no time can pay: finds what cannot fit."""

DEARER = (1.7, 3.0, 6.0)
"""Times the dearest recompute: where memory is so short that layouts must give way."""


def prices_of(tables: Tables, most: int = 5) -> Array:
    """0, the slopes of the hull of recompute choices of a layer under the main layouts, and an infinite price."""
    found: set[float] = set()
    for layout in _main(tables):
        found.update(_slopes(*_runs(tables, layout)))
    slopes = _spread(sorted(found), most)
    dear = [factor * slopes[-1] for factor in DEARER] if slopes else []
    return np.array([0.0, *slopes, *dear, INFINITE])


def _main(tables: Tables) -> list[int]:
    """The fastest layout of the chain and the fastest with the most tp."""
    total = tables.work[:, tables.rows].sum(axis=1)
    tps = np.array([layout.tp for layout in tables.layouts])
    widest = np.flatnonzero(tps == tps.max())
    return sorted({int(total.argmin()), int(widest[total[widest].argmin()])})


def _runs(tables: Tables, layout: int) -> tuple[Array, Array]:
    """Seconds and bytes of all runs of recomputed operators within the profile's rows."""
    forward, act, may = tables.forward[layout], tables.act[layout], tables.may
    seconds, saved = [], []
    for first in range(len(may)):
        time = size = 0.0
        for last in range(first, len(may)):
            if not may[last] or (last > first and tables.starts[last]):
                break
            time += forward[last]
            if last > first:
                size += act[last - 1]
                seconds.append(time)
                saved.append(size)
    return np.array(seconds), np.array(saved)


def _slopes(seconds: Array, saved: Array) -> list[float]:
    """Seconds per byte of every run that no other beats."""
    good = saved > 0
    if not good.any():
        return []
    rate = seconds[good] / saved[good]
    best = np.argsort(rate, kind="stable")
    kept, top = [], 0.0
    for index in best:
        if saved[good][index] > top:
            top = float(saved[good][index])
            kept.append(float(rate[index]))
    return kept


def _spread(values: list[float], most: int) -> list[float]:
    """At most so many values: near ones (5%) merged, then the evenly placed ones."""
    merged: list[float] = []
    for value in values:
        if not merged or value > 1.05 * merged[-1]:
            merged.append(value)
    if len(merged) <= most:
        return merged
    picks = np.linspace(0, len(merged) - 1, most).round().astype(int)
    return [merged[index] for index in sorted(set(picks.tolist()))]


FAR = 1e6
"""Seconds of what does not fit."""


class Relaxed:
    """The arrays of one relaxation, [price, behind] in front.

    `behinds`: numbers of stages behind, ascending. The cheapest path at a price nu per kept and mu per lasting byte is
    concave in both, so that its value at nu and nu / c lies above the line between two neighbouring c (in 1 / c): only
    a few are walked, and the line is the bound of those between. Where the same path is the cheapest, it is exact.
    """

    def __init__(
        self, question: OperatorQuestion, tables: Tables, samples: int, behinds: Sequence[int], prices: int = 5
    ) -> None:
        self.tables = tables
        self.question = question
        self.nu = prices_of(tables, prices)[:, None]
        held = np.array([in_flight(question, k, samples) + 1 for k in behinds], dtype=float)
        walked = _walked(len(held))
        self.between = _lines(held, walked)
        self.per_byte = self.nu / held[None, walked]
        self.nu = np.broadcast_to(self.nu, self.per_byte.shape)
        self.limit = question.limit - tables.fixed
        self.least_f = tables.reserved_f.min(axis=0)
        self.least_b = tables.reserved_b.min(axis=0)
        self.least_w = tables.weights.min(axis=0)
        self.node_crossings = 2 if question.gpus > question.node else 1
        work, static, act, forward = (
            x.T[:, None, None, :] for x in (tables.work, tables.static, tables.act, tables.forward)
        )
        self.kept = work + self.nu[None, :, :, None] * act + self.per_byte[None, :, :, None] * static
        self.recompute = np.where(tables.may[:, None, None, None], self.kept + forward, FAR * 1e6)
        self.saved = self.nu[None, :, :, None] * act

    def own(self, rows: Array) -> tuple[Array, Array]:
        """[row, price, behind, layout] cost of an operator, kept and made again."""
        return self.kept[rows], self.recompute[rows]

    def saving(self, before: Array, rows: Array) -> Array:
        """[row, price, behind, layout before] what recompute of both saves."""
        counted = ~self.tables.starts[rows] | self.tables.shared[before]
        found: Array = self.saved[before] * counted[:, None, None, None]
        return found

    def enter(self, rows: Array, crossing: int) -> Array:
        """[row, price, behind, layout] receiving and keeping the stage's input."""
        t = self.tables
        send = t.enter[crossing][:, rows].T[:, None, None, :]
        found: Array = send + self.nu[None, :, :, None] * t.entry[:, rows].T[:, None, None, :]
        return found

    def leave(self, rows: Array, crossing: int) -> Array:
        """[row, price, behind, layout] sending the output, at the best first layout, and not keeping it."""
        send = self.tables.leave[crossing].min(axis=0)[:, rows].T[:, None, None, :]
        found: Array = send - self.nu[None, :, :, None] * self.tables.sent[:, rows].T[:, None, None, :]
        return found

    def priced(self, paths: Array, reserve: Array) -> Array:
        """[behind, row] the best bound over all prices."""
        values = paths + self.per_byte[None] * (reserve[:, None, None] - self.limit)
        found: Array = (values @ self.between).max(axis=1).T
        return found

    def least(self, paths: Array, reserve: Array) -> Array:
        """[row] the same for the fewest stages behind, which nothing is below; `paths`: [row, price]."""
        found: Array = (paths + self.per_byte[None, :, 0] * (reserve[:, None] - self.limit)).max(axis=1)
        return found


def _walked(count: int) -> list[int]:
    """Places 0, 1, 3, 7 and so on, and the last."""
    return sorted({min(2**power - 1, count - 1) for power in range(count.bit_length() + 1)})


def _lines(held: Array, walked: list[int]) -> Array:
    """[walked, place] weights of the line in 1 / held between two walked neighbours."""
    x = 1 / held
    return np.array([np.interp(-x, -x[walked], np.eye(len(walked))[index]) for index in range(len(walked))])


def step(base: Array, cross: Array) -> Array:
    """Cheapest change of layout: [row, price, behind, layout before] and [row, before, after]."""
    found: Array = base[..., :1] + cross[:, None, None, 0, :]
    for before in range(1, base.shape[-1]):
        np.minimum(found, base[..., before : before + 1] + cross[:, None, None, before, :], out=found)
    return found
