"""Passes that run together: which of an order's may, and the order with them as one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwise.pipeline.action import B, Codes, F, I, Schedule, W
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.engine import Prepared, replay


def combined(schedule: Schedule) -> Schedule:
    """The order with every forward and the full backward right after it as one pass.

    A pair of one micro batch stays apart: its backward needs what comes of its forward. So do pairs that would wait for
    themselves by way of other ranks: those at which ranks are stuck are taken apart until none is.
    """
    pairs = [_places(schedule, rank) for rank in range(schedule.pp)]
    while any(pairs):
        made = replace(schedule, pairs=tuple(map(tuple, pairs)))
        stuck = _stuck(made)
        if not stuck:
            return made
        kept = [[k for k in places if (rank, k) not in stuck] for rank, places in enumerate(pairs)]
        if kept == pairs:  # the order itself cannot run
            return schedule
        pairs = kept
    return schedule


def joined(schedule: Schedule) -> Schedule:
    """The order with a full backward in place of every I that has its W right after it."""
    cells = schedule.chunks * schedule.microbatches
    return replace(schedule, codes=tuple(_joined(row, cells) for row in schedule.codes))


def _joined(row: Codes, cells: int) -> Codes:
    kind, cell = row // cells, row % cells
    at = np.flatnonzero((kind[:-1] == I) & (kind[1:] == W) & (cell[:-1] == cell[1:]))
    made = row.copy()
    made[at] += (B - I) * cells
    return np.delete(made, at + 1)


def _places(schedule: Schedule, rank: int) -> list[int]:
    row = schedule.codes[rank]
    kinds, microbatch = row // (schedule.chunks * schedule.microbatches), row % schedule.microbatches
    found = (kinds[:-1] == F) & (kinds[1:] == B) & (microbatch[:-1] != microbatch[1:])
    return [int(k) for k in np.flatnonzero(found)]


def _stuck(schedule: Schedule) -> set[tuple[int, int]]:
    """Rank and place of every action that never runs though all before it have."""
    ones = (1.0,) * schedule.chunks
    data = Prepared(schedule, Costs(f=ones, i=ones, w=ones))
    replay(data)
    return {
        (rank, int(data.next[rank] - data.offset[rank]))
        for rank in range(schedule.pp)
        if data.next[rank] < data.offset[rank + 1]
    }
