"""Which condition leaves a space without any strategy, and what it could be in its place."""

from __future__ import annotations

from dataclasses import replace

from shardwise.plan.search.space import Space
from shardwise.plan.search.types import Question
from shardwise.plan.search.wishes import Condition, Wishes

_SHOWN = 12
_COUNTED = {"hsdp": "zero", "cp_kind": "cp"}
"""Axes that are counted under the name of another."""


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
