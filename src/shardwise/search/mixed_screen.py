"""Lower bounds on every strategy over a base where the GPUs are of several kinds.

A layer takes a_k seconds on kind k. However layers are shared, the busiest of n_k stages of each kind takes at least the
value of

    minimise t   with   sum over pieces j of x_jk a_jk <= n_k t,   sum over k of x_jk = 1,   x >= 0

in which layers may be split (`least_busy`). Replicas all have as many micro batches, so the slowest kind decides there;
where a runtime gives each kind its own number, speeds add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shardwise.cost.chunk import BlockRun, Chunk, chunk_of
from shardwise.cost.network import hand_over
from shardwise.cost.update import Update, hidden
from shardwise.estimate.setup import memory_share
from shardwise.inputs.mixed import kinds_of, replicas_of, stage_kinds, whole_kinds
from shardwise.inputs.strategy import Strategy
from shardwise.search.frame import buffers_of, in_flight, mean_update, rates_of
from shardwise.search.question import Base, Point
from shardwise.search.screen import ROUNDED, Screen, ScreenRows
from shardwise.search.space import Space
from shardwise.search.stage_work import Choices, StageCell, choices_of, sharded
from shardwise.search.table import Floats, QuickTable, Table, recipes_of, table_of


class Priced(NamedTuple):
    """One kind of GPU: seconds of every piece of the model there, [piece, choice], all of a piece together."""

    table: Table
    whole: Chunk
    forward: Floats
    both: Floats


@dataclass(kw_only=True)
class MixedScreen(Screen):
    """Bounds over a space whose cluster is mixed."""

    _updates: dict[tuple[object, ...], Update] = field(default_factory=dict)

    @cached_property
    def kinds(self) -> tuple[Space, ...]:
        """The same questions as if all GPUs were of one kind."""
        question = self.space.question
        return tuple(Space(question=replace(question, cluster=kind)) for kind in whole_kinds(question.cluster))

    @cached_property
    def _looks(self) -> list[QuickTable]:
        return [QuickTable(space) for space in self.kinds]

    def glance(self, base: Base) -> float:
        return self._shared(base, np.array([[look.work(base)] for look in self._looks]))

    def least(self, base: Base) -> float:
        tables = [table_of(space, base) for space in self.kinds]
        pieces = [[piece.number * (piece.forward + float(piece.backward[0])) for piece in one.pieces] for one in tables]
        return self._shared(base, np.array(pieces))

    def _shared(self, base: Base, work: Floats) -> float:
        """Seconds at least if all GPUs shared the work; `work`: [kind, piece], of one micro batch."""
        question = self.space.question
        gpus = np.array([kind.gpus for kind in kinds_of(question.cluster)], dtype=float)
        passes = question.base.global_batch / base.micro_batch * base.tp * base.cp
        busy = float(least_busy(work[:, :, None], gpus)[0]) * passes
        return ROUNDED * (busy * question.base.straggler + question.runtime.overheads.iteration)

    def rows_of(self, bases: Sequence[Base]) -> list[ScreenRows]:
        return [self._rows_over(base) for base in bases]

    def _rows_over(self, base: Base) -> ScreenRows:
        recipes = recipes_of(self.recomputes)
        tables = [table_of(space, base, recipes) for space in self.kinds]
        choices = choices_of(tables[0], self.recomputes)
        seconds, bytes_ = [], []
        for layout in self.space.layouts(base):
            count = len(self.space.recomputes(layout))
            for sharding in self.space.shardings(base, layout):
                point = Point(base, layout, sharding, self.space.recomputes(layout)[0])
                pairs = zip(self.kinds, tables, strict=True)
                priced = [_priced(space, table, point, choices, count) for space, table in pairs]
                seconds.append(self._seconds_of(priced, point))
                bytes_.append(self._bytes_of(priced, point, choices, count))
        return ScreenRows(base, np.concatenate(seconds) * ROUNDED, np.concatenate(bytes_) * ROUNDED)

    def _seconds_of(self, priced: list[Priced], point: Point) -> Floats:
        strategy, over = self.space.strategy(point), self.space.question.runtime.overheads
        update, runtime = self._update_of(priced, point, strategy), priced[0].table.ground.runtime
        passes = self._passes_of(priced, point, strategy)
        shown = np.array([hidden(update, strategy, runtime, float(one)).exposed for one in passes])
        fixed = over.iteration + over.microbatch * strategy.microbatches
        return np.asarray(passes * strategy.straggler + shown + fixed)

    def _passes_of(self, priced: list[Priced], point: Point, strategy: Strategy) -> Floats:
        cluster, layout = self.space.question.cluster, point.layout
        both, m, pp = np.stack([one.both for one in priced]), layout.microbatches, layout.pp
        if pp == 1:
            whole = both.sum(axis=1)
            if self.space.batches_by_kind:
                speed = sum(n / one for n, one in zip(replicas_of(cluster, strategy), whole, strict=True))
                return np.asarray(strategy.global_batch / strategy.micro_batch / speed)
            return np.asarray(m * whole.max(axis=0))
        owners = stage_kinds(cluster, strategy)
        counts = np.array([owners.count(kind) for kind in range(len(priced))], dtype=float)
        busy = least_busy(both, counts)
        if layout.schedule != "1f1b":
            return m * busy
        # (1) of pipeline_bound: the first micro batch goes through all stages, wherever its layers are
        share = max(float((one.forward / one.both).max()) for one in priced)
        hops = [
            hand_over(one.table.ground.network, distance, one.table.ground.shard)
            for one in priced
            for distance in (strategy.world // pp, strategy.world - 1)
        ]
        later = (m - 1) - min(m - 1, pp - 1) * max(share, 0.5)
        return np.maximum(m * busy, both.min(axis=0).sum(axis=0) + later * busy + 2 * (pp - 1) * min(hops))

    def _update_of(self, priced: list[Priced], point: Point, strategy: Strategy) -> Update:
        """The least of the kinds', part by part: each is concave in the parameters, and so is the least."""
        key = (point.base, point.layout._replace(schedule="", vpp=1), point.sharding)
        if key not in self._updates:
            found = [mean_update(one.table.ground, strategy, one.whole) for one in priced]
            self._updates[key] = Update(*map(min, zip(*found, strict=True)))
        return self._updates[key]

    def _bytes_of(self, priced: list[Priced], point: Point, choices: Choices, count: int) -> Floats:
        """The limit, times the layers that there are over those that the ranks have room for."""
        question, strategy = self.space.question, self.space.strategy(point)
        cluster, limit = question.cluster, question.memory_limit
        kinds = [_Room(one, strategy, choices, count, limit * memory_share(cluster, one.table.ground.cluster.gpu))
                 for one in priced]  # fmt: skip
        if strategy.pp == 1:
            return np.max([one.whole() / one.limit for one in kinds], axis=0) * limit
        flight = in_flight(point.layout.schedule, strategy.pp, strategy.microbatches).each
        owners = stage_kinds(cluster, strategy)
        rooms = [
            kinds[owner].layers(float(flight[rank]), first=rank == 0, last=rank == strategy.pp - 1)
            for rank, owner in enumerate(owners)
        ]
        most = np.sum(rooms, axis=0)
        lacking = np.min(rooms, axis=0) < 1  # every rank has a layer
        return np.where(lacking | (most <= 0), np.inf, limit * question.model.layers / np.maximum(most, 1e-9))


class _Room:
    """How many layers a rank of one kind has room for, at most."""

    def __init__(self, priced: Priced, strategy: Strategy, choices: Choices, count: int, limit: float) -> None:
        self.table, ground, self.limit = priced.table, priced.table.ground, limit
        self.stretch = 1 + ground.runtime.memory.fragmentation
        rates = rates_of(ground, strategy, priced.whole if strategy.pp == 1 else chunk_of(
            (BlockRun(self.table.main.blocks[0], 1),), 0.0))  # fmt: skip
        several = self.stretch if strategy.microbatches > 1 else 0.0
        self.each = [lasts + several * made for lasts, made in zip(rates.static, rates.gradients, strict=True)]
        blocks = [piece.blocks[0] for piece in self.table.layers]
        self.fixed = buffers_of(ground, blocks) + rates.fixed + self.stretch * rates.gathered
        recipe, some = choices.recipe[:count], ((choices.layers > 0) | choices.mix)[:count]
        self.kept = [np.where(some, np.minimum(piece.kept[0], piece.kept[recipe]), piece.kept[recipe])
                     for piece in self.table.pieces]  # fmt: skip

    def _static(self, piece: int) -> float:
        block = self.table.pieces[piece].blocks[0]
        return self.each[0] * block.params + self.each[1] * block.expert_params

    def whole(self) -> Floats:
        """Bytes of the whole model on one rank."""
        parts = enumerate(self.table.pieces)
        return np.asarray(
            self.fixed + sum(one.number * (self._static(at) + self.stretch * self.kept[at]) for at, one in parts)
        )

    def layers(self, flight: float, *, first: bool, last: bool) -> Floats:
        """Layers that fit beside the ends; any kind of layer may be the leanest."""
        kinds = len(self.table.layers)
        ends = [kinds] if first else []
        ends += range(kinds + 1, kinds + 1 + len(self.table.last)) if last else []
        beside = sum((self._static(at) + self.stretch * flight * self.kept[at] for at in ends), np.zeros(()))
        least = np.min([self._static(at) + self.stretch * flight * self.kept[at] for at in range(kinds)], axis=0)
        return np.asarray(np.floor((self.limit - self.fixed - beside) / least * (1 + 1e-9)))


def _priced(space: Space, table: Table, point: Point, choices: Choices, count: int) -> Priced:
    base, layout, sharding, _ = point
    cell = StageCell(layout.pp, layout.dp, sharding if sharding.zero == 3 else None, folded=False)
    shown = sharded(space, base, table, cell)
    # of blocks and mixes any layer may do without
    recipe = np.where((choices.layers > 0) | choices.mix, 0, choices.recipe)[:count]
    number = np.array([piece.number for piece in table.pieces], dtype=float)[:, None]
    forward = np.array([piece.forward + float(more) for piece, (more, _) in zip(table.pieces, shown, strict=True)])
    back = np.array([(piece.backward + more)[recipe] for piece, (_, more) in zip(table.pieces, shown, strict=True)])
    whole = chunk_of(tuple(BlockRun(piece.blocks[0], piece.number) for piece in table.pieces), 0.0)
    return Priced(table, whole, number * forward[:, None], number * (forward[:, None] + back))


def least_busy(work: Floats, counts: Floats) -> Floats:
    """Seconds that the busiest of so many ranks of each kind takes at least; `work`: [kind, piece, choice].

    With prices p_k >= 0 of a second on kind k, t sum of p_k n_k >= sum over pieces of their cheapest kind: every price
    gives a bound, and with two kinds the ratios at which a piece may change its kind hold the best.
    """
    best = np.zeros(work.shape[2])
    for piece in range(work.shape[1]):
        prices = np.divide(work[0, piece], work[:, piece], out=np.ones_like(work[:, piece]), where=work[:, piece] > 0)
        cheapest = (prices[:, None] * work).min(axis=0).sum(axis=0)
        best = np.maximum(best, cheapest / (prices * counts[:, None]).sum(axis=0))
    return best
