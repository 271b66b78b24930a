"""The differences of two plans as a table: values as people read them, and by how much numbers change."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from shardwise.estimate.intervals import within_error
from shardwise.plan.file import Difference
from shardwise.plan.plan import Plan
from shardwise.plan.predict import estimate_of
from shardwise.plan.renew import SHARES, shown
from shardwise.report.estimate import between
from shardwise.units import show_bytes, show_seconds

_LONGEST = 60


class TimeVerdict(NamedTuple):
    """Whether one of two plans is the faster one, as far as can be told."""

    text: str
    within_error: bool


def verdict_of(left: Plan, right: Plan) -> TimeVerdict | None:
    """Of the iterations of two plans; none where one has a split for every operator, or is predicted the same."""
    if left.operators or right.operators:
        return None
    pair = [estimate_of(plan) for plan in (left, right)]
    if pair[0].iteration_seconds == pair[1].iteration_seconds:
        return None
    near = within_error(*pair)
    both = " -> ".join(f"{show_seconds(one.iteration_seconds)} ({between(one)})" for one in pair)
    change = f"{pair[1].iteration_seconds / pair[0].iteration_seconds - 1:+.1%}"
    said = "within the error of the difference: neither is the faster one" if near else "beyond the error"
    return TimeVerdict(f"iteration: {both}, {change}: {said}", near)


def matters(path: str, *, everything: bool) -> bool:
    """Parts of ledgers, counts of a search and what a proof rests on are details; its hashes tell people nothing."""
    if path.startswith("proof.of"):
        return False
    return everything or not (path.startswith("proof") or (path.startswith("predictions.") and path.count(".") > 1))


def difference_rows(found: Iterable[Difference]) -> list[tuple[str, ...]]:
    """What, in the first plan, in the second, and the change of numbers."""
    return [
        (
            one.path.removeprefix("predictions."),
            _shown(one.path, one.left),
            _shown(one.path, one.right),
            _change(one.path, one.left, one.right),
        )
        for one in found
    ]


def _shown(path: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _text(value)
    return shown(_name(path), value)


def _name(path: str) -> str:
    """The name that says a value's unit; the ends of an interval have that of what lies in it."""
    name = re.sub(r"(_interval)?(\.[0-9]+)?$", "", path).rpartition(".")[2]
    return name or path


def _text(value: object) -> str:
    if value is None:
        return "absent"
    if isinstance(value, dict):
        return "given"
    text = ",".join(map(_entry, value)) or "none" if isinstance(value, list) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _entry(one: object) -> str:
    """An entry of a list: of a stage its layers, of a rank's memory all of it, of a ledger its name and value."""
    if not isinstance(one, dict):
        return str(one)
    if "layers" in one:
        return "+".join(map(str, one["layers"]))
    if "total" in one:
        return show_bytes(one["total"])
    return f"{one['name']} {one['value']:.4g}" if {"name", "value"} <= one.keys() else "given"


def _change(path: str, left: object, right: object) -> str:
    """In percent; of shares in points, of inputs none."""
    numbers = [value for value in (left, right) if isinstance(value, int | float) and not isinstance(value, bool)]
    if not path.startswith("predictions.") or len(numbers) < 2:
        return ""
    if _name(path) in SHARES:
        return f"{100 * (numbers[1] - numbers[0]):+.1f} points"
    return f"{numbers[1] / numbers[0] - 1:+.1%}" if numbers[0] else ""
