"""Lower bounds on every strategy over a base where the GPUs are of several kinds.

A layer takes a_k seconds on kind k. However layers are shared, the busiest of n_k stages of each kind takes at least
the value of

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
from shardwise.cost.update import Beside, Update, beside_of, data_groups, hidden
from shardwise.estimate.setup import memory_share
from shardwise.inputs.mixed import Mixed, kinds_of, replicas_of, stage_kinds, whole_kinds
from shardwise.inputs.strategy import Strategy
from shardwise.search.frame import buffers_of, in_flight, mean_update, rates_of
from shardwise.search.question import Base, Point
from shardwise.search.screen import ROUNDED, Screen, ScreenRows
from shardwise.search.space import Space
from shardwise.search.stage_work import Choices, StageCell, choices_of, sharded
from shardwise.search.table import Floats, QuickTable, Table, recipes_of, table_of

HALVINGS = 30


def screen_of(space: Space) -> Screen:
    """The bounds of a space."""
    return MixedScreen(space=space) if isinstance(space.question.cluster, Mixed) else Screen(space=space)


class PricedKind(NamedTuple):
    """One kind of GPU: seconds of every piece of the model there, [piece, choice], all of a piece together."""

    table: Table
    whole: Chunk
    forward: Floats
    both: Floats
    layer: Floats
    """Seconds of one layer of the shortest kind, by choice."""
    again: Floats
    """What a recomputed layer takes more at least, where the first N of a stage are."""
    block: Floats
    """N; 0: all layers are alike."""
    first: Floats
    """Of what the first stage has beside layers."""
    last: Floats


@dataclass(kw_only=True)
class MixedScreen(Screen):
    """Bounds over a space whose cluster is mixed."""

    _updates: dict[tuple[object, ...], tuple[Update, Beside]] = field(default_factory=dict)

    @cached_property
    def kinds(self) -> tuple[Space, ...]:
        """The same questions as if all GPUs were of one kind."""
        question = self.space.question
        return tuple(Space(question=replace(question, cluster=kind)) for kind in whole_kinds(question.cluster))

    @cached_property
    def _looks(self) -> list[QuickTable]:
        return [QuickTable(space) for space in self.kinds]

    def glance(self, base: Base) -> float:
        return self._shared(base, np.array([[look.seconds(base)] for look in self._looks]))

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

    def rows_of(self, bases: Sequence[Base], most: float = float("inf")) -> list[ScreenRows]:
        del most  # bounds are all alike
        return [self._rows_over(base) for base in bases]

    def _rows_over(self, base: Base) -> ScreenRows:
        recipes = recipes_of(self.recomputes)
        tables = [table_of(space, base, recipes) for space in self.kinds]
        choices = choices_of(tables[0], self.recomputes)
        seconds, bytes_ = [], []
        for layout in self.space.layouts(base):
            own = [self.recomputes.index(one) for one in self.space.recomputes(base, layout)]
            for sharding in self.space.shardings(base, layout):
                point = Point(base, layout, sharding, self.recomputes[own[0]])
                pairs = zip(self.kinds, tables, strict=True)
                priced = [_priced(space, table, point, choices, max(own) + 1) for space, table in pairs]
                rooms = self._rooms(priced, point, choices)
                seconds.append(self._seconds_of(priced, point, rooms)[own])
                bytes_.append(self._bytes_of(rooms)[own])
        return ScreenRows(base, np.concatenate(seconds) * ROUNDED, np.concatenate(bytes_) * ROUNDED)

    def _seconds_of(self, priced: list[PricedKind], point: Point, rooms: Floats) -> Floats:
        strategy, runtime = self.space.strategy(point), priced[0].table.ground.runtime
        update, beside = self._update_of(priced, point, strategy)
        passes = self._replicas(priced, strategy) if strategy.pp == 1 else self._stages(priced, strategy, rooms)
        shown = np.array([hidden(update, beside, strategy, runtime, float(one)).exposed for one in passes])
        fixed = self.space.question.runtime.overheads.beside(strategy.microbatches, strategy.zero)
        return np.asarray(passes * strategy.straggler + shown + fixed)

    def _replicas(self, priced: list[PricedKind], strategy: Strategy) -> Floats:
        whole = [one.both.sum(axis=0) for one in priced]
        if not self.space.batches_by_kind:
            return np.asarray(strategy.microbatches * np.max(whole, axis=0))
        replicas = replicas_of(self.space.question.cluster, strategy)
        speed = sum(n / one for n, one in zip(replicas, whole, strict=True))
        return np.asarray(strategy.global_batch / strategy.micro_batch / speed)

    def _stages(self, priced: list[PricedKind], strategy: Strategy, rooms: Floats) -> Floats:
        owners, m, pp = stage_kinds(self.space.question.cluster, strategy), strategy.microbatches, strategy.pp
        counts = np.array([owners.count(kind) for kind in range(len(priced))], dtype=float)
        busy = least_busy(np.stack([one.both for one in priced]), counts)
        if strategy.schedule != "1f1b":
            return m * busy
        layer = np.stack([one.layer for one in priced])[list(owners)]
        ends = np.zeros_like(layer)
        ends[0], ends[-1] = priced[owners[0]].first, priced[owners[-1]].last
        again = np.stack([one.again for one in priced])[list(owners)]
        blocks = Blocks(layer, again, priced[0].block)
        busy = np.maximum(busy, least_slowest(blocks, ends, rooms, self.space.question.model.depth))
        # (1) of pipeline_bound: the first micro batch goes through all stages, wherever its layers are
        share = max(0.5, *(float((one.forward / one.both).max()) for one in priced))
        hops = [
            hand_over(one.table.ground.network, distance, one.table.ground.shard)
            for one in priced
            for distance in (strategy.world // pp, strategy.world - 1)
        ]
        later = (m - 1) - min(m - 1, pp - 1) * share
        once = self._once(layer, ends, busy, later) + 2 * (pp - 1) * min(hops)
        return np.maximum(m * busy, once + later * busy)

    def _once(self, layer: Floats, ends: Floats, busy: Floats, later: float) -> Floats:
        """Seconds of one micro batch on all stages, if none takes longer than `busy`: the fastest kind has as many
        layers as it can. A slower slowest stage lets it have more, which may be worth it where micro batches are few.
        """
        layers = float(self.space.question.model.depth)
        fast = layer.min(axis=0)
        others = np.where(layer > fast, layer, np.inf).min(axis=0)
        more = np.where(np.isfinite(others), others, fast) - fast
        quick = layer == fast
        gained = (quick * more / fast).sum(axis=0)
        most = np.minimum(layers, (quick * np.maximum(busy - ends, 0.0) / fast).sum(axis=0))
        most = np.where(gained <= later, most, layers)
        return np.asarray(layers * fast + (layers - most) * more + ends.sum(axis=0))

    def _update_of(self, priced: list[PricedKind], point: Point, strategy: Strategy) -> tuple[Update, Beside]:
        """The least of the kinds', part by part: each is concave in the parameters, and so is the least; and what it
        meets behind the passes at least, whatever these send.
        """
        key = (point.base, point.layout._replace(schedule="", vpp=1), point.sharding)
        if key not in self._updates:
            found = [mean_update(one.table.ground, strategy, one.whole) for one in priced]
            groups = [data_groups(one.table.ground.network, strategy) for one in priced]
            taken = min(beside_of(one, strategy, 0.0, 0.0).taken for one in groups)
            self._updates[key] = Update(*map(min, zip(*found, strict=True))), Beside(taken)
        return self._updates[key]

    def _rooms(self, priced: list[PricedKind], point: Point, choices: Choices) -> Floats:
        """Layers that every rank has room for at most, [rank, choice]."""
        question, strategy = self.space.question, self.space.strategy(point)
        cluster, limit = question.cluster, question.memory_limit
        limits = [limit * memory_share(cluster, one.table.ground.cluster.gpu) for one in priced]
        kinds = [_Room(one, strategy, choices, own) for one, own in zip(priced, limits, strict=True)]
        if strategy.pp == 1:
            return np.asarray(np.min([one.whole(question.model.depth) for one in kinds], axis=0, keepdims=True))
        flight = in_flight(strategy.schedule, strategy.pp, strategy.microbatches).each
        return np.stack([
            kinds[owner].layers(float(flight[rank]), first=rank == 0, last=rank == strategy.pp - 1)
            for rank, owner in enumerate(stage_kinds(cluster, strategy))
        ])  # fmt: skip

    def _bytes_of(self, rooms: Floats) -> Floats:
        """The limit, times the layers that there are over those that the ranks have room for."""
        most, question = rooms.sum(axis=0), self.space.question
        # every rank has a layer; those that cannot are too large by as much as they lack room for one
        short = 3.0 - rooms.min(axis=0)
        shares = np.where(short > 2.0, short, question.model.depth / np.maximum(most, 1.0))
        return np.asarray(question.memory_limit * shares)


class _Room:
    """How many layers a rank of one kind has room for, at most."""

    def __init__(self, priced: PricedKind, strategy: Strategy, choices: Choices, limit: float) -> None:
        self.table, ground, self.limit = priced.table, priced.table.ground, limit
        self.stretch = 1 + ground.runtime.memory.fragmentation
        rates = rates_of(ground, strategy, priced.whole if strategy.pp == 1 else chunk_of(
            (BlockRun(self.table.main.blocks[0], 1),), 0.0))  # fmt: skip
        several = self.stretch if strategy.microbatches > 1 else 0.0
        self.each = [lasts + several * made for lasts, made in zip(rates.static, rates.gradients, strict=True)]
        blocks = [piece.blocks[0] for piece in self.table.layers]
        self.fixed = buffers_of(ground, blocks) + rates.fixed + self.stretch * rates.gathered
        count = priced.both.shape[1]
        recipe, some = choices.recipe[:count], ((choices.layers > 0) | choices.mix)[:count]
        self.kept = [np.where(some, np.minimum(piece.kept[0], piece.kept[recipe]), piece.kept[recipe])
                     for piece in self.table.pieces]  # fmt: skip

    def _static(self, piece: int) -> float:
        block = self.table.pieces[piece].blocks[0]
        return self.each[0] * (block.params - block.frozen) + self.each[1] * block.expert_params

    def whole(self, layers: int) -> Floats:
        """The share of all layers that one rank has room for."""
        parts = enumerate(self.table.pieces)
        need = sum(one.number * (self._static(at) + self.stretch * self.kept[at]) for at, one in parts)
        return np.asarray(layers * self.limit / (self.fixed + need))

    def layers(self, flight: float, *, first: bool, last: bool) -> Floats:
        """Layers that fit beside the ends; any kind of layer may be the leanest."""
        kinds = len(self.table.layers)
        ends = [kinds] if first else []
        ends += range(kinds + 1, kinds + 1 + len(self.table.last)) if last else []
        beside = sum((self._static(at) + self.stretch * flight * self.kept[at] for at in ends), np.zeros(()))
        least = np.min([self._static(at) + self.stretch * flight * self.kept[at] for at in range(kinds)], axis=0)
        return np.asarray(np.floor((self.limit - self.fixed - beside) / least * (1 + 1e-9)))


def _priced(space: Space, table: Table, point: Point, choices: Choices, count: int) -> PricedKind:
    base, layout, sharding, _ = point
    cell = StageCell(layout.pp, layout.dp, sharding if sharding.zero == 3 else None, folded=False)
    shown = sharded(space, base, table, cell)
    # of blocks and mixes any layer may do without
    recipe = np.where((choices.layers > 0) | choices.mix, 0, choices.recipe)[:count]
    number = np.array([piece.number for piece in table.pieces], dtype=float)[:, None]
    forward = np.array([piece.forward + float(more) for piece, (more, _) in zip(table.pieces, shown, strict=True)])
    back = np.array([(piece.backward + more)[recipe] for piece, (_, more) in zip(table.pieces, shown, strict=True)])
    whole = chunk_of(tuple(BlockRun(piece.blocks[0], piece.number) for piece in table.pieces), 0.0)
    both, kinds = number * (forward[:, None] + back), len(table.layers)
    extra = [(piece.backward[choices.recipe] - piece.backward[0])[:count] for piece in table.layers]
    block = choices.layers[:count]
    return PricedKind(
        table, whole, number * forward[:, None], both, (both / number)[:kinds].min(axis=0),
        np.maximum(np.min(extra, axis=0), 0.0) * (block > 0), block, both[kinds], both[kinds + 1 :].sum(axis=0),
    )  # fmt: skip


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


class Blocks(NamedTuple):
    """Seconds of a layer, what a recomputed one takes more, and how many of a stage's first are: [rank, choice]."""

    layer: Floats
    again: Floats
    first: Floats

    def within(self, seconds: Floats) -> Floats:
        """Layers that take no longer."""
        whole = self.layer + self.again
        long, short = (seconds - self.first * self.again) / self.layer, seconds / whole
        return np.asarray(np.floor(np.where(seconds >= self.first * whole, long, short) * (1 + 1e-9)))


def least_slowest(blocks: Blocks, ends: Floats, rooms: Floats, layers: int) -> Floats:
    """Seconds that the slowest stage takes at least, by choice, where layers are whole and every rank has room for some
    only; arrays are [rank, choice].
    """
    low, high = np.zeros(ends.shape[1]), ((blocks.layer + blocks.again) * layers + ends).max(axis=0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        held = np.minimum(blocks.within(middle - ends), rooms)
        enough = (held.min(axis=0) >= 1) & (held.sum(axis=0) >= layers)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return low
