"""A rehearsal beside its prediction, part by part, and folded back into the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.cost.chunk import Chunk, combined
from shardwise.cost.update import tensors_of
from shardwise.errors import InputError
from shardwise.estimate.estimate import assemble
from shardwise.estimate.predictions import Rehearsed, RehearsedLine
from shardwise.estimate.setup import Setup
from shardwise.inputs.mixed import punctual
from shardwise.measure.rehearse.megatron import megatron_setup
from shardwise.measure.rehearse.runtime import rehearsed_setup
from shardwise.measure.rehearse.torchtitan import torchtitan_setup
from shardwise.ops.moe import EAGER_ROUTING
from shardwise.pipeline.action import Schedule
from shardwise.plan.plan import Plan
from shardwise.plan.renew import renewed

# What the program's experts cost beside fused ones. Torch has no grouped product that adds into fp32: weight gradients
# take the way over a temporary, bytes each; tokens are sorted by plain kernels: bytes a layer (an H200's 0.15 ms).
GROUPED_ADD, ROUTING = 15.0, EAGER_ROUTING
EACH_TENSOR = 13e-6
"""Seconds of the host: the program's step goes through all tensors one by one (ten ranks on an H200's host)."""


def setup_for(plan: Plan, result: dict[str, Any]) -> Setup:
    """What is predicted beside a result: the kernels of its program, which on its own waits for no late host."""
    plan = replace(plan, cluster=punctual(plan.cluster))
    if result.get("with") == "megatron":
        return megatron_setup(plan, engine=bool(result.get("engine")))
    if result.get("with") == "torchtitan":
        return torchtitan_setup(plan)
    return rehearsed_setup(plan)


def compare(plan: Plan, result: dict[str, Any]) -> list[RehearsedLine]:
    """Memory always; seconds where a GPU measured them, what was faked taken off."""
    setup, rank = setup_for(plan, result), int(result["rank"])
    lines = _memory(setup, rank, result["memory"], plan.order)
    if "seconds" in result:
        lines += _seconds(setup, rank, result)
    return lines


def _memory(setup: Setup, rank: int, measured: dict[str, float], order: Schedule | None) -> list[RehearsedLine]:
    found = assemble(setup, order).memory[rank]
    told = {
        "static": found.static,
        "peak_forward_backward": max(found.forward, found.backward),
        "peak_optimizer": found.optimizer,
        "peak": max(found.forward, found.backward, found.optimizer),
    }
    words = {"static": "memory between iterations", "peak_forward_backward": "peak of the passes",
             "peak_optimizer": "peak of the optimizer step", "peak": "peak"}  # fmt: skip
    return [
        RehearsedLine(what=words[name], predicted=value, measured=measured[name], unit="bytes")
        for name, value in told.items()
        if name in measured
    ]


def _seconds(setup: Setup, rank: int, result: dict[str, Any]) -> list[RehearsedLine]:
    measured, lines, own = result["seconds"], [], "with" not in result
    added = 0.0
    for index, chunk in enumerate(setup.rank_chunks(rank)):
        routing, adds = _beside_experts(setup, chunk) if own else (0.0, 0.0)
        added += routing + adds
        parts = {
            "F": ("forward", (chunk.f,)), "B": ("backward", (chunk.i, chunk.w, chunk.recompute)),
            "I": ("backward for inputs", (chunk.i, chunk.recompute)), "W": ("backward for weights", (chunk.w,)),
        }  # fmt: skip
        for kind, (word, seconds) in parts.items():
            if f"{index}{kind}" in measured:
                value = combined(*seconds).alone + {"F": routing, "I": 0.0}.get(kind, adds)
                lines.append(
                    RehearsedLine(
                        what=f"{word}, chunk {index}", predicted=value, measured=measured[f"{index}{kind}"], unit="s"
                    )
                )
    estimate = assemble(setup)
    passes = setup.strategy.microbatches * (estimate.stages[rank].alone + added)
    faked = float(result.get("faked_seconds", 0.0))
    lines.append(RehearsedLine(what="all passes", predicted=passes, measured=measured["passes"] - faked, unit="s"))
    step = estimate.optimizer_by_rank[rank]
    if own:
        step += EACH_TENSOR * tensors_of(setup.rank_chunks(rank))
    lines.append(RehearsedLine(what="optimizer step", predicted=step, measured=measured["optimizer"], unit="s"))
    total = measured["passes"] - faked + measured["optimizer"]
    lines.append(RehearsedLine(what="iteration of the rank alone", predicted=passes + step, measured=total, unit="s"))
    return lines


def _beside_experts(setup: Setup, chunk: Chunk) -> tuple[float, float]:
    """Seconds of a micro batch's plain routing in forward, and of adding up experts' gradients."""
    layers = sum(run.repeat for run in chunk.runs if run.block.expert_params)
    if setup.runtime.base == "huggingface" or not layers:
        return 0.0, 0.0
    fused = setup.runtime.kernels.weight_grad_fusion and setup.strategy.zero < 2  # else only a share is added up
    adds = chunk.expert_params * GROUPED_ADD if fused else 0.0
    return layers * ROUTING / setup.machine.bandwidth, adds / setup.machine.bandwidth


def folded(plan: Plan, result: dict[str, Any], lines: list[RehearsedLine]) -> Plan:
    """The plan with what was rehearsed among its predictions: memory of the rank corrected, its time scaled.

    The plan's own runtime may have other kernels than the program: the ratio measured / predicted is what carries over.
    """
    plan, rank = renewed(plan).plan, int(result["rank"])
    told = plan.predictions
    if told is None:
        raise InputError("the plan holds no predictions to correct, and the cost model refuses it: see `check PLAN`")
    factors = {line.what: line.measured / line.predicted for line in lines if line.predicted}
    corrected: dict[str, float] = {}
    if "peak" in factors:
        memory = told.memory[rank]
        corrected["peak_bytes"] = memory.peak.value * factors["peak"]
        corrected["total_bytes"] = memory.total + memory.peak.value * (factors["peak"] - 1)
    if "all passes" in factors:
        corrected["alone_seconds"] = told.stages[rank].alone * factors["all passes"]
    others = tuple(one for one in told.rehearsed if one.rank != rank)
    one = Rehearsed(rank=rank, device=result["device"], lines=tuple(lines), **corrected)
    return replace(plan, predictions=replace(told, rehearsed=(*others, one)))
