"""One door to the engines: which one answers a question, and how starts, budgets and measured memory enter."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from shardwise.errors import InfeasibleError
from shardwise.plan.per_op.alleviate import Budget, alleviate
from shardwise.plan.per_op.answer import Answer, OutOfTimeError
from shardwise.plan.per_op.deep import search_deep
from shardwise.plan.per_op.evaluate import evaluate
from shardwise.plan.per_op.search import search
from shardwise.plan.per_op.types import PerOpPlan, Question

Method = Literal["auto", "exact", "deep", "alleviate"]
DEEP_OPS = 700
"""From here on the exact engine takes minutes; the coarse cut takes seconds."""


def solve(
    question: Question,
    method: Method = "auto",
    *,
    starts: tuple[PerOpPlan, ...] = (),
    budget: Budget | None = None,
    limit: float = float("inf"),
    keep: int = 8,
    more: int = 1,
) -> Answer:
    """The best plan by the asked method, and `more` plans in all. `limit`: CPU seconds."""
    if method == "alleviate":
        return alleviate(question, starts, replace(budget or Budget(), seconds=limit), keep)
    found = _in_time(question, method, limit, keep)
    return replace(found, others=_alternatives(question, found, method, limit, more)) if more > 1 else found


def _in_time(question: Question, method: Method, limit: float, keep: int) -> Answer:
    """The engine's answer; where its time was too short for any, what alleviation finds at once."""
    try:
        return _searched(question, method, limit, keep)
    except OutOfTimeError:
        found = alleviate(question, budget=Budget(plans=200, trials=5), keep=keep)
        return replace(found, complete=False, notes=("the time limit was too short for the exact engine",))


def _searched(question: Question, method: Method, limit: float, keep: int) -> Answer:
    deep = method == "deep" or (method == "auto" and len(question.chain.rows) > DEEP_OPS)
    if deep and len(question.chain.blocks):
        return search_deep(question, limit, keep)
    return search(question, limit, keep)


def _alternatives(question: Question, found: Answer, method: Method, limit: float, more: int) -> tuple[PerOpPlan, ...]:
    """Plans met on the way, and where they are too few the best of other numbers of stages."""
    plans = dict.fromkeys(found.others)
    for stages in question.stage_range:
        if len(plans) >= more - 1:
            break
        if stages == len(found.plan.stages):
            continue
        try:
            other = _searched(replace(question, stages=(stages, stages)), method, limit, 1)
        except InfeasibleError:
            continue
        plans[other.plan] = None
    ranked = sorted(plans, key=lambda plan: evaluate(question, plan).seconds)
    return tuple(plan for plan in ranked if plan != found.plan)[: more - 1]
