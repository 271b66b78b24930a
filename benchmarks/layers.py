"""Predicted beside measured layers of Megatron-Core with Transformer Engine on one H200: python benchmarks/layers.py.

The rows are those of `benchmarks/h200_layers.py` (benchmarks/data/h200_layers.json): kernel seconds by kind of a
forward and backward pass, the host's seconds, and the wall time of passes in a row.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from shardwise.cost.chunk import combined
from shardwise.cost.layer import PLAIN
from shardwise.cost.seconds import Seconds
from shardwise.estimate.setup import block_of, setup_of
from shardwise.frameworks.load import load_cluster
from shardwise.inputs.load import load_runtime, load_site
from shardwise.inputs.model import Mla, Model, Moe
from shardwise.inputs.strategy import Strategy
from shardwise.ops.layer import layer_kinds

DATA = Path(__file__).parent / "data" / "h200_layers.json"
SCALING = {"tensorwise": "tensor", "delayed": "delayed", "blockwise": "block"}
Row = dict[str, Any]


def model_of(row: Row) -> Model:
    shape = row["shape"]
    moe = None
    if row.get("experts"):
        width, shared = shape["expert"], shape.get("shared", 0)
        moe = Moe(experts=row["experts"], top_k=row["top_k"], expert_ffn=width, shared_ffn=shared)
    mla = Mla(kv_rank=512, nope_size=128, rope_size=64, value_size=128, q_rank=1536) if shape.get("mla") else None
    return Model(
        name=row["model"], layers=1, hidden=shape["hidden"], heads=shape["heads"], kv_heads=shape["kv"],
        head_size=shape["size"], ffn=shape["ffn"], vocab=1024, qk_norm="head" if shape.get("qk") else "none", mla=mla,
        moe=moe,
    )  # fmt: skip


def predicted(row: Row) -> Seconds:
    """Both passes of one layer."""
    model, runtime = model_of(row), load_runtime("megatron")
    cluster = replace(load_cluster("1xh200"), site=load_site("virtual-h200"))
    narrow = row["dtype"] in SCALING
    strategy = Strategy(
        global_batch=8, seq=row["tokens"], zero=0, dtype="fp8" if narrow else "bf16",
        scaling=SCALING.get(row["dtype"], "tensor"),
    )  # fmt: skip
    setup = setup_of(model, cluster, strategy, runtime)
    block = block_of(setup, layer_kinds(model)[0], PLAIN)
    return combined(block.f, block.i, block.w)


def measured(row: Row) -> dict[str, float]:
    layers, seconds = row["layers"], row["kernels"]["seconds"]
    rest = sum(value for kind, value in seconds.items() if kind not in {"gemm", "attention"})
    return {
        "gemm": seconds["gemm"] / layers,
        "attention": seconds["attention"] / layers,
        "memory": rest / layers,
        "host": row["host_seconds"] / layers,
        "wall": row["seconds"] / layers,
    }


def main() -> None:
    rows = [row for row in json.loads(DATA.read_text(encoding="utf-8"))["rows"] if row["framework"] == "megatron"]
    errors: dict[str, list[float]] = {}
    for row in rows:
        told, found = predicted(row), measured(row)
        ours = {"gemm": told.gemm, "attention": told.attention, "memory": told.memory, "host": told.host}
        ours["wall"] = told.total
        cells = []
        for kind, value in found.items():
            errors.setdefault(kind, []).append(ours[kind] / value - 1)
            cells.append(f"{kind} {1e3 * value:6.2f} {1e3 * ours[kind]:6.2f}")
        label = f"{row['model']:13s} {row.get('experts', 0):4d} experts {row['tokens']:6d} tokens {row['dtype']:10s}"
        print(label, " | ".join(cells))
    for kind, found in errors.items():
        print(f"{kind:10s} mean error {fmean(map(abs, found)):6.1%}, bias {fmean(found):+6.1%}")


if __name__ == "__main__":
    main()
