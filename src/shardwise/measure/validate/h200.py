"""Rows measured on one H200: Hugging Face models, and single ranks of Megatron-Core, as cases."""

from __future__ import annotations

from typing import Any

from shardwise.frameworks.load import load_cluster
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Mla, Model, Moe
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import Strategy
from shardwise.measure.validate.case import MeasuredRun, Skipped

Row = dict[str, Any]


def read_huggingface(row: Row) -> MeasuredRun | Skipped:
    """A training step of a Hugging Face model on one GPU."""
    runtime = load_runtime("huggingface")
    strategy = Strategy(
        zero=0,
        micro_batch=int(row["mbs"]),
        global_batch=int(row["mbs"]) * int(row.get("accum", 1)),
        seq=int(row["seq"]),
        recompute=Recompute(full=row.get("recompute") == "full"),
        master="autocast" if row.get("states") == "amp" else "pure",
        runtime="huggingface",
        compile=bool(row.get("compile")),
    )
    times = {
        "iteration_seconds": "step_ms",
        "forward_seconds": "forward_ms",
        "backward_seconds": "backward_ms",
        "optimizer_seconds": "optimizer_ms",
    }
    measured: dict[str, float | bool] = {name: row[key] / 1e3 for name, key in times.items() if key in row}
    sizes = {"peak_bytes": "peak_allocated", "after_forward_bytes": "after_forward", "static_bytes": "static"}
    measured |= {name: float(row[key]) for name, key in sizes.items() if key in row}
    measured["fits"] = True
    return MeasuredRun(
        id=str(row["id"]),
        source="h200_huggingface",
        gpu="H200",
        precision="bf16",
        complete=True,
        model=_huggingface_model(row),
        cluster=load_cluster("1xh200"),
        strategy=strategy,
        runtime=runtime,
        measured=measured,
    )


def _huggingface_model(row: Row) -> Model:
    arch = row["arch"]
    old = arch == "gpt2"
    qwen = arch.startswith("qwen3")
    return Model(
        name=str(row["id"]),
        **_shape(row),
        head_size=128 if qwen else row["hidden"] // row["heads"],
        activation="gelu" if old else "swiglu",
        gelu_steps=old,
        norm="layernorm" if old else "rmsnorm",
        position="learned" if old else "rope",
        max_positions=max(1024, int(row["seq"])),
        tied=old,
        qkv_bias=old,
        out_bias=old,
        mlp_bias=old,
        qk_norm="head" if qwen else "none",
        mla=Mla(kv_rank=512, nope_size=128, rope_size=64, value_size=128) if arch.startswith("deepseek") else None,
        moe=_moe(row),
    )


def _shape(row: Row) -> dict[str, Any]:
    return {name: int(row[name]) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}


def _moe(row: Row) -> Moe | None:
    if "experts" not in row:
        return None
    expert = int(row.get("expert_ffn") or row["ffn"])
    return Moe(
        experts=int(row["experts"]),
        top_k=int(row["top_k"]),
        expert_ffn=expert,
        shared_ffn=int(row.get("shared_experts") or 0) * expert,
        first_dense=1 if row["arch"].startswith("deepseek") else 0,
    )


def read_megatron_rank(row: Row) -> MeasuredRun | Skipped:
    """One rank of Megatron-Core with all others faked: its compute and its memory."""
    tp, pp, dp = int(row["tp"]), int(row["pp"]), int(row["dp"])
    vpp = int(row.get("vpp") or 1)
    micro = int(row["mbs"])
    recompute = _megatron_recompute(str(row["recompute"]))
    strategy = Strategy(
        tp=tp,
        pp=pp,
        vpp=vpp,
        dp=dp,
        micro_batch=micro,
        global_batch=micro * int(row["micro_batches"]) * dp,
        seq=int(row["seq"]),
        schedule="interleaved" if vpp > 1 else "1f1b",
        recompute=recompute,
        runtime="megatron-modules",
        flash=bool(row["flash"]),
    )
    times = {
        "iteration_seconds": "step_ms",
        "forward_backward_seconds": "forward_backward_ms",
        "optimizer_seconds": "optimizer_ms",
    }
    measured: dict[str, float | bool] = {name: row[key] / 1e3 for name, key in times.items() if key in row}
    sizes = {
        "peak_bytes": "peak_allocated",
        "peak_forward_backward_bytes": "peak_forward_backward",
        "peak_optimizer_bytes": "peak_optimizer",
        "static_bytes": "static",
    }
    measured |= {name: float(row[key]) for name, key in sizes.items() if key in row}
    measured["fits"] = True
    measured["spread"] = float(row.get("spread", 0.0))
    return MeasuredRun(
        id=str(row["id"]),
        source="h200_megatron_rank",
        gpu="H200",
        precision="bf16",
        complete=True,
        model=_megatron_model(row),
        cluster=load_cluster(f"{tp * pp * dp}xh200"),
        strategy=strategy,
        runtime=load_runtime("megatron-modules"),
        measured=measured,
        rank=int(row["stage"]),
    )


def _megatron_recompute(text: str) -> Recompute:
    if text.startswith("block"):
        return Recompute(full=True, layers=(int(text.removeprefix("block")),))
    return {"full": Recompute(full=True), "selective": Recompute(modules=("core-attention",))}.get(text, Recompute())


def _megatron_model(row: Row) -> Model:
    llama = row["arch"] == "llama"
    return Model(
        name=str(row["id"]),
        **_shape(row),
        head_size=row["hidden"] // row["heads"],
        activation="swiglu" if llama else "gelu",
        norm="rmsnorm" if llama else "layernorm",
        position="rope" if llama else "learned",
        max_positions=int(row["seq"]),
        tied=not llama,
        qkv_bias=not llama,
        out_bias=not llama,
        mlp_bias=not llama,
    )
