"""Reading the keys of another tool's file one by one, gathering every fault instead of stopping at the first.

Every key is accounted for: read here, named as without effect (`idle`), or refused. Numbers pass the gate by their row
of the one table; most other tools' numbers become a field of ours, whose row they share.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from shardwise.errors import Fault, InputError
from shardwise.inputs import gate
from shardwise.inputs.gate import said
from shardwise.inputs.scalars import SCALARS

T = TypeVar("T")


class Foreign:
    """A table of another tool's file; each reader notes what is wrong and gives a harmless value."""

    def __init__(self, data: dict[str, Any], at: str = "", faults: list[Fault] | None = None) -> None:
        self.data = data
        self.at = at
        self.faults: list[Fault] = [] if faults is None else faults
        self.read: set[str] = set()

    def path(self, key: str) -> str:
        return f"{self.at}.{key}" if self.at and key else key or self.at

    def fault(self, key: str, message: str) -> None:
        self.faults.append(Fault(self.path(key), message))

    def has(self, key: str) -> bool:
        return self.data.get(key) is not None

    def _taken(self, key: str, default: T | None, take: Callable[[Any], T], spare: T) -> T:
        """The value of a key; where it is absent its default, where it is refused something harmless."""
        self.read.add(key)
        value = self.data.get(key)
        if value is None:
            if default is None:
                self.fault(key, "is missing; add it")
            return spare if default is None else default
        try:
            return take(value)
        except InputError as error:
            self.faults += error.faults
            return spare

    def whole(self, key: str, default: int | None = None, *, row: str = "foreign.count") -> int:
        """A whole number; without a default it must be there."""
        scalar = SCALARS[row]
        spare = max(1, int(scalar.least))
        return self._taken(key, default, lambda value: int(gate.held(value, scalar, self.path(key))), spare)

    def number(self, key: str, default: float | None = None, *, row: str) -> float:
        """A number; without a default it must be there."""
        return self._taken(key, default, lambda value: float(gate.held(value, SCALARS[row], self.path(key))), 1.0)

    def switch(self, key: str, default: bool | None = None) -> bool:
        """True or false; without a default it must be there."""
        return self._taken(key, default, lambda value: gate.switch(value, self.path(key)), bool(default))

    def text(self, key: str, default: str | None = None, *, choices: Iterable[str] = ()) -> str:
        """A text, or one of some words; without a default it must be there."""

        def take(value: object) -> str:
            allowed = list(choices)
            if allowed:
                return gate.word(value, allowed, self.path(key))
            if not isinstance(value, str):
                raise InputError(Fault(self.path(key), f"must be a text, not {said(value)}"))
            return value

        return self._taken(key, default, take, default or "")

    def table(self, key: str, *, required: bool = False) -> Foreign:
        self.read.add(key)
        value = self.data.get(key)
        if value is None and required:
            self.fault(key, "is missing; add this table")
        elif value is not None and not isinstance(value, dict):
            self.fault(key, f"must be a table of keys and values, not {said(value)}")
        return Foreign(value if isinstance(value, dict) else {}, self.path(key), self.faults)

    def refuse_unknown(self, known: Iterable[str]) -> None:
        names = sorted(known)
        for key in self.data.keys() - set(names):
            self.fault(key, f"is not a known key{_near(key, names) or '; known keys: ' + ', '.join(names[:12])}")

    def unused(self, kinds: Mapping[str, Iterable[str]], row: str) -> list[str]:
        """Known keys without effect here that are given: each is looked at all the same, as is what it should be."""
        found = []
        for kind, names in kinds.items():
            for key in (name for name in names if self.has(name) and name not in self.read):
                if kind == "number":
                    self.number(key, row=row)
                elif kind == "switch":
                    self.switch(key)
                else:
                    self.text(key)
                found.append(key)
        return self.given(found)

    def given(self, names: Iterable[str]) -> list[str]:
        """Those of these keys that are there, each with its value, cut short."""
        return [f"{self.path(key)} = {_short(self.data[key])}" for key in names if self.has(key)]

    def idle(self) -> list[str]:
        """The keys that nobody read, with their values cut short: they have no effect, and are named."""
        return self.given(key for key in self.data if key not in self.read)

    def finish(self, title: str) -> None:
        """Raise everything that was wrong."""
        if self.faults:
            raise InputError(self.faults, title=title)


def _near(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _short(value: object) -> str:
    text = str(value) if not isinstance(value, dict | list) else said(value)
    return text if len(text) <= 60 else text[:57] + "..."
