"""What is known of the stages of one question, and the ways to know more: each costs ten times the one before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwise.per_op.answer import Deadline
from shardwise.per_op.crossover import crossed
from shardwise.per_op.question import OperatorQuestion
from shardwise.per_op.stage import UNKNOWN, SolvedStage, Stager, StageTask

CROSSED, SOME, ALL = 1, 2, 3
"""Paths that cross over; labels, few and as many as there may be."""
FEW_LABELS = 300


class StageBook:
    """The best choice for every stage that was looked at, and what no choice is below."""

    def __init__(self, question: OperatorQuestion, deadline: Deadline) -> None:
        self.question, self.deadline = question, deadline
        self.known: dict[StageTask, SolvedStage] = {}
        self.levels: dict[StageTask, int] = {}
        self.caps: dict[StageTask, float] = {}
        """The seconds within which a choice was sought."""

    def __len__(self) -> int:
        return len(self.known)

    def level(self, task: StageTask, limit: float) -> int:
        """How hard a stage was tried, within so many seconds; 0: not at all."""
        known, level = self.known.get(task, UNKNOWN), self.levels.get(task, 0)
        narrow = not np.isfinite(known.seconds) and self.caps.get(task, limit) < limit
        return min(level, CROSSED) if narrow else level

    def raised(self, task: StageTask, level: int, lower: float, cap: float) -> SolvedStage:
        """Try harder; no choice is below `lower`, and none above `cap` is worth having."""
        if level > CROSSED > self.levels.get(task, 0):
            self.raised(task, CROSSED, lower, cap)
        known = self.known.get(task, UNKNOWN)
        self.deadline.check()
        made = self._made(task, level, max(lower, known.lower), min(cap, known.seconds))
        best = min(made, known, key=lambda stage: stage.seconds)
        best = replace(best, lower=min(best.seconds, max(known.lower, made.lower)))
        self.known[task], self.levels[task] = best, ALL if best.lower >= best.seconds else level
        self.caps[task] = cap if level > CROSSED else np.inf
        return best

    def _made(self, task: StageTask, level: int, lower: float, cap: float) -> SolvedStage:
        if level == CROSSED:
            found = crossed(self.question, task)
            return replace(found, lower=max(found.lower, lower))
        return self._stager(level).solve(task, lower, cap)

    def _stager(self, level: int) -> Stager:
        return Stager(self.question, deadline=self.deadline, **({"most": FEW_LABELS} if level == SOME else {}))

    def leaner(self, task: StageTask, cap: float, less: float) -> SolvedStage:
        """A choice that leaves so many bytes free."""
        found = crossed(self.question, task, less)
        cap = min(cap, found.seconds)
        return min(found, self._stager(SOME).solve(task, self.known[task].lower, cap, less), key=lambda s: s.seconds)
