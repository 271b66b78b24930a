"""Keys that mean nothing where they stand: one that is near a known key is a slip and refused, others are noted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from shardwise.errors import Fault

Place = tuple[str, Mapping[Any, Any], Collection[str]]
"""Where a table stands in its file, the table, and the keys that are read of it."""


def slips(places: Iterable[Place]) -> Iterator[Fault]:
    """Keys that are near a known one."""
    for at, table, known in places:
        for key in _others(table, known):
            if near := get_close_matches(key, known, 1, 0.75):
                yield Fault(f"{at}{key}", f"is not a key here; {near[0]} may be meant")


def passed_over(places: Iterable[Place]) -> list[str]:
    """What is said of the others."""
    found = (f"{at}{key}" for at, table, known in places for key in _others(table, known))
    return [f"{key} means nothing here and is passed over" for key in found]


def _others(table: Mapping[Any, Any], known: Collection[str]) -> list[str]:
    return sorted(str(key) for key in table if key not in known)
