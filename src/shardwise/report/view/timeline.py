"""A timeline as columns of numbers: codes, starts, ends, and the memory curve of every rank."""

from __future__ import annotations

import numpy as np

from shardwise.inputs.serialise import Plain
from shardwise.pipeline.action import KINDS
from shardwise.pipeline.timeline import Timeline

MOST_ACTIONS = 200_000
"""Longer timelines are left out: they would make a page of tens of megabytes."""


def timeline_data(timeline: Timeline) -> Plain | None:
    """Plain numbers of a timeline; None where it is too long."""
    schedule = timeline.schedule
    if schedule.actions > MOST_ACTIONS:
        return None
    finite = [limit for limit in timeline.costs.memory_limit if np.isfinite(limit)]
    return {
        "pp": schedule.pp, "vpp": schedule.vpp, "chunks": schedule.chunks, "microbatches": schedule.microbatches,
        "makespan": timeline.makespan, "bubble": timeline.bubble, "placement": list(schedule.rank_of),
        "limit": max(finite, default=None), "peak": max(timeline.peak), "peaks": list(timeline.peak),
        "critical": _critical(timeline), "ranks": [_rank(timeline, rank) for rank in range(schedule.pp)],
    }  # fmt: skip


def _critical(timeline: Timeline) -> list[int]:
    """Codes of the chain of actions that the makespan hangs on, first to last."""
    schedule = timeline.schedule
    found = ((KINDS.index(a.kind), a.chunk, a.microbatch) for a in (step.action for step in timeline.critical_path()))
    return [(kind * schedule.chunks + chunk) * schedule.microbatches + microbatch for kind, chunk, microbatch in found]


def too_long(timeline: Timeline) -> str:
    """The note that stands for a timeline that is left out; empty where it is not."""
    actions = timeline.schedule.actions
    if actions <= MOST_ACTIONS:
        return ""
    return f"the timeline has {actions:,} actions and is left out; up to {MOST_ACTIONS:,} are shown (use --trace)"


def _rank(timeline: Timeline, rank: int) -> Plain:
    times, held = timeline.memory(rank)
    return {
        "codes": timeline.schedule.codes[rank].tolist(),
        "start": _short(timeline.start[rank]), "end": _short(timeline.end[rank]),
        "times": _short(times), "held": _short(held),
    }  # fmt: skip


def _short(values: np.ndarray) -> list[float]:
    """Nine digits: less than a pixel at any zoom, and half the bytes."""
    return [float(f"{value:.9g}") for value in values.tolist()]
