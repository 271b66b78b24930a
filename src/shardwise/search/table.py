"""What the layers of one base cost under every recompute choice, as numbers that add up.

The cost model is asked once per layer kind and recipe; everything a row of the screen needs is a sum of these. A pass
takes `meet(device, host)` seconds, which is not additive; a tangent of it is, and is never above it: exact where the
device decides, and where the host does, exact for all layers together. One tangent serves all kinds of layer: with one
for each, a stage of kinds that the device and kinds that the host decides would seem to take more than it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwise.cost.chunk import combined
from shardwise.cost.layer import PLAIN, Block, Recipe, layer_passes
from shardwise.cost.seconds import HOST_SHARE, SHOWN, Seconds
from shardwise.estimate.setup import Setup, block_of, layer_groups, setup_of
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import Strategy
from shardwise.ops.layer import layer_kinds
from shardwise.ops.shard import shard_of
from shardwise.search.question import Base, Layout, Point, Question, ShardingChoice
from shardwise.search.space import Space

Floats = npt.NDArray[np.float64]
FEW = 0.2
"""Share of the layers below which asking for a kind takes longer than it tells."""


class Weights(NamedTuple):
    """A tangent of `meet`: device x seconds + host x seconds is never above it."""

    device: float
    host: float

    def of(self, seconds: Seconds) -> float:
        return self.device * seconds.device + self.host * seconds.host


def tangent(seconds: Seconds) -> Weights:
    """The tangent at one pass of one layer: `meet` is a norm, so that it is below it everywhere."""
    device, host = seconds.device, seconds.host
    if host <= HOST_SHARE * device:  # also the backward of a frozen layer, which takes neither
        return Weights(1.0, 0.0)
    norm = (SHOWN * device**4 + host**4) ** 0.25
    return Weights(SHOWN * (device / norm) ** 3, (host / norm) ** 3)


def along(passes: Iterable[tuple[int, Seconds]]) -> Weights:
    """The tangent at so many passes each, taken together: exact for a stage that has of every kind its share."""
    return tangent(combined(*(Seconds(*(count * part for part in seconds)) for count, seconds in passes)))


def backward(block: Block) -> Seconds:
    return combined(block.i, block.w, block.recompute)


class LayerPiece(NamedTuple):
    """One kind of layer, or an end: how many there are, and its block under every recipe."""

    number: int
    blocks: tuple[Block, ...]
    forward: float
    """Seconds of one, tangent taken."""
    backward: Floats
    """By recipe."""
    devices: tuple[float, Floats]
    """Device seconds of its forward pass, and of its backward pass by recipe."""
    tangents: tuple[Weights, Weights]
    """What became of them."""
    wires: tuple[float, Floats]
    """Seconds of the same passes that they keep the links between nodes busy."""
    kept: Floats
    work: Floats
    """Working set of its backward pass above what it keeps."""


class Table(NamedTuple):
    """One base: its pieces."""

    ground: Setup
    """Of the whole model on one stage; shard, machine, network and states are those of every strategy over the base."""
    recipes: tuple[Recipe, ...]
    main: LayerPiece
    """The most common kind of layer."""
    others: tuple[LayerPiece, ...]
    """Other kinds of layer."""
    order: tuple[int, ...]
    """The kind of every layer of the model, as an index of `layers`."""
    leading: bool
    """The other kinds all stand before the main one."""
    first: LayerPiece
    """Embedding."""
    last: tuple[LayerPiece, ...]
    """Output layer and loss, and again for every multi-token-prediction layer."""
    extra: tuple[LayerPiece, ...]
    """Multi-token-prediction layers, on the last chunk."""

    @property
    def layers(self) -> tuple[LayerPiece, ...]:
        return (self.main, *self.others)

    @property
    def pieces(self) -> tuple[LayerPiece, ...]:
        return (*self.layers, self.first, *self.last, *self.extra)


@lru_cache(maxsize=64)
def recipes_of(recomputes: tuple[Recompute, ...]) -> tuple[Recipe, ...]:
    """The recipes that recompute choices use; nothing recomputed first."""
    found = [PLAIN, *(Recipe(one.full, frozenset(one.modules), one.group) for one in recomputes)]
    return tuple(dict.fromkeys(found))


def table_of(space: Space, base: Base, recipes: tuple[Recipe, ...] = (PLAIN,), ground: Setup | None = None) -> Table:
    """Ask the cost model for all pieces of a base: the blocks of the whole model on one stage, by recipe."""
    ground, model = ground or ground_of(space, base), space.question.model
    kinds = {kind.name: kind for kind in layer_kinds(model)}
    order = [kind.name for kind in layer_kinds(model)[: model.depth]]
    main = max(dict.fromkeys(order), key=order.count)
    numbers: dict[tuple[str, float], int] = {}
    plain: dict[tuple[str, float], Block] = {}
    for block, repeat in ground.chunks[0].runs:
        key = (block.name, block.params)
        numbers[key], plain[key] = numbers.get(key, 0) + repeat, block
    layers = [(numbers[key], block) for key, block in plain.items() if block.name in order]
    tangents = (
        along((count, block.f) for count, block in layers),
        along((count, backward(block)) for count, block in layers),
    )
    offloads = base.offload == "activations"
    pieces: dict[tuple[str, float], LayerPiece] = {}
    for key, block in plain.items():
        same = [block_of(ground, kinds[block.name], recipe) for recipe in recipes] if block.name in kinds else []
        pieces[key] = _piece(numbers[key], tuple(same) or (block,) * len(recipes), tangents, offloads=offloads)

    def named(*names: str) -> tuple[LayerPiece, ...]:
        return tuple(piece for (name, _), piece in pieces.items() if name in names)

    others = tuple(name for name in dict.fromkeys(order) if name != main)
    extra = tuple(name for name in kinds if name not in {main, *others})
    return Table(
        ground, recipes, named(main)[0], named(*others), tuple((main, *others).index(name) for name in order),
        main not in order[: len(order) - order.count(main)],
        named("embedding")[0], named("head"), named(*extra),
    )  # fmt: skip


def ground_of(space: Space, base: Base) -> Setup:
    question = space.question
    # casts that only unsharded states ask for are no part of what every strategy over the base takes at least
    kernels = replace(question.runtime.kernels, casts_alone=False)
    return setup_of(question.model, question.cluster, _probe(space, base), replace(question.runtime, kernels=kernels))


def _probe(space: Space, base: Base) -> Strategy:
    """The whole model on one stage and one replica, nothing recomputed."""
    zero = min(space.question.runtime.can.zero)
    layout, sharding = Layout(1, 1, "1f1b", 1, 1), ShardingChoice(zero, 0)  # type: ignore[arg-type]
    strategy = space.strategy(Point(base, layout, sharding, Recompute()))
    # the layers of a stage do not depend on how many replicas there are, only on whether gradients are accumulated
    return replace(strategy, global_batch=base.micro_batch * (1 if base.single else 2))


def _piece(number: int, blocks: tuple[Block, ...], tangents: tuple[Weights, Weights], *, offloads: bool) -> LayerPiece:
    backwards = [backward(block) for block in blocks]
    on_device = 0.0 if offloads else 1.0  # what goes to the host is not counted, nor is the time that shows of it
    return LayerPiece(
        number,
        blocks,
        tangents[0].of(blocks[0].f),
        np.array([tangents[1].of(seconds) for seconds in backwards]),
        (blocks[0].f.device, np.array([seconds.device for seconds in backwards])),
        tangents,
        (blocks[0].f.wire, np.array([seconds.wire for seconds in backwards])),
        on_device * np.array([block.walk.kept for block in blocks]),
        on_device * np.array([block.walk.backward - block.walk.kept for block in blocks]),
    )


class QuickTable:
    """Seconds of a base's layers, asked for alone: the first look at a base. Kinds with few layers are left out."""

    def __init__(self, space: Space) -> None:
        self.space = space
        model = space.question.model
        kinds = Counter(layer_kinds(model)[: model.depth])
        self.kinds = {kind: count for kind, count in kinds.items() if count >= FEW * model.depth}
        self.grounds: dict[tuple[object, ...], Setup] = {}
        self.runs: dict[Base, list[tuple[int, Seconds, Seconds]]] = {}

    def seconds(self, base: Base) -> float:
        """These layers, both passes, which are tangents at all of them together, so that they add up."""
        runs = self.of(base)
        forth, again = along((count, f) for count, f, _ in runs), along((count, b) for count, _, b in runs)
        return sum(count * (forth.of(f) + again.of(b)) for count, f, b in runs)

    def of(self, base: Base) -> list[tuple[int, Seconds, Seconds]]:
        """How many layers of every kind there are, and both passes of one; where states live changes none."""
        base = base._replace(offload="none", optimizer="adamw")
        if base not in self.runs:
            self.runs[base] = self._of(base)
        return self.runs[base]

    def _of(self, base: Base) -> list[tuple[int, Seconds, Seconds]]:
        key = (base.compile, base.single, base.cuda_graphs, base.grad_dtype, base.tp > 1)
        if key not in self.grounds:
            self.grounds[key] = ground_of(self.space, base)
        ground = self.grounds[key]
        strategy = _probe(self.space, base)
        shard = shard_of(self.space.question.model, strategy, ground.runtime, ground.cluster.gpu)
        groups = layer_groups(ground.network, strategy, ground.runtime)
        return [(count, *layer_passes(shard, kind, ground.machine, groups)) for kind, count in self.kinds.items()]


def whole_work(table: Table) -> float:
    """Seconds of all layers and ends, both passes, of one micro batch."""
    return sum(piece.number * (piece.forward + float(piece.backward[0])) for piece in table.pieces)


def least_seconds(question: Question, base: Base, work: float) -> float:
    """Seconds that every strategy over a base takes at least: the work, shared evenly by all GPUs."""
    passes = question.base.global_batch / base.micro_batch
    shared = passes * work * base.tp * base.cp / question.cluster.gpus
    return shared * question.base.straggler + question.runtime.overheads.iteration
