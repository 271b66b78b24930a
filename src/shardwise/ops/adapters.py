"""Low-rank adapters on a frozen model: which operators carry one, and its size."""

from __future__ import annotations

from shardwise.ops.op import Op
from shardwise.ops.shard import Shard

_TARGETS = {"qkv": "qkv", "q": "qkv", "q up": "qkv", "kv up": "qkv", "output": "out"}


def target_of(op: Op) -> str:
    """The word of `Lora.targets` that an operator answers to; empty: it never carries an adapter."""
    if op.kind not in {"gemm", "grouped"} or op.name in {"router", "output layer", "mtp projection"}:
        return ""
    return _TARGETS.get(op.name, "mlp" if op.module == "mlp" else "")


def adapter_params(op: Op, shard: Shard) -> float:
    """Parameters of an operator's adapter on this rank."""
    if not shard.lora or target_of(op) not in shard.lora_targets:
        return 0.0
    groups = op.shape[3] if op.kind == "grouped" else 1.0
    return groups * shard.lora * (op.shape[1] + op.shape[2])


def trained_params(ops: tuple[Op, ...] | list[Op], shard: Shard) -> float:
    """Parameters that train: all, or the adapters of a frozen model."""
    if not shard.lora:
        return sum(op.params for op in ops)
    return sum(adapter_params(op, shard) for op in ops)
