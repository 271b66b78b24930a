"""The best cut of the chain into stages, given the seconds of every possible stage.

A node is (stages left, first operator left, GPUs left); an arc is the next stage. The iteration takes
(passes - 1) x slowest stage + sum of stages: for a limit on the slowest stage, the least sum is a shortest path, and
limits fall from what the best known plan allows to what is possible at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardwise.per_op.question import Question
from shardwise.per_op.ranges import Array

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
