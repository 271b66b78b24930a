"""Distinct full estimates (checks, time, memory, ledgers) per CPU second: python benchmarks/estimate.py [--profile].

Every strategy of a case differs from all others, so that no result is served from a cache of results; what layers of
equal shape share is shared, as in a search.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from shardwise.inputs.check import check
from shardwise.inputs.load import load_cluster, load_model, load_runtime
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import Strategy
from shardwise.plan.estimate import estimate

LIMIT = 1000.0


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


def rate(case: Case, seconds: float = 2.0) -> float:
    """Estimates per CPU second, the fastest of up to eight batches: other work on the machine only slows."""
    model, cluster = load_model(case.model), load_cluster(case.cluster)
    base = Strategy.parse(case.strategy)
    runtime = load_runtime(base.runtime)
    valid = [one for one in variants(base) if not check(model, cluster, one, runtime)]
    assert len(valid) == len(set(valid)) > 200
    batches = [valid[start::8] for start in range(8)]
    fastest, began = 0.0, time.process_time()
    for batch in batches:
        start = time.process_time()
        for strategy in batch:
            estimate(model, cluster, strategy, runtime=runtime)
        fastest = max(fastest, len(batch) / (time.process_time() - start))
        if time.process_time() - began > seconds:
            break
    return fastest


def profile(case: Case) -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    rate(case, 4.0)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(18)


def main() -> None:
    for case in CASES:
        print(f"{case.name}: {rate(case):,.0f} distinct estimates per CPU second (goal {LIMIT:,.0f})")
        if "--profile" in sys.argv:
            profile(case)


if __name__ == "__main__":
    main()
