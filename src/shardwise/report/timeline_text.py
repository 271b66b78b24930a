"""The pipeline drawn in text: a line a rank, time from left to right."""

from __future__ import annotations

from shardwise.simulate.timeline import Timeline

_CELLS = 20_000
"""Characters that a drawing may have in all; larger pipelines are not drawn."""


def draw(timeline: Timeline, width: int = 120) -> str:
    """Every action as `chunk kind micro batch` cut to its length; idle time as dots. Empty when it would not fit."""
    room = width - 10
    if timeline.schedule.pp * room > _CELLS or timeline.schedule.pp > 64:
        return ""
    scale = room / timeline.makespan if timeline.makespan else 1.0
    return "\n".join(f"rank {rank:>3}  {_line(timeline, rank, scale, room)}" for rank in range(timeline.schedule.pp))


def _line(timeline: Timeline, rank: int, scale: float, room: int) -> str:
    cells = ["."] * room
    for code, start, end in zip(
        timeline.schedule.codes[rank].tolist(), timeline.start[rank].tolist(), timeline.end[rank].tolist(), strict=True
    ):
        action = timeline.schedule.decode(code)
        left, right = round(start * scale), min(room, max(round(start * scale) + 1, round(end * scale)))
        label = _label(action.kind, str(action.microbatch), str(action.chunk), right - left)
        cells[left:right] = label.ljust(right - left, "-")
    return "".join(cells[:room])


def _label(kind: str, microbatch: str, chunk: str, room: int) -> str:
    """As much as fits, the kind first: 3F12, F12, F."""
    for text in (chunk + kind + microbatch, kind + microbatch, kind):
        if len(text) <= room:
            return text
    return ""
