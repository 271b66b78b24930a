"""Other strategies beside the solver's: all layers recomputed, none, and what a user wrote; and SAPP's bubble line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from shardwise.errors import Fault, InputError
from shardwise.partition.graph import Ready
from shardwise.partition.lists import from_lists
from shardwise.partition.problem import Evaluation, Problem
from shardwise.partition.readers.manual_file import Manual
from shardwise.partition.readers.problem_file import default_schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubble:
    """Seed 001's line: real = ideal + imbalance + recompute, shares of the time of the model itself.

    The model takes micro batches x all layers, head and tail without recomputing, spread over pp ranks; real is
    pp x end / that - 1, ideal (pp - 1) / (vpp x micro batches, or their pieces), recompute the time it adds, imbalance
    the rest.
    """

    real: float
    ideal: float
    imbalance: float
    recompute: float

    def __str__(self) -> str:
        parts = f"{self.ideal:.4f} ideal + {self.imbalance:.4f} imbalance + {self.recompute:.4f} recompute"
        return f"{self.real:.4f} real = {parts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A named strategy and what the simulator says of it."""

    name: str
    problem: Problem
    evaluation: Evaluation
    file_name: str = ""


def bubble_of(problem: Problem, evaluation: Evaluation) -> Bubble:
    model = problem.head.f + problem.head.i + problem.head.w + problem.tail.f + problem.tail.i + problem.tail.w
    extra = 0.0
    for k, run in enumerate(problem.runs):
        plain = run.kind.choices[0]
        base = plain.f + plain.i + plain.w
        model += run.count * base
        for chunk in evaluation.partition.counts:
            extra += sum(n * (c.f + c.i + c.w - base) for n, c in zip(chunk[k], run.kind.choices, strict=True))
    real = problem.pp * evaluation.simulated / (problem.microbatches * model) - 1
    ideal, again = (problem.pp - 1) / (problem.vpp * problem.microbatches * problem.splits), extra / model
    return Bubble(real=real, ideal=ideal, imbalance=real - ideal - again, recompute=again)


def naive(problem: Problem) -> tuple[list[Compared], list[str]]:
    """All layers recomputed as far as measured, and none; or why there is no such strategy."""
    ready = Ready(problem)
    if problem.layers % problem.chunks:
        why = f"{problem.layers} layers do not divide over {problem.chunks} chunks: there is no naive strategy"
        return [], [why]
    found, notes = [], list[str]()
    cuts = np.arange(ready.chunks + 1) * (problem.layers // ready.chunks)
    for name, smallest in (("naive, all recomputed", True), ("naive, none recomputed", False)):
        counts, start = np.zeros((ready.chunks, ready.options), dtype=np.int32), 0
        for k, run in enumerate(problem.runs):
            own = np.flatnonzero(ready.run_of == k)
            option = own[np.argmin(ready.option_held[own])] if smallest else own[0]
            # In model order: what of [start, start + count) lies between the cuts of a chunk.
            counts[:, option] = np.diff(np.clip(cuts, start, start + run.count))
            start += run.count
            used = run.kind.choices[int(option - own[0])].name
            if smallest and used != "full":
                notes.append(f"full recompute was not measured: 'all recomputed' means {used}")
        found.append(Compared(name=name, problem=problem, evaluation=ready.evaluate(counts)))
    return found, notes


def manual(problem: Problem, strategies: Iterable[Manual]) -> Iterator[Compared]:
    """What users wrote, each with its own number of chunks a rank."""
    for one in strategies:
        own = problem
        if one.vpp != problem.vpp:
            low = problem.schedule == "low-memory"
            own = replace(
                problem, vpp=one.vpp, schedule=default_schedule(one.vpp, problem.splits, low_memory=low), empty=()
            )
        ready = Ready(own)
        try:
            partition = from_lists(own, one.lists)
        except InputError as error:
            raise InputError([Fault(f"{one.name}.{fault.path}", fault.message) for fault in error.faults]) from None
        evaluation = ready.evaluate(ready.matrix(partition))
        yield Compared(name=one.name, problem=own, evaluation=evaluation, file_name=one.file_name if one.show else "")
