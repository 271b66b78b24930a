"""Lower bounds of the seconds of every range on a stage, for all numbers of stages behind, by Lagrangian relaxation.

For a price nu per byte that one micro batch keeps, and nu / c per byte of everything else (c micro batches are held),
the cheapest path over layouts and recompute flags, less the price of the limit, is a lower bound of the time of every
choice that fits. The largest over a few prices is kept. The peak of a recomputed run is left out, the reserve is taken
at its least: the bound stays a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.per_op.answer import NEVER, Deadline
from shardwise.per_op.chain import Ranges, ranges_of
from shardwise.per_op.evaluate import alike, in_flight
from shardwise.per_op.question import OperatorQuestion
from shardwise.per_op.tables import Array, Tables, tables_of

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageBounds:
    """Lower bounds for stages of one number of GPUs and one micro batch."""

    gpus: int
    samples: int
    ranges: Ranges
    seconds: Array
    """[range, receives from another node, sends to another node, stages behind that differ]."""
    alike: tuple[int, ...]
    """Per stages behind: the entry with the same cost."""

    def column(self, receives: int, sends: int, behind: int) -> Array:
        """Of every range, and infinite for what is none."""
        return np.append(self.seconds[:, receives, sends, self.alike[behind]], np.inf)


class Relaxed:
    """The arrays of one relaxation, [price, behind] in front."""

    def __init__(self, question: OperatorQuestion, tables: Tables, samples: int, behind: int, prices: int = 5) -> None:
        self.tables = tables
        self.question = question
        self.nu = prices_of(tables, prices)[:, None]
        held = np.array([in_flight(question, k, samples) + 1 for k in range(behind)], dtype=float)
        self.per_byte = self.nu / held[None, :]
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
        """[row, behind] the best bound over all prices."""
        found: Array = (paths + self.per_byte[None] * (reserve[:, None, None] - self.limit)).max(axis=1)
        return found


def step(base: Array, cross: Array) -> Array:
    """Cheapest change of layout: [row, price, behind, layout before] and [row, before, after]."""
    found: Array = base[..., :1] + cross[:, None, None, 0, :]
    for before in range(1, base.shape[-1]):
        np.minimum(found, base[..., before : before + 1] + cross[:, None, None, before, :], out=found)
    return found


def stage_bounds(
    question: OperatorQuestion, samples: int, gpus: int, behind: int, cap: float, deadline: Deadline = NEVER
) -> StageBounds | None:
    """Bounds of all ranges that can take at most `cap` seconds; none where the profile has no layout."""
    tables = tables_of(question, samples, gpus)
    if not tables.layouts:
        return None
    ranges = ranges_of(question.chain, _longest(tables, cap))
    same = tuple(alike(question, count, samples) for count in range(behind))
    relaxed = Relaxed(question, tables, samples, same[-1] + 1)
    crossings = relaxed.node_crossings
    seconds = np.full((ranges.total, 2, 2, same[-1] + 1), FAR)
    _forward(relaxed, ranges, seconds, crossings, deadline)
    if len(ranges.ends):
        _backward(relaxed, ranges, seconds, crossings, deadline)
    if crossings == 1:  # one node: only the last stage's output counts as leaving it
        seconds[:, 1] = seconds[:, 0]
    return StageBounds(gpus=gpus, samples=samples, ranges=ranges, seconds=seconds, alike=same)


def _longest(tables: Tables, cap: float) -> int:
    """Operators of the longest range that could keep within the cap, each at its fastest."""
    work = np.concatenate([[0.0], np.cumsum(tables.work.min(axis=0)[tables.rows])])
    ends = np.searchsorted(work, work + cap, side="right") - 1
    return max(1, int((ends - np.arange(len(work))).max()))


def _forward(relaxed: Relaxed, ranges: Ranges, seconds: Array, crossings: int, deadline: Deadline) -> None:
    rows, count = relaxed.tables.rows, ranges.count
    for inside in range(crossings):
        starts = ranges.starts
        at = rows[starts]
        kept, again = relaxed.own(at)
        entry = relaxed.enter(at, inside)
        keep, make = entry + kept, entry + again
        high_f, high_b = np.zeros(len(starts)), np.zeros(len(starts))
        weight = np.zeros(len(starts))
        for length in range(1, ranges.longest + 1):
            deadline.check()
            live = starts + length <= count
            if length > 1:
                before, at = at, rows[np.minimum(starts + length - 1, count - 1)]
                kept, again = relaxed.own(at)
                cross = relaxed.tables.cross[at]
                base_kept = np.minimum(keep, make)
                base_again = np.minimum(keep, make - relaxed.saving(before, at))
                keep, make = step(base_kept, cross) + kept, step(base_again, cross) + again
            weight = weight + relaxed.least_w[at]
            reserve = np.maximum(high_f + high_b, weight)  # the last operator reserves nothing
            high_f, high_b = np.maximum(high_f, relaxed.least_f[at]), np.maximum(high_b, relaxed.least_b[at])
            best = np.minimum(keep, make)
            numbers = (np.arange(len(starts)) * ranges.longest + length - 1)[live]
            for outside in range(2):
                paths = (best + relaxed.leave(at, outside)).min(axis=-1)
                seconds[numbers, inside, outside] = relaxed.priced(paths, reserve)[live]


def _backward(relaxed: Relaxed, ranges: Ranges, seconds: Array, crossings: int, deadline: Deadline) -> None:
    rows, ends, t = relaxed.tables.rows, ranges.ends, relaxed.tables
    offset = len(ranges.starts) * ranges.longest
    lowest = max(0, int(ends[0]) - ranges.longest)
    for outside in range(2):
        shape = (len(ends), *relaxed.nu.shape, len(t.layouts))
        keep, make = np.full(shape, FAR * 1e6), np.full(shape, FAR * 1e6)
        high_f, high_b, weight = (np.zeros(len(ends)) for _ in range(3))
        for first in range(int(ends[-1]) - 1, lowest - 1, -1):
            deadline.check()
            at = rows[first]
            kept, again = (x[0] for x in relaxed.own(rows[first : first + 1]))
            fresh = ends == first + 1
            if first + 1 < ranges.count:
                after = rows[first + 1]
                cross = t.cross[after]
                counted = not t.starts[after] or t.shared[at]
                saving = relaxed.nu[..., None] * (t.act[:, at] if counted else 0.0)
                both = np.minimum(keep, make)
                on_kept, on_made, on_again = (_step_back(x, cross) for x in (both, make, keep))
                keep, make = on_kept + kept, np.minimum(on_made - saving, on_again) + again
            if fresh.any():
                leave = relaxed.leave(rows[first : first + 1], outside)
                keep[fresh], make[fresh] = leave + kept, leave + again
            high_f = np.where(fresh, 0.0, np.maximum(high_f, relaxed.least_f[at]))
            high_b = np.where(fresh, 0.0, np.maximum(high_b, relaxed.least_b[at]))
            weight = weight + relaxed.least_w[at]
            live = ends > first
            weight[fresh] = relaxed.least_w[at]
            reserve = np.maximum(high_f + high_b, weight)
            numbers = (offset + np.arange(len(ends)) * ranges.count + first)[live]
            best = np.minimum(keep, make)
            for inside in range(crossings):
                entry = relaxed.enter(rows[first : first + 1], inside)
                seconds[numbers, inside, outside] = relaxed.priced((best + entry).min(axis=-1), reserve)[live]


def _step_back(value: Array, cross: Array) -> Array:
    """Cheapest change of layout seen from before: [end, price, behind, layout after] and [before, after]."""
    found: Array = value[..., :1] + cross[:, 0]
    for after in range(1, value.shape[-1]):
        np.minimum(found, value[..., after : after + 1] + cross[:, after], out=found)
    return found
