"""Lower bounds on the memory of the fullest rank, however layers are cut.

Rank r needs c + n_r (s + u_r a) bytes for its n_r layers: s lasting bytes and a kept bytes of one layer, u_r passes in
flight. With any weights w_r >= 0 the fullest rank needs at least the weighted mean over ranks; w_r = 1 / (s + u_r a)
makes it independent of the cut: layers / sum of w_r. Other kinds of layer are held against it at their worst place.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shardwise.cost.memory import footprint_of
from shardwise.cost.stage import Chunk, Run, chunk_of
from shardwise.cost.states import states_of
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import V_SCHEDULES
from shardwise.plan.search.space import Space
from shardwise.plan.search.table import Floats, Piece, Table
from shardwise.plan.search.types import Base, Layout, Point, Sharding
from shardwise.plan.search.work import Choices
from shardwise.schedule.generate import generate
from shardwise.simulate.action import B, F, I

DEEP = 16
"""Deeper pipelines back and forth are not counted out: making their order takes longer than it saves."""
_PARAMETERS = frozenset({"weights", "gradients", "master weights", "optimizer moments"})


class Rates(NamedTuple):
    """Bytes per parameter outside experts and of experts."""

    lasting: tuple[float, float]
    gradients: tuple[float, float]
    """Made by the backward pass, dropped after the step."""
    work: tuple[float, float]
    """Temporaries of the step."""
    gathered: float
    """Layers gathered for use."""
    fixed: float
    """Buckets, context, communicators."""


def rates_of(space: Space, base: Base, table: Table, layout: Layout, sharding: Sharding) -> Rates:
    """What the memory model says of one parameter of each sort."""
    ground = table.ground
    strategy = space.strategy(Point(base, layout, sharding, Recompute()))
    states = states_of(strategy, ground.runtime)
    pieces = table.pieces if layout.pp == 1 else (table.main,)
    chunk = chunk_of(tuple(Run(piece.blocks[0], piece.count) for piece in pieces), 0.0)
    whole = footprint_of([chunk], ground.shard, strategy, ground.runtime, states)
    unit = [
        footprint_of([one], ground.shard, strategy, ground.runtime, states)
        for one in (_bare(chunk, 1.0, 0.0), _bare(chunk, 0.0, 1.0))
    ]
    # adapters train a few parameters only: then weights alone are sure
    names = _PARAMETERS if ground.shard.lora == 0 else {"weights"}
    lasting = [sum(part.value for part in one.parts if part.name in names) for one in unit]
    buckets = sum(part.value for part in whole.parts if part.name == "communication buckets")
    return Rates(
        (lasting[0], lasting[1]), (unit[0].gradients, unit[1].gradients), (unit[0].optimizer, unit[1].optimizer),
        whole.gathered, buckets + whole.context,
    )  # fmt: skip


def _bare(chunk: Chunk, params: float, expert_params: float) -> Chunk:
    return chunk._replace(params=params, expert_params=expert_params)


def buffers_of(table: Table) -> float:
    """Workspaces and buffers of a rank that has at least one layer of the main kind."""
    ground = table.ground
    kinds = [chunk_of((Run(piece.blocks[0], 1),), 0.0) for piece in table.layers]
    found = [footprint_of([one], ground.shard, ground.strategy, ground.runtime, ground.states) for one in kinds]
    return min(sum(p.value for p in one.parts if p.name == "workspace and buffers") for one in found)


def memory(
    table: Table, layout: Layout, rates: list[Rates], choices: Choices, layers: int, buffers: float
) -> Floats:
    """Bytes that the fullest rank needs in all at least: [sharding, choice]."""
    runtime, single = table.ground.runtime, layout.microbatches == 1
    stretch = 1 + runtime.memory.fragmentation
    rate = _Rate(
        *(np.array([getattr(one, name) for one in rates]) for name in ("lasting", "gradients", "work")),  # type: ignore[arg-type]
        stretch,
        single,
    )
    fixed = np.array([buffers + one.fixed for one in rates])[:, None]
    gathered = np.array([stretch * one.gathered for one in rates])[:, None]
    if layout.pp == 1:
        passes = _whole(table, rate, choices, stretch)
    elif layout.vpp == 1:
        passes = _weighted(table, layout, rate, choices, stretch)
    else:
        passes = _chunked(table, layout, rate, choices, layers, stretch)
    return np.asarray(fixed + np.maximum(passes + gathered, _step(table, layout, rate)))


class _Rate(NamedTuple):
    lasting: Floats
    gradients: Floats
    work: Floats
    stretch: float
    single: bool

    def of(self, piece: Piece) -> Floats:
        """Bytes of one piece during the passes, by sharding."""
        standing = 0.0 if self.single else self.stretch
        block = piece.blocks[0]
        both = self.lasting + standing * self.gradients
        return np.asarray((both[:, 0] * block.params + both[:, 1] * block.expert_params)[:, None])

    def at_step(self, piece: Piece) -> Floats:
        block = piece.blocks[0]
        both = self.lasting + self.stretch * (self.gradients + self.work)
        return np.asarray((both[:, 0] * block.params + both[:, 1] * block.expert_params)[:, None])


def _step(table: Table, layout: Layout, rate: _Rate) -> Floats:
    """The optimizer step: the mean over ranks; what is gathered for passes is not there."""
    mean = np.asarray(sum(piece.count * rate.at_step(piece) for piece in table.pieces)) / layout.pp
    return np.asarray(mean)


def _kept(piece: Piece, choices: Choices, count: float) -> Floats:
    """Kept bytes of `count` layers in one chunk."""
    plain = piece.kept[0]
    blocks = choices.layers > 0
    chosen = piece.kept[choices.recipe]
    again = np.minimum(choices.layers, count)
    return np.asarray(np.where(blocks, again * chosen + (count - again) * plain, count * chosen))


def _working(piece: Piece, choices: Choices) -> Floats:
    """Working set of the last layer of a chunk, at least."""
    mixed = np.minimum(piece.work[0], piece.work[choices.recipe])
    return np.asarray(np.where(choices.layers > 0, mixed, piece.work[choices.recipe]))


def _whole(table: Table, rate: _Rate, choices: Choices, stretch: float) -> Floats:
    """One stage: everything is on it; the working set of the loss comes on top."""
    static = sum(piece.count * rate.of(piece) for piece in table.pieces)
    blocks = choices.layers > 0
    # a block's layers are the first ones; where kinds differ, the kind that frees most is taken
    saved = np.max([piece.kept[0] - piece.kept[choices.recipe] for piece in (*table.layers, *table.extra)], axis=0)
    plain = sum(piece.count * np.where(blocks, piece.kept[0], piece.kept[choices.recipe]) for piece in table.pieces)
    kept = plain - np.where(blocks, choices.layers * saved, 0.0)
    working = np.maximum(_least(table, choices), 0.0)
    # before the loss's backward pass every layer's bytes are there; before the last layer's, the loss's are gone
    last = np.maximum(table.last[-1].work[0], working - sum(piece.count * piece.kept[0] for piece in table.last))
    return np.asarray(static + stretch * (kept + last))


def _least(table: Table, choices: Choices) -> Floats:
    return np.asarray(np.min([_working(piece, choices) for piece in table.layers], axis=0))


def _weighted(table: Table, layout: Layout, rate: _Rate, choices: Choices, stretch: float) -> Floats:
    main, p = table.main, layout.pp
    flight = in_flight(layout.schedule, p, 1, layout.microbatches)[None, None, :]
    blocks = choices.layers > 0
    kept = np.where(blocks, main.kept[0], main.kept[choices.recipe])[None, :, None]
    static = rate.of(main)[:, :, None]
    weight = 1.0 / (static + stretch * flight * kept)
    total = weight.sum(axis=2)
    bytes_ = np.full_like(total, float(main.count + sum(piece.count for piece in table.others)))
    saved = (main.kept[0] - main.kept[choices.recipe]) * choices.layers * blocks
    bytes_ -= (weight * stretch * flight).sum(axis=2) * saved
    for piece in table.others:
        other = piece.kept[choices.recipe][None, :, None]
        less = (static - rate.of(piece)[:, :, None]) + stretch * flight * (kept - other)
        bytes_ -= piece.count * np.maximum(0.0, weight * less).max(axis=2)
    bytes_ += weight[:, :, 0] * (rate.of(table.first) + stretch * flight[:, :, 0] * table.first.kept[0])
    ends = sum(piece.count * rate.of(piece) for piece in (*table.last, *table.extra))
    working = stretch * np.maximum(_least(table, choices), 0.0)
    # the last rank's highest point is in the loss, where all its layers' bytes are there too
    loss = stretch * (sum(piece.count * piece.kept[0] for piece in table.last) + table.last[-1].work[0])
    bytes_ += weight[:, :, -1] * (ends + loss) + weight[:, :, :-1].sum(axis=2) * working
    return np.asarray(bytes_ / total)


def _chunked(
    table: Table, layout: Layout, rate: _Rate, choices: Choices, layers: int, stretch: float
) -> Floats:
    """Several chunks a rank, near the even share: a rank between the ends, or the mean over ranks."""
    p, v = layout.pp, layout.vpp
    even = layers // (p * v)
    flight = in_flight(layout.schedule, p, v, layout.microbatches)
    kinds = table.layers
    full = np.min([_kept(piece, choices, even) for piece in kinds], axis=0)
    short = np.min([_kept(piece, choices, max(0, even - 1)) for piece in kinds], axis=0)
    working = np.maximum(_least(table, choices), 0.0)
    mean = np.asarray(sum(piece.count * rate.of(piece) for piece in table.pieces)) / p
    held = stretch * (float(flight.mean()) * short + working)
    found = mean + held
    if p > 2:
        one = np.min([rate.of(piece) for piece in kinds], axis=0) * (even * v)
        inner = float(flight[1:-1].max())
        found = np.maximum(found, one + stretch * (inner * full + working))
    return np.asarray(found)


def in_flight(schedule: str, pp: int, vpp: int, microbatches: int) -> Floats:
    """Chunk passes that each rank holds at most at once, if I already frees everything: a lower bound."""
    ranks = np.arange(pp, dtype=float)
    if schedule in {"1f1b", "zb-h1", "zb-h2"}:
        return np.minimum(microbatches, pp - ranks)
    if schedule == "gpipe":
        return np.full(pp, float(microbatches))
    if schedule == "interleaved":
        return np.minimum(microbatches * vpp, 2 * (pp - ranks - 1) + (vpp - 1) * pp + 1)
    if schedule in V_SCHEDULES and pp <= DEEP:
        return _counted(schedule, pp, vpp, min(microbatches, 2 * pp))
    return np.ones(pp)


@lru_cache(maxsize=1024)
def _counted(schedule: str, pp: int, vpp: int, microbatches: int) -> Floats:
    """Read off the order itself; more micro batches hold no less."""
    made = generate(schedule, pp=pp, vpp=vpp, microbatches=microbatches)
    size = made.chunks * made.microbatches
    most = []
    for row in made.codes:
        kind = np.asarray(row) // size
        change = np.where(kind == F, 1.0, np.where((kind == I) | (kind == B), -1.0, 0.0))
        most.append(float(np.cumsum(change).max()))
    return np.array(most)
