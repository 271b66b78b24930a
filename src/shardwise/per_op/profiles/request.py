"""What the probe is asked to measure: every operator of a model by its products, attention kernels and streams.

`shardwise plan-operators MODEL --write-operators request.json` here, `shardwise probe --operators request.json
--out operators.json` on a GPU, and `--profiles operators.json` here again (`operators`).
"""

from __future__ import annotations

from typing import Any

from shardwise.cost.kernels import machine_of
from shardwise.cost.network import network_of
from shardwise.inputs.calibrations import calibration_of
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.ops.op import Op
from shardwise.per_op.profiles.analytic import MICRO_BATCHES, OperatorRows, operator_rows, table_of, tensor_parallels
from shardwise.per_op.profiles.table import COLUMNS

FORMAT, VERSION = "shardwise-operator-request", 1
Plain = dict[str, Any]


def operator_request(
    model: Model,
    cluster: Cluster,
    runtime: Runtime,
    *,
    seq: int,
    micro_batches: tuple[int, ...] = (),
) -> Plain:
    """All operators of a model at every micro batch and tp; equal parts are measured once."""
    machine = machine_of(
        cluster.gpu,
        calibration_of(cluster.gpu),
        runtime,
        "bf16",
        accumulating=True,
        site=cluster.site,
        gpus=cluster.gpus,
    )
    network = network_of(cluster, calibration_of(cluster.gpu))
    sizes, tps = micro_batches or MICRO_BATCHES, tensor_parallels(model, cluster)
    asked: list[Plain] = []
    for rows in operator_rows(model, runtime, seq=seq, dtype="bf16", micro_batches=sizes, tps=tps):
        table = table_of(rows, machine, network)
        asked += [_operator(rows, index, dict(zip(COLUMNS, row, strict=True))) for index, row in enumerate(table)]
    return {
        "format": FORMAT, "version": VERSION, "model": model.name, "seq": seq, "runtime": runtime.name,
        "operators": asked,
    }  # fmt: skip


def _operator(rows: OperatorRows, index: int, row: dict[str, float]) -> Plain:
    return {
        "name": rows.names[index], "micro_batch": rows.micro_batch, "tp": rows.tp, "variant": 0,
        "parts": parts_of(rows.ops[index], rows.micro_batch), "input_bytes": row["input"],
        "output_bytes": row["output"], "weight_bytes": row["weights"],
    }  # fmt: skip


def parts_of(op: Op, samples: int) -> list[Plain]:
    """Kernels that stand for an operator; shapes in whole numbers, as a GPU has them."""
    found: list[Plain] = []
    if op.kind in {"gemm", "grouped"}:
        rows, columns, depth, *groups = op.shape
        batch = groups[0] if groups else 1
        sizes = {"m": rows / batch, "n": columns, "k": depth, "batch": batch}
        found.append({"kind": "gemm", **{name: max(1, round(size)) for name, size in sizes.items()}})
    elif op.kind == "attention":
        found.append(_attention(op, samples))
    if op.bytes_f or op.bytes_b:
        found.append(_stream(op))
    return found


def _attention(op: Op, samples: int) -> Plain:
    rows, queries, _, size_qk, _, area, kv_share = op.shape
    heads = max(1, round(rows / samples))
    kv_heads = max(1, round(heads * kv_share))
    return {
        "kind": "attention", "batch": samples, "heads": heads,
        "kv_heads": kv_heads if heads % kv_heads == 0 else heads, "seq": round(queries), "head_dim": round(size_qk),
        "causal": area < 1,
    }  # fmt: skip


def _stream(op: Op) -> Plain:
    """A kernel bound by memory: its results are written, the rest of its traffic is read."""
    sizes: Plain = {"kind": "elementwise", "name": f"{op.module}.{op.name}"}
    for prefix, total, live in (("", op.bytes_f, op.extra_f), ("backward_", op.bytes_b, op.extra_b)):
        written = min(live, total / 2)
        names = (f"{prefix}read", f"{prefix}written") if prefix else ("bytes_read", "bytes_written")
        sizes |= dict(zip(names, (round(total - written), round(written)), strict=True))
    return sizes
