"""Where the layers of a pipeline are cut: the even cut, and those that balance time under the memory limit.

Stages are filled one after the other up to a common limit of seconds and of bytes, and the limit is lowered as far as
all layers still find a place; from the front, so that late stages are the shorter ones, and from the back. In 1F1B an
early stage may be longer: part of its work hides behind the warm-up (pipeline_bound.py, (1)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from shardwise.cost.memory import footprint_of
from shardwise.cost.stage import combined
from shardwise.inputs.layers import rank_chunks
from shardwise.plan.setup import Setup

HALVINGS = 24
Fill = Callable[[float], list[int] | None]


class Layer(NamedTuple):
    """One layer, or an end."""

    forward: float
    seconds: float
    lasting: float
    kept: float


class Stages(NamedTuple):
    """What the cut is chosen by."""

    layers: list[Layer]
    """In model order."""
    first: Layer
    last: Layer
    pp: int
    microbatches: int
    flight: tuple[float, ...]
    room: float
    """Bytes of a rank for layers and ends."""
    warm: bool
    """1F1B: early stages hide work behind the warm-up."""

    def end(self, rank: int) -> list[Layer]:
        return [end for end, at in ((self.first, 0), (self.last, self.pp - 1)) if at == rank]

    def cost(self, rank: int, forward: float, seconds: float) -> float:
        """What a stage's length does to the iteration."""
        if not self.warm:
            return seconds
        after = min(self.microbatches - 1, self.pp - 1 - rank)
        return seconds - after * forward / max(1, self.microbatches - 1)


def cuts(setup: Setup, held: tuple[float, ...], limit: float) -> Iterator[tuple[int, ...]]:
    """Other cuts than the one of `setup`, each once. `held`: passes in flight by rank."""
    strategy = setup.strategy
    if strategy.pp == 1 or not setup.runtime.can.uneven_layers:
        return
    seen = {setup.layers}
    for warm in (True, False) if strategy.schedule == "1f1b" else (False,):
        stages = stages_of(setup, held, limit, warm=warm)
        for backwards in (False, True):
            counts = _balanced(stages, backwards=backwards)
            cut = None if counts is None else _chunked(setup, counts)
            if cut is not None and cut not in seen:
                seen.add(cut)
                yield cut


def stages_of(setup: Setup, held: tuple[float, ...], limit: float, *, warm: bool) -> Stages:
    """Layers and ends as the estimate of the even cut has them."""
    strategy = setup.strategy
    stretch = 1 + setup.runtime.memory.fragmentation
    print_ = footprint_of(
        list(setup.chunks[:1]), setup.shard, strategy, setup.runtime, setup.states, setup.cluster.gpu.reserved
    )
    names = {"weights", "gradients", "master weights", "optimizer moments"}
    params = max(1.0, setup.chunks[0].all_params)
    per = (sum(p.value for p in print_.parts if p.name in names) + stretch * print_.standing) / params
    buffers = sum(p.value for p in print_.parts if p.name not in names)
    layers: list[Layer] = []
    ends: dict[str, list[Layer]] = {"embedding": [], "head": []}
    for chunk in setup.chunks:
        for block, repeat in chunk.runs:
            seconds = block.f.total + combined(block.i, block.w, block.again).total
            one = Layer(block.f.total, seconds, per * block.all_params, stretch * block.walk.kept)
            target = ends.get(block.name, ends["head"] if block.name.startswith("mtp ") else layers)
            target += [one] * repeat
    work = max(chunk.backward - chunk.kept for chunk in setup.chunks)
    room = limit - print_.context - buffers - stretch * (print_.gathered + work)
    first, last = (_sum(ends[name]) for name in ("embedding", "head"))
    flight = tuple(count / strategy.vpp for count in held)
    return Stages(layers, first, last, strategy.pp, strategy.microbatches, flight, room, warm)


def _sum(parts: list[Layer]) -> Layer:
    return Layer(*(sum(column) for column in zip(*parts, strict=True))) if parts else Layer(0.0, 0.0, 0.0, 0.0)


def _balanced(stages: Stages, *, backwards: bool) -> list[int] | None:
    """Layers of every rank: the shortest limit at which all find a place."""
    whole = sum(layer.seconds for layer in (*stages.layers, stages.first, stages.last))
    low, high = 0.0, whole * 1.001
    found = _filled(stages, high, backwards=backwards)
    if found is None:
        return None
    low = whole / stages.pp * 0.5
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        counts = _filled(stages, middle, backwards=backwards)
        if counts is None:
            low = middle
        else:
            found, high = counts, middle
    return found


def _filled(stages: Stages, limit: float, *, backwards: bool) -> list[int] | None:
    """Layers of every rank when each is filled up to the limit; none where layers are left over."""
    counts = [0] * stages.pp
    left = len(stages.layers)
    ranks = range(stages.pp - 1, -1, -1) if backwards else range(stages.pp)
    for done, rank in enumerate(ranks):
        waiting = stages.pp - 1 - done  # every later stage needs a layer too
        forward = seconds = held = 0.0
        for end in stages.end(rank):
            forward, seconds = forward + end.forward, seconds + end.seconds
            held += end.lasting + (end.kept * stages.flight[rank])
        while left > waiting:
            layer = stages.layers[left - 1 if backwards else len(stages.layers) - left]
            forward, seconds = forward + layer.forward, seconds + layer.seconds
            held += layer.lasting + layer.kept * stages.flight[rank]
            if counts[rank] and (stages.cost(rank, forward, seconds) > limit or held > stages.room):
                break
            counts[rank] += 1
            left -= 1
    return counts if left == 0 and min(counts) > 0 else None


def _chunked(setup: Setup, counts: list[int]) -> tuple[int, ...] | None:
    """The layers of every chunk; with several chunks a rank, near the even share (ends may have one less)."""
    strategy, total = setup.strategy, sum(counts)
    if strategy.vpp == 1:
        return tuple(counts)
    chunks = strategy.chunks
    even = total // chunks
    layers = [even] * chunks
    last = chunks - 1
    owned = [rank_chunks(rank, strategy.pp, strategy.vpp, setup.placement) for rank in range(strategy.pp)]
    for rank, count in enumerate(counts):
        own = sorted(owned[rank], key=lambda chunk: (chunk in {0, last}, chunk))
        more = count - even * strategy.vpp
        if more < 0 and even > 1:
            for end in [chunk for chunk in own if chunk in {0, last}][:-more]:
                layers[end] -= 1
        for chunk in own[: max(0, more)]:
            layers[chunk] += 1
    rest = total - sum(layers)
    order = sorted(range(chunks), key=lambda chunk: (layers[chunk], chunk in {0, last}, chunk))
    if not 0 <= rest <= chunks:
        return None
    for chunk in order[:rest]:
        layers[chunk] += 1
    return tuple(layers) if max(layers) <= even + 1 else None
