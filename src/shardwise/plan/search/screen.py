"""Lower bounds on time and memory of every strategy over a base, all at once.

The cost model is asked for each kind of layer, each end, each update and each parameter's bytes once; the rest is numpy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from shardwise.cost.layer import PLAIN
from shardwise.cost.network import send
from shardwise.cost.stage import Run, chunk_of
from shardwise.cost.states import states_of
from shardwise.cost.update import data_groups, update_of
from shardwise.inputs.recompute import Recompute
from shardwise.plan.search import memory_bound
from shardwise.plan.search.pipeline_bound import makespan
from shardwise.plan.search.space import Space
from shardwise.plan.search.table import Floats, Table, least_work, recipes_of, table_of
from shardwise.plan.search.types import Base, Layout, Point, Sharding
from shardwise.plan.search.work import Choices, Work, cells_of, choices_of, work_of


class Rows(NamedTuple):
    """The strategies over one base, in the order of `Space.points`."""

    base: Base
    seconds: Floats
    bytes: Floats


class Update(NamedTuple):
    """What follows the passes, on the mean rank."""

    reduce: float
    gather: float
    step: float


@dataclass(kw_only=True)
class Screen:
    """Bounds over a space; what bases share is kept."""

    space: Space
    _known: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def recomputes(self) -> tuple[Recompute, ...]:
        """Every recompute choice of the space: that of the longest chunk has all."""
        layouts = {layout for base in self.space.bases for layout in self.space.layouts(base)}
        lists = [self.space.recomputes(layout) for layout in sorted(layouts)]
        return max(lists, key=len)

    def least(self, base: Base) -> float:
        """Seconds that all strategies over a base take at least, from one question to the cost model."""
        question = self.space.question
        fixed = question.runtime.overheads.iteration
        return least_work(question, table_of(self.space, base), base) * question.base.straggler + fixed

    def rows(self, base: Base) -> Rows:
        """Bounds of every strategy over a base."""
        space = self.space
        table = table_of(space, base, recipes_of(self.recomputes))
        choices = choices_of(table, self.recomputes)
        cell_of = cells_of(space, base)
        cells = list(dict.fromkeys(cell_of.values()))
        work = work_of(space, base, table, cells, choices)
        place = {cell: index for index, cell in enumerate(cells)}
        buffers = memory_bound.buffers_of(table)
        seconds, bytes_ = [], []
        for layout in space.layouts(base):
            shardings = space.shardings(base, layout)
            own = self._own(layout)
            at = np.array([place[cell_of[layout, sharding]] for sharding in shardings])
            part = Work(*(array[at][:, own] for array in work))
            chosen = Choices(choices.recipe[own], choices.layers[own])
            seconds.append(self._seconds(base, table, layout, shardings, part).ravel())
            rates = [self._rates(base, table, layout, sharding) for sharding in shardings]
            layers = space.question.model.layers
            bytes_.append(memory_bound.memory(table, layout, rates, chosen, layers, buffers).ravel())
        return Rows(base, np.concatenate(seconds), np.concatenate(bytes_))

    def _own(self, layout: Layout) -> np.ndarray:
        """Where a pipeline's recompute choices stand among all."""
        wanted = self.space.recomputes(layout)
        key = ("own", len(wanted))
        if key not in self._known:
            places = {one: index for index, one in enumerate(self.recomputes)}
            self._known[key] = np.array([places[one] for one in wanted])
        found: np.ndarray = self._known[key]
        return found

    def _seconds(
        self, base: Base, table: Table, layout: Layout, shardings: tuple[Sharding, ...], work: Work
    ) -> Floats:
        """Passes, update and fixed costs: [sharding, choice]."""
        question, ground = self.space.question, table.ground
        overlap, over = ground.runtime.overlap, ground.runtime.overheads
        hop = shown = 0.0
        if layout.pp > 1:
            hop = send(ground.network, question.cluster.gpus // layout.pp, ground.shard.hidden)
            shown = hop * (1 - overlap.p2p) * layout.vpp
        passes = makespan(layout, work, question.model.layers, hop, shown)
        updates = [self._update(base, table, layout, sharding) for sharding in shardings]
        reduce, gather, step = (np.array(column)[:, None] for column in zip(*updates, strict=True))
        # a maximum over ranks is at least the mean, and exposed time is convex in what is reduced and in the window
        reduced = np.maximum((1 - overlap.grad_reduce) * reduce, reduce - work.window)
        gathered = np.maximum((1 - overlap.param_gather) * gather, gather - work.window / 2)
        fixed = over.iteration + over.microbatch * layout.microbatches
        return np.asarray(passes * question.base.straggler + reduced + gathered + step + fixed)

    def _update(self, base: Base, table: Table, layout: Layout, sharding: Sharding) -> Update:
        key = ("update", base.tp, base.cp, base.ep, base.etp, layout.pp, layout.dp, sharding)
        if key not in self._known:
            self._known[key] = self._updated(base, table, layout, sharding)
        found: Update = self._known[key]
        return found

    def _updated(self, base: Base, table: Table, layout: Layout, sharding: Sharding) -> Update:
        ground = table.ground
        strategy = self.space.strategy(Point(base, layout, sharding, Recompute()))
        states, groups = states_of(strategy, ground.runtime), data_groups(ground.network, strategy)
        whole = chunk_of(tuple(Run(piece.blocks[0], piece.count) for piece in table.pieces), 0.0)
        mean = whole._replace(params=whole.params / layout.pp, expert_params=whole.expert_params / layout.pp)
        host = self.space.question.cluster.host_bandwidth
        args = (strategy, ground.runtime, states, groups, ground.machine, float("inf"), host)
        # an all-reduce is concave in its bytes: the mean over ranks is then at least that of all on one rank, shared
        top = update_of([whole], *args).reduce / layout.pp if _concave(strategy.zero, sharding) else 0.0
        found = update_of([mean], *args)
        reduce = top if _concave(strategy.zero, sharding) else found.reduce
        return Update(reduce, found.gather, found.optimizer)

    def _rates(self, base: Base, table: Table, layout: Layout, sharding: Sharding) -> memory_bound.Rates:
        key = ("rates", base.tp, base.cp, base.ep, base.etp, layout.pp, layout.dp, sharding, base.single)
        if key not in self._known:
            self._known[key] = memory_bound.rates_of(self.space, base, table, layout, sharding)
        found: memory_bound.Rates = self._known[key]
        return found

    def point(self, base: Base, row: int) -> Point:
        """The strategy behind a row."""
        for layout in self.space.layouts(base):
            shardings, recomputes = self.space.shardings(base, layout), self.space.recomputes(layout)
            size = len(shardings) * len(recomputes)
            if row < size:
                place, choice = divmod(row, len(recomputes))
                return Point(base, layout, shardings[place], recomputes[choice])
            row -= size
        raise IndexError(row)


def _concave(zero: int, sharding: Sharding) -> bool:
    return zero == 0 or sharding.group > 0


__all__ = ["PLAIN", "Rows", "Screen"]
