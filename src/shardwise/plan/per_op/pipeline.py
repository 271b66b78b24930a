"""The best cut of the chain into stages, given the seconds of every possible stage.

A node is (stages left, first operator left, GPUs left); an arc is the next stage. The iteration takes
(passes - 1) x slowest stage + sum of stages: for a limit on the slowest stage, the least sum is a shortest path, and
limits fall from what the best known plan allows to what is possible at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from shardwise.plan.per_op.bound import StageBounds
from shardwise.plan.per_op.ranges import Array
from shardwise.plan.per_op.types import Question

INF = np.inf


class Cut(NamedTuple):
    """One stage of a path: which range, on how many GPUs, with how many stages behind, over which boundaries."""

    first: int
    end: int
    gpus: int
    behind: int
    crossing: tuple[int, int]
    arc: int


@dataclass(slots=True, kw_only=True, eq=False)
class Arcs:
    """Arcs that may be part of a plan worth having; `seconds` is made exact as stages are solved."""

    stages: Array
    """Stages left at the arc's head, itself included; arcs are in ascending order of it."""
    node: Array
    """Node it leaves from, as a flat number."""
    after: Array
    """Node it leads to."""
    first: Array
    end: Array
    gpus: Array
    crossing: Array
    """2 x receives + sends over a node boundary."""
    key: Array
    """Number of the distinct stage that it is: range, GPUs, crossing, stages behind."""
    seconds: Array
    """Per distinct stage: lower bound or exact."""
    sources: Array
    sink: int
    nodes: int
    groups: list[tuple[int, int]]
    """Slices of arcs by stages left."""


def moves(question: Question, gpus: int, left: int) -> tuple[bool, int, int]:
    """Whether a stage of `gpus` may be next with `left` GPUs left, and whether it receives and sends across nodes."""
    used = question.gpus - left
    inside = used % question.node
    legal = gpus <= left
    if question.space == "compatible":
        legal &= gpus in (1, 2, 4, 8) and inside + gpus <= question.node
    receives = int(used > 0 and inside == 0)
    return legal, receives, int((used + gpus) % question.node == 0)


def iteration(passes: int, worst: Array, total: Array) -> Array:
    """Seconds of an iteration; with one pass the slowest stage counts once, in the sum."""
    return (passes - 1) * worst + total if passes > 1 else total


class Grid:
    """Dense dynamic programmes over all nodes of one micro batch."""

    def __init__(self, question: Question, bounds: list[StageBounds], most: int) -> None:
        self.question, self.bounds, self.most = question, bounds, most
        self.count, self.total = len(question.chain.rows), question.gpus
        self.shape = (most + 1, self.count + 1, self.total + 1)
        self.steps = [
            (bound, left, *moves(question, bound.gpus, left)[1:])
            for bound in bounds
            for left in range(bound.gpus, self.total + 1)
            if moves(question, bound.gpus, left)[0]
        ]
        # shorter ranges than the longest leave the last columns unused: their end is the (infinite) last row
        self.ends = {
            bound.gpus: np.minimum(np.arange(self.count)[:, None] + np.arange(1, bound.ranges.longest + 1), self.count)
            for bound in bounds
        }

    def matrix(self, bound: StageBounds, receives: int, sends: int, behind: int) -> Array:
        """[first, length - 1] seconds; infinite beyond the end."""
        table = np.append(bound.seconds[:, receives, sends, behind], INF)
        found: Array = table[bound.ranges.number]
        return found

    def backward(self, limit: float, worst: bool) -> Array:
        """[stages, first, GPUs] least (largest stage | sum of stages) from here to the end, each within the limit."""
        value = np.full(self.shape, INF)
        value[0, self.count, 0] = 0.0
        for stages in range(1, self.most + 1):
            seen: dict[tuple[int, int, int], Array] = {}
            for bound, left, receives, sends in self.steps:
                before = value[stages - 1, :, left - bound.gpus]
                if left < stages or not np.isfinite(before).any():
                    continue
                key = (bound.gpus, receives, sends)
                if key not in seen:
                    matrix = self.matrix(bound, receives, sends, stages - 1)
                    seen[key] = np.where(matrix > limit, INF, matrix)
                rest = before[self.ends[bound.gpus]]
                both = np.maximum(seen[key], rest) if worst else seen[key] + rest
                here = value[stages, : self.count, left]
                np.minimum(here, both.min(axis=1), out=here)
        return value

    def forward(self, limit: float, worst: bool, lasts: range) -> Array:
        """As backward, from the start of any plan with a number of stages in `lasts`."""
        value = np.full(self.shape, INF)
        for stages in lasts:
            value[stages, 0, self.total] = 0.0
        for stages in range(self.most, 0, -1):
            for bound, left, receives, sends in self.steps:
                here = value[stages, : self.count, left]
                if not np.isfinite(here).any():
                    continue
                matrix = self.matrix(bound, receives, sends, stages - 1)
                both = np.maximum(matrix, here[:, None]) if worst else matrix + here[:, None]
                both = np.where(matrix > limit, INF, both)
                after = value[stages - 1, :, left - bound.gpus]
                np.minimum.at(after, self.ends[bound.gpus].ravel(), both.ravel())
        return value

    def arcs(self, limit: float, value: float, passes: int, lasts: range, back_worst: Array, back_sum: Array) -> Arcs:
        """Arcs whose best plan is within `value` seconds by the bounds."""
        fore_worst, fore_sum = self.forward(limit, True, lasts), self.forward(limit, False, lasts)
        parts: list[tuple[Array, ...]] = []
        for stages in range(1, self.most + 1):
            for bound, left, receives, sends in self.steps:
                start_worst = fore_worst[stages, : self.count, left]
                rest_worst = back_worst[stages - 1, :, left - bound.gpus]
                if not (np.isfinite(start_worst).any() and np.isfinite(rest_worst).any()):
                    continue
                matrix, ends = self.matrix(bound, receives, sends, stages - 1), self.ends[bound.gpus]
                worst = np.maximum(np.maximum(matrix, start_worst[:, None]), rest_worst[ends])
                total = matrix + fore_sum[stages, : self.count, left][:, None]
                total += back_sum[stages - 1, :, left - bound.gpus][ends]
                good = (matrix <= limit) & (iteration(passes, worst, total) <= value)
                first, column = np.nonzero(good)
                if not len(first):
                    continue
                parts.append(self._part(bound, stages, left, receives, sends, first, column, matrix))
        return _gathered(parts, self, lasts)

    def _part(
        self, bound: StageBounds, stages: int, left: int, receives: int, sends: int,
        first: Array, column: Array, matrix: Array,
    ) -> tuple[Array, ...]:  # fmt: skip
        end = self.ends[bound.gpus][first, column]
        one = np.ones(len(first), dtype=np.int64)
        node = np.ravel_multi_index((one * stages, first, one * left), self.shape)
        after = np.ravel_multi_index((one * (stages - 1), end, one * (left - bound.gpus)), self.shape)
        crossing = 2 * receives + sends
        number = bound.ranges.number[first, column]
        key = ((number * 128 + bound.gpus) * 4 + crossing) * 128 + stages - 1
        return (one * stages, node, after, first, end, one * bound.gpus, one * crossing, key, matrix[first, column])


def _gathered(parts: list[tuple[Array, ...]], grid: Grid, lasts: range) -> Arcs:
    columns = [np.concatenate(column) if parts else np.empty(0, dtype=np.int64) for column in zip(*parts, strict=True)]
    if not columns:
        columns = [np.empty(0, dtype=np.int64)] * 9
    stages, node, after, first, end, gpus, crossing, key, seconds = columns
    order = np.lexsort((gpus, end, node, stages))
    unique, where, number = np.unique(key, return_index=True, return_inverse=True)
    del unique
    stages = stages[order]
    counts = [int(np.searchsorted(stages, s)) for s in range(1, grid.most + 2)]
    sources = [int(np.ravel_multi_index((s, 0, grid.total), grid.shape)) for s in lasts]
    return Arcs(
        stages=stages,
        node=node[order],
        after=after[order],
        first=first[order],
        end=end[order],
        gpus=gpus[order],
        crossing=crossing[order],
        key=number[order],
        seconds=seconds[where].astype(float),
        sources=np.array(sources),
        sink=int(np.ravel_multi_index((0, grid.count, 0), grid.shape)),
        nodes=int(np.prod(grid.shape)),
        groups=list(pairwise(counts)),
    )


def shortest(arcs: Arcs, limit: float, *, worst: bool = False) -> tuple[float, list[int]]:
    """Least sum (or least largest stage) over all plans with stages within the limit, and its arcs."""
    value = np.full(arcs.nodes, INF)
    value[arcs.sink] = 0.0
    seconds = arcs.seconds[arcs.key]
    seconds = np.where(seconds > limit, INF, seconds)
    choice = np.full(arcs.nodes, -1, dtype=np.int64)
    for low, high in arcs.groups:
        if low == high:
            continue
        rest = value[arcs.after[low:high]]
        both = np.maximum(seconds[low:high], rest) if worst else seconds[low:high] + rest
        node = arcs.node[low:high]
        np.minimum.at(value, node, both)
        hit = np.flatnonzero(np.isfinite(both) & (both == value[node]))[::-1]
        choice[node[hit]] = low + hit  # written backwards, so that ties go to the first arc
    best = int(arcs.sources[np.argmin(value[arcs.sources])])
    if not np.isfinite(value[best]):
        return INF, []
    path = []
    at = best
    while at != arcs.sink:
        path.append(int(choice[at]))
        at = int(arcs.after[path[-1]])
    return float(value[best]), path


def best_path(arcs: Arcs, passes: int) -> tuple[float, list[int]]:
    """The path with the least (passes - 1) x largest + sum: exact for the arcs' present seconds."""
    least, path = shortest(arcs, INF, worst=True)
    if not path:
        return INF, []
    best, chosen = _value(arcs, path, passes), path
    total, path = shortest(arcs, INF)
    limit = INF
    while path:
        value = _value(arcs, path, passes)
        if value < best:
            best, chosen = value, path
        largest = arcs.seconds[arcs.key[path]].max()
        if (passes - 1) * least + total >= best or largest <= least:
            break
        # a better plan has a smaller largest stage, and one that pays for the sum found so far
        limit = min(np.nextafter(largest, 0.0), (best - total) / max(passes - 1, 1), limit)
        total, path = shortest(arcs, limit)
    return best, chosen


def _value(arcs: Arcs, path: list[int], passes: int) -> float:
    seconds = arcs.seconds[arcs.key[path]]
    return float((passes - 1) * seconds.max() + seconds.sum())


def cut_of(arcs: Arcs, arc: int) -> Cut:
    crossing = int(arcs.crossing[arc])
    return Cut(
        first=int(arcs.first[arc]),
        end=int(arcs.end[arc]),
        gpus=int(arcs.gpus[arc]),
        behind=int(arcs.stages[arc]) - 1,
        crossing=(crossing // 2, crossing % 2),
        arc=arc,
    )
