"""One stage with one layout, and whole layers recomputed by at most two patterns: fast, near the best in deep models.

All sets of recomputed operators of one layer are tried; for every allowed peak the best mix of two neighbours on the
hull of (seconds, bytes saved) is taken. In a stage of a hundred layers the loss against any mix is below one layer's.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from shardwise.per_op.evaluate import in_flight, stage_cost
from shardwise.per_op.question import OperatorQuestion
from shardwise.per_op.stage import SolvedStage, StageTask
from shardwise.per_op.tables import NEVER, Array, Tables, tables_of

MOST_OPS = 14
"""Layers of more operators are recomputed by single runs only."""
PEAKS = 24
"""Allowed peaks that are tried."""


class Patterns(NamedTuple):
    """Sets of recomputed operators of one layer, those that others beat left out."""

    flags: Array
    seconds: Array
    saved: Array
    peak: Array
    hulls: tuple[tuple[float, tuple[tuple[int, int], ...]], ...] = ()
    """For some allowed peaks: neighbours on the hull of seconds over saved bytes."""


def flag_sets(may: Array) -> Array:
    """[set, operator] candidates; the empty set first."""
    count = len(may)
    if count <= MOST_OPS:
        sets = (np.arange(2**count)[:, None] >> np.arange(count)) & 1 == 1
    else:
        places = np.arange(count)
        runs = [(places >= a) & (places < b) for a in range(count) for b in range(a + 2, count + 1)]
        sets = np.array([np.zeros(count, dtype=bool), *runs])
    edge = np.zeros((len(sets), 1), dtype=bool)
    beside = np.hstack([edge, sets[:, :-1]]) | np.hstack([sets[:, 1:], edge])
    # an operator made again alone saves nothing
    allowed: Array = sets[~(sets & ~(may & beside)).any(axis=1)]
    return allowed


def layer_patterns(tables: Tables, rows: Array, layout: int) -> Patterns:
    """Seconds, saved bytes and peak of all sets that no other beats."""
    flags = flag_sets(tables.may[rows])
    act, made, forward = (table[layout, rows] for table in (tables.act, tables.made, tables.forward))
    pairs = flags[:, :-1] & flags[:, 1:]
    counted = ~tables.starts[rows[1:]] | tables.shared[rows[:-1]]
    saved = (pairs & counted) @ act[:-1]
    highest = run = np.zeros(len(flags))
    for index in range(len(rows) - 1):
        run = np.where(pairs[:, index], run + made[index], 0.0)
        highest = np.maximum(highest, run)
    found = Patterns(flags, flags @ forward, saved, highest)
    order = np.lexsort((found.peak, -found.saved, found.seconds))
    keep = _unbeaten(-saved[order], highest[order])
    best = Patterns(*(column[order[keep]] for column in found[:4]))
    peaks = np.unique(best.peak)
    chosen = sorted({*peaks[:: max(1, len(peaks) // PEAKS)].tolist(), float(peaks[-1])})
    hulls = tuple((peak, tuple(_hull(best, np.flatnonzero(best.peak <= peak)))) for peak in chosen)
    return best._replace(hulls=hulls)


def _unbeaten(first: Array, second: Array) -> Array:
    """Positions whose pair is not matched or beaten in both by an earlier one."""
    kept = np.empty((2, len(first)))
    chosen: list[int] = []
    for index, pair in enumerate(zip(first, second, strict=True)):
        count = len(chosen)
        if not ((kept[0, :count] <= pair[0]) & (kept[1, :count] <= pair[1])).any():
            kept[:, count] = pair
            chosen.append(index)
    return np.array(chosen)


class PatternMix(NamedTuple):
    """So many layers by one pattern, the next by another."""

    first: int
    """Pattern of the first layers."""
    second: int
    layers: int
    """Layers of the first pattern; the rest have the second."""


def best_mixes(runs: list[tuple[Patterns, int]], held: int, excess: float) -> list[PatternMix] | None:
    """For runs of so many layers each, the fastest mixes that save the excess together, the peak of what is made again
    counted; none: it cannot be saved so.
    """
    best: tuple[float, list[PatternMix]] | None = None
    for peak in sorted({peak for patterns, _ in runs for peak, _ in patterns.hulls}):
        made = _cheapest(runs, (excess + peak) / held, peak)
        if made is not None and (best is None or made[0] < best[0]):
            best = made
    return best[1] if best else None


def _cheapest(runs: list[tuple[Patterns, int]], need: float, peak: float) -> tuple[float, list[PatternMix]] | None:
    """Seconds and mixes within a peak: steps along the hulls of all runs, the cheapest per byte first."""
    steps = [(_rate(patterns, low, high), place, at, low, high)
             for place, (patterns, _) in enumerate(runs)
             for at, (low, high) in enumerate(_within(patterns, peak))]  # fmt: skip
    seconds, mixes = 0.0, [PatternMix(0, 0, layers) for _, layers in runs]
    for _, place, _, low, high in sorted(steps):
        if need <= 0:
            break
        patterns, layers = runs[place]
        gain = float(patterns.saved[high] - patterns.saved[low])
        count = min(layers, int(np.ceil(need / gain - 1e-12)))
        mixes[place] = PatternMix(high, low, count)
        seconds += count * float(patterns.seconds[high] - patterns.seconds[low])
        need -= count * gain
    return (seconds, mixes) if need <= 0 else None


def _within(patterns: Patterns, peak: float) -> tuple[tuple[int, int], ...]:
    """The hull of the largest peak that is allowed."""
    allowed = [hull for own, hull in patterns.hulls if own <= peak]
    return allowed[-1] if allowed else ()


def _rate(patterns: Patterns, low: int, high: int) -> float:
    return float((patterns.seconds[high] - patterns.seconds[low]) / (patterns.saved[high] - patterns.saved[low]))


def _hull(patterns: Patterns, inside: Array) -> list[tuple[int, int]]:
    """Neighbours on the lower hull of seconds over saved bytes, from the least saved."""
    order = inside[np.lexsort((patterns.seconds[inside], patterns.saved[inside]))]
    hull: list[int] = []
    for index in order:
        while len(hull) > 1 and _above(patterns, hull[-2], hull[-1], int(index)):
            hull.pop()
        if hull and patterns.saved[hull[-1]] == patterns.saved[index]:
            continue
        hull.append(int(index))
    return list(pairwise(hull))


def _above(p: Patterns, a: int, b: int, c: int) -> bool:
    left = (p.seconds[b] - p.seconds[a]) * (p.saved[c] - p.saved[a])
    return bool(left >= (p.seconds[c] - p.seconds[a]) * (p.saved[b] - p.saved[a]))


class Filler:
    """Solves stages with one layout each."""

    def __init__(self, question: OperatorQuestion) -> None:
        self.question = question
        self.limit = question.limit
        self.patterns = lru_cache(maxsize=512)(self._patterns)
        self.known: dict[StageTask, SolvedStage] = {}

    def _patterns(self, samples: int, gpus: int, layout: int, block: int) -> Patterns:
        tables, found = tables_of(self.question, samples, gpus), self.question.chain.blocks[block]
        return layer_patterns(tables, tables.rows[found.start : found.start + found.period], layout)

    def solve(self, task: StageTask) -> SolvedStage:
        first, end = self.question.chain.fold(task.first, task.end)
        task = task._replace(first=first, end=end)
        if task not in self.known:
            self.known[task] = self._solve(task)
        return self.known[task]

    def _solve(self, task: StageTask) -> SolvedStage:
        tables = tables_of(self.question, task.samples, task.gpus)
        none = np.empty(0, dtype=int)
        best = SolvedStage(seconds=np.inf, lower=0.0, layouts=none, recompute=none)
        for layout in range(len(tables.layouts)):
            made = self.fill(task, tables, layout)
            if made is not None and made.seconds < best.seconds:
                best = made
        return best

    def fill(self, task: StageTask, tables: Tables, layout: int) -> SolvedStage | None:
        """A stage with this one layout, recompute chosen where it does not fit; none: it never does."""
        size = task.end - task.first
        layouts, flags = np.full(size, layout), np.zeros(size, dtype=bool)
        args = (task.behind, task.crossing, task.samples)
        plain = stage_cost(self.question, tables, task.first, layouts, flags, *args)
        excess = plain.memory - self.limit
        if excess > 0:
            mixed = self._recomputed(task, layout, flags, excess)
            if mixed is None:
                return None
            flags = mixed
        cost = stage_cost(self.question, tables, task.first, layouts, flags, *args) if excess > 0 else plain
        if cost.memory > self.limit or cost.seconds >= NEVER:
            return None
        return SolvedStage(seconds=cost.seconds, lower=0.0, layouts=layouts, recompute=flags)

    def _recomputed(self, task: StageTask, layout: int, flags: Array, excess: float) -> Array | None:
        """Flags of the whole layers inside the stage."""
        held = in_flight(self.question, task.behind, task.samples) + 1
        flags, lows, runs = flags.copy(), [], []
        for index, block in enumerate(self.question.chain.blocks):
            low = max(block.start, task.first + (block.start - task.first) % block.period)
            layers = (min(block.end, task.end) - low) // block.period
            if layers > 0:
                lows.append(low - task.first)
                runs.append((self.patterns(task.samples, task.gpus, layout, index), layers))
        mixes = best_mixes(runs, held, excess)
        if mixes is None:
            return None
        for low, (patterns, layers), mix in zip(lows, runs, mixes, strict=True):
            own = np.concatenate([np.tile(patterns.flags[mix.first], mix.layers),
                                  np.tile(patterns.flags[mix.second], layers - mix.layers)])  # fmt: skip
            flags[low : low + len(own)] = own
        return flags
