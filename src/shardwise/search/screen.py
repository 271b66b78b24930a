"""Lower bounds on time and memory of every strategy over a base, all at once.

The cost model is asked once for each kind of layer, each end, each update and each parameter's bytes; the rest is
numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shardwise.cost.network import hand_over
from shardwise.estimate.setup import Setup
from shardwise.inputs.recompute import Recompute
from shardwise.search.frame import Frame, Known, frame_of, states_key, whole_step
from shardwise.search.memory_bound import lacking, light, memory, rooms
from shardwise.search.order_bound import Ends, MeanPath, ends_of, least_passes, mean_path
from shardwise.search.pipeline_bound import Pipes, crowded, makespan, mixed_passes, pipes_of
from shardwise.search.question import Base, Layout, Point, ShardingChoice
from shardwise.search.space import Space
from shardwise.search.stage_work import Choices, PricedPieces, Work, choices_of, priced_of, works_of
from shardwise.search.table import (
    Floats,
    QuickTable,
    Table,
    least_seconds,
    recipes_of,
    table_of,
    whole_work,
)

ROUNDED = 1 - 1e-9
"""Sums are taken in another order than the full path takes them: what rounding does to them stays below this."""


ORDERED = ("interleaved",)
"""Orders that are bounded by their paths: of one chunk a rank, closed forms tell as much."""


class ScreenRows(NamedTuple):
    """The strategies over one base, in the order of `Space.points`."""

    base: Base
    seconds: Floats
    """Infinite: no cut fits."""
    bytes: Floats


@dataclass(kw_only=True)
class Screen:
    """Bounds over a space; what bases share is kept."""

    space: Space
    _frames: dict[tuple[object, ...], Frame] = field(default_factory=dict)
    _known: Known = field(default_factory=lambda: Known({}, {}))
    _host_steps: dict[tuple[object, ...], float] = field(default_factory=dict)
    _paths: dict[tuple[object, ...], MeanPath] = field(default_factory=dict)
    """By order of passes."""
    _grounds: dict[Base, Setup] = field(default_factory=dict)
    """Of bases whose rows may come next."""

    @cached_property
    def recomputes(self) -> tuple[Recompute, ...]:
        """Every recompute choice of the space; shorter chunks, and some bases, have some of them."""
        layouts = {layout for base in self.space.bases for layout in self.space.layouts(base)}
        return max((self.space.every_recompute(layout) for layout in sorted(layouts)), key=len)

    @cached_property
    def _quick(self) -> QuickTable:
        return QuickTable(self.space)

    def glance(self, base: Base) -> float:
        """Seconds that all strategies over a base take at least, from its layers alone."""
        return ROUNDED * (least_seconds(self.space.question, base, self._quick.seconds(base)) + self._on_host(base))

    def least(self, base: Base) -> float:
        """The same with the ends."""
        table = table_of(self.space, base)
        self._grounds[base] = table.ground
        return ROUNDED * (least_seconds(self.space.question, base, whole_work(table)) + self._on_host(base))

    def _on_host(self, base: Base) -> float:
        """Seconds of a step on the hosts, all states shared evenly."""
        if base.offload != "optimizer":
            return 0.0
        key = (base.tp, base.grad_dtype, base.optimizer)
        if key not in self._host_steps:
            table = table_of(self.space, base)
            self._host_steps[key] = whole_step(table) / self.space.question.cluster.gpus
        return self._host_steps[key]

    def rows(self, base: Base) -> ScreenRows:
        """Bounds of every strategy over a base."""
        return self.rows_of([base])[0]

    def rows_of(self, bases: Sequence[Base], most: float = float("inf")) -> list[ScreenRows]:
        """The same for several bases: their stages are settled together, which numpy does at the price of one.

        Beyond `most` seconds a bound may be lower than it could be.
        """
        if not bases:
            return []
        recipes = recipes_of(self.recomputes)
        tables = [table_of(self.space, base, recipes, self._grounds.get(base)) for base in bases]
        self._grounds.clear()
        choices = choices_of(tables[0], self.recomputes)
        frames = [self._frame(base, table) for base, table in zip(bases, tables, strict=True)]
        cells = [frame.cells for frame in frames]
        priced = [priced_of(self.space, *each) for each in zip(bases, tables, cells, strict=True)]
        works = works_of(self.space.question.model.depth, tables, priced, cells, choices)
        return [self._rows(*each, choices, most) for each in zip(bases, tables, frames, priced, works, strict=True)]

    def _rows(
        self, base: Base, table: Table, frame: Frame, priced: PricedPieces, work: Work, choices: Choices, most: float
    ) -> ScreenRows:
        question, pipes = self.space.question, self._pipes(table, frame)
        passes = self._passes(pipes, frame, work)[frame.track_of_pair]
        if choices.mix.any():
            freed = lacking(table, frame, choices, question.model.depth, question.memory_limit)
            passes = np.maximum(passes, mixed_passes(pipes, frame, work, freed))
        bytes_ = memory(table, frame, choices, question.model.depth)
        seconds = self._seconds(table, frame, passes)
        may = frame.valid & (seconds < most) & (bytes_ <= question.memory_limit)
        if may.any():
            heavy = question.model.depth - sum(piece.number for piece in light(table))
            for room in rooms(table, frame, choices, question.memory_limit, may):
                at = np.ix_(room.pairs, room.choices)
                passes[at] = np.maximum(passes[at], crowded(pipes, frame, work, room, heavy))
            seconds = self._seconds(table, frame, passes)
        may &= seconds < most
        if most < float("inf") and may.any():
            passes = np.maximum(passes, self._ordered(base, pipes, table, frame, priced, choices, may))
            seconds = self._seconds(table, frame, passes)
        return ScreenRows(base, seconds[frame.valid] * ROUNDED, bytes_[frame.valid] * ROUNDED)

    def _frame(self, base: Base, table: Table) -> Frame:
        key = (*states_key(base), base.micro_batch, base.ep_overlap, base.cuda_graphs)
        if key not in self._frames:
            self._frames[key] = frame_of(self.space, base, table, self.recomputes, self._known)
        return self._frames[key]

    def _seconds(self, table: Table, frame: Frame, passes: Floats) -> Floats:
        """Passes, update and fixed costs: [pair, choice].

        An estimate is s M + max over ranks of R(M) + G(M) + step, with M its makespan, s >= 1 the straggler, and what
        reduction and gathering cost, R(M) = (1 - o) r + max(c o r, o r - w M + v) and G likewise: c is what kernels
        lose beside them, v when links are busy, the same on all ranks. The shares w add up to at most 1
        (cost.update.windows), so it is never less at a larger M: at a lower bound of M it is below the estimate. A
        maximum over ranks is at least the mean, and R and G are convex in r: they are lower at the mean of r.
        """
        overlap, over = table.ground.runtime.overlap, table.ground.runtime.overheads
        room_b, room_f = (np.maximum(0.0, w * passes - v) for w, v in zip(frame.windows, frame.busy, strict=True))
        parts = (overlap.grad_reduce, frame.reduce, room_b), (overlap.param_gather, frame.gather, room_f)
        shown = sum((1 - o) * all_of + np.maximum(frame.taken * o * all_of, o * all_of - r) for o, all_of, r in parts)
        count = np.array([layout.microbatches for layout in frame.layouts])[frame.of_pair][:, None]
        fixed = over.iteration + over.microbatch * count + frame.step
        return np.asarray(passes * self.space.question.base.straggler + shown + fixed)

    def _pipes(self, table: Table, frame: Frame) -> Pipes:
        """Every pipeline of a frame."""
        question, ground = self.space.question, table.ground
        base, near = ground.strategy, ground.strategy.tp * ground.strategy.cp
        far = [question.cluster.gpus // one.pp if base.rank_order == "dp-pp" else near for one in frame.layouts]
        known = {distance: hand_over(ground.network, distance, ground.shard) for distance in dict.fromkeys(far)}
        hops = [known[away] if one.pp > 1 else 0.0 for one, away in zip(frame.layouts, far, strict=True)]
        return pipes_of(frame.layouts, hops, ground.runtime.overlap.p2p)

    def _passes(self, pipes: Pipes, frame: Frame, work: Work) -> Floats:
        """[track, choice]"""
        found = np.empty((len(frame.tracks), frame.valid.shape[1]))
        schedules = np.array([frame.layouts[layout].schedule for layout, _ in frame.tracks])
        for schedule in dict.fromkeys(schedules.tolist()):
            at = np.flatnonzero(schedules == schedule)
            cells = [frame.tracks[track][1] for track in at]
            part = Work(*(array[cells] for array in work))
            found[at] = makespan(schedule, pipes.of([frame.tracks[track][0] for track in at]), part)
        return found

    def _ordered(
        self, base: Base, pipes: Pipes, table: Table, frame: Frame, priced: PricedPieces, choices: Choices,
        may: np.ndarray,
    ) -> Floats:  # fmt: skip
        """The same from the order of passes, where that may tell more: [pair, choice]."""
        found = np.zeros((len(frame.tracks), may.shape[1]))
        for track in np.unique(frame.track_of_pair[may.any(axis=1)]).tolist():
            at, cell = frame.tracks[track]
            layout = frame.layouts[at]
            if layout.schedule in ORDERED:
                hop, shown = float(pipes.hop[at, 0]), float(pipes.shown[at, 0]) / layout.vpp
                path = self._path(base, layout, ends_of(table, priced, cell), hop, shown)
                found[track] = least_passes(path, table, priced, cell, choices, hop, shown)
        return found[frame.track_of_pair]

    def _path(self, base: Base, layout: Layout, ends: Ends, hop: float, shown: float) -> MeanPath:
        key = (layout.schedule, layout.pp, layout.vpp, layout.microbatches, layout.group)
        if key not in self._paths:
            strategy = self.space.strategy(Point(base, layout, ShardingChoice(1, 0), Recompute()))
            self._paths[key] = mean_path(strategy, self.space.question.model.depth, ends, hop, shown)
        return self._paths[key]

    def point(self, base: Base, row: int) -> Point:
        """The strategy behind a row."""
        for layout in self.space.layouts(base):
            shardings, recomputes = self.space.shardings(base, layout), self.space.recomputes(base, layout)
            size = len(shardings) * len(recomputes)
            if row < size:
                place, choice = divmod(row, len(recomputes))
                return Point(base, layout, shardings[place], recomputes[choice])
            row -= size
        raise IndexError(row)
