"""Seconds of the collectives inside a chunk's passes, hidden ones too; what of them shows stands in `Seconds`."""

from __future__ import annotations

from typing import NamedTuple

from shardwise.cost.chunk import Chunk
from shardwise.cost.layer import Block, Groups
from shardwise.cost.network import exchanged
from shardwise.ops.op import Op, Phase

AXES = ("tp", "cp", "ep")
"""What ledgers tell apart; expert tensor parallel's counts among the experts'."""


class AxisSeconds(NamedTuple):
    """Seconds of collectives by axis."""

    tp: float = 0.0
    cp: float = 0.0
    ep: float = 0.0

    def plus(self, other: AxisSeconds, times: float = 1.0) -> AxisSeconds:
        return AxisSeconds(*(a + times * b for a, b in zip(self, other, strict=True)))


class ChunkTraffic(NamedTuple):
    """Of one micro batch, by pass."""

    f: AxisSeconds = AxisSeconds()
    i: AxisSeconds = AxisSeconds()
    w: AxisSeconds = AxisSeconds()
    recompute: AxisSeconds = AxisSeconds()


def op_traffic(op: Op, phase: Phase, groups: Groups) -> AxisSeconds:
    """Of one operator in one pass."""
    found = dict.fromkeys(AXES, 0.0)
    for comm in op.comms:
        if comm.phase == phase:
            found["ep" if comm.axis == "etp" else comm.axis] += exchanged(comm, getattr(groups, comm.axis))
    return AxisSeconds(**found)


def chunk_traffic(chunk: Chunk, groups: Groups) -> ChunkTraffic:
    """Of all layers of a chunk."""
    total = ChunkTraffic()
    for block, repeat in chunk.runs:
        own = _block_traffic(block, groups)
        total = ChunkTraffic(*(a.plus(b, repeat) for a, b in zip(total, own, strict=True)))
    return total


def _block_traffic(block: Block, groups: Groups) -> ChunkTraffic:
    f = i = w = again = AxisSeconds()
    replayed = set(block.walk.recomputed) - {block.walk.unsent}
    for index, op in enumerate(block.ops):
        forward = op_traffic(op, "F", groups)
        f, i, w = f.plus(forward), i.plus(op_traffic(op, "I", groups)), w.plus(op_traffic(op, "W", groups))
        again = again.plus(forward, float(index in replayed))
    return ChunkTraffic(f, i, w, again)
