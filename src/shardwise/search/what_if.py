"""The same plan, and the best plan, on a cluster that is not the one of the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose, sqrt

from shardwise.errors import Fault, InputError, ShardwiseError
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.inputs.cluster import Cluster, Level
from shardwise.inputs.gate import held, refusal, typed
from shardwise.inputs.load import load_runtime, resized
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.strategy import Strategy
from shardwise.plan.plan import Plan
from shardwise.plan.predict import estimate_of, order_for
from shardwise.search.api import answer_of, question_of
from shardwise.search.findings import Report
from shardwise.search.question import Answer
from shardwise.search.wishes import kept as kept_conditions
from shardwise.units import show_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What a change of the cluster does."""

    cluster: Cluster
    before: Estimate
    kept: Estimate | None
    """The plan's strategy there, replicas adapted; none: it cannot run there."""
    refused: str
    """Why it cannot."""
    again: Answer
    """The best strategy there."""
    note: str = ""
    """What of the plan's question does not hold there; empty: nothing."""


def changed(
    cluster: Cluster, *, gpus: int | None = None, net: str | None = None, memory: float | str | None = None
) -> Cluster:
    """Another number of GPUs, network (`2x` of what it is, or a rate between nodes) and memory."""
    if gpus:
        cluster = resized(cluster, gpus)
    if net:
        cluster = replace(cluster, levels=(*cluster.levels[:-1], _level(cluster, net)))
    if memory:
        size = held(memory, SCALARS["Gpu.memory"], "--memory")
        cluster = replace(cluster, gpu=replace(cluster.gpu, memory=size))
    return cluster


def _level(cluster: Cluster, net: str) -> Level:
    if not cluster.levels:
        raise InputError(Fault("--net", f"{cluster.name} has no network to change: it is one GPU"))
    last = cluster.levels[-1]
    if net.strip().endswith("x"):
        bandwidth = last.bandwidth * typed(net.strip()[:-1], SCALARS["option.times"], "--net")
        if message := refusal(bandwidth, SCALARS["Level.bandwidth"]):
            raise InputError(Fault("--net", f"{net} of {last.bandwidth:g} bytes/s: {message}"))
    else:
        bandwidth = typed(net, SCALARS["Level.bandwidth"], "--net")
    return replace(last, bandwidth=bandwidth)


def margin_of(plan: Plan) -> float | None:
    """Bytes of every GPU that the plan was asked to leave free; none: it does not say, or leaves the memory model's
    own error, which depends on what is planned.
    """
    told, memory = plan.predictions, plan.cluster.gpu.memory
    if told is None or told.memory_limit is None or told.memory_limit > memory:
        return None
    low, high = told.total_bytes_interval
    return None if isclose(told.memory_limit, memory * sqrt(low / high)) else memory - told.memory_limit


def what_if(old: Plan, cluster: Cluster, *, gap: float = 0.005, only: str = "", report: Report | None = None) -> WhatIf:
    """Keep the plan where it can run, and plan anew under its conditions; `only`: others, each in place of the plan's
    on the same axis.
    """
    strategy, margin = old.strategy, margin_of(old)
    same = cluster.gpu.memory == old.cluster.gpu.memory
    question = question_of(
        old.model, cluster, global_batch=strategy.global_batch, seq=strategy.seq, runtime=strategy.runtime,
        only=kept_conditions(old.conditions, only), base=strategy, memory_margin=margin if same else None,
    )  # fmt: skip
    again = answer_of(question, gap=gap, report=report)
    before = estimate_of(old)
    try:
        there = _adapted(strategy, cluster)
        kept, refused = estimate(
            old.model, cluster, there, runtime=load_runtime(strategy.runtime), order=order_for(old, there),
            memory_limit=question.memory_limit,
        ), ""  # fmt: skip
    except ShardwiseError as error:
        kept, refused = None, str(error)
    note = "" if same or margin is None else _dropped(old, cluster, question.memory_limit)
    return WhatIf(cluster=cluster, before=before, kept=kept, refused=refused, again=again, note=note)


def _dropped(old: Plan, cluster: Cluster, limit: float) -> str:
    """Why a limit that was asked for does not go with another memory."""
    asked = f"{show_bytes(old.memory_limit)} of {show_bytes(old.cluster.gpu.memory)}"
    there = f"{show_bytes(limit)} of {show_bytes(cluster.gpu.memory)} may be used there"
    return f"the plan's own limit, {asked}, does not go with another memory: {there}, the memory model's error is left"


def _adapted(strategy: Strategy, cluster: Cluster) -> Strategy:
    model_parallel = strategy.tp * strategy.pp * strategy.cp
    dp = cluster.gpus // model_parallel if cluster.gpus % model_parallel == 0 else 1
    return replace(strategy, dp=dp, zero_group=0 if dp != strategy.dp else strategy.zero_group)
