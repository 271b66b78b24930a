"""Distinct full estimates (checks, time, memory, ledgers) per CPU second: python benchmarks/estimate.py [--profile].

Every strategy of a case differs from all others, so that no result is served from a cache of results; what layers of
equal shape share is shared, as in a search. A run estimates the whole set once in a process of its own: batches timed
one after another in one process would find the layers of earlier ones already made. Other work on the machine only
slows a run, so the best of the runs is shown, with their median. `alone`: strategies of which no two share a layer.
"""

from __future__ import annotations

import cProfile
import pstats
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from statistics import median
from typing import NamedTuple

from shardwise.check.check import check
from shardwise.estimate.estimate import estimate
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy

LIMIT = 1000.0
RUNS = 5


class Case(NamedTuple):
    """One of the three cases that the speed is stated for."""

    name: str
    model: str
    cluster: str
    strategy: str


CASES = (
    Case("Llama-3-8B pp2, 8 micro batches", "llama-3-8b", "8xh100", "pp2 dp4 mbs1 gbs32 seq8192"),
    Case("Llama-3-70B tp8 pp4, 64 micro batches", "llama-3-70b", "64xh100", "tp8 pp4 dp2 mbs1 gbs128 seq8192"),
    Case(
        "DeepSeek-V3 ep64 pp16, 128 micro batches", "deepseek-v3", "2048xh100",
        "pp16 dp128 ep64 mbs1 gbs16384 seq4096 layers=3,4,4,4,4,4,4,4,4,4,4,4,4,4,3,3",
    ),
)  # fmt: skip


def variants(base: Strategy) -> Iterator[Strategy]:
    """Strategies around a case, no two alike: sequence, recompute, ZeRO stage, precision of gradients, flash."""
    lengths = range(base.seq, base.seq - 24 * 64, -64)
    recomputes = [Recompute(), Recompute(full=True), *(Recompute(full=True, layers=(n,)) for n in (1, 2, 3))]
    recomputes.append(Recompute(modules=("activation",)))
    for seq, recompute, zero, grads in product(lengths, recomputes, (0, 1, 2), ("fp32", "bf16")):
        yield replace(base, seq=seq, recompute=recompute, zero=zero, grad_dtype=grads)  # type: ignore[arg-type]


def valid(case: Case, *, shared: bool) -> tuple[Model, Cluster, Runtime, list[Strategy]]:
    """The question of a case, and its strategies that can run."""
    model, cluster = load_model(case.model), load_cluster(case.cluster)
    base = Strategy.parse(case.strategy)
    runtime = load_runtime(base.runtime)
    some = variants(base) if shared else (replace(base, seq=base.seq - 64 * step) for step in range(48))
    found = [one for one in some if not check(model, cluster, one, runtime)]
    assert len(found) == len(set(found)) > 30
    return model, cluster, runtime, found


def rate(case: Case, *, shared: bool = True) -> float:
    """Estimates per CPU second over the whole set, once."""
    model, cluster, runtime, strategies = valid(case, shared=shared)
    start = time.process_time()
    for strategy in strategies:
        estimate(model, cluster, strategy, runtime=runtime)
    return len(strategies) / (time.process_time() - start)


def rates(case: Case, *, shared: bool) -> list[float]:
    """The rate of every run, each in a fresh process, slowest first."""
    words = [sys.executable, __file__, "--one", str(CASES.index(case)), "shared" if shared else "alone"]
    return sorted(float(subprocess.run(words, check=True, capture_output=True).stdout) for _ in range(RUNS))


def profile(case: Case) -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    rate(case)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(18)


def main() -> None:
    if "--one" in sys.argv:
        print(rate(CASES[int(sys.argv[2])], shared=sys.argv[3] == "shared"))
        return
    for case in CASES:
        found, alone = rates(case, shared=True), rates(case, shared=False)
        told = f"best {found[-1]:,.0f}, median {median(found):,.0f}; alone best {alone[-1]:,.0f}"
        print(f"{case.name}: {told} distinct estimates per CPU second (goal {LIMIT:,.0f}, {RUNS} runs)")
        if "--profile" in sys.argv:
            profile(case)


if __name__ == "__main__":
    main()
