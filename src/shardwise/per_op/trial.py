"""All plans with one micro batch: the bounds of their stages, and the cuts into stages that are still worth a look."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.per_op.answer import Deadline
from shardwise.per_op.bound import stage_bounds
from shardwise.per_op.chain import Array
from shardwise.per_op.cut import Arcs, StageCut, cut_of
from shardwise.per_op.evaluate import alike
from shardwise.per_op.grid import Grid
from shardwise.per_op.layer_bound import layer_bound, least_work, longest_stage
from shardwise.per_op.question import OperatorQuestion, PerOpPlan, SplitStage
from shardwise.per_op.stage import SolvedStage, StageTask
from shardwise.per_op.stages import CROSSED, StageBook
from shardwise.per_op.tables import gpu_counts, layouts_of

AHEAD = 1.2
"""Bounds that are asked for again reach so much further, to be asked for less often."""
SAME = 1e-12


class Trial:
    """One micro batch; its `bound` holds for all of its plans and rises as more is known."""

    def __init__(self, question: OperatorQuestion, samples: int, book: StageBook, deadline: Deadline) -> None:
        self.question, self.samples, self.book, self.deadline = question, samples, book, deadline
        pricing, passes = question.pricing, question.passes(samples)
        self.work = least_work(question, samples)
        """The fewest GPU seconds of every operator."""
        self.longest = longest_stage(question, samples)
        self.pace, self.beside = pricing.pace(passes), pricing.beside(passes)
        self.bound = self.beside + passes * float(self.work.sum()) / question.gpus
        self.surveyed = self.closed = False
        """Whether the bounds of stages are in its own; whether nothing more can be known of it."""
        self.opened = 0.0
        """The plans up to this value are in `cuts`."""
        self.cuts: Cuts | None = None
        self.tries = 0
        """How often it was opened for more."""
        self._cap = 0.0
        self._bounds: Grid | None = None

    def limit(self, value: float) -> float:
        """Seconds that a stage may take in a plan of so many; never more than any stage can."""
        return min((value - self.beside) / self.pace.passes, self.longest)

    def count_layers(self) -> None:
        """A bound of whole layers, which costs nothing in depth."""
        self.bound = max(self.bound, layer_bound(self.question, self.samples))

    def survey(self, value: float) -> tuple[Grid, Array, Array] | None:
        """Raise the bound by the best cut under the bounds of stages; none: no plan is below the value."""
        limit, self.surveyed = self.limit(value), True
        grid = self._grid(limit)
        if grid is not None:
            worst, total = grid.backward(limit)
            sources = (list(self.question.stage_range), self.question.gpus, 0)
            least = self.beside + float(self.pace.least(worst[sources], total[sources]).min())
            self.bound = max(self.bound, min(least, value))
            if least <= value:
                return grid, worst, total
        self.bound = max(self.bound, value)
        return None

    def _grid(self, cap: float) -> Grid | None:
        if self._bounds is not None and self._cap >= cap:
            return self._bounds
        most = self.question.stage_range[-1] if len(self.question.stage_range) else 0
        cap = cap if self._bounds is None else AHEAD * cap
        made = [stage_bounds(self.question, self.samples, gpus, most, cap, self.deadline)
                for gpus in gpu_counts(self.question)]  # fmt: skip
        bounds = [own for own in made if own]
        self._cap = cap
        self._bounds = (
            Grid(self.question, bounds, most, self.work, self.pace, self.deadline) if bounds and most else None
        )
        return self._bounds

    def open(self, value: float) -> Cuts | None:
        """All cuts whose bound is within the value; none: there are none."""
        found = self.survey(value)
        self.opened, self.cuts = value, None
        if found is not None:
            grid, limit = found[0], self.limit(value)
            reach = value * (1 + SAME) - self.beside
            self.cuts = Cuts(self, grid.arcs(limit, reach, self.question.stage_range, *found[1:]), limit)
        return self.cuts


@dataclass(slots=True, kw_only=True)
class CutPath:
    """A cut into stages."""

    value: float
    """Seconds of an iteration by what is known of its stages."""
    arcs: list[int]


class Cuts:
    """The cuts of one trial up to some value, and what is known of their stages."""

    def __init__(self, trial: Trial, arcs: Arcs, limit: float) -> None:
        self.trial, self.arcs, self.limit, self.book = trial, arcs, limit, trial.book
        self.levels = np.zeros(len(arcs.seconds), dtype=int)
        self.reached = np.full(len(arcs.seconds), np.inf)
        """Seconds of the best choice that is known, by distinct stage; `arcs.seconds` is what none is below."""
        self._take_known()

    def __len__(self) -> int:
        return len(self.arcs.node)

    def _take_known(self) -> None:
        _, where = np.unique(self.arcs.key, return_index=True)
        for arc in where if len(self.book) else ():
            task = self.task(int(arc))
            if task in self.book.known:
                self._write(int(arc), task)

    def _write(self, arc: int, task: StageTask) -> None:
        key, known = self.arcs.key[arc], self.book.known[task]
        self.levels[key], self.reached[key] = self.book.level(task, self.limit), known.seconds
        never = known.lower >= self.limit and not np.isfinite(known.seconds)
        self.arcs.seconds[key] = np.inf if never else max(known.lower, self.arcs.seconds[key])

    def least(self) -> CutPath:
        """The cut that nothing is below."""
        return self._path()

    def likely(self) -> CutPath:
        """The cut that promises most: a stage nobody has looked at is taken to be above its bound as others are."""
        lower, seen = self.arcs.seconds, self.levels >= CROSSED
        known = seen & np.isfinite(self.reached) & (lower > 0)
        above = float(np.median(self.reached[known] / lower[known])) if known.any() else 1.01
        self.arcs.seconds = np.where(seen, self.reached, lower * above)
        try:
            return self._path()
        finally:
            self.arcs.seconds = lower

    def _path(self) -> CutPath:
        value, path = self.trial.pace.best_path(self.arcs)
        return CutPath(value=value + self.trial.beside, arcs=path)

    def level(self, path: CutPath) -> int:
        """Of the stage that is known least."""
        return int(self.levels[self.arcs.key[path.arcs]].min())

    def raise_to(self, path: CutPath, level: int) -> None:
        """Look at the stages of a path that were not looked at so hard."""
        for arc in path.arcs:
            key, task = self.arcs.key[arc], self.task(arc)
            if self.levels[key] < level:
                self.book.raised(task, level, float(self.arcs.seconds[key]), self.limit)
                self._write(arc, task)

    def task(self, arc: int) -> StageTask:
        cut, question, samples = self.cut(arc), self.trial.question, self.trial.samples
        first, end = question.chain.fold(cut.first, cut.end)
        return StageTask(first, end, cut.gpus, alike(question, cut.behind, samples), cut.crossing, samples)

    def cut(self, arc: int) -> StageCut:
        return cut_of(self.arcs, arc)

    def stages(self, path: CutPath) -> list[SolvedStage] | None:
        """The choices of a path; none: not all of its stages have one."""
        found = [self.book.known.get(self.task(arc)) for arc in path.arcs]
        good = [stage for stage in found if stage is not None and np.isfinite(stage.seconds)]
        return good if len(good) == len(found) else None

    def plan(self, path: CutPath, stages: list[SolvedStage]) -> PerOpPlan:
        made = []
        for arc, stage in zip(path.arcs, stages, strict=True):
            gpus = int(self.arcs.gpus[arc])
            layouts = layouts_of(self.trial.question, self.trial.samples, gpus)
            made.append(
                SplitStage(
                    gpus=gpus,
                    layouts=tuple(layouts[index] for index in stage.layouts),
                    recompute=tuple(bool(flag) for flag in stage.recompute),
                )
            )
        return PerOpPlan(stages=tuple(made), samples=self.trial.samples)
