"""Prices of a byte that the relaxation tries: what it really costs to save one, by each way to recompute."""

from __future__ import annotations

import numpy as np

from shardwise.per_op.tables import Array, Tables

INFINITE = 1e-3
"""Seconds per byte that no time can pay: finds what cannot fit."""

DEARER = (1.7, 3.0, 6.0)
"""Times the dearest recompute: where memory is so short that layouts must give way."""


def prices_of(tables: Tables, most: int = 5) -> Array:
    """0, the slopes of the hull of recompute choices of a layer under the main layouts, and an infinite price."""
    found: set[float] = set()
    for layout in _main(tables):
        found.update(_slopes(*_runs(tables, layout)))
    slopes = _spread(sorted(found), most)
    dear = [factor * slopes[-1] for factor in DEARER] if slopes else []
    return np.array([0.0, *slopes, *dear, INFINITE])


def _main(tables: Tables) -> list[int]:
    """The fastest layout of the chain and the fastest with the most tp."""
    total = tables.work[:, tables.rows].sum(axis=1)
    tps = np.array([layout.tp for layout in tables.layouts])
    widest = np.flatnonzero(tps == tps.max())
    return sorted({int(total.argmin()), int(widest[total[widest].argmin()])})


def _runs(tables: Tables, layout: int) -> tuple[Array, Array]:
    """Seconds and bytes of all runs of recomputed operators within the profile's rows."""
    forward, act, may = tables.forward[layout], tables.act[layout], tables.may
    seconds, saved = [], []
    for first in range(len(may)):
        time = size = 0.0
        for last in range(first, len(may)):
            if not may[last] or (last > first and tables.starts[last]):
                break
            time += forward[last]
            if last > first:
                size += act[last - 1]
                seconds.append(time)
                saved.append(size)
    return np.array(seconds), np.array(saved)


def _slopes(seconds: Array, saved: Array) -> list[float]:
    """Seconds per byte of every run that no other beats."""
    good = saved > 0
    if not good.any():
        return []
    rate = seconds[good] / saved[good]
    best = np.argsort(rate, kind="stable")
    kept, top = [], 0.0
    for index in best:
        if saved[good][index] > top:
            top = float(saved[good][index])
            kept.append(float(rate[index]))
    return kept


def _spread(values: list[float], most: int) -> list[float]:
    """At most so many values: near ones (5%) merged, then the evenly placed ones."""
    merged: list[float] = []
    for value in values:
        if not merged or value > 1.05 * merged[-1]:
            merged.append(value)
    if len(merged) <= most:
        return merged
    picks = np.linspace(0, len(merged) - 1, most).round().astype(int)
    return [merged[index] for index in sorted(set(picks.tolist()))]
