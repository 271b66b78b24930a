"""Rounds of measuring drawn at random: a hidden truth, the guide's rounds, noise; and whether what is balanced holds.

Two truths are asked of every plan: what a stage holds without noise, and what it holds in a run with noise of its own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log

import numpy as np

from shardwise.errors import InfeasibleError, InputError
from shardwise.partition.balance import balance
from shardwise.partition.decompose import (
    ACTIVATIONS,
    CHOICES,
    Measured,
    MemoryFit,
    MemoryPart,
    called,
    decompose,
    equations,
    parts_of,
)
from shardwise.partition.graph import Ready
from shardwise.partition.guide import design
from shardwise.partition.least_memory import spread_evenly
from shardwise.partition.problem import Choice, End, Kind, KindRun, Problem
from shardwise.partition.solver import solve
from shardwise.partition.to_measure import Round, measurements

Shape = tuple[int, tuple[tuple[str, int], ...]]
SHAPES: tuple[Shape, ...] = (
    (4, (("body", 22),)), (4, (("body", 16),)), (6, (("body", 20),)), (8, (("body", 32),)), (8, (("body", 61),)),
    (16, (("body", 64),)), (16, (("body", 96),)), (6, (("dense", 3), ("moe", 24))), (8, (("dense", 3), ("moe", 33))),
    (8, (("vision", 12), ("body", 36))), (8, (("dense", 3), ("moe", 40), ("mtp", 1))),
)  # fmt: skip
"""Stages, and kinds of layers with how many there are."""
EXTRA = {"none": 0.0, "select": 0.04, "comm": 0.125, "both": 0.165, "full": 0.5}
"""Time that recomputing adds, as a share of the backward."""
Values = dict[MemoryPart, float]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A hidden truth, and what was measured of it."""

    pp: int
    kinds: tuple[tuple[str, int], ...]
    truth: Values
    noise: float
    """Standard deviation of a peak, as a share of it."""
    measured: tuple[Measured, ...]
    vpp: int
    microbatches: int
    tightness: float
    """Where the limit lies between all layers recomputed and none."""
    run: tuple[float, ...]
    """Noise of every stage in the run of the plan."""

    @property
    def spare(self) -> int:
        return len(self.measured) - len(parts_of(self.measured, self.pp))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one round of measuring."""

    spare: int
    kinds: int
    stages: int
    planned: bool
    """No plan fits where the margins leave too little, or where the peaks are refused."""
    refused: bool = False
    over: int = 0
    """Stages that hold more than the limit without noise."""
    over_in_run: int = 0
    slower: float = 0.0
    """How much slower the plan is than the best that knows the truth."""


@lru_cache(maxsize=256)
def _designed(pp: int, kinds: tuple[tuple[str, int], ...], choices: tuple[str, ...], more: int) -> tuple[Round, ...]:
    of = kinds if len(kinds) > 1 else ()
    layers = sum(count for _, count in kinds)
    made = design(pp, layers, choices, of=of).rounds
    return design(pp, layers, choices, of=of, rounds=len(made) + more).rounds if more else made


def drawn(seed: int, shapes: Sequence[Shape] = SHAPES) -> Drawn:
    chance = random.Random(seed)  # noqa: S311 - a draw, not a secret
    pp, kinds = chance.choice(shapes)
    choices = tuple(chance.choice((("full",), ("select", "full"), ("select", "comm", "both"))))
    made = _designed(pp, kinds, choices if len(kinds) == 1 else choices[:2], chance.choice((0, 0, 1)))
    noise = exp(chance.uniform(log(0.002), log(0.02)))
    truth = _truth(chance, len(kinds))
    measured = list(measurements(pp, made))
    if chance.random() < 0.5:
        measured = _thinned(chance, measured, pp)
    parts = [part for part in truth if _is_in(part, measured)]
    exact = equations(measured, pp, parts) @ np.array([truth[part] for part in parts])
    small = pp <= 6 and len(kinds) == 1
    return Drawn(
        pp=pp, kinds=kinds, truth=truth, noise=noise, vpp=2 if small and chance.random() < 0.3 else 1,
        measured=tuple(
            replace(m, peak=peak * (1 + noise * chance.gauss(0, 1)))
            for m, peak in zip(measured, exact.tolist(), strict=True)
        ),
        microbatches=pp * chance.choice((1, 2, 4)), tightness=chance.uniform(0.15, 0.9),
        run=tuple(chance.gauss(0, 1) for _ in range(pp)),
    )  # fmt: skip


def _truth(chance: random.Random, kinds: int) -> Values:
    found = {MemoryPart("const"): chance.uniform(0, 3000)}
    for kind in range(kinds):
        kept = chance.uniform(200, 1200)
        found[MemoryPart("par", kind)] = chance.uniform(300, 2500)
        shares = {
            "none": (1, 1),
            "select": (0.65, 0.85),
            "comm": (0.55, 0.8),
            "both": (0.35, 0.5),
            "full": (0.02, 0.15),
        }
        found |= {MemoryPart(ACTIVATIONS[c], kind): kept * chance.uniform(*shares[c]) for c in CHOICES}
    return found | {MemoryPart("head"): chance.uniform(500, 5000), MemoryPart("tail"): chance.uniform(500, 6000)}


def _is_in(part: MemoryPart, measured: list[Measured]) -> bool:
    return part.kind < 0 or part.kind * len(CHOICES) < len(measured[0].counts)


def _thinned(chance: random.Random, measured: list[Measured], pp: int) -> list[Measured]:
    """As few peaks as tell all parts apart, or up to two more."""
    parts, spare = parts_of(measured, pp), chance.choice((0, 0, 1, 2))
    for one in chance.sample(measured, len(measured)):
        rest = [m for m in measured if m is not one]
        ends = {m.stage for m in rest} >= {0, pp - 1}
        if len(measured) - len(parts) > spare and ends and parts_of(rest, pp) == parts:
            table = equations(rest, pp, parts)
            if np.linalg.cond(table / np.linalg.norm(table, axis=0)) < 1e6:
                measured = rest
    return measured


def problem_of(case: Drawn, values: Values, limit: float, fit: MemoryFit | None) -> Problem:
    """The problem under some values, with the choices that were measured."""
    runs = []
    for kind, (name, count) in enumerate(case.kinds):
        used = [c for k, c in enumerate(CHOICES) if any(m.counts[kind * len(CHOICES) + k] for m in case.measured)]
        f = 10.0 + 3 * kind
        made = [
            Choice(name=c, f=f, i=f + 2 * f * EXTRA[c], w=f, activation=values[MemoryPart(ACTIVATIONS[c], kind)])
            for c in used
        ]
        static = values[MemoryPart("par", kind)]
        runs.append(KindRun(kind=Kind(name=name, choices=tuple(made), static=static), count=count))
    head, tail = (End(f=t, i=t, w=t, static=values[MemoryPart(n)]) for n, t in (("head", 2.0), ("tail", 11.0)))
    return Problem(
        pp=case.pp, vpp=case.vpp, microbatches=case.microbatches, runs=tuple(runs), head=head, tail=tail,
        limits=(limit,), static=(values[MemoryPart("const")],), fit=fit,
        schedule="1f1b" if case.vpp == 1 else "interleaved",
    )  # fmt: skip


def limit_of(ready: Ready, tightness: float) -> float:
    lean = spread_evenly(ready)
    rich = np.zeros_like(lean)
    firsts = [int(np.flatnonzero(ready.run_of == run)[0]) for run in range(len(ready.run_counts))]
    for run, option in enumerate(firsts):
        rich[:, option] = lean[:, ready.run_of == run].sum(axis=1)
    low, high = float(ready.peaks(lean).max()), float(ready.peaks(rich).max())
    return low + tightness * (high - low)


def outcome(case: Drawn, *, effort: float = 0.02) -> Outcome:
    """Balanced with what was measured, and held against the truth."""
    names = [name for name, _ in case.kinds]
    same = {"spare": case.spare, "kinds": len(case.kinds), "stages": case.pp}
    try:
        fit = decompose(case.measured, case.pp, names)
    except InputError:
        return Outcome(planned=False, refused=True, **same)
    fitted = {part: fit.values.get(called(part, names), 0.0) for part in case.truth}
    true = problem_of(case, case.truth, 1e12, None)
    ready = Ready(true)
    limit = limit_of(ready, case.tightness)
    best = solve(replace(true, limits=(limit,)), seconds=20, effort=effort)
    try:
        found = balance(problem_of(case, fitted, limit, fit), time_limit=20, effort=effort, seed=1)
    except InfeasibleError:
        return Outcome(planned=False, **same)
    peaks = ready.peaks(ready.matrix(found.best.partition))
    in_run = peaks * (1 + case.noise * np.array(case.run))
    most = limit * (1 + 1e-9)
    return Outcome(
        planned=True, over=int((peaks > most).sum()), over_in_run=int((in_run > most).sum()),
        slower=found.simulated / best.simulated - 1, **same,
    )  # fmt: skip
