"""Probe rows as operators of the cost model, so that fitting and predicting use one formula."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil
from typing import NamedTuple

from shardwise.cost.kernels import TILE, Machine, op_times
from shardwise.measure.fit.probe_file import Probe, Row
from shardwise.ops.op import Op

# Kernels that do nothing but stream: what they reach is the share of memory bandwidth.
STREAMING = frozenset({
    "clone_bf16", "add_bf16", "mul_bf16", "mul_fp32", "add_fp32", "cast_fp32_bf16", "square_fp32", "scale_fp32_",
    "accumulate_bf16", "silu", "exp_fp32_", "gelu_tanh",
})  # fmt: skip
ALIGNED = 8


class Sample(NamedTuple):
    """One measured kernel as the model sees it."""

    label: str
    op: Op
    phase: str
    """f, i or w: which of the operator's times it is."""
    seconds: float
    narrow: bool = False
    """Its product runs in the compute format of the machine."""
    factor: float = 1.0
    """What the measured kernel takes over the modelled one."""

    def predicted(self, machine: Machine) -> float:
        times = op_times(self.op, machine, narrow=self.narrow)
        return float(getattr(times, self.phase)) * self.factor


def products(probe: Probe, dtype: str, *, odd: bool = False) -> list[Sample]:
    """Matrix products at the full clock, in files of older probes under sustained load; `odd`: those whose widths are
    no multiples of 8 instead.
    """
    load = "rested" if rested(probe) else "sustained"
    rows = (row for row in probe.rows("gemm") if row["dtype"] == dtype and row.get("load") == load)
    plain = (row for row in rows if row.get("how") in {"plain", "tensorwise", "rowwise"})
    return [_product(row) for row in plain if _misaligned(row) is odd and not _odd_gradient(row)]


def rested(probe: Probe) -> bool:
    """The probe let the GPU rest between bursts, so that its kernels ran at the full clock."""
    return any(row.get("load") == "rested" for row in probe.rows("gemm"))


def _result(row: Row) -> tuple[float, float, float]:
    """Rows, columns and depth of the product that a layout computes, for y[m,n] = x[m,k] W[n,k]^T."""
    m, n, k = float(row["m"]), float(row["n"]), float(row["k"])
    return {"F": (m, n, k), "I": (m, k, n), "W": (n, k, m)}[row["layout"]]


def _misaligned(row: Row) -> bool:
    _, columns, depth = _result(row)
    return bool(columns % ALIGNED or depth % ALIGNED)


def _odd_gradient(row: Row) -> bool:
    """A weight gradient with an odd number of rows: its slowdown is a constant of the model, not fitted."""
    return row["layout"] == "W" and bool(row["n"] % ALIGNED)


def _product(row: Row) -> Sample:
    shape = _result(row)
    label = f"{row['layout']} {row['m']}x{row['n']}x{row['k']}"
    return Sample(label, Op(label, "", "gemm", shape), "f", row["seconds"], narrow=True)


def grouped(probe: Probe) -> list[Sample]:
    """Grouped products of experts; equal numbers of tokens leave no half tile empty as the model's unequal ones do."""
    rows = [row for row in probe.rows("grouped") if row["kernel"] == "grouped_mm"]
    return [_grouped(row) for row in rows]


def _grouped(row: Row) -> Sample:
    label = f"{row['layout']} {row['experts']} experts, {row['rows']}x{row['n']}x{row['k']}, {row['balance']}"
    n, k = float(row["n"]), float(row["k"])
    columns, depth = (k, n) if row["layout"] == "I" else (n, k)
    op = Op(label, "", "grouped", (float(row["rows"]), columns, depth, float(row["experts"])))
    each, whole = row["rows"] / row["experts"], row["balance"] == "even" and row["layout"] != "W"
    factor = ceil(each / TILE) * TILE / (each + TILE / 2) if whole else 1.0
    return Sample(label, op, "w" if row["layout"] == "W" else "f", row["seconds"], factor=factor)


def attention(probe: Probe, backends: Iterable[str]) -> list[Sample]:
    """Attention without dropout by some backends."""
    wanted = set(backends)
    rows = (row for row in probe.rows("attention") if row["backend"] in wanted and not row["dropout"])
    return [_attention(row) for row in rows if row["dtype"] == "bf16"]


def _attention(row: Row) -> Sample:
    label = f"{row['phase']} {row['batch']}x{row['heads']} heads of {row['dim']}, {row['seq']} tokens"
    # the model writes a full square that no mask cuts as just short of 1: 1 means an explicit mask
    share = 0.5 if row["causal"] else 0.999
    seq = float(row["seq"])
    shape = (row["batch"] * row["heads"], seq, seq, row["dim"], row["v_dim"], share, row["kv_heads"] / row["heads"])
    return Sample(label, Op(label, "", "attention", shape), "f" if row["phase"] == "forward" else "i", row["seconds"])


def streams(probe: Probe) -> list[Sample]:
    """Kernels that only stream, with cold caches."""
    rows = (row for row in probe.rows("memory") if row["kernel"] in STREAMING and row["cache"] == "cold")
    return [memory_sample(row, float(row["bytes"])) for row in rows]


def memory_sample(row: Row, weighted: float) -> Sample:
    """A memory-bound row that counts as `weighted` bytes of streaming."""
    label = f"{row['kernel']} {row['phase']} {row['rows']}x{row['width']}"
    op = Op(label, "", "memory", bytes_f=weighted, kernels_f=float(row["kernels"]))
    return Sample(label, op, "f", row["seconds"])


def chains(probe: Probe) -> Iterator[Sample]:
    """Kernels and chains of kernels whose weights are constants of the operators: a check, not fitted."""
    weights = _weights()
    for row in probe.rows("memory"):
        key = (row["kernel"], row["phase"])
        if key in weights and row["cache"] == "cold":
            yield memory_sample(row, weights[key] * row["rows"] * row["width"])


def _weights() -> dict[tuple[str, str], float]:
    from shardwise.ops.attention import EAGER_ROPE_BYTES
    from shardwise.ops.linear import NORM_BYTES

    kinds = {"rms_norm": "native", "rms_norm_eager": "eager", "layer_norm": "layer"}
    found: dict[tuple[str, str], float] = {}
    for kernel, kind in kinds.items():
        found[kernel, "forward"], found[kernel, "backward"] = NORM_BYTES[kind]
    found["rotary_bhsd", "forward"], found["rotary_bhsd", "backward"] = EAGER_ROPE_BYTES
    return found
