"""The pipeline drawn in text: a line a rank, time from left to right."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.pipeline.timeline import Timeline
from shardwise.report.text import EMPTY

_CELLS = 20_000
"""Characters that a drawing may have in all; larger pipelines are not drawn."""
_RANKS = 64
_NAME = 10
"""Characters before a rank's line."""
_SHORTEST = (3.5, 4.5)
"""Characters of the shortest action where only the ends are drawn: one chunk a rank, several."""
_GAP = " ~ "


def draw(timeline: Timeline, width: int = 120) -> str:
    """Every action as `chunk kind micro batch` cut to its length, the chunk where there are several; idle as dots.

    Empty when it would not fit.
    """
    room = width - _NAME
    if not _drawable(timeline, room):
        return ""
    scale = room / timeline.makespan if timeline.makespan else 1.0
    return "\n".join(
        f"rank {rank:>3}  {_line(timeline, rank, scale, 0.0, room)}" for rank in range(timeline.schedule.pp)
    )


def draw_ends(timeline: Timeline, width: int = 120) -> str:
    """How a long pipeline fills and drains: its begin and its end, a forward at least two characters long.

    A short one is drawn whole. Empty when there are too many ranks.
    """
    room = width - _NAME
    shortest = min((float((end - start).min()) for start, end in zip(timeline.start, timeline.end, strict=True)))
    scale = _SHORTEST[timeline.schedule.vpp > 1] / shortest if shortest else 0.0
    if not _drawable(timeline, room) or not scale or scale * timeline.makespan <= room:
        return draw(timeline, width)
    half = (room - len(_GAP)) // 2
    late = max(float(row[-1]) for row in timeline.end) - half / scale
    return "\n".join(
        f"rank {rank:>3}  {_line(timeline, rank, scale, 0.0, half)}{_GAP}{_line(timeline, rank, scale, late, half)}"
        for rank in range(timeline.schedule.pp)
    )


def _drawable(timeline: Timeline, room: int) -> bool:
    return room > 0 and timeline.schedule.pp * room <= _CELLS and timeline.schedule.pp <= _RANKS


def _line(timeline: Timeline, rank: int, scale: float, begin: float, room: int) -> str:
    """A rank from `begin` on; what starts before it is cut."""
    cells = [EMPTY] * room
    for code, start, end in _between(timeline, rank, begin, begin + room / scale):
        action = timeline.schedule.decode(code)
        left, right = round((start - begin) * scale), round((end - begin) * scale)
        right = min(room, max(left + 1, right))
        chunk = str(action.chunk) if timeline.schedule.vpp > 1 else ""  # else it is the rank's number
        label = _label(action.kind, str(action.microbatch), chunk, right - max(0, left))
        shown = label.ljust(right - max(0, left), "-") if left >= 0 else "-" * right
        cells[max(0, left) : right] = shown
    return "".join(cells[:room])


def _between(timeline: Timeline, rank: int, begin: float, end: float) -> Iterator[tuple[int, float, float]]:
    rows = (timeline.schedule.codes[rank], timeline.start[rank], timeline.end[rank])
    for code, start, stop in zip(*(row.tolist() for row in rows), strict=True):
        if start < end and stop > begin:
            yield code, start, stop


def _label(kind: str, microbatch: str, chunk: str, room: int) -> str:
    """As much as fits and leaves a gap to the next, the kind first: 3F12, F12, F."""
    for text in (chunk + kind + microbatch, kind + microbatch, kind):
        if len(text) < room:
            return text
    return kind if room else ""
