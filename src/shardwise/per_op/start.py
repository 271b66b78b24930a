"""Where searches begin: Aceso's balanced start, two that are unbalanced on purpose, and equal stages whose ends are
moved while the iteration gets shorter.
"""

from __future__ import annotations

import numpy as np

from shardwise.per_op.answer import ENDLESS, Deadline
from shardwise.per_op.evaluate import crossings
from shardwise.per_op.patterns import Filler
from shardwise.per_op.question import OperatorLayout, OperatorQuestion, PerOpPlan, SplitStage
from shardwise.per_op.stage import SolvedStage, StageTask
from shardwise.per_op.tables import NEVER, gpu_counts, layouts_of, sample_counts, tables_of


def balanced(question: OperatorQuestion, stages: int) -> PerOpPlan | None:
    """GPUs by doubling from the left, operators by number with the rest at the end, tp everywhere; none: GPUs do not
    divide so.
    """
    gpus = _doubled(question, stages)
    if gpus is None or stages > len(question.chain.rows):
        return None
    count = len(question.chain.rows)
    sizes = [count // stages] * stages
    sizes[-1] += count - sum(sizes)
    return uniform(question, sizes, gpus)


def by_share(question: OperatorQuestion, stages: int) -> PerOpPlan | None:
    """As `balanced`, with operators in proportion to the GPUs."""
    gpus = _doubled(question, stages)
    count = len(question.chain.rows)
    if gpus is None or stages > count:
        return None
    ends = [round(count * sum(gpus[: index + 1]) / question.gpus) for index in range(stages)]
    sizes = [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    return uniform(question, sizes, gpus) if min(sizes) > 0 else None


def tail_heavy(question: OperatorQuestion, stages: int) -> PerOpPlan | None:
    """As `balanced`, with the GPUs doubled from the right and one stage at a time (Aceso's imbalance_gpu)."""
    made = balanced(question, stages)
    gpus = [1] * stages
    at = stages - 1
    while sum(gpus) < question.gpus and at >= 0:
        if gpus[at] * 2 <= question.tp_limit and sum(gpus) + gpus[at] <= question.gpus:
            gpus[at] *= 2
        else:
            at -= 1
    if made is None or sum(gpus) != question.gpus:
        return None
    return uniform(question, list(made.sizes), gpus)


STARTS = {"balanced": balanced, "by-share": by_share, "tail-heavy": tail_heavy}


def uniform(question: OperatorQuestion, sizes: list[int], gpus: list[int]) -> PerOpPlan | None:
    """Tp on all GPUs of a stage, as far as it goes, and the smallest micro batch that its replicas can share."""
    splits = [
        OperatorLayout(min(count, question.tp_limit), -(-count // min(count, question.tp_limit))) for count in gpus
    ]
    for size in sample_counts(question):
        if all(runs(question, size, count, split) for split, count in zip(splits, gpus, strict=True)):
            stages = tuple(
                SplitStage(gpus=count, layouts=(split,) * own, recompute=(False,) * own)
                for own, count, split in zip(sizes, gpus, splits, strict=True)
            )
            return PerOpPlan(stages=stages, samples=size)
    return None


def runs(question: OperatorQuestion, samples: int, gpus: int, split: OperatorLayout) -> bool:
    """Whether a stage can have one split for all operators of the model."""
    tables = tables_of(question, samples, gpus)
    return split in tables.layouts and bool((tables.work[tables.layouts.index(split)] < NEVER).all())


def _doubled(question: OperatorQuestion, stages: int) -> list[int] | None:
    gpus = [1] * stages
    moved = True
    while sum(gpus) < question.gpus and moved:
        moved = False
        for index in range(stages):
            if gpus[index] < question.tp_limit and gpus[index] <= question.gpus - sum(gpus):
                gpus[index] *= 2
                moved = True
    return gpus if sum(gpus) == question.gpus else None


Shape = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Micro batch, GPUs of the stages, ends of the stages."""


class Balancer:
    """Moves the ends of stages while the iteration gets shorter."""

    def __init__(self, question: OperatorQuestion, deadline: Deadline = ENDLESS) -> None:
        self.question, self.deadline = question, deadline
        self.filler = Filler(question)

    def stages(self, shape: Shape) -> list[SolvedStage]:
        size, gpus, ends = shape
        found = []
        for index, crossing in enumerate(crossings(self.question, gpus)):
            first = ends[index - 1] if index else 0
            task = StageTask(first, ends[index], gpus[index], len(gpus) - 1 - index, crossing, size)
            found.append(self.filler.solve(task))
        return found

    def value(self, shape: Shape) -> float:
        seconds = [stage.seconds for stage in self.stages(shape)]
        return self.question.pricing.pace(self.question.passes(shape[0])).value(seconds)

    def balanced(self, shape: Shape) -> tuple[float, Shape]:
        """Move work off the slowest stage, many operators first, then few."""
        best = self.value(shape)
        period = max((block.period for block in self.question.chain.blocks), default=1)
        for step in (16 * period, 4 * period, period, max(1, period // 3), 1):
            while not self.deadline.over:
                tried = [(self.value(other), other) for other in self._moves(shape, step)]
                value, other = min(tried, default=(np.inf, shape), key=lambda item: (item[0], item[1]))
                if value >= best:
                    break
                best, shape = value, other
        return best, shape

    def _moves(self, shape: Shape, step: int) -> list[Shape]:
        """Shift the ends between the slowest stage and every other stage, through all between them."""
        size, gpus, ends = shape
        seconds = [stage.seconds for stage in self.stages(shape)]
        slow = int(np.argmax(seconds))
        made = []
        for other in range(len(gpus)):
            moved = list(ends)
            for index in range(min(slow, other), max(slow, other)):
                moved[index] += step if other < slow else -step
            spans = [b - a for a, b in zip([0, *moved[:-1]], moved, strict=True)]
            if other != slow and min(spans) > 0:
                made.append((size, gpus, tuple(moved)))
        return made

    def plan(self, shape: Shape) -> PerOpPlan:
        size, gpus, _ = shape
        stages = []
        for count, found in zip(gpus, self.stages(shape), strict=True):
            layouts = layouts_of(self.question, size, count)
            stages.append(
                SplitStage(
                    gpus=count,
                    layouts=tuple(layouts[index] for index in found.layouts),
                    recompute=tuple(bool(flag) for flag in found.recompute),
                )
            )
        return PerOpPlan(stages=tuple(stages), samples=size)


def uniform_shapes(question: OperatorQuestion) -> list[Shape]:
    """Plans with equal stages: what is called uniform elsewhere, and where balancing may begin as well."""
    count, made = len(question.chain.rows), []
    for stages in question.stage_range:
        gpus, rest = divmod(question.gpus, stages)
        if rest or gpus not in gpu_counts(question):
            continue
        ends = tuple(round(count * (index + 1) / stages) for index in range(stages))
        made += [(size, (gpus,) * stages, ends) for size in sample_counts(question)]
    return made


def first_plans(balancer: Balancer, most: int = 6) -> list[tuple[float, Shape]]:
    """The best equal stages that fit, one for a micro batch, balanced; what the time allows."""
    found: dict[int, tuple[float, Shape]] = {}
    for shape in uniform_shapes(balancer.question):
        if found and balancer.deadline.over:
            break
        value = balancer.value(shape)
        if np.isfinite(value):
            found[shape[0]] = min(found.get(shape[0], (value, shape)), (value, shape))
    made = [balancer.balanced(shape) for _, shape in sorted(found.values())[:most]]
    return sorted(made)


def started(question: OperatorQuestion, deadline: Deadline) -> tuple[PerOpPlan, ...]:
    """Plans to begin with."""
    balancer = Balancer(question, deadline)
    balanced = tuple(balancer.plan(shape) for _, shape in first_plans(balancer))
    return (*balanced, *question.pricing.whole_plans(question))
