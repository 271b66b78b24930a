"""Reading the keys of another tool's file one by one, gathering every fault instead of stopping at the first."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from shardwise.errors import Fault, InputError


class Foreign:
    """A table of another tool's file; each reader notes what is wrong and gives a harmless value."""

    def __init__(self, data: dict[str, Any], at: str = "", faults: list[Fault] | None = None) -> None:
        self.data = data
        self.at = at
        self.faults: list[Fault] = [] if faults is None else faults
        self.read: set[str] = set()

    def fault(self, key: str, message: str) -> None:
        path = f"{self.at}.{key}" if self.at and key else key or self.at
        self.faults.append(Fault(path, message))

    def has(self, key: str) -> bool:
        return self.data.get(key) is not None

    def _value(self, key: str) -> Any:  # noqa: ANN401 - a file can hold anything
        self.read.add(key)
        return self.data.get(key)

    def whole(self, key: str, default: int | None = None, *, lowest: int = 1, highest: int = 10**12) -> int:
        """A whole number; without a default it must be there."""
        value = self._value(key)
        if value is None:
            return self._absent(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fault(key, f"must be a whole number, not {_said(value)}")
        elif value < lowest:
            self.fault(key, f"is {value}; it must be {lowest} or more")
        elif value > highest:
            self.fault(key, f"is {value}; it must be at most {highest:,}")
        else:
            return value
        return max(lowest, 1)

    def _absent(self, key: str, default: int | None) -> int:
        if default is None:
            self.fault(key, "is missing; add it")
            return 1
        return default

    def number(self, key: str, default: float | None = None, *, above: float = 0.0, highest: float = 1e300) -> float:
        """A number over `above` and not over `highest`; without a default it must be there."""
        value = self._value(key)
        if value is None and default is not None:
            return default
        if value is None:
            self.fault(key, "is missing; add it")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            self.fault(key, f"must be a number, not {_said(value)}")
        elif not above < value <= highest:
            limit = f"more than {above:g}" + (f" and at most {highest:g}" if highest < 1e300 else "")
            self.fault(key, f"is {value:g}; it must be {limit}")
        else:
            return float(value)
        return 1.0

    def switch(self, key: str, default: bool | None = None) -> bool:
        value = self._value(key)
        if value is None and default is None:
            self.fault(key, "is missing; say true or false")
        elif value is not None and not isinstance(value, bool):
            self.fault(key, f"must be true or false, not {_said(value)}")
        return value if isinstance(value, bool) else bool(default)

    def text(self, key: str, default: str | None = None, *, choices: Iterable[str] = ()) -> str:
        value = self._value(key)
        allowed = list(choices)
        if value is None and default is None:
            self.fault(key, "is missing; add it")
        elif value is not None and not isinstance(value, str):
            self.fault(key, f"must be a text, not {_said(value)}")
        elif value is not None and allowed and value not in allowed:
            self.fault(key, f"{value!r} is none of {', '.join(allowed)}{_near(value, allowed)}")
        return value if isinstance(value, str) else default or ""

    def table(self, key: str, *, required: bool = False) -> Foreign:
        value = self._value(key)
        if value is None and required:
            self.fault(key, "is missing; add this table")
        elif value is not None and not isinstance(value, dict):
            self.fault(key, f"must be a table of keys and values, not {_said(value)}")
        inner = value if isinstance(value, dict) else {}
        return Foreign(inner, f"{self.at}.{key}" if self.at else key, self.faults)

    def refuse_unknown(self, known: Iterable[str]) -> None:
        names = sorted(known)
        for key in self.data.keys() - set(names):
            self.fault(key, f"is not a known key{_near(key, names) or '; known keys: ' + ', '.join(names[:12])}")

    def finish(self, title: str) -> None:
        """Raise everything that was wrong."""
        if self.faults:
            raise InputError(self.faults, title=title)


def _near(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _said(value: object) -> str:
    if isinstance(value, bool):
        return f"the truth value {str(value).lower()}"
    if isinstance(value, str):
        bare = value.strip()
        return f"the text {value!r}" + (f"; write {bare} without quotes" if bare.replace(".", "", 1).isdigit() else "")
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return repr(value)
