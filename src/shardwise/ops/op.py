"""One operator of a layer on one rank: its shape, traffic, kept bytes, parameters and collectives.

An operator keeps its own inputs: what backward needs of an input belongs to the first operator (in forward order)
that keeps it, so that it is free once that operator's backward is done.
"""

from __future__ import annotations

from math import comb
from typing import Literal, NamedTuple

Kind = Literal["gemm", "grouped", "attention", "scan", "memory"]
Collective = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "dispatch", "ring"]
Axis = Literal["tp", "cp", "ep", "etp"]
Phase = Literal["F", "I", "W"]


class Routing(NamedTuple):
    """Which experts a token visits, as far as the number of places that it is sent to goes."""

    experts: int
    top_k: int
    groups: int
    top_groups: int

    def reached(self, share: float) -> float:
        """Probability that a token visits some place that holds this share of the experts, all being alike.

        First groups are drawn and then experts out of them, without putting any back.
        """
        held, each = share * self.experts, self.experts / self.groups
        pool = self.top_groups * each
        if held <= each:
            return self.top_groups / self.groups * (1.0 - _missed(pool, held, self.top_k))
        whole = round(held / each)
        ways = comb(self.groups, self.top_groups)
        return sum(
            comb(whole, inside) * comb(self.groups - whole, self.top_groups - inside) / ways
            * (1.0 - _missed(pool, inside * each, self.top_k))
            for inside in range(1, min(whole, self.top_groups) + 1)
        )  # fmt: skip


def _missed(pool: float, held: float, draws: int) -> float:
    """Probability that none of some draws out of a pool, none put back, is one of `held`."""
    missed = 1.0
    for drawn in range(draws):
        missed *= max(0.0, (pool - held - drawn) / max(pool - drawn, 1.0))
    return missed


class Comm(NamedTuple):
    """One collective. Its bytes are those of the whole (gathered) tensor, of one rank's share for all-to-all, or of one
    copy of a rank's tokens for dispatch.
    """

    kind: Collective
    axis: Axis
    bytes: float
    phase: Phase
    routing: Routing | None = None
    """Where dispatched tokens go."""


class Op(NamedTuple):
    """One operator of one micro batch on one rank; byte counts as in the module's words."""

    name: str
    """What it is called in ledgers."""
    module: str
    """Which part of the layer it belongs to, for recompute: attention-norm, attention, core-attention, mlp-norm ..."""
    kind: Kind
    shape: tuple[float, ...] = ()
    """gemm: rows, columns, depth; grouped: the same with the number of groups; attention: batch x heads, queries,
    keys, size of query heads, size of value heads, share of the square that is computed, kv heads / heads; scan:
    tokens, multiplications and additions of one in pairs, and those of backward over those of forward."""
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
    own: float = 0.0
    """Bytes of `kept` that are no inputs: they stay where its inputs are made again."""
    single: bool = False
    """Its product is one of 32-bit numbers, whatever the strategy says."""
    masked: bool = False
    """Attention reads a mask from memory, over the whole square."""
    frozen: bool = False
    """It runs forward alone: nothing of it or before it trains."""
    called: tuple[float, ...] = ()
    """Calls of torch's operators, both passes, where a trace counted them; empty: its kernels say what they take."""

    def forward_alone(self) -> Op:
        """The same where nothing of it or before it trains: what it would keep goes once it is done."""
        sent = tuple(comm for comm in self.comms if comm.phase == "F")
        return self._replace(
            bytes_b=0.0, kernels_b=0.0, kept=0.0, stays=0.0, own=0.0, extra_f=self.extra_f + self.kept, extra_b=0.0,
            comms=sent, frozen=True,
        )  # fmt: skip

    def flops(self) -> tuple[float, float, float]:
        """Operations of F, I and W."""
        if self.frozen:
            return self._replace(frozen=False).flops()[0], 0.0, 0.0
        if self.kind == "memory":
            return 0.0, 0.0, 0.0
        if self.kind == "attention":
            rows, queries, keys, size_qk, size_v, area, _ = self.shape
            square = 2.0 * rows * queries * keys * area
            # backward: scores again, gradients of scores (size_v), of values (size_v), of queries and keys (size_qk)
            return square * (size_qk + size_v), square * (3 * size_qk + 2 * size_v), 0.0
        if self.kind == "scan":
            forward = 2.0 * self.shape[0] * self.shape[1]
            return forward, forward * self.shape[2], 0.0
        product = 2.0 * self.shape[0] * self.shape[1] * self.shape[2]
        return product, product, product
