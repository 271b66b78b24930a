"""Which condition leaves a space without any strategy, and what it could be in its place."""

from __future__ import annotations

from dataclasses import replace

from shardwise.inputs.check_rule import Case
from shardwise.inputs.check_runtime import number_format
from shardwise.plan.search.space import Space
from shardwise.plan.search.types import Question
from shardwise.plan.search.wishes import Condition, Wishes

_SHOWN = 12
_COUNTED = {"hsdp": "zero", "cp_kind": "cp"}
"""Axes that are counted under the name of another."""


def why_empty(question: Question) -> str:
    """Why no strategy at all is valid, and what to change."""
    base, gpus = question.base, question.cluster.gpus
    text = f"no strategy is valid: {question.model.name} "
    case = Case(model=question.model, cluster=question.cluster, strategy=base, runtime=question.runtime)
    for fault in number_format.find(case):
        return f"{text}cannot be trained with {base.dtype}: {fault.message}; give the number format as a condition"
    text += (
        f"with global batch {base.global_batch:,} and sequence {base.seq:,} cannot be split over {gpus:,} GPUs with "
        f"{question.runtime.name} under these conditions"
    )
    found = culprits(question)
    if found:
        return "\n  ".join([f"{text}:", *found])
    if question.wishes.conditions:
        return f"{text}; no single one of them stands in the way: loosen several of them, or change the batch"
    return f"{text}; dp x micro batch must divide the batch: try a batch that is a multiple of {gpus}"


def culprits(question: Question) -> list[str]:
    """For every axis whose conditions alone stand in the way: what it could be under the others."""
    found = []
    for axis in dict.fromkeys(condition.axis for condition in question.wishes.conditions):
        own = [one for one in question.wishes.conditions if one.axis == axis]
        rest = tuple(one for one in question.wishes.conditions if one.axis != axis)
        total, axes = Space(question=replace(question, wishes=Wishes(conditions=rest))).count()
        if total:
            values = list(axes[_COUNTED.get(axis, axis)])
            shown = ", ".join(values[:_SHOWN]) + (", ..." if len(values) > _SHOWN else "")
            found.append(f"{' '.join(map(_said, own))}: here {axis} can be {shown}")
    return found


def _said(condition: Condition) -> str:
    return f"{condition.axis}{condition.compare}{','.join(map(str, condition.values))}"
