"""The numbers of a calibration by dotted name, so that a search can move them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwise.inputs.calibration import Calibration


def number(calibration: Calibration, name: str) -> float:
    """`gemm_depth`, `gemm.bf16`, `attention.0` ..."""
    field, _, part = name.partition(".")
    value: Any = getattr(calibration, field)
    if not part:
        return float(value)
    return float(value[int(part)] if isinstance(value, tuple) else value.get(part, value.get("bf16", 0.7)))


def with_numbers(calibration: Calibration, numbers: Mapping[str, float]) -> Calibration:
    """The calibration with some of its numbers changed."""
    changes: dict[str, Any] = {}
    for name, value in numbers.items():
        field, _, part = name.partition(".")
        if not part:
            changes[field] = value
            continue
        now = changes.get(field, getattr(calibration, field))
        if isinstance(now, tuple):
            changes[field] = tuple(value if index == int(part) else old for index, old in enumerate(now))
        else:
            changes[field] = {**now, part: value}
    return replace(calibration, **changes)
