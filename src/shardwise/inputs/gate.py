"""The one gate: what a number must be before anything is computed with it.

Every number of an option, a file, another tool's settings, a strategy's words or a request is read here against its
row of the one table (`scalars.py`): its kind, the range outside of which it means nothing, and the band outside of
which it means something that nobody wants, mostly because a unit was left out. What is outside is refused, and where a
unit would bring it inside, that unit is offered.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from shardwise.errors import Fault, InputError
from shardwise.units import parse_bytes, parse_count, parse_flops, parse_rate, parse_seconds

Kind = Literal["whole", "number", "bytes", "rate", "flops", "seconds", "count"]
DIGITS = 32
"""Digits that a whole number of a file may have; the largest that real files hold is 10^30 ("no limit")."""
# [0-9] and not \d, which takes the digits of all scripts.
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")
_PARSERS: dict[str, tuple[Callable[[str | float], float], str]] = {
    "bytes": (parse_bytes, "bytes"),
    "rate": (parse_rate, "bytes/s"),
    "flops": (parse_flops, "FLOP/s"),
    "seconds": (parse_seconds, "s"),
    "count": (parse_count, ""),
}
"""Kinds that may be written with a unit: their parser, and what a bare number means."""
_OFFERS = {
    "bytes": (("GB", 1e9), ("MB", 1e6), ("TB", 1e12), ("kB", 1e3)),
    "rate": (("GB/s", 1e9), ("MB/s", 1e6), ("TB/s", 1e12)),
    "flops": (("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("PFLOP/s", 1e15)),
    "seconds": (("us", 1e-6), ("ms", 1e-3), ("ns", 1e-9)),
}
"""Units to offer, the likeliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A row of the table: what one number may be."""

    kind: Kind
    least: float
    """Smallest value that has a meaning; 0 stands for "none" where the band starts above it."""
    most: float
    """Largest one."""
    above: bool = False
    """`least` itself is refused."""
    usual: tuple[float, float] | None = None
    """The plausible band; none: the whole range is plausible."""
    likely: tuple[float, float] | None = None
    """Where what is meant mostly lies, so that the right unit is offered; none: anywhere in the band."""
    hint: str = ""
    """What to write in place of a value outside the band, where no unit says it."""

    def takes(self, number: float) -> bool:
        """Whether a finite number is in the range and in the band."""
        if not self.least <= number <= self.most or (self.above and number == self.least):
            return False
        return self.usual is None or self.usual[0] <= number <= self.usual[1] or (number == 0 and self.least == 0)


def held(value: object, row: Scalar, at: str) -> float:
    """The number that a value of a file means; a text only where it has a unit. InputError at `at` otherwise."""
    if isinstance(value, str) and row.kind in _PARSERS:
        return typed(value, row, at)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole and (row.kind == "whole" or not isinstance(value, float)):
        raise InputError(Fault(at, f"must be {wanted(row)}, not {said(value)}"))
    assert isinstance(value, int | float)  # noqa: S101 - for the type checker
    return _checked(value, row, at)


MANY = 8
"""Wrong entries of one list that are told one by one."""


def together(faults: list[Fault], entries: int, at: str) -> list[Fault]:
    """The faults of a list's entries; of many one line: how many, and the first."""
    if len(faults) <= MANY:
        return faults
    first = f"the first, {faults[0].path}: {faults[0].message}"
    return [Fault(at, f"{len(faults)} of {entries} entries are wrong; {first}")]


def fits(value: object, row: Scalar) -> bool:
    """Whether a value of a file is a number that a row takes, for readers with a sentence of their own."""
    if isinstance(value, bool) or not isinstance(value, int if row.kind == "whole" else int | float):
        return False
    return row.takes(value)


def wrong(value: object, row: Scalar) -> str:
    """Why a value of a file is refused; empty: it is not."""
    try:
        held(value, row, "")
    except InputError as error:
        return error.faults[0].message
    return ""


def typed(text: str, row: Scalar, at: str) -> float:
    """The number that a text means, as people type it. InputError at `at` otherwise."""
    bare = text.strip()
    if row.kind == "whole" and _WHOLE.fullmatch(bare):
        return _checked(int(bare), row, at)
    if row.kind != "whole" and _NUMBER.fullmatch(bare):
        return _checked(float(bare), row, at)
    if re.fullmatch(r"[+-]?[0-9]{19,}", bare):
        limit = f"it must be at most {shown(row.most)}" if row.most < 10**15 else "write a smaller one"
        raise InputError(Fault(at, f"is a number of {len(bare)} digits; {limit}"))
    if row.kind not in _PARSERS:
        raise InputError(Fault(at, f"{_short(text)} is not {wanted(row)}"))
    try:
        return _checked(_PARSERS[row.kind][0](bare), row, at, unit=True)
    except InputError as error:
        raise InputError(Fault(at, error.faults[0].message)) from None


def counted(text: str, row: Scalar, at: str) -> int:
    """A whole number from a text."""
    return int(typed(text, row, at))


def listed(text: str, row: Scalar, at: str) -> list[float]:
    """Numbers with commas between them."""
    return [typed(part, row, at) for part in text.split(",")]


def refusal(number: float, row: Scalar, *, unit: bool = False) -> str:
    """Why a number is refused, and what to write; empty: it is not. `unit`: it was written with one."""
    if isinstance(number, float) and not math.isfinite(number):
        return f"{number} is not a finite number; write one"
    if row.takes(number):
        return ""
    if number < row.least or (row.above and number == row.least):
        return f"{shown(number)} is too small; it must be {'above' if row.above else 'at least'} {shown(row.least)}"
    if number > row.most:
        return f"{shown(number)} is too large; it must be at most {shown(float(row.most))}"
    return _implausible(number, row, () if unit else _OFFERS.get(row.kind, ()))


def _implausible(number: float, row: Scalar, offers: Sequence[tuple[str, float]]) -> str:
    low, high = row.usual or (row.least, row.most)
    means = f"means {shown(number)} {_PARSERS[row.kind][1]}" if row.kind in _PARSERS else "cannot be meant"
    for least, most in filter(None, (row.likely, (low, high))):
        for unit, scale in offers:
            if least <= number * scale <= most:
                return f'{shown(number)} {means}; write "{number:.12g} {unit}" if that is meant'
    return f"{shown(number)} {means}, outside {shown(low)} to {shown(high)}; {row.hint or 'check its unit'}"


def _checked(number: float, row: Scalar, at: str, *, unit: bool = False) -> float:
    if message := refusal(number, row, unit=unit):
        raise InputError(Fault(at, message))
    return number


def wanted(row: Scalar) -> str:
    """What a row takes, in words with an example."""
    examples = {
        "whole": "a whole number",
        "number": "a number",
        "bytes": "a size such as 80GB or 80GiB",
        "rate": "a rate such as 900GB/s or 400Gb/s",
        "flops": "a number of operations per second such as 989TFLOPS",
        "seconds": "a time such as 5us or 30s",
        "count": "a count such as 15T",
    }
    return examples[row.kind]


def said(value: object) -> str:
    """A value that is of the wrong kind, as a sentence names it."""
    if isinstance(value, bool):
        return f"the truth value {str(value).lower()}"
    if isinstance(value, str):
        bare = value.strip()
        numeric = _WHOLE.fullmatch(bare) or _NUMBER.fullmatch(bare)
        return f"the text {_short(value)}" + (f"; write {bare} without quotes" if numeric else "")
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return "nothing" if value is None else shown(value) if isinstance(value, int | float) else _short(repr(value))


def shown(number: float) -> str:
    """A number for a sentence, cut short where it is endless; Python itself writes none of over 4,300 digits."""
    if isinstance(number, int):
        return f"{number:,}" if abs(number) < 10**15 else "a number of more than 15 digits"
    if 1e3 <= abs(number) < 1e7 and number == int(number):
        return f"{number:,.0f}"
    short = f"{number:g}"
    return repr(number) if abs(number) < 10 and float(short) == round(number) != number else short


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def switch(value: object, at: str) -> bool:
    """True or false; a text or a number is neither."""
    if not isinstance(value, bool):
        raise InputError(Fault(at, f"must be true or false, not {said(value)}"))
    return value


def word(value: object, choices: Iterable[str], at: str) -> str:
    """One of some words."""
    allowed = list(choices)
    if not isinstance(value, str):
        raise InputError(Fault(at, f"must be one of {', '.join(allowed)}, not {said(value)}"))
    if value not in allowed:
        import difflib

        near = difflib.get_close_matches(value, allowed, n=2, cutoff=0.6)
        offer = f"; did you mean {' or '.join(near)}?" if near else ""
        raise InputError(Fault(at, f"{_short(value)} is none of {', '.join(allowed)}{offer}"))
    return value
