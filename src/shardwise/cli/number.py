"""Click's types for numbers: every one is read by the gate, against its row of the one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import click

from shardwise.errors import InputError
from shardwise.inputs.gate import Scalar, listed, typed
from shardwise.inputs.scalars import SCALARS


class Number(click.ParamType[float]):
    """A number that has a row."""

    name = "number"
    _NAMES: ClassVar = {"whole": "N", "number": "X", "bytes": "SIZE", "rate": "RATE", "seconds": "TIME", "count": "N"}

    def __init__(self, row: str | Scalar, read: Callable[[str, Scalar, str], Any] = typed) -> None:
        self.row = SCALARS[row] if isinstance(row, str) else row
        self.read = read
        self.name = self._NAMES.get(self.row.kind, "number")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        if not isinstance(value, str):
            return value  # a default
        try:
            return self.read(value, self.row, "")
        except InputError as error:
            self.fail(self.told(error.faults[0].message, param), param, ctx)

    def told(self, message: str, param: click.Parameter | None) -> str:
        """What click says after the option's name."""
        del param
        return message


def numbers(row: str) -> Number:
    """Several numbers, commas between them."""
    return Number(row, listed)


def share(text: str, row: Scalar, at: str) -> float:
    """`0.5%` or `0.005`."""
    if not text.strip().endswith("%"):
        return typed(text, row, at)
    percent = Scalar(kind="number", least=100 * row.least, most=100 * row.most)
    return typed(repr(typed(text.strip()[:-1], percent, at) / 100), row, at)
