"""Problems of the size that users have, drawn by a number: several chunks a rank, one to three kinds of layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwise.partition import Choice, End, Kind, KindRun, Problem
from shardwise.partition.graph import Ready
from shardwise.partition.least_memory import spread_evenly

AGAIN = {"select": (0.04, 0.78), "comm": (0.125, 0.7), "both": (0.165, 0.42), "full": (0.5, 0.08)}
"""What a choice adds to the backward pass as a share of two forward passes, and what it still holds (seed 001)."""
SIZES = ((4, 2, 8), (4, 3, 4), (4, 4, 8), (8, 2, 8), (8, 2, 32), (8, 3, 16), (8, 4, 8), (16, 2, 16), (16, 2, 32),
         (16, 3, 16), (32, 2, 32))  # fmt: skip
"""pp, vpp and micro batches."""


def drawn(number: int) -> Problem:
    """The limit lies between what must be held and what all layers hold when nothing is computed again."""
    rng = np.random.default_rng(number)
    pp, vpp, m = SIZES[number % len(SIZES)]
    layers = int(pp * vpp * rng.uniform(1.2, 4.5))
    kinds = (1, 1, 2, 3)[number % 4]
    shares = np.sort(rng.choice(np.arange(1, layers), kinds - 1, replace=False)).tolist()
    counts = np.diff([0, *shares, layers]).tolist()
    runs = tuple(KindRun(kind=_kind(rng, f"kind {k}"), count=count) for k, count in enumerate(counts))
    one = float(np.mean([run.kind.choices[0].f for run in runs]))
    problem = Problem(
        pp=pp, vpp=vpp, microbatches=m, runs=runs, name=f"drawn {number}",
        schedule=("interleaved", "interleaved", "low-memory")[number % 3], hop=one * float(rng.choice([0.0, 0.02])),
        head=_end(one * rng.uniform(0, 0.3), static=2000.0),
        tail=_end(one * rng.uniform(0.3, 1.5), static=3000.0),
    )  # fmt: skip
    return replace(problem, limits=(_limit(problem, float(rng.uniform(0.1, 0.8))),))


def _kind(rng: np.random.Generator, name: str) -> Kind:
    f, held = float(rng.uniform(2, 5)), float(rng.uniform(200, 900))
    picked = [word for word in AGAIN if rng.random() < 0.6] or ["full"]
    choices = [Choice(name="none", f=f, i=2 * f, w=0.0, activation=held)]
    choices += [
        Choice(name=word, f=f, i=2 * f * (1 + AGAIN[word][0]), w=0.0, activation=held * AGAIN[word][1])
        for word in picked
    ]
    return Kind(name=name, choices=tuple(choices), static=float(rng.uniform(300, 2000)))


def _end(f: float, static: float) -> End:
    return End(f=f, i=2 * f, w=0.0, static=static)


def _limit(problem: Problem, tight: float) -> float:
    """0: what fits when spread evenly is the leanest, 1: there nothing need be computed again."""
    ready = Ready(problem)
    plain = spread_evenly(ready)
    lean = float(ready.peaks(plain).max())
    for run in range(len(ready.run_counts)):
        own = ready.run_of == run
        total = plain[:, own].sum(axis=1)
        plain[:, own] = 0
        plain[:, int(own.argmax())] = total
    return round(lean + tight * (float(ready.peaks(plain).max()) - lean), 1)
