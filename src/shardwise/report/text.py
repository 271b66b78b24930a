"""Pieces of text reports: trees of ledgers, bars, and neighbours that are alike told once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from shardwise.cost.ledger import Ledger

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
