"""Where the bubbles come from.

Every rank's idle time between the first start and the last end on any rank (the synchronous bubble) has one cause:

    warm-up         before the rank's first action
    drain           after its last
    communication   in between, while the awaited message is on its way
    memory-limit    in between, while a forward has its input but no room, or activations come from host memory
    imbalance       in between, otherwise: the producer is slower or ran something else first
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwise.pipeline.action import F
from shardwise.pipeline.critical_path import arrivals
from shardwise.pipeline.timeline import action_bytes, place_bytes

if TYPE_CHECKING:
    from shardwise.pipeline.timeline import Timeline

PARTS = ("warm-up", "imbalance", "communication", "memory-limit", "drain")


def bubble_parts(timeline: Timeline) -> dict[str, float]:
    """Shares of ranks x makespan; they sum to the synchronous bubble."""
    first = min(float(row[0]) for row in timeline.start)
    last = max(float(row[-1]) for row in timeline.end)
    ready, parts = arrivals(timeline), dict.fromkeys(PARTS, 0.0)
    limits = timeline.costs.limits(timeline.schedule.pp)
    for rank, limit in enumerate(limits):
        parts["warm-up"] += float(timeline.start[rank][0]) - first
        parts["drain"] += last - float(timeline.end[rank][-1])
        for name, idle in _inside(timeline, rank, ready, limit).items():
            parts[name] += idle
    whole = timeline.schedule.pp * (last - first)
    return {name: idle / whole for name, idle in parts.items()}


def period_parts(timeline: Timeline) -> dict[str, float]:
    """Shares of ranks x period. Iterations follow each other without a barrier, so there is no warm-up and no drain;
    what a rank waits for the rank with the longest span is imbalance.
    """
    ready, parts, spans = arrivals(timeline), dict.fromkeys(PARTS, 0.0), timeline.spans
    limits, period = timeline.costs.limits(timeline.schedule.pp), max(spans)
    for rank, (span, limit) in enumerate(zip(spans, limits, strict=True)):
        parts["imbalance"] += period - span
        for name, idle in _inside(timeline, rank, ready, limit).items():
            parts[name] += idle
    whole = timeline.schedule.pp * period
    return {name: idle / whole for name, idle in parts.items()}


def _inside(timeline: Timeline, rank: int, ready: np.ndarray, limit: float) -> dict[str, float]:
    """Idle between a rank's first and last action."""
    start, end = timeline.start[rank], timeline.end[rank]
    gap = start[1:] - end[:-1]
    sent = ready[timeline.schedule.codes[rank][1:]]
    travel = np.clip(np.minimum(gap, start[1:] - sent), 0.0, None)
    host = timeline.cause[rank][1:] == 3
    travel = np.where(np.isnan(travel) | host, 0.0, travel)
    rest = gap - travel
    held_back = (_held_back(timeline, rank, ready, limit)[:-1] | host) & (rest > 0)
    return {
        "communication": float(travel.sum()),
        "memory-limit": float(rest[held_back].sum()),
        "imbalance": float(rest[~held_back].sum()),
    }


def _held_back(timeline: Timeline, rank: int, ready: np.ndarray, limit: float) -> np.ndarray:
    """Per action: whether, when it ends, the rank's next forward has its input but would break the memory limit."""
    codes = timeline.schedule.codes[rank]
    blocked = np.zeros(len(codes), dtype=bool)
    if limit == float("inf"):
        return blocked
    taken = action_bytes(codes, timeline.schedule, timeline.costs)
    after = place_bytes(timeline.schedule, rank, timeline.costs) + np.minimum(taken, 0.0)
    kinds, following, ends = timeline.kinds(rank), -1, timeline.end[rank]
    for k in range(len(codes) - 1, -1, -1):
        if following >= 0:
            code = int(codes[following])
            chunk = code // timeline.schedule.microbatches % timeline.schedule.chunks
            there = np.isnan(ready[code]) or ready[code] <= ends[k]
            blocked[k] = there and after[k] + timeline.costs.held(chunk) > limit
        if kinds[k] == F:
            following = k
    return blocked
