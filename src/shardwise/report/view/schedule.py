"""A pipeline's timeline as a view."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from shardwise.inputs.serialise import Plain
from shardwise.pipeline.timeline import Timeline
from shardwise.report.view.timeline import timeline_data, too_long

_KINDS = {"forward": 0, "inputs": 1, "weights": 2, "backward": 3}
_LEDGER = {"forward": "forward", "inputs": "backward, inputs", "weights": "backward, weights", "backward": "backward"}


def schedule_view(
    timeline: Timeline,
    facts: Mapping[str, str] | None = None,
    *,
    title: str = "",
    seconds: bool = False,
    bound: float | None = None,
    kind: str = "schedule",
) -> Plain:
    """The view of a timeline; `facts` are names of the page's dictionary (or any words) with their text."""
    schedule = timeline.schedule
    name = title or schedule.name or "schedule"
    makespan = timeline.makespan
    limit = max((x for x in timeline.costs.memory_limit if x < float("inf")), default=None)
    return {
        "kind": kind,
        "id": hashlib.sha256(f"{name} {makespan!r} {schedule.actions}".encode()).hexdigest()[:12],
        "title": name,
        "subtitle": f"pp {schedule.pp}, vpp {schedule.vpp}, {schedule.microbatches} micro batches",
        "unit": "seconds" if seconds else "units",
        "strategy": "",
        "axes": {
            "schedule": schedule.name, "pp": schedule.pp, "vpp": schedule.vpp, "microbatches": schedule.microbatches,
        },
        "numbers": {
            "makespan": makespan, "period": timeline.period, "bubble": timeline.bubble, "bound": bound,
            "gap": max(0.0, makespan / bound - 1.0) if bound else None,
            "total_bytes": max(timeline.peak), "memory_limit": limit,
        },
        "facts": [[key, text] for key, text in (facts or {}).items()],
        "stages": [_stage(timeline, rank) for rank in range(schedule.pp)],
        "timeline": timeline_data(timeline),
        "ledger": {"time": _causes(timeline), "memory": []},
        "candidates": [],
        "notes": [note] if (note := too_long(timeline)) else [],
    }  # fmt: skip


def _stage(timeline: Timeline, rank: int) -> Plain:
    kinds, spent = timeline.kinds(rank), timeline.end[rank] - timeline.start[rank]
    times = {name: float(spent[kinds == own].sum()) for name, own in _KINDS.items()}
    limits, static = timeline.costs.memory_limit, timeline.costs.static
    held, peak = static[rank] if static else 0.0, timeline.peak[rank]
    return {
        "rank": rank,
        "layers": [],
        "recomputed": [],
        "time": {**times, "bubble": max(0.0, timeline.makespan - sum(times.values()))},
        "memory": {"static": held, "activations": peak - held},
        "total": peak,
        "limit": limits[rank] if limits and limits[rank] < float("inf") else None,
    }


def _causes(timeline: Timeline) -> Plain:
    """Where the makespan goes, the mean over ranks: work by kind, and the bubble by cause."""
    ranks, makespan = range(timeline.schedule.pp), timeline.makespan
    stages = [_stage(timeline, rank)["time"] for rank in ranks]
    work = [{"name": _LEDGER[name], "value": sum(one[name] for one in stages) / len(stages)} for name in _KINDS]
    waits = [{"name": name, "value": share * makespan} for name, share in timeline.bubbles().items() if share > 0]
    bubble = {"name": "bubble", "value": timeline.bubble * makespan, "parts": waits}
    return {"name": "makespan", "value": makespan, "parts": [part for part in (*work, bubble) if part["value"]]}
