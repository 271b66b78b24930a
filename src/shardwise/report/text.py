"""Pieces of text reports: trees of ledgers, bars, neighbours that are alike told once, and a pipeline drawn line by
line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from shardwise.cost.ledger import Ledger
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.timeline import Timeline

T = TypeVar("T")

FULL, EMPTY = "█", "·"
ROUNDING = 1e-9
"""Parts below this share of the whole are what rounding leaves, and are not shown."""


def bar(share: float, width: int = 20) -> str:
    """A bar of `width` characters filled to a share; over 1 it is full."""
    filled = round(width * min(1.0, max(0.0, share)))
    return FULL * filled + EMPTY * (width - filled)


def tree_rows(ledger: Ledger, show: Callable[[float], str]) -> list[tuple[str, str, str]]:
    """A ledger as rows: drawn name, value, share of the whole."""
    whole = ledger.value or 1.0
    lines = ((ledger.name, ledger), *_below(ledger, "", abs(whole) * ROUNDING))
    return [(name, show(part.value), f"{100 * part.value / whole:.1f}%") for name, part in lines]


def _below(ledger: Ledger, before: str, least: float) -> Iterator[tuple[str, Ledger]]:
    parts = sorted((part for part in ledger.parts if abs(part.value) > least), key=lambda part: -part.value)
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        yield f"{before}{'└─' if last else '├─'} {part.name}", part
        yield from _below(part, before + ("   " if last else "│  "), least)


def side_by_side(ledgers: Sequence[Ledger], show: Callable[[float], str]) -> list[tuple[str, ...]]:
    """Ledgers of the same kind as columns; a part that one lacks is empty there. Largest parts first."""
    totals: dict[str, float] = {}
    for ledger in ledgers:
        for part in ledger.parts:
            totals[part.name] = max(totals.get(part.name, 0.0), part.value)
    names = sorted(totals, key=lambda name: -totals[name])
    rows = [(ledgers[0].name, *(show(ledger.value) for ledger in ledgers))]
    for index, name in enumerate(names):
        drawn = f"{'└─' if index == len(names) - 1 else '├─'} {name}"
        values = (ledger.part(name) for ledger in ledgers)
        rows.append((drawn, *(show(value) if value else "" for value in values)))
    return rows


def alike(items: Iterable[T], key: Callable[[T], object]) -> Iterator[tuple[int, int, T]]:
    """Runs of neighbours with the same key: first index, last index, the first of them."""
    start = 0
    for _, members in groupby(items, key=key):
        run = list(members)
        yield start, start + len(run) - 1, run[0]
        start += len(run)


def span(first: int, last: int) -> str:
    """`3` or `3-7`."""
    return str(first) if first == last else f"{first}-{last}"


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


_PASSES = {"F": "F forward", "B": "B backward", "I": "I backward for inputs", "W": "W backward for weights"}


def legend(schedule: Schedule) -> str:
    """What the letters of a drawn schedule say, those that it has; with several chunks a rank, their numbers first."""
    kinds = {schedule.decode(code).kind for row in schedule.codes for code in row.tolist()}
    shown = [text for kind, text in _PASSES.items() if kind in kinds]
    return ", ".join([*["chunk"] * (schedule.vpp > 1), *shown, "micro batch"])


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
