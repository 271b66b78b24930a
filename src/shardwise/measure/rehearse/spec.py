"""One rank's share of a plan as plain values: what the rehearsal program builds and in which order it runs it."""

from __future__ import annotations

import re
from dataclasses import asdict, is_dataclass
from typing import Any

from shardwise.cost.chunk import recomputed_layers
from shardwise.errors import Fault, InputError
from shardwise.estimate.passes import SEQUENCE_PIECES
from shardwise.estimate.setup import Setup
from shardwise.inputs.load import load_runtime
from shardwise.measure.rehearse.runtime import is_plain, rehearsed_setup
from shardwise.ops.embedding import padded_vocab
from shardwise.ops.layer import layer_kinds
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.generate import generate
from shardwise.plan.file import plan_id
from shardwise.plan.plan import Plan

SCHEMA = "shardwise/rehearsal/1"
Spec = dict[str, Any]
_RANK = re.compile(r"(?:pp)?([0-9]{1,9})")
CAUSE = "rehearse cannot build it yet; the estimate stands alone there"


def rank_number(text: str, pp: int) -> int:
    """`pp2` or `2`: a pipeline rank."""
    found = _RANK.fullmatch(text.strip().lower())
    if not found or int(found[1]) >= pp:
        ranks = "pp0" if pp == 1 else f"pp0 to pp{pp - 1}"
        raise InputError(Fault("--rank", f"is {text!r}; the plan has the pipeline ranks {ranks}"))
    return int(found[1])


def spec_of(plan: Plan, rank: int) -> Spec:
    """The share of one pipeline rank (any of its tensor and data parallel members: they are alike)."""
    setup = rehearsed_setup(plan)
    refuse(setup)
    return {
        "schema": SCHEMA,
        **identity_of(plan, rank),
        "counted_only": _counted_only(setup),
        "style": "plain" if is_plain(load_runtime(plan.strategy.runtime), plan.strategy) else "sharded",
        "model": model_values(setup),
        "strategy": strategy_values(setup),
        "kernels": kernels_of(setup),
        "states": states_of(setup),
        "memory": {"gather_buffer": setup.runtime.memory.gather_buffer, "workspace": setup.runtime.memory.workspace},
        "chunks": [_chunk(setup, index) for index in setup.rank_indices(rank)],
        "actions": actions_of(plan, setup, rank),
    }


def identity_of(plan: Plan, rank: int) -> Spec:
    """What a result is recognised by."""
    return {"name": f"{plan.model.name}: {plan.strategy}", "plan": plan_id(plan), "rank": rank}


def _counted_only(setup: Setup) -> str:
    """Why a share can be counted on `meta` but not run; empty: it can."""
    strategy, apart = setup.strategy, not is_plain(setup.runtime, setup.strategy)
    narrow, moe = strategy.dtype not in {"bf16", "fp16"}, setup.model.moe is not None
    reasons = {
        f"compiled layers with tp, cp, ep or passes that are split ({strategy})": strategy.compile and apart,
        "compiled layers in fp8": strategy.compile and narrow,
        "experts in fp8": narrow and moe,
        f"{strategy.dtype} with scales of {strategy.scaling}": narrow and strategy.scaling not in {"tensor", "delayed"},
        f"{strategy.dtype}, which needs a Blackwell GPU": strategy.dtype in {"mxfp8", "nvfp4"},
        "attention in fp8": strategy.fp8_attention,
        f"cuda graphs ({strategy.cuda_graphs})": strategy.cuda_graphs != "none",
        "stored scores under context parallel": not strategy.flash and strategy.cp > 1,
        "several windows under context parallel": bool(setup.model.windows) and strategy.cp > 1,
    }
    found = [reason for reason, there in reasons.items() if there]
    return f"the program has no kernels for {found[0]}; only its memory can be counted" if found else ""


def refuse(setup: Setup) -> None:
    """Everything at once that the program cannot build."""
    model, strategy = setup.model, setup.strategy
    plain = is_plain(setup.runtime, strategy)
    moe = model.moe
    unfit = {
        "dtype": strategy.dtype == "fp32",
        "fp8_weights": strategy.fp8_weights,
        "optimizer": strategy.optimizer in {"muon", "adamw-bf16"},
        "offload": strategy.offload != "none",
        "dispatcher": strategy.dispatcher == "all-gather" and strategy.ep > 1,
        "ep_overlap": strategy.ep_overlap,
    }
    odd = {
        "mtp": model.mtp > 0 and plain,
        "embedding_size": model.embedding_size > 0,
        "position": model.position == "alibi",
    }
    if moe is not None:
        odd["moe"] = moe.capacity is not None or moe.imbalance != 1.0 or bool(moe.loads)
    if model.beyond:
        raise InputError(Fault("model", f"has {', '.join(model.beyond)}: {CAUSE}"))
    faults = [
        Fault(f"strategy.{name}", f"is {getattr(strategy, name)!s}: {CAUSE}") for name, bad in unfit.items() if bad
    ]
    faults += [Fault(f"model.{name}", f"is {short(getattr(model, name))}: {CAUSE}") for name, bad in odd.items() if bad]
    if faults:
        raise InputError(faults)


def short(value: object) -> str:
    """A value as a message shows it: a table of settings would fill the screen."""
    return "part of the model" if is_dataclass(value) else str(value)


def model_values(setup: Setup) -> Spec:
    model = setup.model
    fields = ("hidden", "heads", "kv_heads", "head_size", "ffn", "vocab", "norm", "position", "max_positions", "tied",
              "qkv_bias", "out_bias", "mlp_bias", "head_bias", "qk_norm", "gated", "activation", "norms_per_layer",
              "parallel_residual", "embedding_norm", "sinks", "dropout", "fused_qkv", "gelu_steps")  # fmt: skip
    return {
        **{name: getattr(model, name) for name in fields},
        "padded_vocab": round(padded_vocab(setup.shard)),
        "mla": asdict(model.mla) if model.mla else None,
        "moe": asdict(model.moe) if model.moe else None,
    }


def strategy_values(setup: Setup) -> Spec:
    strategy = setup.strategy
    fields = ("tp", "cp", "cp_kind", "ep", "etp", "micro_batch", "seq", "master", "zero", "compile", "optimizer")
    shards = strategy.shard_group if strategy.zero else 1
    return {
        **{name: getattr(strategy, name) for name in fields},
        "dtype": "bf16" if strategy.dtype == "fp16" else "fp8" if setup.shard.narrow else strategy.dtype,
        "lora": asdict(strategy.lora) if strategy.lora else None,
        "pieces": SEQUENCE_PIECES if strategy.schedule == "seq-1f1b" and strategy.pp > 1 else 1,
        "sp": setup.shard.sp,
        "flash": setup.shard.flash,
        "shards": shards,
        "expert_shards": strategy.expert_dp if strategy.zero else 1,
    }


def kernels_of(setup: Setup) -> Spec:
    kernels = setup.runtime.kernels
    fields = ("norm", "qkv", "weight_grad_fusion", "fused_optimizer", "expert_output_kept", "activation", "loss",
              "gathered_input_kept", "gelu_kept", "fp8_inputs", "fp8_copies")  # fmt: skip
    return {name: getattr(kernels, name) for name in fields}


def states_of(setup: Setup) -> Spec:
    """Bytes per parameter, and which of them come and go."""
    states, strategy, memory = setup.states, setup.strategy, setup.runtime.memory
    return {
        "lazy": states.lazy,
        "gradient": states.gradient,
        "reduced": 4 if strategy.grad_dtype == "fp32" else 2,
        "master": states.master > 0,
        "wide": states.weight == 4.0 and strategy.master != "autocast",
        "whole_gradients": memory.whole_gradients_with_pp and strategy.pp > 1,
    }


def _chunk(setup: Setup, index: int) -> Spec:
    kinds = layer_kinds(setup.model)
    start, count = sum(setup.layers[:index]), setup.layers[index]
    last = index == len(setup.layers) - 1
    own = kinds[start : start + count] + (kinds[setup.model.depth :] if last else ())
    again = recomputed_layers(setup.strategy, index, setup.layers, len(own))
    recompute = setup.strategy.recompute
    word = "full" if recompute.full else list(recompute.modules)
    layers = [
        {"moe": kind.moe, "window": kind.window, "group": recompute.group, "recompute": word if place < again else []}
        for place, kind in enumerate(own)
    ]
    return {"layers": layers[:count], "ahead": layers[count:], "embedding": index == 0, "head": last}


def actions_of(plan: Plan, setup: Setup, rank: int) -> list[tuple[int, str, int]]:
    """The rank's order of work, its chunks numbered from 0."""
    strategy = setup.strategy
    if strategy.pp == 1:
        return [(0, kind, number) for number in range(strategy.microbatches) for kind in "FB"]
    own = setup.rank_indices(rank)
    row = _schedule(plan, setup).rows[rank]
    return [(own.index(action.chunk), action.kind, action.microbatch) for action in row]


def _schedule(plan: Plan, setup: Setup) -> Schedule:
    strategy = setup.strategy
    if plan.order is not None:
        return plan.order
    if strategy.schedule == "auto":
        raise InputError(
            "the plan's schedule is auto and not yet in it; write it with `shardwise schedule auto --plan`"
        )
    return generate(
        strategy.schedule, pp=strategy.pp, vpp=strategy.vpp, microbatches=strategy.microbatches,
        group=strategy.group or strategy.pp, splits=SEQUENCE_PIECES,
    )  # fmt: skip
