"""Rules between cluster and strategy: how many GPUs, how the batch divides, over what states are sharded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.check.rule import Combination, divisors_near, either, multiples_near, rule
from shardwise.errors import Fault, InputError
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.strategy import Strategy

_RAGGED = frozenset({"mosaic"})  # Composer lets the last micro batch of an iteration be smaller


def with_dp(strategy: Strategy, cluster: Cluster) -> Strategy:
    """The same strategy with dp from the number of GPUs; raises InputError when tp x pp x cp does not divide it."""
    fault = _model_parallel_fault(strategy, cluster.gpus)
    if fault:
        raise InputError(fault)
    return replace(strategy, dp=cluster.gpus // (strategy.tp * strategy.pp * strategy.cp))


def _model_parallel_fault(s: Strategy, gpus: int) -> Fault | None:
    degrees = {"tp": s.tp, "pp": s.pp, "cp": s.cp}
    small = [name for name, degree in degrees.items() if degree < 1]
    if small:
        return Fault(f"strategy.{small[0]}", f"{degrees[small[0]]} is too small; it must be at least 1")
    product = s.tp * s.pp * s.cp
    if gpus % product == 0:
        return None
    alone = [name for name, degree in degrees.items() if gpus % degree]
    name = alone[0] if alone else max(degrees, key=lambda axis: degrees[axis])
    near = either(divisors_near(gpus, product))
    return Fault(
        f"strategy.{name}",
        f"tp {s.tp} x pp {s.pp} x cp {s.cp} = {product} does not divide {gpus} GPUs; make the product {near}, "
        f"or use {either(multiples_near(product, gpus))} GPUs",
    )


@rule("tp", "pp", "cp", "dp", "cluster.gpus")
def world_size(case: Combination) -> Iterator[Fault]:
    s, gpus = case.strategy, case.cluster.gpus
    fault = _model_parallel_fault(s, gpus)
    if fault:
        yield fault
    elif s.world != gpus:
        dp = gpus // (s.tp * s.pp * s.cp)
        yield Fault(
            "strategy.dp",
            f"tp {s.tp} x pp {s.pp} x cp {s.cp} x dp {s.dp} = {s.world}, the cluster has {gpus} GPUs; "
            f"use dp {dp} or leave it out",
        )


@rule("tp", "cp", "pp", "dp", "ep", "etp", "cluster.gpus")
def experts_over_ranks(case: Combination) -> Iterator[Fault]:
    s = case.strategy
    if _model_parallel_fault(s, case.cluster.gpus):
        return  # dp has no meaning yet
    ranks, wanted = s.tp * s.cp * s.dp, s.ep * s.etp
    if ranks % wanted:
        legal = either(n for n in divisors_near(ranks, wanted) if n % s.etp == 0) or "less"
        yield Fault(
            "strategy.ep",
            f"ep {s.ep} x etp {s.etp} = {wanted} does not divide tp {s.tp} x cp {s.cp} x dp {s.dp} = {ranks}, "
            f"the ranks of one pipeline stage; make ep x etp {legal}",
        )


@rule("tp", "cp", "pp", "global_batch", "dp", "micro_batch", "cluster.gpus")
def batch_divides(case: Combination) -> Iterator[Fault]:
    s = case.strategy
    if _model_parallel_fault(s, case.cluster.gpus):
        return
    step = s.dp * s.micro_batch
    if s.global_batch % step and not s.batches and case.runtime.base not in _RAGGED:
        yield Fault(
            "strategy.global_batch",
            f"{s.global_batch} is not a multiple of dp {s.dp} x micro_batch {s.micro_batch} = {step}; "
            f"use {either(multiples_near(step, s.global_batch))}, or give microbatches instead",
        )


@rule("zero_group", "dp", "cp", "zero")
def sharding_group(case: Combination) -> Iterator[Fault]:
    s = case.strategy
    ranks = s.dp * s.cp
    if s.zero_group and ranks % s.zero_group:
        near = either(divisors_near(ranks, s.zero_group))
        yield Fault(
            "strategy.zero_group", f"{s.zero_group} does not divide dp {s.dp} x cp {s.cp} = {ranks}; use {near}"
        )
    if s.zero_group and s.zero == 0:
        yield Fault(
            "strategy.zero_group", f"{s.zero_group} is given, but zero 0 shards nothing; use zero 1 to 3 or drop it"
        )


RULES = (world_size, experts_over_ranks, batch_divides, sharding_group)
