"""The operators of a traced block: its lines at a micro batch's samples."""

from __future__ import annotations

from shardwise.inputs.model import Model
from shardwise.inputs.traced import Line, Traced, TracedBlock, TracedCut, TracedOp, at
from shardwise.ops.op import Comm, Op
from shardwise.ops.shard import Shard


def traced_kind(model: Model, name: str) -> TracedBlock:
    """A kind of block by its name."""
    kinds = model.traced.kinds if model.traced else ()
    return next(kind for kind in kinds if kind.name == name)


def traced_ops(shard: Shard, block: TracedBlock) -> list[Op]:
    """In forward order."""
    return [_op(op, float(shard.samples), shard.tp) for op in block.ops]


def block_ops(block: TracedBlock, samples: float) -> list[Op]:
    """The same whole, for any number of samples."""
    return [_op(op, samples, 1) for op in block.ops]


def traced_entry(shard: Shard, name: str) -> float:
    """Bytes that a recomputed block keeps: what it reads of others."""
    return at(traced_kind(shard.model, name).entry, shard.samples)


def traced_first(shard: Shard, traced: Traced) -> list[Op]:
    """What runs before the first block, with the parameters that nothing reads."""
    return _holding(traced_ops(shard, traced.first), float(traced.idle))


def traced_last(shard: Shard, traced: Traced, *, own_weights: bool) -> list[Op]:
    """What runs after the last block; `own_weights`: a copy of those that it shares with the first part, where that
    stands on another rank.
    """
    tied = traced.tied - traced.tied_cut * (1.0 - 1.0 / shard.tp)
    return _holding(traced_ops(shard, traced.last), tied if own_weights else 0.0)


def traced_flops(traced: Traced, *, causal: bool) -> float:
    """Forward and backward operations of a token; attention's second look at its scores is not counted. `causal`: of
    causal attention the half that is computed, else the whole square.
    """
    blocks = (traced.first, *(traced.kinds[kind] for kind in traced.order), traced.last)
    ops = (op for block in blocks for op in block_ops(block, 1.0))
    whole = sum(3.0 * op.flops()[0] / (op.shape[5] if op.kind == "attention" and not causal else 1.0) for op in ops)
    return whole / traced.seq


def _holding(ops: list[Op], params: float) -> list[Op]:
    """The first operator has these parameters, too."""
    if not params:
        return ops
    first, *others = ops or [Op("weights", "traced", "memory", kernels_f=0.0, kernels_b=0.0)]
    return [first._replace(params=first.params + params), *others]


def _op(op: TracedOp, samples: float, tp: int) -> Op:
    found = Op(
        op.name,
        "traced",
        op.kind,
        tuple(at(line, samples) for line in op.shape),
        bytes_f=at(op.bytes_f, samples),
        bytes_b=at(op.bytes_b, samples),
        kernels_f=op.kernels_f,
        kernels_b=op.kernels_b,
        kept=at(op.kept, samples),
        extra_f=at(op.extra_f, samples),
        extra_b=at(op.extra_b, samples),
        params=float(op.params),
        single=op.single,
        masked=op.masked,
    )
    return _rank_of(found, op.cut, samples, tp) if op.cut and tp > 1 else found


def _rank_of(op: Op, cut: TracedCut, samples: float, tp: int) -> Op:
    """A rank's part of an operator, and what the ranks add up."""
    gone = 1.0 - 1.0 / tp

    def live(whole: float, line: Line) -> float:
        # what is divided may have grown, where a peak is another one's
        return max(0.0, whole - gone * (line[0] + line[1] * samples))

    def left(whole: float, line: Line) -> float:
        # lines through two numbers of samples may cross further out: no rank has less than an even part
        return max(whole / tp, live(whole, line))

    sums = ("F", at(cut.sums_f, samples)), ("I", at(cut.sums_b, samples))
    shape = tuple(map(left, op.shape, cut.shape)) if cut.shape else op.shape
    return op._replace(
        shape=shape, bytes_f=left(op.bytes_f, cut.bytes_f), bytes_b=left(op.bytes_b, cut.bytes_b),
        kept=left(op.kept, cut.kept), extra_f=live(op.extra_f, cut.extra_f), extra_b=live(op.extra_b, cut.extra_b),
        params=op.params - gone * cut.params,
        comms=tuple(Comm("all-reduce", "tp", size, phase) for phase, size in sums if size),  # type: ignore[arg-type]
    )  # fmt: skip
