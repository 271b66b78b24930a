"""All nodes and arcs of the cut into stages under the bounds of the stages, for one micro batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from shardwise.per_op.answer import Deadline
from shardwise.per_op.bound import StageBounds
from shardwise.per_op.chain import Array
from shardwise.per_op.cut import INF, Arcs, Flow, moves
from shardwise.per_op.question import OperatorQuestion

MOST = 8192
"""More GPUs of a stage, and stages, than there are."""


class Grid:
    """Dynamic programmes over the nodes of one micro batch: [stages left, GPUs left, first operator left].

    With so many GPUs left, the operators left must be work enough for the GPUs used and few enough for those left:
    only a band of first operators is looked at.
    """

    def __init__(
        self,
        question: OperatorQuestion,
        bounds: list[StageBounds],
        most: int,
        work: Array,
        pace: Flow,
        deadline: Deadline,
    ) -> None:
        """`work`: the fewest GPU seconds of every operator."""
        self.bounds, self.most, self.pace, self.deadline = bounds, most, pace, deadline
        self.count, self.total = len(question.chain.rows), question.gpus
        self.shape = (most + 1, self.total + 1, self.count + 1)
        self.work = np.concatenate([[0.0], np.cumsum(work)])
        self.steps = [
            _Step(bound, left, *move[1:])
            for bound in bounds
            for left in range(bound.gpus, self.total + 1)
            if (move := moves(question, bound.gpus, left))[0]
        ]

    def bands(self, limit: float) -> list[slice]:
        """Per GPUs left: the first operators that stages within the limit can leave."""
        left = np.arange(self.total + 1) * limit * (1 + 1e-6)  # a negative size of a profile is a negative time
        low = np.searchsorted(self.work, self.work[-1] * (1 - 1e-12) - left, side="left")
        high = np.searchsorted(self.work, left[::-1], side="right")
        return [slice(int(a), int(b)) for a, b in zip(low, high, strict=True)]

    def _stage(self, stages: int) -> Iterator[tuple[_Step, Array]]:
        """Steps that can have so many stages left, each with the seconds of all ranges."""
        seen: dict[tuple[int, int, int], Array] = {}
        self.deadline.check()
        for step in self.steps:
            if step.left - step.bound.gpus < stages - 1:
                continue
            key = (step.bound.gpus, step.receives, step.sends)
            if key not in seen:
                seen[key] = step.bound.column(step.receives, step.sends, stages - 1)
            yield step, seen[key]

    def backward(self, limit: float) -> tuple[Array, Array]:
        """Least largest stage and least value of the pace from a node to the end, each stage within the limit."""
        worst, total, bands = np.full(self.shape, INF), np.full(self.shape, INF), self.bands(limit)
        worst[0, 0, self.count] = total[0, 0, self.count] = 0.0
        for stages in range(1, self.most + 1):
            for step, seconds in self._stage(stages):
                rows, after = bands[step.left], step.left - step.bound.gpus
                ends = _finite(worst[stages - 1, after], bands[after])
                number = step.bound.ranges.number[rows, ends]
                if not number.size:
                    continue
                matrix = seconds[number]
                matrix[matrix > limit] = INF
                here = worst[stages, step.left, rows]
                np.minimum(here, np.maximum(matrix, worst[stages - 1, after, ends]).min(axis=1), out=here)
                here = total[stages, step.left, rows]
                np.minimum(here, self.pace.then(matrix, total[stages - 1, after, ends]).min(axis=1), out=here)
        return worst, total

    def forward(self, limit: float, lasts: range, back: Array) -> tuple[Array, Array]:
        """Least largest stage and least sum of stages from the start of any plan with a number of stages in `lasts`
        to nodes that lead to the end.
        """
        worst, total, bands = np.full(self.shape, INF), np.full(self.shape, INF), self.bands(limit)
        for stages in lasts:
            worst[stages, self.total, 0] = total[stages, self.total, 0] = 0.0
        for stages in range(self.most, 0, -1):
            for step, seconds in self._stage(stages):
                after = step.left - step.bound.gpus
                rows = _finite(worst[stages, step.left], bands[step.left])
                ends = _finite(back[stages - 1, after], bands[after])
                number = step.bound.ranges.number[rows, ends]
                if not number.size:
                    continue
                matrix = seconds[number]
                matrix[matrix > limit] = INF
                there = worst[stages - 1, after, ends]
                np.minimum(there, np.maximum(matrix, worst[stages, step.left, rows, None]).min(axis=0), out=there)
                there = total[stages - 1, after, ends]
                np.minimum(there, (matrix + total[stages, step.left, rows, None]).min(axis=0), out=there)
        return worst, total

    def arcs(self, limit: float, value: float, lasts: range, back_worst: Array, back: Array) -> Arcs:
        """Arcs whose best plan is within `value` seconds by the bounds."""
        fore_worst, fore_sum = self.forward(limit, lasts, back_worst)
        bands = self.bands(limit)
        parts: list[tuple[Array, ...]] = []
        for stages in range(1, self.most + 1):
            for step, seconds in self._stage(stages):
                after = step.left - step.bound.gpus
                rows = _finite(fore_worst[stages, step.left], bands[step.left])
                ends = _finite(back_worst[stages - 1, after], bands[after])
                number = step.bound.ranges.number[rows, ends]
                if not number.size:
                    continue
                matrix = seconds[number]
                worst = np.maximum(fore_worst[stages, step.left, rows, None], back_worst[stages - 1, after, ends])
                before = fore_sum[stages, step.left, rows, None]
                least = self.pace.joined(worst, before, matrix, back[stages - 1, after, ends])
                good = (matrix <= limit) & (least <= value)
                first, end = np.nonzero(good)
                if len(first):
                    places = (first + rows.start, end + ends.start, number[first, end], matrix[first, end])
                    parts.append(self._part(step, stages, *places))
        return _gathered(parts, self, lasts)

    def _part(
        self, step: _Step, stages: int, first: Array, end: Array, number: Array, seconds: Array
    ) -> tuple[Array, ...]:  # fmt: skip
        one, gpus = np.ones(len(first), dtype=np.int64), step.bound.gpus
        node = np.ravel_multi_index((one * stages, one * step.left, first), self.shape)
        after = np.ravel_multi_index((one * (stages - 1), one * (step.left - gpus), end), self.shape)
        crossing = 2 * step.receives + step.sends
        key = ((number * MOST + gpus) * 4 + crossing) * MOST + step.bound.alike[stages - 1]
        return (one * stages, node, after, first, end, one * gpus, one * crossing, key, seconds)


class _Step(NamedTuple):
    """A stage that may be next with so many GPUs left."""

    bound: StageBounds
    left: int
    receives: int
    sends: int


def _finite(values: Array, inside: slice) -> slice:
    """The smallest slice that holds all finite values."""
    found = np.flatnonzero(np.isfinite(values[inside]))
    if not len(found):
        return slice(0, 0)
    return slice(inside.start + int(found[0]), inside.start + int(found[-1]) + 1)


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
    sources = [int(np.ravel_multi_index((s, grid.total, 0), grid.shape)) for s in lasts]
    return Arcs(
        stages=stages, node=node[order], after=after[order], first=first[order], end=end[order], gpus=gpus[order],
        crossing=crossing[order], key=number[order], seconds=seconds[where].astype(float), sources=np.array(sources),
        sink=int(np.ravel_multi_index((0, 0, grid.count), grid.shape)), nodes=int(np.prod(grid.shape)),
        groups=list(pairwise(counts)),
    )  # fmt: skip
