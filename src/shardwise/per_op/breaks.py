"""Long runs of recomputed operators, broken where it costs least.

What a run saves is there again at once when it is made again. Where no start of a layer ends a run, as in a decoder of
which nothing is known, a run over all layers saves nothing: here and there an operator must be kept. For a limit on
what may be there at once, the operators to keep that cost the fewest bytes are a shortest path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from shardwise.per_op.tables import Array, Tables

LIMITS = (1.0, 1.15, 1.35, 1.7, 2.2, 3.0, 5.0, 9.0)
"""Times the largest run that is left as it is: what may be there at once."""


def broken(tables: Tables, rows: Array, layouts: Array, recompute: Array, held: int) -> Array | None:
    """Flags with the long runs broken so that least memory is taken; none: there are no long runs."""
    act, made = tables.act[layouts, rows], tables.made[layouts, rows]
    saved = np.where(~tables.starts[rows[1:]] | tables.shared[rows[:-1]], act[:-1], 0.0)
    longest = len(tables.may)  # operators of the profile: a run of more holds a layer twice
    runs = list(_runs(tables, rows, recompute))
    long = [(first, end) for first, end in runs if end - first > longest]
    if not long:
        return None
    floor = max((float(made[first:end].sum()) for first, end in runs if end - first <= longest), default=0.0)
    floor = max(floor, *(float(made[first:end].max()) for first, end in long))
    best, flags = np.inf, None
    for limit in (floor * times for times in LIMITS):
        places = [place for run in long for place in kept_places(made, saved, run, limit)]
        own = recompute.copy()
        own[places] = False
        size = held * _kept(saved, recompute, own) + limit
        if size < best:
            best, flags = size, own
    return flags


def _runs(tables: Tables, rows: Array, recompute: Array) -> Iterator[tuple[int, int]]:
    """First and end of the pairs of neighbours, both recomputed, that are made again at once."""
    pairs = recompute[:-1] & recompute[1:]
    closes = ~tables.shared[rows[:-1]] & tables.starts[rows[1:]]
    first = None
    for index, pair in enumerate(pairs.tolist()):
        if pair and first is None:
            first = index
        if first is not None and (not pair or closes[index]):
            yield first, index + int(pair)
            first = None
    if first is not None:
        yield first, len(pairs)


def _kept(saved: Array, before: Array, after: Array) -> float:
    """Bytes of a micro batch that are kept again."""
    lost = (before[:-1] & before[1:]) & ~(after[:-1] & after[1:])
    return float(saved[lost].sum())


def kept_places(made: Array, saved: Array, run: tuple[int, int], limit: float) -> list[int]:
    """Operators to keep so that no part of a run has more than the limit, for the fewest bytes."""
    first, end = run
    total = [0.0, *np.cumsum(np.maximum(0.0, made[first:end])).tolist(), np.inf]
    lost = np.concatenate([[0.0], saved[first:end], [0.0]])
    costs = [*(lost[:-1] + lost[1:]).tolist(), 0.0]  # of keeping an operator: its own output and the one before
    value, came = {-1: 0.0}, []
    near = deque([-1])  # places to come from, each dearer than those in front of it
    for place, cost in enumerate(costs):  # the last stands for the end
        while total[max(place - 1, 0)] - total[near[0] + 1] > limit:
            near.popleft()
        came.append(near[0])
        value[place] = value[near[0]] + cost
        while near and value[near[-1]] >= value[place]:
            near.pop()
        near.append(place)
    found, at = [], came[-1]
    while at >= 0:
        found.append(first + at)
        at = came[at]
    return found
