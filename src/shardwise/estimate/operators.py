"""The operators of one pass: a forward and a backward of a chunk on one rank, in order, with their seconds and bytes.

Seconds are those that the pass is made of: kernels, collectives that show, and what kernels take longer beside hidden
ones. What a pass takes beyond them, waiting for the host, goes to its operators by what launching them costs the host,
so that operators fill the pass. Bytes are the walk's (cost/activations.py) above where the forward pass began; their
highest points are the chunk's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwise.cost.chunk import Chunk, combined
from shardwise.cost.layer import ENDS, Block, Groups, Timed, timed
from shardwise.cost.memory import layer_room
from shardwise.cost.overlap import Behind
from shardwise.cost.seconds import Seconds
from shardwise.cost.traffic import AxisSeconds, op_traffic
from shardwise.estimate.iteration import SHARDING
from shardwise.estimate.passes import behind_passes, pass_costs, seconds_of
from shardwise.estimate.setup import Setup, layer_groups, piled_gradients
from shardwise.ops.op import Phase

SEND, COPIES = "send to the next rank", "copies to the host"
NOTHING = AxisSeconds()


class OpRun(NamedTuple):
    """One operator at work."""

    place: str
    """The layer or end that it belongs to, such as `layer 3`."""
    name: str
    part: str
    """F, I or W; R: a forward that is computed again."""
    kind: str
    """gemm, grouped, attention or memory; empty: no kernel of a layer."""
    start: float
    end: float
    kernels: float
    """Seconds of its kernels alone."""
    shown: AxisSeconds
    """Seconds of its collectives that show."""
    hidden: AxisSeconds
    """Seconds of its collectives behind kernels."""
    level: float
    """Bytes live while it runs, above where the forward pass of the chunk began."""
    stays: float
    """Of these, what is there once it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTrace:
    """A forward and a backward pass of one chunk."""

    rank: int
    chunk: int
    forward: tuple[OpRun, ...]
    backward: tuple[OpRun, ...]
    kept: float
    """Bytes that stay between the two."""


class _Item(NamedTuple):
    """An operator before it has its time."""

    run: OpRun
    device: float
    host: float


class _Place(NamedTuple):
    """A layer or end of a chunk, with what lies below and above its bytes."""

    name: str
    block: Block
    parts: tuple[Timed, ...]
    below: float
    beside: tuple[float, float]
    """Forward and backward: gathered layers (ZeRO 3) and gradients of the layers after it."""


def pass_trace(setup: Setup, chunk: int) -> PassTrace:
    """The operators of a chunk's passes; `chunk`: its place in the model."""
    own, costs = setup.chunks[chunk], pass_costs(setup, split=False)
    rank = next(r for r in range(setup.strategy.pp) if chunk in setup.rank_indices(r))
    here = setup.at(rank)
    groups, behind = layer_groups(here.network, here.strategy, here.runtime), behind_passes(here)
    places = list(_places(here, own, sum(setup.layers[:chunk]), groups))
    forward, backward = list(_forward(places, groups, behind)), list(_backward(places[::-1], groups, behind))
    forward += _copies(own, forward, behind.host_bandwidth)
    backward += _copies(own, backward, behind.host_bandwidth)
    f, b = seconds_of(here)[id(own)]
    whole = costs.f[chunk], costs.i[chunk] + costs.w[chunk]
    return PassTrace(
        rank=rank, chunk=chunk, kept=own.kept,
        forward=tuple(_laid(forward, f, whole[0], own.kept)), backward=tuple(_laid(backward, b, whole[1], 0.0)),
    )  # fmt: skip


def _places(setup: Setup, chunk: Chunk, first: int, groups: Groups) -> Iterator[_Place]:
    """Every layer and end in the order of forward; equal ones are worked out once."""
    grads = piled_gradients(setup.strategy, setup.states)
    left = grads * sum(run.repeat * run.block.all_params for run in chunk.runs)
    # a chunk whose activations go to the host is climbed without it (cost/chunk.py)
    moved = setup.strategy.offload == "activations"
    room = (0.0, 0.0) if moved else layer_room(chunk.runs, setup.strategy, setup.runtime, setup.states)
    most, kept, layer = chunk.kept if moved else float("inf"), 0.0, first
    for block, repeat in chunk.runs:
        end = block.name in ENDS
        parts = tuple(timed(op, setup.shard, setup.machine, groups) for op in block.ops)
        for _ in range(repeat):
            left -= grads * block.all_params
            ahead, back = (0.0, 0.0) if end else room
            below = min(kept, max(0.0, most - block.walk.kept))
            yield _Place(block.name if end else f"layer {layer}", block, parts, below, (ahead, back + left))
            kept, layer = kept + block.walk.kept, layer + (not end)


def _forward(places: Sequence[_Place], groups: Groups, behind: Behind) -> Iterator[_Item]:
    for place in places:
        block, walk = place.block, place.block.walk
        copy, _ = behind.copied(block)
        gather, _ = behind.traffic(block)
        yield from _sharding(place, behind.over(block.f.device + copy, gather, block.f.wire) - block.f.device, "F")
        spare = block.f.asked - sum(part.f.asked for part in place.parts)  # the framework's own code of a layer
        for index, part in enumerate(place.parts):
            level = place.below + place.beside[0] + walk.levels_f[index]
            item = _item(place, part, part.f, "F", groups, level, place.below + walk.stays[index])
            yield item._replace(host=item.host + spare * (index == 0))


def _backward(places: Sequence[_Place], groups: Groups, behind: Behind) -> Iterator[_Item]:
    for place in places:
        block = place.block
        back = combined(block.i, block.w, block.recompute)
        traffic, copies = sum(behind.traffic(block)), sum(behind.copied(block))
        yield from _sharding(place, behind.over(back.device + copies, traffic, back.wire) - back.device, "I")
        items = list(_walked_back(place, groups))
        spare = (back.asked - sum(item.host for item in items)) / len(items)
        yield from (item._replace(host=item.host + spare) for item in items)


def _walked_back(place: _Place, groups: Groups) -> Iterator[_Item]:
    """The operators of a layer from its last; what is computed again comes before the first that needs it."""
    walk, base = place.block.walk, place.below + place.beside[1]
    again = set(walk.recomputed)
    for index in range(len(place.parts) - 1, -1, -1):
        if index in again and index + 1 not in again:
            yield from _replayed(place, index, again, groups)
        part, before = place.parts[index], walk.stays[index - 1] if index else 0.0
        level = base + walk.levels_b[index]
        left = min(level, base + (before if index else 0.0))
        yield _item(place, part, part.i, "I", groups, level, level if any(part.w[:7]) else left)
        if any(part.w[:8]):
            yield _item(place, part, part.w, "W", groups, level, left)


def _replayed(place: _Place, last: int, again: set[int], groups: Groups) -> Iterator[_Item]:
    """The run of operators that ends with `last`, forward."""
    walk, start = place.block.walk, last
    while start - 1 in again:
        start -= 1
    for index in range(start, last + 1):
        part, level = place.parts[index], place.below + place.beside[1] + walk.replays[index]
        seconds = part.f
        if index == walk.unsent:
            seconds = seconds._replace(tp=0.0, cp=0.0, ep=0.0, slowed=0.0, wire=0.0)
        yield _item(place, part, seconds, "R", groups if index != walk.unsent else None, level, level)


def _sharding(place: _Place, seconds: float, part: str) -> Iterator[_Item]:
    """What ZeRO 3 shows of itself around a layer."""
    if seconds > 0:
        level = place.below + place.beside[part != "F"]
        run = OpRun(place.name, SHARDING, part, "", 0.0, 0.0, 0.0, NOTHING, NOTHING, level, level)
        yield _Item(run, seconds, 0.0)


def _copies(chunk: Chunk, items: list[_Item], bandwidth: float) -> list[_Item]:
    """What moving activations to the host and back shows of itself: they run behind all else."""
    seconds = chunk.offloaded / bandwidth - sum(item.device for item in items)
    run = OpRun("", COPIES, "", "", 0.0, 0.0, 0.0, NOTHING, NOTHING, chunk.kept, chunk.kept)
    return [_Item(run, seconds, 0.0)] if chunk.offloaded and seconds > 0 else []


def _item(
    place: _Place, part: Timed, seconds: Seconds, phase: str, groups: Groups | None, level: float, stays: float
) -> _Item:
    """`groups`: none where nothing is sent."""
    shown = AxisSeconds(seconds.tp, seconds.cp, seconds.ep)
    told: Phase = "F" if phase in {"F", "R"} else "I" if phase == "I" else "W"
    total = op_traffic(part.op, told, groups) if groups else NOTHING
    behind = AxisSeconds(*(max(0.0, a - b) for a, b in zip(total, shown, strict=True)))
    kernels = seconds.compute + seconds.slowed
    run = OpRun(place.name, part.op.name, phase, part.op.kind, 0.0, 0.0, kernels, shown, behind, level, stays)
    return _Item(run, seconds.device, seconds.asked)


def _laid(items: list[_Item], seconds: float, whole: float, last: float) -> Iterator[OpRun]:
    """One after the other over the pass's `seconds`; what is left of the `whole` is the send that shows."""
    device, host = sum(item.device for item in items), sum(item.host for item in items)
    wait = max(0.0, seconds - device)
    clock = 0.0
    for item in items:
        start, clock = clock, clock + item.device + (wait * item.host / host if host else wait / len(items))
        yield item.run._replace(start=start, end=clock)
    if whole - clock > 1e-12:
        yield OpRun("", SEND, "", "", clock, whole, 0.0, NOTHING, NOTHING, last, last)
