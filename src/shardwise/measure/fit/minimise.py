"""A small search for the few numbers of a fit: steps along each of them, halved when none helps. A number of a
calibration goes by its dotted name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import exp, log
from typing import Any

from shardwise.inputs.calibration import Calibration

Numbers = dict[str, float]
Bounds = Mapping[str, tuple[float, float]]


def minimise(loss: Callable[[Numbers], float], start: Numbers, bounds: Bounds, *, finest: float = 0.002) -> Numbers:
    """Positive numbers within bounds that make a loss small. Steps are relative: the scale of a number is unknown."""
    best, lowest, step = dict(start), loss(dict(start)), 0.3
    while step > finest:
        improved = False
        for name, (low, high) in bounds.items():
            for way in (step, -step):
                moved = {**best, name: min(high, max(low, best[name] * exp(way)))}
                found = loss(moved)
                if found < lowest * (1 - 1e-9):
                    best, lowest, improved = moved, found, True
                    break
        step = step if improved else step / 2
    return best


def off(predicted: float, measured: float) -> float:
    """Error on a scale where twice and half are equally wrong."""
    return abs(log(predicted / measured))


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
