"""A timeline as one HTML file that needs nothing else: a canvas to zoom and move, the memory curves below."""

from __future__ import annotations

import html
import json
from pathlib import Path

from shardwise.report.svg import COLOURS
from shardwise.simulate.timeline import Timeline

_TEMPLATE = Path(__file__).with_name("timeline.html")


def timeline_page(timeline: Timeline, title: str = "", facts: dict[str, str] | None = None) -> str:
    """The page's text; `facts` are lines of its head, such as the bubble and the gap."""
    shown = title or timeline.schedule.name or "timeline"
    data = json.dumps(_data(timeline, facts or {}), separators=(",", ":")).replace("</", "<\\/")
    text = _TEMPLATE.read_text(encoding="utf-8")
    return text.replace("__TITLE__", html.escape(shown)).replace("__DATA__", data)


def _data(timeline: Timeline, facts: dict[str, str]) -> dict[str, object]:
    schedule = timeline.schedule
    ranks = []
    for rank in range(schedule.pp):
        times, held = timeline.memory(rank)
        ranks.append({
            "codes": schedule.codes[rank].tolist(),
            "start": [float(f"{t:.9g}") for t in timeline.start[rank]],
            "end": [float(f"{t:.9g}") for t in timeline.end[rank]],
            "times": [float(f"{t:.9g}") for t in times],
            "held": [float(f"{h:.9g}") for h in held],
        })  # fmt: skip
    return {
        "chunks": schedule.chunks, "microbatches": schedule.microbatches, "makespan": timeline.makespan,
        "limit": max(timeline.costs.memory_limit, default=0.0), "peak": max(timeline.peak), "ranks": ranks,
        "colours": COLOURS, "facts": facts,
    }  # fmt: skip
