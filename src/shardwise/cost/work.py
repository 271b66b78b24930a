"""What passes compute, and what their kernels read and write in device memory; from the operators that their seconds
come from.

Bytes accessed: of a product, both operands and the result, once each, and the buffer that a weight gradient is added
to; of attention, queries, keys, values and results and in backward their gradients, once each, and scores where they
are stored; of a memory-bound operator, the traffic that its seconds are made of, which is weighted: a kernel at half of
streaming speed counts twice. Reads that a cache spares are counted all the same; casts to 8 bit are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from shardwise.cost.chunk import Chunk
from shardwise.cost.kernels import Machine, operands
from shardwise.ops.linear import adapter_params
from shardwise.ops.op import Op
from shardwise.ops.shard import Shard


class StageWork(NamedTuple):
    """One micro batch on one GPU of a pipeline rank."""

    rank: int
    forward_flops: float
    """Floating-point operations of the forward pass, a multiplication and an addition counted as two."""
    backward_flops: float
    """Of the gradients of inputs and weights, without what is computed again; flash attention's second look at the
    scores belongs to it."""
    recompute_flops: float
    """Of the forward work that backward does again."""
    forward_bytes: float
    """Bytes that kernels of the forward pass read and write in device memory (memory-bound ones weighted)."""
    backward_bytes: float
    """The same of the backward pass, without what is computed again."""
    recompute_bytes: float
    """The same of what is computed again."""


def work_of(rank: int, chunks: Iterable[Chunk], shard: Shard, machine: Machine) -> StageWork:
    """The work of a pipeline rank's chunks."""
    total = [0.0] * 6
    for block, repeat in (run for chunk in chunks for run in chunk.runs):
        again = set(block.walk.recomputed)
        for index, op in enumerate(block.ops):
            (f, *back), (bytes_f, *bytes_back) = _trained(op, shard, machine)
            own = f, sum(back), f * (index in again), bytes_f, sum(bytes_back), bytes_f * (index in again)
            total = [before + repeat * more for before, more in zip(total, own, strict=True)]
    return StageWork(rank, *total)


Phases = tuple[float, float, float]
"""Of F, I and W."""


def _trained(op: Op, shard: Shard, machine: Machine) -> tuple[Phases, Phases]:
    """Operations and bytes; a frozen layer has no weight gradient, and its adapter's thin products come on top."""
    found = op.flops(), op_bytes(op, machine)
    if not shard.lora or op.kind not in {"gemm", "grouped"}:
        return found
    share = adapter_params(op, shard) / max(op.params, 1.0)
    (f, i, w), (bytes_f, bytes_i, bytes_w) = found
    return (f * (1 + share), i * (1 + share), w * share), (
        bytes_f * (1 + share),
        bytes_i * (1 + share),
        bytes_w * share,
    )


def op_bytes(op: Op, machine: Machine) -> Phases:
    """Bytes accessed by the passes of an operator."""
    if op.kind in {"memory", "scan"}:
        return op.bytes_f, op.bytes_b, 0.0
    if op.kind == "attention":
        rows, queries, keys, size_qk, size_v, _, kv = op.shape
        inputs, result = rows * queries * size_qk + kv * rows * keys * (size_qk + size_v), rows * queries * size_v
        # backward reads inputs, result and its gradient, and writes the gradients of the inputs
        forward, backward = inputs + result, 2 * (inputs + result)
        return machine.element * forward + op.bytes_f, machine.element * backward + op.bytes_b, 0.0
    _, columns, depth, groups = (*op.shape, 1.0)[:4]
    moved = machine.element * operands(*op.shape)
    added = groups * columns * depth * (machine.grad_add or machine.accumulated)
    return moved + op.bytes_f, moved + op.bytes_b, moved + added
