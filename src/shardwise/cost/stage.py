"""Layers stacked into chunks: seconds per pass, bytes kept, and the highest point inside a pass."""

from __future__ import annotations

from typing import NamedTuple

from shardwise.cost.layer import Block, Seconds
from shardwise.inputs.strategy import Strategy


class Run(NamedTuple):
    """Equal blocks in a row."""

    block: Block
    repeat: int


class Chunk(NamedTuple):
    """The layers that one rank runs in one go."""

    runs: tuple[Run, ...]
    f: Seconds
    i: Seconds
    w: Seconds
    again: Seconds
    kept: float
    """Bytes of one micro batch that stay until its backward pass."""
    forward: float
    """Highest point of a forward pass above where it began."""
    backward: float
    """Highest point of a backward pass above where its forward pass began."""
    at: str
    """Block and operator at the highest point of backward."""
    params: float
    expert_params: float
    flops: float
    again_flops: float

    @property
    def forward_seconds(self) -> float:
        return self.f.total

    @property
    def backward_seconds(self) -> float:
        """I, W and what is computed again, in one go."""
        return combined(self.i, self.w, self.again).total

    @property
    def all_params(self) -> float:
        return self.params + self.expert_params


def combined(*parts: Seconds) -> Seconds:
    return Seconds(*map(sum, zip(*parts, strict=True)))


def times(seconds: Seconds, count: float) -> Seconds:
    return Seconds(*(count * value for value in seconds))


def chunk_of(runs: tuple[Run, ...], grads: float) -> Chunk:
    """Stack blocks. `grads`: bytes per parameter that backward allocates as it goes."""
    totals = {name: _total(runs, name) for name in ("f", "i", "w", "again")}
    kept, forward, backward, at = _climb(runs, grads)
    return Chunk(
        runs=runs,
        **totals,
        kept=kept,
        forward=forward,
        backward=backward,
        at=at,
        params=sum(run.repeat * run.block.params for run in runs),
        expert_params=sum(run.repeat * run.block.expert_params for run in runs),
        flops=sum(run.repeat * run.block.flops for run in runs),
        again_flops=sum(run.repeat * run.block.again_flops for run in runs),
    )


def _total(runs: tuple[Run, ...], name: str) -> Seconds:
    if len(runs) == 1:
        return times(getattr(runs[0].block, name), runs[0].repeat)
    return combined(*(times(getattr(run.block, name), run.repeat) for run in runs)) if runs else Seconds()


def _climb(runs: tuple[Run, ...], grads: float) -> tuple[float, float, float, str]:
    """Kept bytes and the highest points. Inside a run the height is linear in the position: its ends suffice."""
    left = sum(run.repeat * run.block.all_params for run in runs) * grads
    kept = forward = backward = 0.0
    at = ""
    for block, count in runs:
        walk, own = block.walk, block.all_params * grads
        for position in (0, count - 1):
            below = kept + walk.kept * position
            forward = max(forward, below + walk.forward)
            above = left - own * (position + 1)
            if below + walk.backward + above > backward:
                backward, at = below + walk.backward + above, f"{block.name}: {walk.at or 'start of backward'}"
        kept += walk.kept * count
        left -= own * count
    return kept, forward, max(backward, kept), at


def recomputed_layers(strategy: Strategy, chunk: int, layers: int) -> int:
    """How many of a chunk's layers, from its first, are recomputed."""
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
    rank, turn = chunk % strategy.pp, chunk // strategy.pp
    return max(0, min(layers, recompute.layers[rank] - turn * layers))
