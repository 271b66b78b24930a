"""A timeline as a Chrome trace, for Perfetto or chrome://tracing: a process a rank, with its memory as a counter."""

from __future__ import annotations

import json

from shardwise.pipeline.timeline import Timeline

_COLOURS = {"F": "good", "I": "bad", "W": "terrible", "B": "bad"}


def chrome_trace(timeline: Timeline, *, unit: float = 1e6) -> str:
    """JSON text; `unit` is how many microseconds one unit of time is (1e6: seconds)."""
    events: list[dict[str, object]] = []
    for rank in range(timeline.schedule.pp):
        events.append({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}})
        events.append({"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}})
        events += _actions(timeline, rank, unit)
        events += _memory(timeline, rank, unit)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")) + "\n"


def _actions(timeline: Timeline, rank: int, unit: float) -> list[dict[str, object]]:
    rows = zip(timeline.schedule.codes[rank].tolist(), timeline.start[rank], timeline.end[rank], strict=True)
    events = list[dict[str, object]]()
    for code, start, end in rows:
        action = timeline.schedule.decode(code)
        events.append({
            "ph": "X", "pid": rank, "tid": 0, "name": str(action), "cat": action.kind, "cname": _COLOURS[action.kind],
            "ts": float(start) * unit, "dur": float(end - start) * unit,
            "args": {"chunk": action.chunk, "micro batch": action.microbatch},
        })  # fmt: skip
    return events


def _memory(timeline: Timeline, rank: int, unit: float) -> list[dict[str, object]]:
    times, held = timeline.memory(rank)
    return [
        {"ph": "C", "pid": rank, "name": "memory", "ts": float(t) * unit, "args": {"held": float(h)}}
        for t, h in zip(times, held, strict=True)
    ]
