"""How many GPUs a run needs to end in time: the fewest with which a split, more or fewer replicas of it, fits and does.

What fits at no number of replicas is changed first as `advise` would: the changes after which it fits are replicated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.check.check import check
from shardwise.errors import ShardwiseError
from shardwise.estimate.advice import advise
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.estimate.goodput import Budget, budget
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.load import load_runtime, named_cluster
from shardwise.inputs.mixed import Mixed
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.search.knobs import named


@dataclass(frozen=True, slots=True, kw_only=True)
class InTime:
    """A run that fits and ends in time, or the quickest that fits."""

    cluster: Cluster
    strategy: Strategy
    run: Budget
    reached: bool
    """Whether it ends in the days that were asked for."""


def run_of(found: Estimate, tokens: float, price: float) -> Budget:
    """Days, GPU-hours and cost of a run of so many tokens, without failures or pauses."""
    step = found.strategy.global_batch * found.strategy.seq * found.strategy.useful_share
    return budget(found.iteration_seconds, step, found.strategy.world, tokens, price, 1.0)


def in_time(
    base: Estimate, days: float, tokens: float, price: float = 0.0, *, runtime: Runtime | None = None
) -> InTime | None:
    """The fewest GPUs of the same kind; None: it fits at no number, or the cluster is not the catalog's."""
    runtime = runtime or load_runtime(base.strategy.runtime)
    if isinstance(base.cluster, Mixed) or not named(base.cluster):
        return None
    reached: list[InTime] = []
    late: list[InTime] = []
    for start in _starts(base, runtime):
        for one in _replicated(base, start, runtime, tokens, price):
            if one.run.days <= days:
                reached.append(replace(one, reached=True))
                break
            late.append(one)
    if reached:
        return min(reached, key=lambda one: (one.cluster.gpus, one.run.days))
    return min(late, key=lambda one: (one.run.days, one.cluster.gpus), default=None)


def _starts(base: Estimate, runtime: Runtime) -> Iterator[Strategy]:
    """The split as it is, with the smallest micro batch, and changed so that it fits."""
    yield base.strategy
    if base.strategy.micro_batch > 1:
        yield replace(base.strategy, micro_batch=1)
    if base.fits != "yes":
        yield from (change.strategy for change in advise(base, runtime=runtime) if change.fits == "yes")


def _replicated(base: Estimate, start: Strategy, runtime: Runtime, tokens: float, price: float) -> Iterator[InTime]:
    """Every number of replicas that shares the batch evenly and fits, fewest first."""
    most = start.global_batch // start.micro_batch
    for dp in (n for n in range(1, most + 1) if most % n == 0):
        strategy = replace(start, dp=dp, zero_group=0)
        try:
            cluster = named_cluster(f"{strategy.world}x{base.cluster.gpu.name}")
            if check(base.model, cluster, strategy, runtime):
                continue
            found = estimate(
                base.model, cluster, strategy, runtime=runtime, checked=True, memory_limit=base.memory_limit
            )
        except ShardwiseError:
            continue
        if found.fits == "yes":
            run = run_of(found, tokens, price)
            yield InTime(cluster=cluster, strategy=strategy, run=run, reached=False)
