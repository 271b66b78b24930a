"""Rules of what the runtime can run and of what the GPU has hardware for."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.check.rule import Combination, either, rule
from shardwise.errors import Fault
from shardwise.inputs.cluster import Cluster, Gpu
from shardwise.inputs.layers import layer_faults, stage_layers
from shardwise.inputs.lookup import CATALOG, entry
from shardwise.inputs.mixed import kinds_of
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy

# mxfp8's block scales are read by the matrix units only on GPUs that also have fp4.
_HARDWARE = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "mxfp8": "fp4", "nvfp4": "fp4"}


_OTHER_CHIPS = {
    "tpu-": "--runtime maxtext is what runs there",
    "trainium": "of the runtimes known here --runtime maxtext (JAX, XLA) is nearest to what runs there",
}
"""Chips of the catalog that most runtimes know nothing of, by how their names begin -> what to take."""


_DEEPEP, _NO_DEEPEP = ("deepep", "hybridep"), ("v100", "tpu-", "trainium", "ascend-")
"""Dispatchers that are kernels of their own, and chips that these are not written for, by how their names begin.

DeepEP asks for Ampere or later (its README, requirements); ROCm has a port of it.
"""


def other_chip(gpu: Gpu, runtime: str) -> str:
    """That a runtime is planned for on a chip on which it was never seen, and which to take; empty: it is not so."""
    base = runtime.partition("+")[0]
    cure = next((cure for start, cure in _OTHER_CHIPS.items() if gpu.name.startswith(start)), "")
    return f"no measured run supports {base} on {gpu.name}; {cure}" if cure and base != "maxtext" else ""


@rule("runtime", "tp", "pp", "cp", "ep", "etp", "cp_kind")
def axes(case: Combination) -> Iterator[Fault]:
    s, can, name = case.strategy, case.can, case.runtime.base
    allowed = {"tp": can.tp, "pp": can.pp, "cp": bool(can.cp), "ep": can.ep, "etp": can.etp}
    for axis, able in allowed.items():
        degree = getattr(s, axis)
        if degree > 1 and not able:
            yield Fault(
                f"strategy.{axis}", f"{degree}, but runtime {name} does not have it; use {axis} 1 or another runtime"
            )
    if s.cp > 1 and can.cp and s.cp_kind not in can.cp:
        yield Fault("strategy.cp_kind", f"{s.cp_kind} is not in runtime {name}; use {either(can.cp)}")


def dispatchers_on(cluster: Cluster, runtime: Runtime) -> tuple[str, ...]:
    """Ways for tokens to reach their experts that the runtime has and the chips can run."""
    names = [kind.gpu.name for kind in kinds_of(cluster)]
    able = not any(name.startswith(_NO_DEEPEP) for name in names)
    return tuple(way for way in runtime.can.dispatchers if able or way not in _DEEPEP)


def asked_dispatch(model: Model, cluster: Cluster, strategy: Strategy, runtime: Runtime) -> Iterator[Fault]:
    """What is wrong with how tokens are to reach their experts, whatever the layout."""
    can, name, way, ways = runtime.can, runtime.base, strategy.dispatcher, dispatchers_on(cluster, runtime)
    if way not in ways:
        where = f"in runtime {name}" if way not in can.dispatchers else f"written for {cluster.gpu.name}"
        yield Fault("strategy.dispatcher", f"{way} is not {where}; use {either(ways)}")
    elif model.moe is None and way != Strategy().dispatcher:
        yield Fault("strategy.dispatcher", f"{model.name} has no experts; drop dispatch={way}")
    if strategy.ep_overlap and not can.ep_overlap:
        yield Fault("strategy.ep_overlap", f"runtime {name} does not have it; drop ep-overlap")
    elif strategy.ep_overlap and model.moe is None:
        yield Fault("strategy.ep_overlap", f"{model.name} has no experts; drop ep-overlap")


@rule("runtime", "ep", "dispatcher", "ep_overlap", "pp", "vpp", "recompute", "global_batch", "micro_batch", "dp",
      "model.moe", "cluster.gpu")  # fmt: skip
def dispatch(case: Combination) -> Iterator[Fault]:
    s = case.strategy
    sends = s.ep > 1 or s.ep_overlap or case.model.moe is None
    asked = list(asked_dispatch(case.model, case.cluster, s, case.runtime)) if sends else []
    if asked or not s.ep_overlap:
        yield from asked
    elif s.ep == 1:
        yield Fault("strategy.ep_overlap", "with ep 1 no tokens travel; drop ep-overlap")
    elif s.recompute.full or "mlp" in s.recompute.modules:
        told = f"does not go with recompute {s.recompute}"
        yield Fault("strategy.ep_overlap", f"{told}; recompute less, or drop ep-overlap")
    elif s.dispatcher == "all-gather":
        yield Fault("strategy.ep_overlap", "does not go with dispatch=all-gather; use another, or drop ep-overlap")
    elif s.microbatches == 1:
        told = "one micro batch has no other to hide behind"
        yield Fault("strategy.ep_overlap", f"{told}; raise the global batch of {s.global_batch}, or drop ep-overlap")
    elif s.pp > 1 and s.vpp == 1:
        yield Fault("strategy.ep_overlap", f"with pp {s.pp} it needs chunks (pp{s.pp}x2); set them or drop ep-overlap")


@rule("runtime", "rank_order", "tp", "cp", "ep", "etp", "pp", "model.moe")
def order_of_ranks(case: Combination) -> Iterator[Fault]:
    """Megatron builds one set of stages for all layers: numbered pipeline by pipeline, experts must live inside one."""
    s, can = case.strategy, case.can
    if s.rank_order == "dp-pp":
        return
    drop = f"drop order={s.rank_order}"
    if s.rank_order not in can.rank_orders:
        yield Fault("strategy.rank_order", f"{s.rank_order} is not in runtime {case.runtime.base}; {drop}")
    elif s.pp == 1:
        yield Fault("strategy.rank_order", f"{s.rank_order} means nothing with pp 1; {drop}")
    elif case.model.moe and s.ep * s.etp != s.tp * s.cp:
        experts, stage = f"ep {s.ep} x etp {s.etp} = {s.ep * s.etp}", f"tp {s.tp} x cp {s.cp} = {s.tp * s.cp}"
        told = f"with {s.rank_order}, {experts} must be {stage}, so that experts live inside a stage of a replica"
        yield Fault("strategy.rank_order", f"{told}; set ep to {max(1, s.tp * s.cp // s.etp)}, or {drop}")


@rule("runtime", "cuda_graphs", "dispatcher", "model.moe")
def graphs(case: Combination) -> Iterator[Fault]:
    s, can, moe = case.strategy, case.can, case.model.moe
    if s.cuda_graphs not in can.graphs:
        told = f"graphs={s.cuda_graphs} is not in runtime {case.runtime.base}"
        yield Fault("strategy.cuda_graphs", f"{told}; use {either(can.graphs)}")
    elif s.cuda_graphs == "layer" and moe and moe.capacity is None and s.dispatcher != "hybridep":
        told = "whole layers are captured for a fixed number of tokens an expert"
        cure = "set moe.capacity, use dispatch=hybridep (which pads), or graphs=attention"
        yield Fault("strategy.cuda_graphs", f"{told}; {cure}")


def asked_sharding(zero: int, runtime: Runtime) -> Iterator[Fault]:
    """What is wrong with a ZeRO stage, whatever the layout."""
    if zero not in runtime.can.zero:
        yield Fault("strategy.zero", f"{zero} is not in runtime {runtime.base}; use {either(runtime.can.zero)}")


@rule("runtime", "zero", "zero_group", "pp", "dp", "cp")
def sharding(case: Combination) -> Iterator[Fault]:
    s, can, name = case.strategy, case.can, case.runtime.base
    if s.zero not in can.zero:
        yield from asked_sharding(s.zero, case.runtime)
    elif s.pp > 1 and s.zero not in can.zero_with_pp:
        yield Fault(
            "strategy.zero",
            f"{s.zero} does not go with pp {s.pp} in runtime {name}; use pp 1"
            + (f", or zero {either(can.zero_with_pp)}" if can.zero_with_pp else ""),
        )
    if s.zero_group and s.zero_group != s.dp * s.cp and not can.hsdp:
        yield Fault(
            "strategy.zero_group",
            f"{s.zero_group} of {s.dp * s.cp} ranks: runtime {name} shards over all of them; drop it",
        )


@rule("runtime", "schedule", "pp")
def schedule(case: Combination) -> Iterator[Fault]:
    s, can = case.strategy, case.can
    if s.pp > 1 and s.schedule not in can.schedules:
        yield Fault(
            "strategy.schedule", f"{s.schedule} is not in runtime {case.runtime.base}; use {either(can.schedules)}"
        )


@rule("runtime", "model.layers", "pp", "vpp", "layers", "first_layers", "last_layers", "count_embedding", "count_head")
def equal_stages(case: Combination) -> Iterator[Fault]:
    s, layers = case.strategy, case.model.depth
    if case.can.uneven_layers or any(layer_faults(layers, s)):
        return
    stages = stage_layers(layers, s)
    if len(set(stages)) > 1 and (s.layers or s.first_layers or s.last_layers):
        name = "layers" if s.layers else "first_layers" if s.first_layers else "last_layers"
        yield Fault(
            f"strategy.{name}",
            f"stages of {','.join(map(str, stages))} layers: runtime {case.runtime.base} needs equal ones; "
            "drop it or use another runtime",
        )


@rule("runtime", "recompute")
def recompute_kind(case: Combination) -> Iterator[Fault]:
    recompute, can = case.strategy.recompute, case.can.recompute
    kinds = []
    if recompute.modules:
        kinds.append("modules")
    if recompute.group > 1:
        kinds.append("uniform")
    elif recompute.full and not recompute.layers:
        kinds.append("full")
    if recompute.layers:
        kinds.append("block" if len(recompute.layers) == 1 else "per-stage")
    missing = [kind for kind in kinds if kind not in can]
    if recompute.active and missing:
        yield Fault(
            "strategy.recompute",
            f"{recompute} is of kind {either(missing)}, which runtime {case.runtime.base} does not have; "
            f"it has {', '.join(can) or 'none'}",
        )


@rule("runtime", "compile")
def compiles(case: Combination) -> Iterator[Fault]:
    fused = case.runtime.kernels.activation == "fused"
    if case.strategy.compile and fused and True not in case.can.compile:
        yield Fault("strategy.compile", f"is on, and runtime {case.runtime.base} brings fused kernels; leave it out")


@rule("runtime", "dtype", "cluster.gpu")
def number_format(case: Combination) -> Iterator[Fault]:
    dtype, gpu, path = case.strategy.dtype, case.cluster.gpu, "strategy.dtype"
    possible = [name for name in case.can.dtypes if _HARDWARE.get(name, "fp32") in {"fp32", *gpu.flops}]
    if dtype not in case.can.dtypes:
        yield Fault(path, f"{dtype} is not in runtime {case.runtime.base}; on {gpu.name} use {either(possible)}")
    elif dtype not in possible:
        lacking = [kind.gpu for kind in kinds_of(case.cluster) if _HARDWARE[dtype] not in kind.gpu.flops]
        yield Fault(path, f"{_without(lacking[0], dtype)}; use {either(possible)}, or another GPU")


def unmixed(strategy: Strategy, runtime: Runtime) -> bool:
    """Whether a strategy in 16 bits would compute in fp32 there, as nothing shards its states."""
    s = strategy
    alone = s.tp * s.pp > 1 and (s.zero == 0 or s.shard_group == 1)
    return alone and not runtime.can.mixed_alone and s.dtype != "fp32" and s.master != "pure"


@rule("runtime", "dtype", "master", "tp", "pp", "dp", "cp", "zero", "zero_group")
def mixing(case: Combination) -> Iterator[Fault]:
    s, name = case.strategy, case.runtime.base
    if unmixed(s, case.runtime):
        told = f"{s.dtype} with tp {s.tp} pp {s.pp} and no sharded states: runtime {name} then computes in fp32"
        cure = "shard over dp or cp with zero 2 or 3, or say fp32, or pure (all of it in 16 bits)"
        yield Fault("strategy.dtype", f"{told}; {cure}")


@rule("runtime", "model.tied", "pp")
def tied_ends(case: Combination) -> Iterator[Fault]:
    if case.model.tied and case.strategy.pp > 1 and not case.can.tied_with_pp:
        told = f"{case.strategy.pp}: runtime {case.runtime.base} ties no weights over a pipeline"
        yield Fault("strategy.pp", f"{told}, and {case.model.name} ties its embeddings; use pp 1")


def _without(gpu: Gpu, dtype: str) -> str:
    """Why a format cannot be had: the catalog knows the chip, a user's description may only lack a number."""
    missing = _HARDWARE[dtype]
    found = entry("gpus", CATALOG / "clusters", gpu.name)
    if found is not None and missing not in found[1]["flops"]:
        return f"{gpu.name} has no {dtype} hardware"
    return (
        f"the cluster gives no {missing} peak for {gpu.name}, so {dtype} has no time: add cluster.gpu.flops.{missing}"
    )


RULES = (
    axes, dispatch, order_of_ranks, graphs, sharding, schedule, equal_stages, recompute_kind, compiles, number_format,
    mixing, tied_ends,
)  # fmt: skip
