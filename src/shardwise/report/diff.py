"""The differences of two plans as a table: values as people read them, and by how much numbers change."""

from __future__ import annotations

from collections.abc import Iterable

from shardwise.plan.file import Difference
from shardwise.plan.renew import SHARES, shown

_LONGEST = 60


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
    return shown(path.rpartition(".")[2], value)


def _text(value: object) -> str:
    if value is None:
        return "absent"
    if isinstance(value, dict):
        return "given"
    text = ",".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _change(path: str, left: object, right: object) -> str:
    """In percent; of shares in points, of inputs none."""
    numbers = [value for value in (left, right) if isinstance(value, int | float) and not isinstance(value, bool)]
    if not path.startswith("predictions.") or len(numbers) < 2:
        return ""
    if path.rpartition(".")[2] in SHARES:
        return f"{100 * (numbers[1] - numbers[0]):+.1f} points"
    return f"{numbers[1] / numbers[0] - 1:+.1%}" if numbers[0] else ""
