"""A number that carries its named parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Ledger(NamedTuple):
    """A value with its parts; the parts of a ledger add up to its value."""

    name: str
    value: float
    parts: tuple[Ledger, ...] = ()
    note: str = ""

    def part(self, name: str) -> float:
        """The value of a direct part, 0 where there is none."""
        return next((part.value for part in self.parts if part.name == name), 0.0)

    def leaves(self) -> Iterator[Ledger]:
        """The parts that have none of their own."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()


def ledger(name: str, parts: list[Ledger], note: str = "") -> Ledger:
    """A ledger whose value is the sum of its parts; parts of nothing are left out."""
    return Ledger(name, sum(part.value for part in parts), tuple(part for part in parts if part.value), note)
