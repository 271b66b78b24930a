"""What strategies over bases of one shape share: their pipelines, shardings, updates and bytes per parameter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwise.cost.chunk import BlockRun, Chunk, chunk_of
from shardwise.cost.layer import Block
from shardwise.cost.ledger import Ledger
from shardwise.cost.memory import footprint_of, trained_share
from shardwise.cost.states import states_of
from shardwise.cost.update import Update, beside_of, data_groups, reductions, update_of, windows
from shardwise.estimate.setup import Setup
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import V_SCHEDULES, Strategy
from shardwise.pipeline.action import B, F, I
from shardwise.pipeline.generate import generate
from shardwise.search.question import Base, Layout, Point
from shardwise.search.space import Space
from shardwise.search.stage_work import StageCell
from shardwise.search.table import Floats, Table

Ints = npt.NDArray[np.int64]
DEEP = 16
"""Deeper pipelines back and forth are not counted out: making their order takes longer than it saves."""
_PARAMETERS = frozenset({"weights", "gradients", "master weights", "optimizer moments"})


class Rated(NamedTuple):
    """`Rates` of one strategy: bytes per parameter outside experts and of experts."""

    static: list[float]
    gradients: list[float]
    work: list[float]
    gathered: float
    fixed: float


class Rates(NamedTuple):
    """By pair; bytes per parameter as [pair, outside experts or of experts]."""

    static: Floats
    gradients: Floats
    """Made by the backward pass, dropped after the step."""
    work: Floats
    """Temporaries of the step."""
    gathered: Floats
    """Layers gathered for use."""
    fixed: Floats
    """Buckets, context, communicators."""


class Flight(NamedTuple):
    """Passes in flight at a moment of each rank, if I already frees everything: a lower bound."""

    each: Floats
    """Of every chunk of the rank, at least."""
    more: Floats
    """What all of its chunks but one hold more."""
    folded: bool
    """A v: rank 0 has both ends of the model."""


class Frame(NamedTuple):
    """Pairs of a pipeline and a sharding, in the order of the space."""

    layouts: tuple[Layout, ...]
    of_pair: Ints
    """Index of each pair's pipeline."""
    cells: list[StageCell]
    tracks: list[tuple[int, int]]
    """Distinct (pipeline, cell): what the passes depend on."""
    track_of_pair: Ints
    reduce: Floats
    """Seconds by pair, mean over ranks."""
    gather: Floats
    step: Floats
    taken: Floats
    """Share of their speed that kernels lose beside reduction and gathering."""
    windows: tuple[Floats, Floats]
    """By pair, shares of the passes behind which gradients are reduced and new weights gathered."""
    busy: tuple[Floats, Floats]
    """By pair, seconds of these that other collectives keep the links between nodes busy, mean over ranks."""
    rates: Rates
    valid: npt.NDArray[np.bool_]
    """[pair, choice]: whether the pipeline has the choice; its chunks may be too short for it."""
    flights: list[tuple[Flight | None, Ints]]
    """Pairs whose ranks hold the same passes in flight; none: one stage."""

    @property
    def cell_of_pair(self) -> Ints:
        return np.array([cell for _, cell in self.tracks])[self.track_of_pair]


class Known(NamedTuple):
    """Updates and rates that frames share."""

    updates: dict[tuple[object, ...], tuple[float, ...]]
    rates: dict[tuple[object, ...], Rated]


class _Chunks(NamedTuple):
    """The whole model, and one layer of the main kind."""

    whole: Chunk
    main: Chunk


def frame_of(space: Space, base: Base, table: Table, choices: tuple[Recompute, ...], known: Known) -> Frame:
    """The pairs over a base; `choices`: every recompute choice of the space."""
    layouts = space.layouts(base)
    pairs = [(index, one, sharding) for index, one in enumerate(layouts) for sharding in space.shardings(base, one)]
    cells: dict[StageCell, int] = {}
    tracks: dict[tuple[int, int], int] = {}
    track_of_pair, updates_, rates, shares = [], [], [], []
    whole = chunk_of(tuple(BlockRun(piece.blocks[0], piece.number) for piece in table.pieces), 0.0)
    chunks = _Chunks(whole, chunk_of((BlockRun(table.main.blocks[0], 1),), 0.0))
    for index, layout, sharding in pairs:
        shown = sharding if sharding.zero == 3 else None
        turns = layout.vpp == 1 and bool(table.others) and not table.leading
        stage = StageCell(layout.pp, layout.dp, shown, layout.schedule in V_SCHEDULES, turns)
        cell = cells.setdefault(stage, len(cells))
        track_of_pair.append(tracks.setdefault((index, cell), len(tracks)))
        point = Point(base, layout, sharding, Recompute())
        updates_.append(_update(space, point, table, chunks, known))
        reduced = reductions(sharding.zero, layout.pp, layout.microbatches, table.ground.runtime)
        shares.append((*windows(layout.pp, layout.vpp, layout.microbatches, reduced), reduced))
        rates.append(_rate(space, point, table, chunks, known))
    updates = np.array(updates_)[:, :, None]
    backward, forward, reduced_ = np.array(shares).T[:, :, None]
    # what is computed again may send, too, but how much is left open
    busy = reduced_ * updates[:, 5] * (whole.i.wire + whole.w.wire), updates[:, 4] * whole.f.wire
    columns = zip(*rates, strict=True)
    own = [space.recomputes(base, layout) for layout in layouts]
    several = {id(some): set(some) for some in own}  # layouts share a few tuples
    marks = {key: [one in some for one in choices] for key, some in several.items()}
    valid = np.array([marks[id(some)] for some in own])
    return Frame(
        layouts,
        np.array([index for index, _, _ in pairs]),
        list(cells),
        list(tracks),
        np.array(track_of_pair),
        updates[:, 0],
        updates[:, 1],
        updates[:, 2],
        updates[:, 3],
        (backward, forward),
        busy,
        Rates(*(np.array(column) for column in columns)),
        valid[[index for index, _, _ in pairs]],
        _flights([layout for _, layout, _ in pairs]),
    )


def states_key(base: Base) -> tuple[object, ...]:
    """What of a base states and their update depend on."""
    split = (base.tp, base.cp, base.ep, base.etp, base.compile, base.single)
    return (*split, base.offload, base.grad_dtype, base.optimizer, base.rank_order)


def _key(point: Point) -> tuple[object, ...]:
    _, layout, sharding, _ = point
    return (*states_key(point.base), layout.pp, layout.dp, *sharding)


def _update(space: Space, point: Point, table: Table, chunks: _Chunks, known: Known) -> tuple[float, ...]:
    """Reduction, gathering and step of the mean rank, and what they meet behind the passes: of what these keep the
    links busy, the share.
    """
    layout, runtime = point.layout, table.ground.runtime
    key = (*_key(point), reductions(point.sharding.zero, layout.pp, layout.microbatches, runtime))
    if key not in known.updates:
        strategy = space.strategy(point)
        found = mean_update(table.ground, strategy, chunks.whole)
        beside = beside_of(data_groups(table.ground.network, strategy), strategy, 1.0, 1.0)
        known.updates[key] = found.reduce, found.gather, found.optimizer, *beside
    return known.updates[key]


def mean_update(ground: Setup, strategy: Strategy, whole: Chunk) -> Update:
    """The update of the mean rank at least. `whole`: the whole model.

    Each part is concave in the parameters (latency, then bytes), so that the mean over ranks is at least that of all
    parameters on one rank, shared.
    """
    states, groups = states_of(strategy, ground.runtime), data_groups(ground.network, strategy)
    # adapters train a few parameters only: their update may be next to nothing
    trained = 0.0 if ground.shard.lora else trained_share([whole], ground.shard)
    found = update_of(
        [whole], strategy, ground.runtime, states, groups, ground.machine, ground.cluster.host_bandwidth, trained
    )
    return Update(*(part / strategy.pp for part in found))


def whole_step(table: Table) -> float:
    """Seconds of a step on one rank that has all parameters."""
    ground = table.ground
    s = ground.strategy
    params = sum(piece.number * piece.blocks[0].params for piece in table.pieces) * s.tp
    experts = sum(piece.number * piece.blocks[0].expert_params for piece in table.pieces) * s.ep * s.etp
    chunk = chunk_of((BlockRun(table.main.blocks[0], 1),), 0.0)
    return mean_update(ground, replace(s, zero=0), _bare(chunk, params + experts, 0.0)).optimizer


def _rate(space: Space, point: Point, table: Table, chunks: _Chunks, known: Known) -> Rated:
    key = _key(point)
    if key not in known.rates:
        chunk = chunks.whole if point.layout.pp == 1 else chunks.main
        known.rates[key] = rates_of(table.ground, space.strategy(point), chunk)
    return known.rates[key]


def rates_of(ground: Setup, strategy: Strategy, chunk: Chunk) -> Rated:
    """What the memory model says of one parameter of each sort."""
    states = states_of(strategy, ground.runtime)
    whole = footprint_of([chunk], ground.shard, strategy, ground.runtime, states, ground.cluster.gpu.reserved)
    unit = [
        footprint_of([one], ground.shard, strategy, ground.runtime, states)
        for one in (_bare(chunk, 1.0, 0.0), _bare(chunk, 0.0, 1.0))
    ]
    # adapters train a few parameters only: then weights alone are sure
    names = _PARAMETERS if ground.shard.lora == 0 else {"weights"}
    static = [sum(_least(part, ground) for part in one.parts if part.name in names) for one in unit]
    buckets = sum(part.value for part in whole.parts if part.name == "communication buckets")
    alone = 0.0 if ground.shard.lora else 1.0
    gradients, work = [alone * one.gradients for one in unit], [alone * one.optimizer for one in unit]
    return Rated(static, gradients, work, whole.gathered, buckets + whole.context)


def _least(part: Ledger, ground: Setup) -> float:
    """Bytes of a part that a parameter takes at least: a layer's weights may be kept in one narrow copy alone."""
    shard = ground.shard
    if part.name != "weights" or shard.narrow is None or not shard.fp8_weights:
        return part.value
    return part.value * min(1.0, shard.narrow.size / shard.element)


def _bare(chunk: Chunk, params: float, expert_params: float) -> Chunk:
    return chunk._replace(runs=(), params=params, expert_params=expert_params)


def buffers_of(ground: Setup, kinds: Iterable[Block]) -> float:
    """Workspaces and buffers of a rank that has at least one layer of these kinds."""
    chunks = [chunk_of((BlockRun(block, 1),), 0.0) for block in kinds]
    found = [footprint_of([one], ground.shard, ground.strategy, ground.runtime, ground.states) for one in chunks]
    return min(sum(p.value for p in one.parts if p.name == "workspace and buffers") for one in found)


def _flights(layouts: list[Layout]) -> list[tuple[Flight | None, Ints]]:
    found: dict[object, tuple[Flight | None, list[int]]] = {}
    for pair, one in enumerate(layouts):
        flight = None if one.pp == 1 else in_flight(one.schedule, one.pp, one.microbatches)
        key = flight and (flight.each.tobytes(), flight.more.tobytes(), flight.folded)
        found.setdefault(key, (flight, []))[1].append(pair)
    return [(flight, np.array(at)) for flight, at in found.values()]


@lru_cache(maxsize=4096)
def in_flight(schedule: str, pp: int, microbatches: int) -> Flight:
    """Interleaved 1F1B starts with pp passes through all chunks but a rank's last, which has 2 (pp - r - 1) + 1, or pp
    if that is less. A v is read off the order itself; more micro batches hold no less.
    """
    ranks, full = np.arange(pp, dtype=float), float(min(pp, microbatches))
    if schedule in V_SCHEDULES:
        return _counted(schedule, pp, min(microbatches, 2 * pp)) if pp <= DEEP else _flight(np.zeros(pp), folded=True)
    if schedule == "interleaved":
        return _flight(np.minimum(full, 2 * (pp - ranks - 1) + 1), full)
    if schedule == "gpipe":
        return _flight(np.full(pp, float(microbatches)))
    return _flight(np.minimum(microbatches, pp - ranks) if schedule in {"1f1b", "zb-h1", "zb-h2"} else np.ones(pp))


def _flight(each: Floats, others: Floats | float = 0.0, *, folded: bool = False) -> Flight:
    return Flight(each, np.maximum(others - each, 0.0), folded)


def _counted(schedule: str, pp: int, microbatches: int) -> Flight:
    """Of each rank of a v, when its emptier chunk holds most."""
    made = generate(schedule, pp=pp, vpp=2, microbatches=microbatches)
    most = []
    for rank, row in enumerate(made.codes):
        kind, chunk = np.divmod(np.asarray(row) // made.microbatches, made.chunks)
        change = np.where(kind == F, 1.0, np.where((kind == I) | (kind == B), -1.0, 0.0))
        early = chunk == rank
        both = np.sort(np.stack((np.cumsum(change * early), np.cumsum(change * ~early))), axis=0)
        most.append(both[:, np.lexsort(both[::-1])[-1]])
    return _flight(*np.array(most).T, folded=True)
