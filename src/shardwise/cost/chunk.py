"""Layers stacked into chunks: seconds per pass, bytes kept, and the highest point inside a pass."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from operator import add
from typing import NamedTuple

from shardwise.cost.layer import ENDS, Block
from shardwise.cost.seconds import COLUMNS, Seconds
from shardwise.inputs.assumed import ASSUMED
from shardwise.inputs.layers import chunk_rank, rank_chunks
from shardwise.inputs.strategy import V_SCHEDULES, Placement, Strategy
from shardwise.ops.tower import PLACES


class BlockRun(NamedTuple):
    """Equal blocks in a row."""

    block: Block
    repeat: int


class Chunk(NamedTuple):
    """The layers that one rank runs in one go."""

    runs: tuple[BlockRun, ...]
    f: Seconds
    i: Seconds
    w: Seconds
    recompute: Seconds
    kept: float
    """Bytes of one micro batch that stay until its backward pass."""
    forward: float
    """Highest point of a forward pass above where it began."""
    backward: float
    """Highest point of a backward pass above where its forward pass began."""
    at: str
    """Block and operator at the highest point of backward."""
    at_forward: str
    """Block and operator at the highest point of forward."""
    params: float
    expert_params: float
    flops: float
    recompute_flops: float
    offloaded: float = 0.0
    """Bytes of one micro batch that live in host memory until their backward pass."""

    @property
    def forward_seconds(self) -> float:
        return self.f.total

    @property
    def backward_seconds(self) -> float:
        """I, W and what is computed again, in one go."""
        return combined(self.i, self.w, self.recompute).total

    @property
    def all_params(self) -> float:
        return self.params + self.expert_params


def combined(*parts: Seconds) -> Seconds:
    found: Iterable[float] = parts[0]
    for part in parts[1:]:
        found = map(add, found, part)
    return Seconds(*found)


def chunk_of(runs: tuple[BlockRun, ...], grads: float, room: tuple[float, float] = (0.0, 0.0)) -> Chunk:
    """Stack blocks. `grads`: bytes per parameter that backward leaves behind as it goes; `room`: what stands beside a
    layer at work (and not beside the ends), forward and backward.
    """
    kept, forward, backward, at, at_forward = _climb(runs, grads, room=room)
    totals = [[0.0] * COLUMNS] * 4
    params = expert_params = flops = recompute_flops = 0.0
    for block, repeat in runs:
        parts = (block.f, block.i, block.w, block.recompute)
        totals = [[a + repeat * b for a, b in zip(*both, strict=True)] for both in zip(totals, parts, strict=True)]
        params += repeat * block.params
        expert_params += repeat * block.expert_params
        flops += repeat * block.flops
        recompute_flops += repeat * block.recompute_flops
    f, i, w, recompute = (Seconds(*total) for total in totals)
    if f.calls:
        f, i, w = _ahead(runs, f, i, w, recompute)
    return Chunk(
        runs, f, i, w, recompute,
        kept, forward, backward, at, at_forward, params, expert_params, flops, recompute_flops,
    )  # fmt: skip


def _ahead(
    runs: tuple[BlockRun, ...], f: Seconds, i: Seconds, w: Seconds, recompute: Seconds
) -> tuple[Seconds, Seconds, Seconds]:
    """F, I and W with what calls take where kernels that come late in a pass still run once the last call is made.
    Where I and W run apart, each has its kernels' share of that: the host runs ahead through both.
    """
    back, forth = combined(i, w, recompute), _forth(runs)
    whole = [(run.repeat, combined(run.block.i, run.block.w, run.block.recompute)) for run in reversed(runs)]
    longest = _longest([(repeat * one.calls, repeat * one.device) for repeat, one in whole])
    if forth > max(f.device, f.calls):
        f = f._replace(calls=forth)
    if back.device:
        late = longest * w.device / back.device
        i, w = i._replace(calls=longest - late - recompute.calls), w._replace(calls=late)
    return f, i, w


def _forth(runs: tuple[BlockRun, ...]) -> float:
    """A forward pass, stretch by stretch: the host waits until all is done before it puts a tower's results among
    tokens, and the kernels then wait for that.
    """
    taken, stretch = 0.0, list[tuple[float, float]]()
    for block, repeat in runs:
        places = sum(
            one.calls for op, one in zip(block.ops, block.forwards, strict=True) if op.name == PLACES
        )  # fmt: skip
        stretch.append((repeat * (block.f.calls - places), repeat * block.f.device))
        if places:
            taken, stretch = taken + _longest(stretch) + places, []
    return taken + _longest(stretch)


def _longest(runs: list[tuple[float, float]]) -> float:
    """Calls up to some place and kernels from there on, wherever both together take longest. Each: calls, kernels."""
    calls, kernels = 0.0, sum(device for _, device in runs)
    longest = kernels
    for own, device in runs:
        calls, kernels = calls + own, kernels - device
        longest = max(longest, calls + kernels)
    return max(longest, calls)


def offloaded(chunk: Chunk, host_bandwidth: float, grads: float) -> Chunk:
    """The chunk with its kept activations moved to host memory and back; some layers' worth stays on the device.

    Copies run behind the kernels; what is longer than them shows.
    """
    stays = min(chunk.kept, ASSUMED.offload_layers * max((run.block.walk.kept for run in chunk.runs), default=0.0))
    moved = chunk.kept - stays
    seconds = moved / host_bandwidth
    back = combined(chunk.i, chunk.w, chunk.recompute).device
    _, forward, backward, at, at_forward = _climb(chunk.runs, grads, stays)
    return chunk._replace(
        f=chunk.f._replace(memory=chunk.f.memory + max(0.0, seconds - chunk.f.device)),
        i=chunk.i._replace(memory=chunk.i.memory + max(0.0, seconds - back)),
        kept=stays,
        forward=forward,
        backward=backward,
        at=at,
        at_forward=at_forward,
        offloaded=moved,
    )


def _climb(
    runs: tuple[BlockRun, ...], grads: float, most: float = inf, room: tuple[float, float] = (0.0, 0.0)
) -> tuple[float, float, float, str, str]:
    """Kept bytes and the highest points. Inside a run the height is linear in the position: its ends suffice.

    `most`: kept bytes that stay on the device, a layer's own included; the rest is on the host, and heights bend.
    """
    left = sum(run.repeat * run.block.trained_params for run in runs) * grads
    kept = forward = backward = 0.0
    at = at_forward = ""
    for block, count in runs:
        walk, own = block.walk, block.trained_params * grads
        beside = (0.0, 0.0) if block.name in ENDS else room
        for position in (0, count - 1) if most == inf else range(count):
            below = min(kept + walk.kept * position, max(0.0, most - walk.kept))
            if below + walk.forward + beside[0] > forward:
                forward, at_forward = below + walk.forward + beside[0], f"{block.name}: {walk.at_forward}"
            above = left - own * (position + 1) + beside[1]
            if below + walk.backward + above > backward:
                backward, at = below + walk.backward + above, f"{block.name}: {walk.at or 'start of backward'}"
        kept += walk.kept * count
        left -= own * count
    return kept, forward, max(backward, min(kept, most)), at, at_forward


def placement_of(strategy: Strategy) -> Placement:
    """Where the chunks are: V schedules bring their own placement."""
    return "v" if strategy.schedule in V_SCHEDULES else strategy.placement


def recomputed_layers(strategy: Strategy, chunk: int, counts: tuple[int, ...], layers: int) -> int:
    """How many of a chunk's layers, from its first, are recomputed. `counts`: layers of every chunk; `layers`: of this
    one, multi-token-prediction layers included.
    """
    recompute = strategy.recompute
    if not recompute.active:
        return 0
    if not recompute.layers:
        return layers
    if len(recompute.layers) == 1:
        return min(layers, recompute.layers[0])
    if len(recompute.layers) == strategy.chunks:
        return min(layers, recompute.layers[chunk])
    # one number per stage: its chunks share it from the first on
    placement = placement_of(strategy)
    rank = chunk_rank(chunk, strategy.pp, strategy.vpp, placement)
    own = rank_chunks(rank, strategy.pp, strategy.vpp, placement)
    before = sum(counts[other] for other in own if other < chunk)
    return max(0, min(layers, recompute.layers[rank] - before))
