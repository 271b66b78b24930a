"""Drafts of plans that are changed by hand, one primitive at a time: recompute follows, costs are cached by stage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwise.per_op.cut import moves
from shardwise.per_op.evaluate import PerOpCost, crossings, evaluate, stage_cost
from shardwise.per_op.patterns import Filler
from shardwise.per_op.question import OperatorLayout, OperatorQuestion, PerOpPlan, SplitStage
from shardwise.per_op.stage import StageTask
from shardwise.per_op.tables import NEVER, Array, layouts_of, tables_of


class StagePart(NamedTuple):
    """A stage of a draft: what it holds, not yet what it recomputes."""

    gpus: int
    layouts: tuple[OperatorLayout, ...]


class PlanDraft(NamedTuple):
    """A plan without its recompute flags, which follow from it."""

    samples: int
    parts: tuple[StagePart, ...]

    def changed(self, index: int, part: StagePart) -> PlanDraft:
        return self._replace(parts=(*self.parts[:index], part, *self.parts[index + 1 :]))


def draft_of(plan: PerOpPlan) -> PlanDraft:
    return PlanDraft(plan.samples, tuple(StagePart(stage.gpus, stage.layouts) for stage in plan.stages))


class Workshop:
    """Turns drafts into plans."""

    def __init__(self, question: OperatorQuestion) -> None:
        self.question = question
        self.limit = question.limit
        self.filler = Filler(question)
        self.flags: dict[tuple[object, ...], tuple[bool, ...]] = {}
        self.costs: dict[PlanDraft, tuple[PerOpPlan, PerOpCost]] = {}

    def legal(self, draft: PlanDraft) -> bool:
        """Whether the GPUs add up, fall on nodes as the space wants, and the profile covers all layouts."""
        left, first = self.question.gpus, 0
        for part in draft.parts:
            if not part.layouts or not moves(self.question, part.gpus, left)[0]:
                return False
            known = layouts_of(self.question, draft.samples, part.gpus)
            if not set(part.layouts) <= set(known) or self._never(draft.samples, part, first):
                return False
            left, first = left - part.gpus, first + len(part.layouts)
        return left == 0

    def _never(self, samples: int, part: StagePart, first: int) -> bool:
        """Whether an operator has a split that the profile says it cannot have."""
        tables = tables_of(self.question, samples, part.gpus)
        if not (tables.work >= NEVER).any():
            return False
        layouts = [tables.layouts.index(layout) for layout in part.layouts]
        return bool((tables.work[layouts, tables.rows[first : first + len(layouts)]] >= NEVER).any())

    def made(self, draft: PlanDraft) -> tuple[PerOpPlan, PerOpCost]:
        """The plan of a draft, recompute chosen where it does not fit, and its cost."""
        if draft not in self.costs:
            first, stages, count = 0, [], len(draft.parts)
            gpus = tuple(part.gpus for part in draft.parts)
            for index, (part, crossing) in enumerate(
                zip(draft.parts, crossings(self.question, gpus), strict=True)
            ):  # fmt: skip
                task = StageTask(
                    first, first + len(part.layouts), part.gpus, count - 1 - index, crossing, draft.samples
                )
                stages.append(
                    SplitStage(gpus=part.gpus, layouts=part.layouts, recompute=self._flags(task, part.layouts))
                )
                first += len(part.layouts)
            plan = PerOpPlan(stages=tuple(stages), samples=draft.samples)
            self.costs[draft] = plan, evaluate(self.question, plan)
        return self.costs[draft]

    def _flags(self, task: StageTask, layouts: tuple[OperatorLayout, ...]) -> tuple[bool, ...]:
        first, end = self.question.chain.fold(task.first, task.end)
        task = task._replace(first=first, end=end)
        key = (task, layouts)
        if key not in self.flags:
            self.flags[key] = tuple(bool(flag) for flag in self._chosen(task, layouts))
        return self.flags[key]

    def _chosen(self, task: StageTask, layouts: tuple[OperatorLayout, ...]) -> Array:
        tables = tables_of(self.question, task.samples, task.gpus)
        indices = np.array([tables.layouts.index(layout) for layout in layouts])
        if len(set(layouts)) == 1:
            made = self.filler.fill(task, tables, int(indices[0]))
            if made is not None:
                return made.recompute
        return self._cheapest_runs(task, indices)

    def _cheapest_runs(self, task: StageTask, layouts: Array) -> Array:
        """Runs of recomputed operators by seconds per byte until the stage fits, or none are left."""
        tables = tables_of(self.question, task.samples, task.gpus)
        rows = tables.rows[task.first : task.end]
        flags = np.zeros(len(rows), dtype=bool)

        def memory() -> float:
            args = (task.behind, task.crossing, task.samples)
            return stage_cost(self.question, tables, task.first, layouts, flags, *args).memory

        over = memory() - self.limit
        if over <= 0:
            return flags
        for a, b in _runs(tables.forward[layouts, rows], tables.act[layouts, rows], tables.may[rows],
                          tables.starts[rows]):  # fmt: skip
            if flags[max(0, a - 1) : b + 1].any():
                continue
            flags[a:b] = True
            if memory() <= self.limit:
                return flags
        return flags


def _runs(forward: Array, act: Array, may: Array, starts: Array, longest: int = 13) -> list[tuple[int, int]]:
    """Runs inside layers, cheapest per byte first."""
    found = []
    for a in range(len(forward) - 1):
        seconds = saved = 0.0
        for b in range(a, min(a + longest, len(forward))):
            if not may[b] or (b > a and starts[b]):
                break
            seconds += forward[b]
            if b > a:
                saved += act[b - 1]
                if saved > 0:
                    found.append((seconds / saved, a, b + 1))
    return [(a, b) for _, a, b in sorted(found)]
