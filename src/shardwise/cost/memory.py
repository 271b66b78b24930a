"""The memory of one pipeline rank as a ledger: what always stays, what is in flight, and the peaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from shardwise.cost.chunk import BlockRun, Chunk
from shardwise.cost.layer import ENDS
from shardwise.cost.ledger import Ledger
from shardwise.cost.states import Sharding, States, sharding_of
from shardwise.inputs.assumed import ASSUMED
from shardwise.inputs.cluster import Gpu
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.traced import at
from shardwise.ops.embedding import logits_bytes
from shardwise.ops.linear import trained_params
from shardwise.ops.shard import Shard

Fits = Literal["yes", "no", "close"]
Pairs = list[tuple[float, Sharding]]


class RankMemory(NamedTuple):
    """Memory of one pipeline rank, bytes."""

    rank: int
    peak: Ledger
    """Highest allocated bytes of the iteration, by part."""
    static: float
    """Allocated between iterations."""
    forward: float
    """Highest point of forward passes."""
    backward: float
    """Highest point of backward passes."""
    optimizer: float
    """Highest point of the optimizer step."""
    kept_per_microbatch: float
    """Activations that one micro batch keeps on this rank (all its chunks)."""
    in_flight: float
    """Chunk passes whose activations are kept at the peak."""
    reserved: float
    """What the allocator holds at the peak, fragmentation included."""
    total: float
    """Reserved bytes, context and communicators: what the device must have."""
    at: str
    """Where the peak is."""


class Footprint(NamedTuple):
    """What a rank's chunks take, whatever its place in the pipeline: all but how many passes are in flight."""

    parts: tuple[Ledger, ...]
    """Weights, states, buffers: allocated between iterations."""
    static: float
    """Sum of the parts."""
    gradients: float
    """Gradients that the backward pass makes and the step drops."""
    kept_gradients: float
    """Of these, what a pass finds already there: a later micro batch finds those of the first."""
    gathered: float
    """Layers gathered for use (ZeRO 3)."""
    optimizer: float
    """Temporaries of the optimizer step."""
    kept: float
    """Activations that one micro batch keeps, all chunks."""
    each: float
    """Bytes that one more chunk pass in flight takes."""
    chunks: int
    first: Chunk
    """The chunk whose forward pass needs most beside what it keeps."""
    top: Chunk
    """The same of backward passes."""
    fragmentation: float
    lasting: float
    """Fragmentation of what lasts."""
    context: float
    """Device context and communicators, outside the allocator."""
    gaps: float = 0.0
    """What the allocator holds beside all that, since the loss breaks up its largest blocks."""
    ahead: float = 0.0
    """Activations of the layer whose forward runs beside another one's backward to hide the experts' traffic: what one
    pass frees layer by layer the other takes."""


def footprint_of(
    chunks: list[Chunk],
    shard: Shard,
    strategy: Strategy,
    runtime: Runtime,
    states: States,
    reserved: float = 0.0,
    pairs: Pairs | None = None,
) -> Footprint:
    """The memory of a rank's chunks as far as it does not depend on the schedule.

    `reserved`: what the driver and the context take before the first tensor. `pairs`: its parameters, where they are
    not all spread as the strategy says.
    """
    pairs = pairs or spread_params(chunks, strategy)
    trained = trained_share(chunks, shard)
    parts = tuple(part for part in _static(pairs, trained, chunks, shard, strategy, runtime, states) if part.value)
    gradients = _lazy_gradients(pairs, states, strategy, runtime) * trained
    kept = sum(chunk.kept for chunk in chunks)
    boundary = shard.handed if runtime.memory.outputs_kept and strategy.pp > 1 else 0.0
    return Footprint(
        parts=parts,
        static=sum(part.value for part in parts),
        gradients=gradients,
        kept_gradients=gradients if strategy.microbatches > 1 else 0.0,
        gathered=_gathered(chunks, strategy, runtime, states),
        optimizer=runtime.kernels.optimizer_work * sum(count / spread.states for count, spread in pairs) * trained,
        kept=kept,
        each=kept / len(chunks) + boundary,
        chunks=len(chunks),
        first=max(chunks, key=lambda chunk: chunk.forward - chunk.kept),
        top=max(chunks, key=lambda chunk: chunk.backward - chunk.kept),
        fragmentation=runtime.memory.fragmentation,
        lasting=runtime.memory.lasting_fragmentation,
        context=reserved + runtime.memory.context + _communicators(strategy),
        gaps=runtime.memory.loss_gaps * _logits(chunks, shard),
        ahead=_ahead(chunks) if strategy.ep_overlap else 0.0,
    )


def _logits(chunks: list[Chunk], shard: Shard) -> float:
    """Bytes of a micro batch's logits in 16 bit, where they are made."""
    made = any(run.block.name == "head" for chunk in chunks for run in chunk.runs)
    return logits_bytes(shard) if made else 0.0


def _ahead(chunks: list[Chunk]) -> float:
    """Of the layer that keeps most; a chunk of parameters alone has none."""
    return max((run.block.walk.kept for chunk in chunks for run in chunk.runs), default=0.0)


class PassBytes(NamedTuple):
    """A rank's bytes as the simulator adds them up; with `in_flight` passes they are those of `rank_memory`."""

    static: float
    """What the device must have while passes run, beside the activations of passes in flight."""
    stretch: float
    """What a kept byte takes: fragmentation, and outputs that are kept beside it."""
    step: float
    """What it must have in the optimizer step."""


def pass_bytes(footprint: Footprint) -> PassBytes:
    over = 1 + footprint.fragmentation
    lasting = footprint.context + footprint.gaps + footprint.static * (1 + footprint.lasting)
    mean = footprint.kept / footprint.chunks
    high = max(_beside(footprint)) - (footprint.each - mean)
    return PassBytes(
        lasting + over * (footprint.gathered + footprint.kept_gradients + footprint.ahead + high),
        over * footprint.each / mean if mean else 0.0,
        lasting + over * (footprint.gradients + footprint.optimizer),
    )


def _beside(footprint: Footprint) -> tuple[float, float]:
    """What a forward and a backward pass need beside what is kept of it, which counts among the passes in flight."""
    first, top = footprint.first, footprint.top
    return first.forward - first.kept, top.backward - top.kept


def rank_memory(rank: int, in_flight: float, footprint: Footprint) -> RankMemory:
    """Memory of a pipeline rank with `in_flight` chunk passes at once."""
    static = footprint.static
    base = static + (in_flight - 1) * footprint.each + footprint.gathered + footprint.kept_gradients + footprint.ahead
    base += footprint.kept / footprint.chunks
    forward, backward = (base + beside for beside in _beside(footprint))
    optimizer = static + footprint.gradients + footprint.optimizer
    peak = max(forward, backward, optimizer)
    at, parts = _peak_parts(footprint, in_flight, forward, backward, optimizer)
    # what lasts was allocated once and packs well; what comes and goes leaves gaps
    reserved = peak + (peak - static) * footprint.fragmentation + static * footprint.lasting
    reserved += footprint.gaps
    return RankMemory(
        rank,
        Ledger("peak memory", peak, footprint.parts + parts, at),
        static,
        forward,
        backward,
        optimizer,
        footprint.kept,
        in_flight,
        reserved,
        reserved + footprint.context,
        at,
    )


def _peak_parts(
    footprint: Footprint, in_flight: float, forward: float, backward: float, optimizer: float
) -> tuple[str, tuple[Ledger, ...]]:
    """Where the peak is, and what it holds beside what lasts."""
    if optimizer >= forward and optimizer >= backward:
        parts = [("gradients", footprint.gradients), ("optimizer temporaries", footprint.optimizer)]
        return "optimizer step", tuple(Ledger(name, value) for name, value in parts if value)
    if backward >= forward:
        at, beside = f"backward, {footprint.top.at}", _beside(footprint)[1]
    else:
        at, beside = f"forward, {footprint.first.at_forward}", _beside(footprint)[0]
    working = max(beside, 0.0)
    kept = (in_flight - 1) * footprint.each + footprint.kept / footprint.chunks + min(beside, 0.0)
    parts = [
        ("activations in flight", kept + footprint.ahead),
        ("working set of the pass", working),
        ("gathered layers", footprint.gathered),
        ("gradients", footprint.kept_gradients),
    ]
    return at, tuple(Ledger(name, value) for name, value in parts if value)


def spread_params(chunks: list[Chunk], strategy: Strategy) -> Pairs:
    """Parameters outside and inside of experts, each with the ranks that its bytes are spread over."""
    dense = sum(chunk.params for chunk in chunks)
    experts = sum(chunk.expert_params for chunk in chunks)
    pairs = [(dense, sharding_of(strategy, expert=False))]
    return [*pairs, (experts, sharding_of(strategy, expert=True))] if experts else pairs


def _static(
    pairs: Pairs,
    trained: float,
    chunks: list[Chunk],
    shard: Shard,
    strategy: Strategy,
    runtime: Runtime,
    states: States,
) -> list[Ledger]:
    weights = sum(count * states.weight / spread.weight for count, spread in pairs)
    gradients = 0.0 if states.lazy else sum(count * states.gradient / spread.gradient for count, spread in pairs)
    master = sum(count * states.master / spread.states for count, spread in pairs)
    moments = sum(count * states.moments / spread.states for count, spread in pairs)
    if strategy.offload == "optimizer":
        master = moments = 0.0
    memory = runtime.memory
    buffers = memory.workspace + memory.fixed
    if memory.gather_buffer:
        buffers += _gather_buffer(shard)
    if memory.dummy_gradients:
        buffers += _dummy_gradients(chunks, output=memory.output_gradient)
    if shard.model.turned:
        buffers += 4.0 * shard.seq * shard.model.head_size  # the table of angles
    if shard.model.traced:
        buffers += shard.model.traced.buffers + at(shard.model.traced.tables, shard.samples)
    return [
        Ledger("weights", weights - _wide_weights(chunks, shard, strategy)),
        Ledger("gradients", gradients * trained),
        Ledger("16-bit gradients", _half_gradients(pairs, strategy, runtime) * trained),
        Ledger("master weights", master * trained),
        Ledger("optimizer moments", moments * trained),
        Ledger("fp8 weight copies", _narrow_weights(chunks, shard, strategy)),
        Ledger("workspace and buffers", buffers),
        Ledger("communication buckets", memory.bucket if strategy.dp * strategy.cp > 1 else 0.0),
    ]


def _half_gradients(pairs: Pairs, strategy: Strategy, runtime: Runtime) -> float:
    """From stage 2 on they are reduced bucket by bucket."""
    beside = runtime.memory.half_gradients_beside and strategy.zero < 2
    if not beside or strategy.grad_dtype != "fp32" or strategy.dtype != "bf16":
        return 0.0
    return 2.0 * sum(count for count, _ in pairs)


def _layer_params(chunks: list[Chunk], strategy: Strategy) -> float:
    """Parameters of layers as this rank holds them; both ends stay in 16 bit."""
    dense, expert = (sharding_of(strategy, expert=expert).weight for expert in (False, True))
    blocks = [run for chunk in chunks for run in chunk.runs if run.block.name not in ENDS]
    return sum(run.repeat * (run.block.params / dense + run.block.expert_params / expert) for run in blocks)


def _wide_weights(chunks: list[Chunk], shard: Shard, strategy: Strategy) -> float:
    """16-bit weights that are not there where weights are kept in the format of the products."""
    if not shard.narrow or not shard.fp8_weights or not shard.runtime.kernels.fp8_copies:
        return 0.0
    return shard.element * _layer_params(chunks, strategy)


def _narrow_weights(chunks: list[Chunk], shard: Shard, strategy: Strategy) -> float:
    """Weights in the format of the products: a copy for every layout, one where they are sharded (and the other made of
    it when gathered).
    """
    if not shard.narrow or not shard.runtime.kernels.fp8_copies or (strategy.zero == 3 and not shard.fp8_weights):
        return 0.0
    layouts = 1 if strategy.zero == 3 else shard.narrow.layouts(turned=shard.turned)
    return min(layouts, shard.runtime.kernels.fp8_copies) * shard.narrow.size * _layer_params(chunks, strategy)


def _dummy_gradients(chunks: list[Chunk], *, output: bool) -> float:
    blocks = {id(run.block): run.block for chunk in chunks for run in chunk.runs}.values()
    shapes = {
        op.shape[1:3]
        for block in blocks
        for op in block.ops
        if op.kind in {"gemm", "grouped"} and (output if op.name == "output layer" else op.params)
    }
    return sum(2.0 * rows * columns for rows, columns in shapes)


def trained_share(chunks: list[Chunk], shard: Shard) -> float:
    """Parameters that train over those that are there: 1, less of frozen towers, or adapters over a frozen model."""
    if not shard.lora and not any(tower.frozen for tower in shard.towers):
        return 1.0
    adapters = sum(run.repeat * trained_params(run.block.ops, shard) for chunk in chunks for run in chunk.runs)
    return float(adapters / max(1.0, sum(chunk.all_params for chunk in chunks)))


def _gather_buffer(shard: Shard) -> float:
    """Megatron's lasting buffer: gathered activations, and attention scores where they are stored."""
    gathered = shard.gathered if shard.sp else 0.0
    if shard.flash:
        return gathered
    scores = shard.element * shard.samples * shard.model.heads / shard.tp * shard.seq * shard.whole_seq
    return max(gathered, scores)


def _lazy_gradients(pairs: Pairs, states: States, strategy: Strategy, runtime: Runtime) -> float:
    if not states.lazy:
        return 0.0
    whole = runtime.memory.whole_gradients_with_pp and strategy.pp > 1
    return sum(count * states.gradient / (1 if whole else spread.gradient) for count, spread in pairs)


def _gathered(chunks: list[Chunk], strategy: Strategy, runtime: Runtime, states: States) -> float:
    """What ZeRO 3 has gathered at any time of a pass, experts too: a layer, and both ends."""
    if strategy.zero < 3:
        return 0.0
    runs = [run for chunk in chunks for run in chunk.runs]
    one, ends = _shared(runs, strategy)
    return (min(1.0, runtime.memory.gathered_layers) * one + ends) * states.gathered


def layer_room(runs: Sequence[BlockRun], strategy: Strategy, runtime: Runtime, states: States) -> tuple[float, float]:
    """What stands beside a layer at work under ZeRO 3, forward and backward: the layers that are gathered ahead of it,
    and its unsharded gradient. When the loss is at work, neither is there.
    """
    if strategy.zero < 3:
        return 0.0, 0.0
    one, _ = _shared(runs, strategy)
    ahead = max(0.0, runtime.memory.gathered_layers - 1.0) * one * states.gathered
    return ahead, ahead + one * (2.0 if strategy.grad_dtype == "bf16" else 4.0)


def _shared(runs: Sequence[BlockRun], strategy: Strategy) -> tuple[float, float]:
    """Parameters that other ranks have shares of: of the largest layer, and of both ends."""
    dense, expert = strategy.shard_group > 1, strategy.expert_dp > 1
    beside = dense * sum(run.repeat * run.block.ends for run in runs)
    sizes = [
        (run.block.name, dense * (run.block.params - run.block.ends) + expert * run.block.expert_params) for run in runs
    ]
    layers = max((size for name, size in sizes if name not in ENDS), default=0.0)
    return layers, sum(size for name, size in sizes if name in ENDS) + beside


def _communicators(strategy: Strategy) -> float:
    """Buffers of communicators, for every axis that spans ranks."""
    axes = sum(degree > 1 for degree in (strategy.tp, strategy.pp, strategy.cp, strategy.dp, strategy.ep))
    return ASSUMED.communicator * axes


def fits(needed: tuple[float, float], gpu: Gpu) -> Fits:
    """yes, no, or close: the limit lies within the interval of what is needed."""
    low, high = needed
    if low > gpu.memory:
        return "no"
    return "yes" if high <= gpu.memory else "close"
