"""The exact engine: lower bounds of all stages, the best cut under them, and only its stages solved, until it holds.

For every micro batch the stages' lower bounds give a best cut, whose value is a lower bound of every plan. Its stages
are solved exactly, their bounds become their true times, and the best cut is sought again. When a cut is all solved,
no plan within the value under trial is better. That value grows from just above the lower bound until a plan is found.

All of this is reckoned with tables, which never exceed what a plan really takes. The plans met are evaluated for
themselves, those of whole strategies among them, and the best by evaluation is the answer. A stage that takes more
memory than the tables say is solved once more, for less.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from shardwise.errors import InfeasibleError
from shardwise.per_op.answer import (
    Book,
    Deadline,
    OperatorAnswer,
    OutOfTimeError,
    Report,
    Standing,
    nothing_fits,
    silent,
)
from shardwise.per_op.bound import StageBounds, stage_bounds
from shardwise.per_op.cut import Arcs, Flow, cut_of
from shardwise.per_op.evaluate import alike, evaluate
from shardwise.per_op.grid import Grid
from shardwise.per_op.layer_bound import layer_bound, least_work, longest_stage
from shardwise.per_op.question import OperatorQuestion, PerOpPlan, SplitStage
from shardwise.per_op.stage import SolvedStage, Stager, StageTask
from shardwise.per_op.start import Shape, started
from shardwise.per_op.tables import gpu_counts, layouts_of, sample_counts

WIDER = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 4.0, 10.0)
"""How far above the lower bound plans are sought, one try after the other."""
SAME = 1e-12
AHEAD = 1.2
SURVEY = 1.25
"""How far above the plainest bound the first look reaches."""
REPAIRS = 4
"""How often a plan is solved anew for less memory."""
LEANER = (0.98, 0.95, 0.9, 0.8, 0.65)
"""Shares of the memory, one after the other, for which plans are sought where none fits."""
NEAR = 1.3
"""A plan so near to that is the end of the first look: no second one is needed."""


@dataclass(slots=True)
class _Trial:
    """One micro batch: its bounds so far."""

    samples: int
    bound: float
    work: np.ndarray
    """The fewest GPU seconds of every operator."""
    longest: float
    """Seconds that no stage exceeds."""
    pace: Flow
    beside: float
    """Seconds beside the stages."""
    done: float = 0.0
    """All plans up to this value have been looked at."""
    cap: float = 0.0
    grid: Grid | None = None

    def limit(self, value: float) -> float:
        """Seconds that a stage may take in a plan of so many; never more than any stage can."""
        return min((value - self.beside) / self.pace.passes, self.longest)


class ExactSearch:
    """One search; holds what was solved."""

    def __init__(
        self,
        question: OperatorQuestion,
        limit: float = float("inf"),
        keep: int = 8,
        report: Report = silent,
        known: tuple[PerOpPlan, ...] = (),
    ) -> None:
        self.question = question
        self.deadline = Deadline(limit)
        self.stager = Stager(question, deadline=self.deadline)
        self.solved: dict[StageTask, SolvedStage] = {}
        self.book = Book(question, keep)
        self.known = known
        self.report = report
        self.interrupted = self.missed = False
        self.trials: list[_Trial] = []

    def run(self) -> OperatorAnswer:
        self.trials = [
            trial for size in sample_counts(self.question) if np.isfinite((trial := self._trial(size)).bound)
        ]
        if not self.trials:
            raise InfeasibleError(nothing_fits(self.question))
        complete = self._watched()
        if not self.book.plans:
            if not complete:
                self.deadline.check()
            self._leaner()
        if not self.book.plans:
            raise InfeasibleError(nothing_fits(self.question, proven=not self.missed))
        return OperatorAnswer(
            question=self.question, plan=self.book.plans[0][1], bound=self.bound,
            cost=evaluate(self.question, self.book.plans[0][1]),
            others=tuple(other for _, other in self.book.plans[1:]), solved=len(self.solved),
            cpu_seconds=self.deadline.used, complete=complete, interrupted=self.interrupted,
            diary=tuple(self.book.diary),
        )  # fmt: skip

    def _leaner(self) -> None:
        """Nothing that fits by the tables fits: seek what takes less by them, in the same book."""
        for share in LEANER if self.missed else ():
            other = ExactSearch(replace(self.question, memory=share * self.question.memory), self.deadline.left)
            other.book, other.trials = self.book, [other._trial(trial.samples) for trial in self.trials]
            with suppress(InfeasibleError):
                other._watched()
            if self.book.plans:
                return

    def _watched(self) -> bool:
        """Whether the search came to its end; Ctrl-C with a plan in hand ends it early."""
        try:
            self._start()
            self._survey()
            return self._widen()
        except OutOfTimeError:
            return False
        except KeyboardInterrupt:
            if not self.book.plans:
                raise
            self.interrupted = True
            return False

    def _start(self) -> None:
        """Equal stages, balanced: a plan within a second, for the case that there is not time for more."""
        for plan in self.known or started(self.question, self.deadline):
            self.book.keep(plan)
        self.book.note(f"equal stages, balanced: {self.book.standing()}")
        self._tell()
        for trial in self.trials:
            self.deadline.check()
            trial.bound = max(trial.bound, layer_bound(self.question, trial.samples))
        if not self.book.plans and not np.isfinite(self.bound):
            raise InfeasibleError(nothing_fits(self.question))
        self.book.note(f"whole layers that stages can hold: no plan is below {self.bound:.4f} s")
        self._tell()

    @property
    def bound(self) -> float:
        """No plan of the space is below."""
        return min(self.book.best, *(trial.bound for trial in self.trials))

    def _tell(self) -> None:
        self.report(
            Standing(best=self.book.plans[0][0] if self.book.plans else None, bound=self.bound, solved=len(self.solved))
        )

    def sketch(self, near: float = 0.05) -> list[Shape]:
        """Micro batch, GPUs and ends of the best cuts under the bounds alone, for micro batches near the best bound."""
        trials = [self._trial(size) for size in sample_counts(self.question)]
        self.trials = trials = [trial for trial in trials if np.isfinite(trial.bound)]
        self._survey()
        found: list[Shape] = []
        for wider in WIDER:
            least = min((trial.bound for trial in trials), default=0.0)
            for trial in trials:
                if trial.bound <= (1 + near) * least:
                    found += self._sketched(trial, (1 + wider) * trial.bound)
            if found:
                break
        return found

    def _sketched(self, trial: _Trial, value: float) -> list[Shape]:
        limit, lasts = trial.limit(value), self.question.stage_range
        grid = self._grid(trial, limit)
        backs = self._root(trial, grid, limit, value, lasts) if grid is not None else None
        if grid is None or backs is None:
            trial.bound = max(trial.bound, value)
            return []
        arcs = grid.arcs(limit, value - trial.beside, lasts, *backs)
        cuts = [cut_of(arcs, arc) for arc in trial.pace.best_path(arcs)[1]]
        return [(trial.samples, tuple(c.gpus for c in cuts), tuple(c.end for c in cuts))] if cuts else []

    def _widen(self) -> bool:
        """Look for plans ever further above the bound; whether the search came to its end."""
        trials = self.trials
        for wider in WIDER:
            value = min(self.book.best, (1 + wider) * min(max(trial.bound, trial.done) for trial in trials))
            for trial in sorted(trials, key=lambda item: (item.bound, item.samples)):
                self.deadline.check()
                self._look(trial, min(value, self.book.best))
                self._tell()
            if self.book.plans and all(
                trial.bound >= self.book.best * (1 - SAME) or trial.done >= self.book.best for trial in trials
            ):
                return True
        return True

    def _survey(self) -> None:
        """A first look at every micro batch, for a bound that knows memory; its tables serve later looks too."""
        for trial in sorted(self.trials, key=lambda item: (item.bound, item.samples)):
            self.deadline.check()
            least = min(item.bound for item in self.trials)
            value = SURVEY * max(trial.bound, least)
            value = self.book.best if self.book.best <= NEAR * value else value
            if trial.bound >= value:
                continue
            limit = trial.limit(value)
            grid = self._grid(trial, limit)
            found = self._root(trial, grid, limit, value, self.question.stage_range) if grid else None
            if found is None:
                trial.bound = max(trial.bound, value)

    def _trial(self, samples: int) -> _Trial:
        pricing, passes = self.question.pricing, self.question.passes(samples)
        work = least_work(self.question, samples)
        return _Trial(
            samples,
            pricing.beside(passes) + passes * float(work.sum()) / self.question.gpus,
            work,
            longest_stage(self.question, samples),
            pricing.pace(passes),
            pricing.beside(passes),
        )

    def _look(self, trial: _Trial, value: float) -> None:
        """Look at all plans of a micro batch up to a value."""
        if trial.bound >= value * (1 - SAME) or trial.done >= value:
            return
        limit = trial.limit(value)
        grid = self._grid(trial, limit)
        lasts = self.question.stage_range
        backs = self._root(trial, grid, limit, value, lasts) if grid is not None else None
        if grid is None or backs is None:
            trial.done = value
            trial.bound = max(trial.bound, value)
            return
        arcs = grid.arcs(limit, value * (1 + SAME) - trial.beside, lasts, *backs)
        before = len(self.solved)
        bound = self._refine(trial, arcs, value, limit)
        trial.done = max(trial.done, value)
        trial.bound = max(trial.bound, min(bound, value))
        self.book.note(
            f"micro batches of {trial.samples} samples, plans up to {value:.4f} s: {len(arcs.node):,} stages may be in "
            f"one, {len(self.solved) - before} solved; bound {trial.bound:.4f} s, {self.book.standing()}"
        )

    def _grid(self, trial: _Trial, cap: float) -> Grid | None:
        if trial.grid is not None and trial.cap >= cap:
            return trial.grid
        most = self.question.stage_range[-1] if len(self.question.stage_range) else 0
        cap = cap if trial.grid is None else AHEAD * cap  # asked for again: look ahead, to be asked less often
        bounds: list[StageBounds] = []
        for gpus in gpu_counts(self.question):
            made = stage_bounds(self.question, trial.samples, gpus, most, cap, self.deadline)
            bounds += [made] if made else []
        trial.cap = cap
        trial.grid = (
            Grid(self.question, bounds, most, trial.work, trial.pace, self.deadline) if bounds and most else None
        )
        return trial.grid

    def _root(
        self, trial: _Trial, grid: Grid, limit: float, value: float, lasts: range
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Raise the bound by the best cut under the stage bounds; none: no plan is left below the value."""
        sources = (list(lasts), self.question.gpus, 0)
        worst, total = grid.backward(limit)
        least = trial.beside + float(trial.pace.least(worst[sources], total[sources]).min())
        trial.bound = max(trial.bound, min(least, value))
        return (worst, total) if least <= value else None

    def _refine(self, trial: _Trial, arcs: Arcs, value: float, limit: float) -> float:
        """Solve the stages of the best cut until it is all solved; the bound that is left."""
        tasks = self._known(trial, arcs, limit)
        bound = 0.0
        while True:
            bound, path = trial.pace.best_path(arcs)
            bound += trial.beside
            trial.bound = max(trial.bound, min(bound, value))
            if not path or bound >= min(value, self.book.best) * (1 - SAME):
                return max(bound, min(value, self.book.best))
            fresh = [arc for arc in path if arcs.key[arc] not in tasks]
            for arc in fresh:
                self._solve(trial, arcs, arc, limit, tasks)
            found = [self.solved[tasks[arcs.key[arc]]] for arc in path]
            if all(np.isfinite(stage.seconds) for stage in found):
                self._keep(trial, arcs, path, found)
            self._tell()
            if not fresh:
                return bound

    def _keep(self, trial: _Trial, arcs: Arcs, path: list[int], found: list[SolvedStage]) -> None:
        """Keep the plan; where a stage holds more than the tables say, with that stage solved for less."""
        less = [0.0] * len(path)
        for _ in range(REPAIRS):
            cost = self.book.keep(self._plan(trial, arcs, path, found))
            over = [(memory - self.question.memory) / self.question.memory_factor for memory in cost.memory]
            if max(over) <= 0:
                return
            self.missed = True
            for index, more in enumerate(over):
                if more > 0:
                    less[index] += 1.02 * more
                    task = self._task(trial, arcs, path[index])
                    found[index] = self.stager.solve(task, found[index].seconds, trial.longest, less[index])
            if not all(np.isfinite(stage.seconds) for stage in found):
                return

    def _known(self, trial: _Trial, arcs: Arcs, limit: float) -> dict[int, StageTask]:
        """Stages that an earlier look has solved keep their times."""
        tasks: dict[int, StageTask] = {}
        if not self.solved:
            return tasks
        _, where = np.unique(arcs.key, return_index=True)
        for arc in where:
            task = self._task(trial, arcs, int(arc))
            known = self.solved.get(task)
            if known is None:
                continue
            arcs.seconds[arcs.key[arc]] = max(known.lower, arcs.seconds[arcs.key[arc]])
            if np.isfinite(known.seconds) or known.lower >= limit:
                tasks[arcs.key[arc]] = task
        return tasks

    def _task(self, trial: _Trial, arcs: Arcs, arc: int) -> StageTask:
        cut = cut_of(arcs, arc)
        first, end = self.question.chain.fold(cut.first, cut.end)
        behind = alike(self.question, cut.behind, trial.samples)
        return StageTask(first, end, cut.gpus, behind, cut.crossing, trial.samples)

    def _solve(self, trial: _Trial, arcs: Arcs, arc: int, limit: float, tasks: dict[int, StageTask]) -> None:
        task = self._task(trial, arcs, arc)
        key = arcs.key[arc]
        found = self.stager.solve(task, float(arcs.seconds[key]), limit)
        self.solved[task] = found
        tasks[key] = task
        arcs.seconds[key] = max(found.lower, arcs.seconds[key]) if np.isfinite(found.seconds) else np.inf
        if not np.isfinite(found.seconds) and found.lower < limit:  # labels were dropped: only a bound is known
            arcs.seconds[key] = max(found.lower, 0.0)

    def _plan(self, trial: _Trial, arcs: Arcs, path: list[int], found: list[SolvedStage]) -> PerOpPlan:
        stages = []
        for arc, stage in zip(path, found, strict=True):
            gpus = int(arcs.gpus[arc])
            layouts = layouts_of(self.question, trial.samples, gpus)
            stages.append(
                SplitStage(
                    gpus=gpus,
                    layouts=tuple(layouts[index] for index in stage.layouts),
                    recompute=tuple(bool(flag) for flag in stage.recompute),
                )
            )
        return PerOpPlan(stages=tuple(stages), samples=trial.samples)


def search(
    question: OperatorQuestion,
    limit: float = float("inf"),
    keep: int = 8,
    report: Report = silent,
    known: tuple[PerOpPlan, ...] = (),
) -> OperatorAnswer:
    """The best plan of the space, with a bound; `limit` in CPU seconds ends the search early.

    `known`: plans to begin with; they may have other numbers of stages than the question asks for.
    """
    return ExactSearch(question, limit, keep, report, known).run()
