"""The dry run of a plan as one more measuring round: what every stage held at its peak, and a layer model fitted anew.

A plan has several chunks a rank and an order of its own, so a stage does not hold pp - s micro batches of its layers;
at the moment when it is predicted to hold most, its order says how many it holds of every chunk (`Measured.held`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shardwise.partition.decompose import CHOICES, Floats, Measured, MemoryFit, decompose
from shardwise.partition.graph import Ints, Ready
from shardwise.partition.problem import Partition, Problem
from shardwise.partition.readers.layer_model import memory_of
from shardwise.partition.readers.measured import fit_of, kept
from shardwise.partition.spread import spread_of


def round_of(problem: Problem, partition: Partition, peaks: Sequence[float], number: int) -> list[Measured]:
    """The peaks that the stages of a partition had, as measurements."""
    ready = Ready(problem)
    counts = ready.matrix(partition)
    slots = _slots(ready)
    flights = _fullest(ready, counts) / problem.splits
    made = []
    for rank, peak in enumerate(peaks):
        own = np.zeros(int(slots.max(initial=0)) // len(CHOICES) * len(CHOICES) + len(CHOICES))
        held = own.copy()
        np.add.at(own, slots, ready.on_rank[rank] @ counts)
        np.add.at(held, slots, flights[rank] @ counts)
        whole = tuple(int(count) for count in own)
        made.append(
            Measured(stage=rank, layers=sum(whole), counts=whole, peak=peak, round=number, held=tuple(held.tolist()))
        )
    return made


def _slots(ready: Ready) -> Ints:
    """Where every option stands among the counts of a measurement."""
    names = [choice.name for run in ready.problem.runs for choice in run.kind.choices]
    found = [len(CHOICES) * run + CHOICES.index(name) for run, name in zip(ready.run_of, names, strict=True)]
    return np.array(found, dtype=np.int32)


def _fullest(ready: Ready, counts: Ints) -> Floats:
    """Ranks x chunks: micro batches that a rank holds when it holds most."""
    levels = ready.rows @ (counts @ ready.option_held + ready.fixed_held)
    best = [int(np.flatnonzero(ready.row_rank == rank)[np.argmax(levels[ready.row_rank == rank])])
            for rank in range(ready.problem.pp)]  # fmt: skip
    return np.asarray(ready.rows[best])


def with_rounds(model: Mapping[str, Any], rounds: Sequence[Sequence[Measured]], surprised: set[int]) -> dict[str, Any]:
    """A layer model with parts of memory that explain these rounds, too.

    `surprised`: stages that held more than was predicted even with the margin: what the fit still does not explain of
    them they keep as a constant of their own.
    """
    old = fit_of(model)
    assert old is not None  # noqa: S101 - whoever has rounds began with measurements
    fit = decompose([*old.measured, *(one for made in rounds for one in made)], old.pp, old.kinds)
    own = _own(fit, len(old.measured), surprised)
    const = fit.values.get("const", 0.0)
    kinds = iter(range(len(fit.kinds)))
    layers = [_entry(entry, fit, kinds) for entry in model["layers_description"]]
    static = [const + own.get(stage, 0.0) for stage in range(fit.pp)] if own else const
    return {**model, "stage_const_mem": static, "layers_description": layers, "measured": kept(fit)}


def _own(fit: MemoryFit, known: int, surprised: set[int]) -> dict[int, float]:
    """What surprised stages held in the rounds beyond what is explained and what the margin keeps free anyway."""
    extra = spread_of(fit).extra
    found = {}
    for stage in surprised:
        rest = [r for m, r in list(zip(fit.measured, fit.residuals, strict=True))[known:] if m.stage == stage]
        found[stage] = max(float(np.mean(rest)) - extra[stage], 0.0)
    return {stage: more for stage, more in found.items() if more}


def _entry(entry: Mapping[str, Any], fit: MemoryFit, kinds: Iterator[int]) -> dict[str, Any]:
    name = str(entry["type"]).lower()
    if name == "body":
        return {**entry, **memory_of(fit, next(kinds))}
    return {**entry, "memory_parameter": fit.values.get(name, entry["memory_parameter"])}
