"""The search: one for every question, with a plan and a bound from the first second on.

Equal stages, balanced, are the first plans. Then every micro batch gets the lower bounds of all of its stages, and the
best cut under them is a lower bound of all of its plans. Plans come from the cuts that promise most: their stages are
solved in a moment, and harder the longer they stay in front. The bound rises as the stages of the cut that nothing is
below are solved, until it meets the best plan or the time is over.

All of this is reckoned with tables, which never exceed what a plan really takes. The plans met are evaluated for
themselves, those of whole strategies among them, and the best by evaluation is the answer. A stage that takes more
memory than the tables say is solved once more, for less.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from shardwise.errors import InfeasibleError
from shardwise.per_op.answer import (
    Book,
    Deadline,
    NothingFoundError,
    OperatorAnswer,
    OutOfTimeError,
    Report,
    Standing,
    nothing_fits,
    silent,
)
from shardwise.per_op.coarse import coarse_plans
from shardwise.per_op.evaluate import evaluate
from shardwise.per_op.question import OperatorQuestion, PerOpPlan
from shardwise.per_op.stages import ALL, CROSSED, SOME, StageBook
from shardwise.per_op.start import started
from shardwise.per_op.tables import sample_counts
from shardwise.per_op.trial import SAME, CutPath, Cuts, Trial

WIDER = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 4.0, 10.0)
"""How far above the lower bound plans are sought, one try after the other."""
SURVEY = 1.25
"""How far above the plainest bound the first look reaches."""
NEAR = 1.3
"""A plan so near to that is the end of the first look: no second one is needed."""
PROPOSALS = {CROSSED: 20, SOME: 60}
"""Cuts of one micro batch that are tried for a plan before the bound is worked at, by how hard their stages are."""
REPAIRS = 4
"""How often a plan is solved anew for less memory."""
MOST_OPS = 4000
"""Operators of a model for which the bounds of all stages are made."""
LEANER = (0.98, 0.95, 0.9, 0.8, 0.65)
"""Shares of the memory, one after the other, for which plans are sought where none fits."""


class OperatorSearch:
    """One search; holds what was found."""

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
        self.stages = StageBook(question, self.deadline)
        self.book = Book(question, keep)
        self.known = known
        self.report = report
        self.interrupted = self.missed = False
        self.trials: list[Trial] = []

    def run(self) -> OperatorAnswer:
        self.trials = self._fresh_trials()
        if not self.trials:
            raise InfeasibleError(nothing_fits(self.question))
        complete = self._watched()
        if not self.book.plans:
            if not complete:
                self.deadline.check()
            self._leaner()
        if not self.book.plans:
            kind = NothingFoundError if self.missed else InfeasibleError
            raise kind(nothing_fits(self.question, proven=not self.missed))
        plan = self.book.plans[0][1]
        return OperatorAnswer(
            question=self.question, plan=plan, bound=self.bound, cost=evaluate(self.question, plan),
            others=tuple(other for _, other in self.book.plans[1:]), solved=len(self.stages),
            cpu_seconds=self.deadline.used, complete=complete, interrupted=self.interrupted,
            diary=tuple(self.book.diary),
        )  # fmt: skip

    def _fresh_trials(self) -> list[Trial]:
        made = [Trial(self.question, size, self.stages, self.deadline) for size in sample_counts(self.question)]
        return [trial for trial in made if np.isfinite(trial.bound)]

    def _leaner(self) -> None:
        """Nothing that fits by the tables fits: seek what takes less by them, in the same book."""
        for share in LEANER if self.missed else ():
            other = OperatorSearch(replace(self.question, memory=share * self.question.memory), self.deadline.left)
            other.book, other.trials = self.book, other._fresh_trials()
            with suppress(InfeasibleError):
                other._watched()
            if self.book.plans:
                return

    def _watched(self) -> bool:
        """Whether the search came to its end; Ctrl-C with a plan in hand ends it early."""
        try:
            self._start()
            if len(self.question.chain.rows) > MOST_OPS and self.question.chain.blocks:
                coarse_plans(self.question, self.book, self.deadline)
                return not self.deadline.over
            self._propose()
            self._prove()
        except OutOfTimeError:
            return False
        except KeyboardInterrupt:
            if not self.book.plans:
                raise
            self.interrupted = True
            return False
        return True

    def _start(self) -> None:
        """Equal stages, balanced: a plan within a second, for the case that there is not time for more."""
        for plan in self.known or started(self.question, self.deadline):
            self.book.keep(plan)
        self.book.note(f"equal stages, balanced: {self.book.standing()}")
        self._tell()
        for trial in self.trials:
            self.deadline.check()
            trial.count_layers()
        if not self.book.plans and not np.isfinite(self.bound):
            raise InfeasibleError(nothing_fits(self.question))
        self.book.note(f"whole layers that stages can hold: no plan is below {self.bound:.4f} s")
        self._tell()

    @property
    def bound(self) -> float:
        """No plan of the space is below."""
        return min(self.book.best, *(trial.bound for trial in self.trials))

    def _tell(self) -> None:
        best = self.book.plans[0][0] if self.book.plans else None
        self.report(Standing(best=best, bound=self.bound, solved=len(self.stages)))

    def _open(self, trial: Trial) -> bool:
        """Whether a plan of a trial may still be better than the best."""
        return not trial.closed and trial.bound < self.book.best * (1 - SAME)

    def _propose(self) -> None:
        """Bounds and plans of every micro batch, the most promising first; then better plans, the least bound first."""
        promise = self._promise()
        for trial in sorted(self.trials, key=lambda one: (promise.get(one.samples, np.inf), one.bound, one.samples)):
            if self._open(trial):
                self._survey(trial)
                self._tell()
            if self._open(trial):
                self._first_plans(trial)
        for trial in sorted(self.trials, key=lambda one: (one.bound, one.samples)):
            if trial.cuts is not None and self._open(trial):
                self._likely(trial.cuts, SOME)

    def _promise(self) -> dict[int, float]:
        """The best plan so far by micro batch."""
        found: dict[int, float] = {}
        for value, plan in self.book.plans:
            found.setdefault(plan.samples, value)
        return found

    def _survey(self, trial: Trial) -> None:
        self.deadline.check()
        value = SURVEY * max(trial.bound, min(item.bound for item in self.trials))
        trial.survey(self.book.best if self.book.best <= NEAR * value else value)

    def _first_plans(self, trial: Trial) -> None:
        """Plans of one micro batch, further above its bound as long as none is found."""
        cuts, value = None, 0.0
        while trial.tries < len(WIDER) and self.book.best > value and self._open(trial):
            value = self._wider(trial)
            cuts = trial.open(value)
            if cuts is not None:
                self._likely(cuts, CROSSED)
        self.book.note(
            f"micro batches of {trial.samples} samples: {len(cuts or ()):,} stages may be in a plan up to {value:.4f} "
            f"s; no plan is below {trial.bound:.4f} s, {self.book.standing()}"
        )

    def _wider(self, trial: Trial) -> float:
        """The value up to which to look next."""
        trial.tries += 1
        return min(self.book.best, (1 + WIDER[min(trial.tries, len(WIDER)) - 1]) * max(trial.bound, trial.opened))

    def _likely(self, cuts: Cuts, most: int) -> None:
        """Look at the stages of the cut that promises most so hard, until it is one whose stages all were."""
        for _ in range(PROPOSALS[most]):
            path = cuts.likely()
            level = cuts.level(path) if path.arcs else most
            if level >= most or path.value >= self.book.best * (1 - SAME):
                return
            cuts.raise_to(path, max(CROSSED, level + 1))
            self._keep(cuts, path)
            self._tell()

    def _prove(self) -> None:
        """Raise the least bound, until none is below the best plan."""
        while left := [trial for trial in self.trials if self._open(trial)]:
            trial = min(left, key=lambda item: (item.bound, item.samples))
            self.deadline.check()
            self._raise(trial)
            self._tell()

    def _raise(self, trial: Trial) -> None:
        """One step: solve the stages of the cut that nothing is below."""
        if not trial.surveyed:
            self._survey(trial)
            return
        if trial.cuts is None or trial.bound >= trial.opened * (1 - SAME):
            trial.closed = trial.tries >= len(WIDER)
            trial.open(self._wider(trial))
            return
        path = trial.cuts.least()
        trial.bound = max(trial.bound, min(path.value, trial.opened, self.book.best))
        if not path.arcs or trial.bound >= min(trial.opened, self.book.best) * (1 - SAME):
            trial.closed = trial.opened >= self.book.best
            return
        level = trial.cuts.level(path)
        if level == ALL:
            trial.closed = True
        trial.cuts.raise_to(path, SOME if level < SOME else ALL)
        self._keep(trial.cuts, path)

    def _keep(self, cuts: Cuts, path: CutPath) -> None:
        """Keep the plan; where a stage holds more than the tables say, with that stage solved for less."""
        found, less = cuts.stages(path), [0.0] * len(path.arcs)
        if found is None:
            return
        for _ in range(REPAIRS):
            cost = self.book.keep(cuts.plan(path, found))
            over = [(memory - self.question.memory) / self.question.memory_factor for memory in cost.memory]
            if max(over) <= 0:
                return
            self.missed = True
            for index, more in enumerate(over):
                if more > 0:
                    less[index] += 1.02 * more
                    found[index] = self.stages.leaner(cuts.task(path.arcs[index]), cuts.trial.longest, less[index])
            if not all(np.isfinite(stage.seconds) for stage in found):
                return


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
    return OperatorSearch(question, limit, keep, report, known).run()
