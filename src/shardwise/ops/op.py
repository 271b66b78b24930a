"""One operator of a layer on one rank: its shape, traffic, kept bytes, parameters and collectives.

An operator keeps its own inputs: what backward needs of an input belongs to the first operator (in forward order)
that keeps it, so that it is free once that operator's backward is done.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gemm", "grouped", "attention", "memory"]
Collective = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "ring"]
Axis = Literal["tp", "cp", "ep", "etp"]
Phase = Literal["F", "I", "W"]


class Comm(NamedTuple):
    """One collective. Its bytes are those of the whole (gathered) tensor, or of one rank's share for all-to-all."""

    kind: Collective
    axis: Axis
    bytes: float
    phase: Phase


class Op(NamedTuple):
    """One operator of one micro batch on one rank; byte counts as in the module's words."""

    name: str
    """What it is called in ledgers."""
    module: str
    """Which part of the layer it belongs to, for recompute: attention-norm, attention, core-attention, mlp-norm ..."""
    kind: Kind
    shape: tuple[float, ...] = ()
    """gemm: rows, columns, depth; grouped: the same with the number of groups; attention: batch x heads, queries,
    keys, size of query heads, size of value heads, share of the square that is computed, kv heads / heads."""
    bytes_f: float = 0.0
    """Weighted traffic of the forward pass: of a memory-bound operator, or beside a product (casts)."""
    bytes_b: float = 0.0
    """Weighted traffic of the backward pass."""
    kernels_f: float = 1.0
    """Kernels launched by the forward pass."""
    kernels_b: float = 2.0
    """Kernels launched by the backward pass."""
    kept: float = 0.0
    """Bytes kept from forward to backward."""
    extra_f: float = 0.0
    """Bytes live while it runs forward, on top of what earlier operators keep."""
    extra_b: float = 0.0
    """Bytes live while it runs backward, on top of what it and earlier operators keep."""
    params: float = 0.0
    """Parameters on this rank."""
    expert: bool = False
    """Its parameters belong to experts."""
    comms: tuple[Comm, ...] = ()
    """Collectives."""
    stays: float = -1.0
    """Bytes kept even when it is recomputed from its inputs (inputs, and an output that the next operator keeps);
    negative: as many as `kept`."""

    def flops(self) -> tuple[float, float, float]:
        """Operations of F, I and W."""
        if self.kind == "memory":
            return 0.0, 0.0, 0.0
        if self.kind == "attention":
            rows, queries, keys, size_qk, size_v, area, _ = self.shape
            square = 2.0 * rows * queries * keys * area
            # backward: scores again, gradients of scores (size_v), of values (size_v), of queries and keys (size_qk)
            return square * (size_qk + size_v), square * (3 * size_qk + 2 * size_v), 0.0
        product = 2.0 * self.shape[0] * self.shape[1] * self.shape[2]
        return product, product, product
