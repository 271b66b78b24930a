"""A small search for the few numbers of a fit: steps along each of them, halved when none helps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, log

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
