"""The margin of every rank: memory kept free so that a predicted peak holds with the confidence that was asked for.

A peak is linear in the parts of memory that were fitted, so what a fit says of its parts it says of any partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwise.partition.decompose import ACTIVATIONS, Floats, MemoryFit, MemoryPart
from shardwise.partition.spread import PeakSpread

if TYPE_CHECKING:
    from shardwise.partition.graph import Ints, Ready


def margins(ready: Ready, counts: Ints, fit: MemoryFit, spread: PeakSpread, confidence: float) -> tuple[float, ...]:
    """Per rank: how far its peak may lie above what is predicted, event by event."""
    table = parts_held(ready, counts, fit)
    static = (counts @ ready.option_static) @ ready.on_rank.T + ready.fixed_static
    peaks = ready.rows @ (counts @ ready.option_held + ready.fixed_held) + static[ready.row_rank]
    highest = peaks + spread.margin(table, peaks, confidence)
    starts = np.searchsorted(ready.row_rank, np.arange(ready.problem.pp))
    found = np.maximum.reduceat(highest, starts) - np.maximum.reduceat(peaks, starts)
    own = spread.extra if fit.pp == ready.problem.pp else (0.0,) * ready.problem.pp
    return tuple((found + np.array(own)).tolist())


def parts_held(ready: Ready, counts: Ints, fit: MemoryFit) -> Floats:
    """How often every part of memory is held at the moments when a rank may hold most: one row each."""
    columns = [_column(ready, counts, part) for part in fit.parts]
    return np.stack(columns, axis=1)


def _column(ready: Ready, counts: Ints, part: MemoryPart) -> Floats:
    ranks = ready.row_rank
    if part.kind < 0:
        of_end = {"head": ready.rank_of[0], "tail": ready.rank_of[-1]}
        return np.asarray(ranks == of_end[part.name] if part.name in of_end else np.ones(len(ranks))).astype(float)
    if part.name == "par":
        layers = counts[:, ready.run_of == part.kind].sum(axis=1)
        return np.asarray((ready.on_rank @ layers)[ranks])
    named = [choice.name for run in ready.problem.runs for choice in run.kind.choices]
    own = [o for o, name in enumerate(named) if ready.run_of[o] == part.kind and ACTIVATIONS.get(name) == part.name]
    return np.asarray(ready.rows @ counts[:, own].sum(axis=1) / ready.problem.splits)
