"""One rank's share of a plan as plain values: what the rehearsal program builds and in which order it runs it."""

from __future__ import annotations

import re
from dataclasses import asdict, is_dataclass
from typing import Any

from shardwise.cost.chunk import recomputed_layers
from shardwise.errors import Fault, InputError
from shardwise.estimate.passes import SEQUENCE_PIECES
from shardwise.estimate.setup import Setup, setup_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.recompute import Recompute
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
    setup = setup_of(plan.model, plan.cluster, plan.strategy, load_runtime(plan.strategy.runtime))
    refuse(setup)
    plain = setup.runtime.base == "huggingface"
    return {
        "schema": SCHEMA,
        **identity_of(plan, rank),
        "counted_only": _counted_only(setup),
        "style": "plain" if plain else "sharded",
        "model": model_values(setup),
        "strategy": strategy_values(setup),
        "kernels": _kernels(setup),
        "memory": {"gather_buffer": setup.runtime.memory.gather_buffer, "workspace": setup.runtime.memory.workspace},
        "chunks": [_chunk(setup, index) for index in setup.rank_indices(rank)],
        "actions": _actions(plan, setup, rank),
    }


def identity_of(plan: Plan, rank: int) -> Spec:
    """What a result is recognised by."""
    return {"name": f"{plan.model.name}: {plan.strategy}", "plan": plan_id(plan), "rank": rank}


def _counted_only(setup: Setup) -> str:
    """Why a share can be counted on `meta` but not run; empty: it can."""
    strategy = setup.strategy
    if strategy.cp > 1 and strategy.cp_kind != "all-to-all":
        return f"attention by cp {strategy.cp}:{strategy.cp_kind} needs the other ranks; only its memory can be counted"
    return ""


def refuse(setup: Setup) -> None:
    """Everything at once that the program cannot build."""
    model, strategy = setup.model, setup.strategy
    plain = setup.runtime.base == "huggingface"
    unfit = {
        "flash": not strategy.flash,
        "lora": strategy.lora is not None,
        "compile": strategy.compile or setup.runtime.kernels.compiled,
        "dtype": strategy.dtype != "bf16",
        "zero": strategy.zero > 1,
        "schedule": strategy.schedule == "seq-1f1b",
        "recompute": not _expressible(strategy.recompute),
        "tp": plain and strategy.tp > 1,
        "pp": plain and strategy.pp > 1,
        "cp": plain and strategy.cp > 1,
    }
    odd = {
        "mtp": model.mtp > 0 and plain,
        "windows": bool(model.windows),
        "sinks": model.sinks,
        "parallel_residual": model.parallel_residual,
        "norms_per_layer": model.norms_per_layer != 2,
        "embedding_size": model.embedding_size > 0,
        "dropout": model.dropout > 0,
        "activation": model.activation not in {"swiglu", "gelu"},
        "qk_norm": model.qk_norm == "full",
    }
    faults = [
        Fault(f"strategy.{name}", f"is {getattr(strategy, name)!s}: {CAUSE}") for name, bad in unfit.items() if bad
    ]
    faults += [Fault(f"model.{name}", f"is {short(getattr(model, name))}: {CAUSE}") for name, bad in odd.items() if bad]
    if faults:
        raise InputError(faults)


def short(value: object) -> str:
    """A value as a message shows it: a table of settings would fill the screen."""
    return "part of the model" if is_dataclass(value) else str(value)


def _expressible(recompute: Recompute) -> bool:
    return set(recompute.modules) <= {"core-attention"} and recompute.group == 1


def model_values(setup: Setup) -> Spec:
    model = setup.model
    fields = ("hidden", "heads", "kv_heads", "head_size", "ffn", "vocab", "norm", "position", "max_positions", "tied",
              "qkv_bias", "out_bias", "mlp_bias", "qk_norm", "gated")  # fmt: skip
    return {
        **{name: getattr(model, name) for name in fields},
        "padded_vocab": round(padded_vocab(setup.shard)),
        "mla": asdict(model.mla) if model.mla else None,
        "moe": asdict(model.moe) if model.moe else None,
    }


def strategy_values(setup: Setup) -> Spec:
    strategy = setup.strategy
    fields = ("tp", "cp", "cp_kind", "ep", "etp", "micro_batch", "seq", "master")
    shards = strategy.shard_group if strategy.zero else 1
    return {
        **{name: getattr(strategy, name) for name in fields},
        "sp": setup.shard.sp,
        "shards": shards,
        "expert_shards": strategy.expert_dp if strategy.zero else 1,
    }


def _kernels(setup: Setup) -> Spec:
    kernels = setup.runtime.kernels
    fields = ("norm", "qkv", "weight_grad_fusion", "fused_optimizer", "expert_output_kept")
    return {name: getattr(kernels, name) for name in fields}


def _chunk(setup: Setup, index: int) -> Spec:
    kinds = layer_kinds(setup.model)
    start, count = sum(setup.layers[:index]), setup.layers[index]
    last = index == len(setup.layers) - 1
    own = kinds[start : start + count] + (kinds[setup.model.layers :] if last else ())
    again = recomputed_layers(setup.strategy, index, setup.layers, len(own))
    word = "full" if setup.strategy.recompute.full else "core-attention"
    layers = [{"moe": kind.moe, "recompute": word if place < again else "none"} for place, kind in enumerate(own)]
    return {"layers": layers[:count], "ahead": layers[count:], "embedding": index == 0, "head": last}


def _actions(plan: Plan, setup: Setup, rank: int) -> list[tuple[int, str, int]]:
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
