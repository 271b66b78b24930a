"""The critical path of a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwise.pipeline.action import B, F, I, Schedule

if TYPE_CHECKING:
    from shardwise.pipeline.timeline import TimedAction, Timeline

_REASONS = ("start", "rank", "data", "host")


def critical_path(timeline: Timeline) -> tuple[TimedAction, ...]:
    from shardwise.pipeline.timeline import TimedAction

    schedule, steps = timeline.schedule, list["TimedAction"]()
    where = _positions(schedule)
    rank = max(range(schedule.pp), key=lambda r: (float(timeline.end[r][-1]), -r))
    index = len(schedule.codes[rank]) - 1
    together = [frozenset(places) for places in schedule.pairs] or [frozenset[int]()] * schedule.pp
    while index >= 0:
        if index in together[rank] and (not steps or steps[-1].rank != rank):
            index += 1  # what ran together is done when both are
        code = int(schedule.codes[rank][index])
        why = int(timeline.cause[rank][index])
        times = float(timeline.start[rank][index]), float(timeline.end[rank][index])
        steps.append(
            TimedAction(rank=rank, action=schedule.decode(code), start=times[0], end=times[1], waited_for=_REASONS[why])
        )
        if why == 0:
            break
        rank, index = (rank, index - 1) if why in {1, 3} else _producer(schedule, where, code)
    return tuple(reversed(steps))


def _positions(schedule: Schedule) -> dict[int, tuple[int, int]]:
    return {int(code): (rank, k) for rank, row in enumerate(schedule.codes) for k, code in enumerate(row.tolist())}


def _producer(schedule: Schedule, where: dict[int, tuple[int, int]], code: int) -> tuple[int, int]:
    """Where the action runs whose output `code` waits for."""
    stream, microbatch = divmod(code, schedule.microbatches)
    kind, chunk = divmod(stream, schedule.chunks)
    if kind == F:
        return where[code - schedule.microbatches]
    if (chunk + 1) % schedule.length == 0:
        return where[(F * schedule.chunks + chunk) * schedule.microbatches + microbatch]
    ahead = [(k * schedule.chunks + chunk + 1) * schedule.microbatches + microbatch for k in (I, B)]
    return next(where[code] for code in ahead if code in where)


def arrivals(timeline: Timeline) -> np.ndarray:
    """When the producer of every F, I and B ended, by code; nan where there is none."""
    schedule = timeline.schedule
    c, m = schedule.chunks, schedule.microbatches
    ended = np.full((4, c, m), np.nan)
    flat = ended.reshape(-1)
    for rank, row in enumerate(schedule.codes):
        flat[row] = timeline.sent(rank)
    ready = np.full((4, c, m), np.nan)
    firsts, lasts = slice(0, c, schedule.length), slice(schedule.length - 1, c, schedule.length)
    ready[F, 1:] = ended[F, :-1]
    ready[F, firsts] = np.nan
    gradient = np.where(np.isnan(ended[I]), ended[B], ended[I])
    for kind in (I, B):
        ready[kind, :-1] = gradient[1:]
        ready[kind, lasts] = ended[F, lasts]
    return ready.reshape(-1)
