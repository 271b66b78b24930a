"""Where searches begin: Aceso's balanced start, and two that are unbalanced on purpose."""

from __future__ import annotations

from shardwise.per_op.question import Layout, PerOpPlan, Question, Stage
from shardwise.per_op.space import micro_batches
from shardwise.per_op.tables import layouts_of


def balanced(question: Question, stages: int) -> PerOpPlan | None:
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


def by_share(question: Question, stages: int) -> PerOpPlan | None:
    """As `balanced`, with operators in proportion to the GPUs."""
    gpus = _doubled(question, stages)
    count = len(question.chain.rows)
    if gpus is None or stages > count:
        return None
    ends = [round(count * sum(gpus[: index + 1]) / question.gpus) for index in range(stages)]
    sizes = [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    return uniform(question, sizes, gpus) if min(sizes) > 0 else None


def tail_heavy(question: Question, stages: int) -> PerOpPlan | None:
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


def uniform(question: Question, sizes: list[int], gpus: list[int]) -> PerOpPlan | None:
    """Tp on all GPUs of a stage, as far as it goes, and the smallest micro batch that its replicas can share."""
    splits = [Layout(min(count, question.tp_limit), -(-count // min(count, question.tp_limit))) for count in gpus]
    for size in micro_batches(question):
        if all(split in layouts_of(question, size, count) for split, count in zip(splits, gpus, strict=True)):
            stages = tuple(
                Stage(gpus=count, layouts=(split,) * own, recompute=(False,) * own)
                for own, count, split in zip(sizes, gpus, splits, strict=True)
            )
            return PerOpPlan(stages=stages, micro_batch=size)
    return None


def _doubled(question: Question, stages: int) -> list[int] | None:
    gpus = [1] * stages
    moved = True
    while sum(gpus) < question.gpus and moved:
        moved = False
        for index in range(stages):
            if gpus[index] < question.tp_limit and gpus[index] <= question.gpus - sum(gpus):
                gpus[index] *= 2
                moved = True
    return gpus if sum(gpus) == question.gpus else None
