"""The best cut of the chain into stages, given the seconds of every possible stage.

A node is (stages left, first operator left, GPUs left); an arc is the next stage. A stage waits for those before it,
works off all micro batches, and those before it come last: whatever the order of passes, an iteration takes at least
passes x the seconds of a stage and those of all stages before it. The most of these over all stages is a recursion from
the end: t, then the rest, take max(passes x t, t + rest), so that a shortest path is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardwise.per_op.chain import Array
from shardwise.per_op.question import OperatorQuestion

INF = np.inf


class StageCut(NamedTuple):
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


def moves(question: OperatorQuestion, gpus: int, left: int) -> tuple[bool, int, int]:
    """Whether a stage of `gpus` may be next with `left` GPUs left, and whether it receives and sends across nodes."""
    used = question.gpus - left
    inside = used % question.node
    legal = gpus <= left
    if question.space == "compatible":
        legal &= gpus in (1, 2, 4, 8) and inside + gpus <= question.node
    receives = int(used > 0 and inside == 0)
    return legal, receives, int((used + gpus) % question.node == 0)


@dataclass(frozen=True, slots=True)
class Flow:
    """What stages take together: no order of passes is faster."""

    passes: int

    def then(self, seconds: Array, rest: Array) -> Array:
        """A stage and what `rest` the stages after it take; a number to minimise."""
        found: Array = np.maximum(self.passes * seconds, seconds + rest)
        return found

    def least(self, worst: Array, total: Array) -> Array:
        """Of the least largest stage and the least of `then`: seconds that no plan is below."""
        del worst
        return total

    def joined(self, worst: Array, before: Array, seconds: Array, after: Array) -> Array:
        """Of the largest stage, the sum before a stage, its seconds, and `then` after it: likewise."""
        del worst
        found: Array = before + self.then(seconds, after)
        return found

    def best_path(self, arcs: Arcs) -> tuple[float, list[int]]:
        """The best plan for the arcs' present seconds, exactly, and its arcs."""
        return shortest(arcs, INF, self.then)

    def value(self, seconds: Sequence[float]) -> float:
        """Of the stages of a plan."""
        total = 0.0
        for own in reversed(seconds):
            total = max(self.passes * own, own + total)
        return total


Combine = Callable[[Array, Array], Array]


def shortest(arcs: Arcs, limit: float, combine: Combine) -> tuple[float, list[int]]:
    """Least value over all plans with stages within the limit, a stage combined with what comes after it; its arcs."""
    value = np.full(arcs.nodes, INF)
    value[arcs.sink] = 0.0
    seconds = arcs.seconds[arcs.key]
    seconds = np.where(seconds > limit, INF, seconds)
    choice = np.full(arcs.nodes, -1, dtype=np.int64)
    for low, high in arcs.groups:
        if low == high:
            continue
        rest = value[arcs.after[low:high]]
        both = combine(seconds[low:high], rest)
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


def cut_of(arcs: Arcs, arc: int) -> StageCut:
    crossing = int(arcs.crossing[arc])
    return StageCut(
        first=int(arcs.first[arc]),
        end=int(arcs.end[arc]),
        gpus=int(arcs.gpus[arc]),
        behind=int(arcs.stages[arc]) - 1,
        crossing=(crossing // 2, crossing % 2),
        arc=arc,
    )
