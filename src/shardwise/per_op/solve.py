"""One door: the search or alleviation alone, and how starts, budgets and processes enter."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from shardwise.errors import InfeasibleError
from shardwise.per_op.alleviate import HopBudget, alleviate
from shardwise.per_op.answer import (
    Deadline,
    NothingFoundError,
    OperatorAnswer,
    OutOfTimeError,
    Report,
    Standing,
    nothing_fits,
    silent,
)
from shardwise.per_op.evaluate import evaluate
from shardwise.per_op.layer_bound import plain_bound
from shardwise.per_op.question import OperatorQuestion, PerOpPlan
from shardwise.per_op.search import search
from shardwise.per_op.start import started
from shardwise.per_op.tables import sample_counts
from shardwise.per_op.together import each
from shardwise.search.executor import Executor, Pool, Ray

Method = Literal["auto", "exact", "alleviate"]
METHODS: tuple[str, ...] = get_args(Method)
AUTO_SECONDS = 26.0
"""CPU seconds of a search that nobody gave any: small questions are proven long before."""
LAST_RESORT = 0.7
"""CPU seconds for any plan at all where the time given was too short."""


def solve(
    question: OperatorQuestion,
    method: Method = "auto",
    *,
    starts: tuple[PerOpPlan, ...] = (),
    budget: HopBudget | None = None,
    limit: float | None = None,
    keep: int = 8,
    more: int = 1,
    executor: Executor | None = None,
    report: Report = silent,
) -> OperatorAnswer:
    """The best plan by the asked method, and `more` plans in all. `limit`: CPU seconds; by default what `auto` takes,
    and as many as it needs with `exact`.
    """
    seconds = limit if limit is not None else AUTO_SECONDS if method == "auto" else float("inf")
    deadline = Deadline(seconds)
    if method == "alleviate":
        budget = replace(budget or HopBudget(), seconds=seconds)
        return alleviate(question, starts, budget, max(keep, more), executor, report)
    found = _of_all((*question.also, question), deadline, keep, executor, report)
    if found.interrupted:
        return found
    others = _alternatives(found.question, found, deadline, more) if more > 1 else found.others
    called = method if found.method == "exact" else found.method  # alleviation, where there was no time for more
    return replace(found, others=others, method=called)


def _of_all(
    questions: tuple[OperatorQuestion, ...], deadline: Deadline, keep: int, executor: Executor | None, report: Report
) -> OperatorAnswer:
    """The fastest answer of questions that differ in how states are sharded, with a bound of them all."""
    if len(questions) == 1:
        return _in_time(questions[0], deadline, keep, executor, report)
    made: list[OperatorAnswer] = []
    bounds = {place: _plainest(question) for place, question in enumerate(questions)}
    interrupted = False
    for place, question in enumerate(questions):
        part = Deadline(deadline.left / (len(questions) - place))
        others = [bound for other, bound in bounds.items() if other != place]
        try:
            made.append(_in_time(question, part, keep, executor, _beside(report, made, others)))
            bounds[place], interrupted = made[-1].bound, made[-1].interrupted
        except NothingFoundError:
            continue
        except InfeasibleError:
            bounds[place] = float("inf")
        except KeyboardInterrupt:
            if not made:
                raise
            interrupted = True
        if interrupted:
            break
    if not made:
        deadline.check()
        raise InfeasibleError(nothing_fits(questions[-1], proven=not np.isfinite(list(bounds.values())).any()))
    best = min(made, key=lambda one: one.cost.seconds)
    return replace(
        best, bound=min(best.cost.seconds, *bounds.values()), solved=sum(one.solved for one in made),
        cpu_seconds=deadline.used, complete=all(one.complete for one in made) and not interrupted,
        interrupted=interrupted,
    )  # fmt: skip


def _beside(report: Report, made: list[OperatorAnswer], bounds: list[float]) -> Report:
    """Reports of one search of several: the best of all, and what no plan of any is below."""

    def told(standing: Standing) -> None:
        found = [one.cost.seconds for one in made] + ([] if standing.best is None else [standing.best])
        report(replace(standing, best=min(found, default=None), bound=min(standing.bound, *bounds)))

    return told


def _in_time(
    question: OperatorQuestion, deadline: Deadline, keep: int, executor: Executor | None, report: Report
) -> OperatorAnswer:
    """The search's answer; where its time was too short for any, what alleviation finds at once."""
    try:
        if isinstance(executor, Pool | Ray) and len(question.stage_range) > 1:
            return _side_by_side(question, deadline, keep, executor)
        return search(question, deadline.left, keep, report)
    except OutOfTimeError as error:
        try:
            found = alleviate(question, budget=HopBudget(plans=200, trials=5, seconds=LAST_RESORT), keep=keep)
        except InfeasibleError:
            raise error from None
        return replace(found, complete=False, notes=("the time limit was too short for the search",))


_Job = tuple[OperatorQuestion, float, int, Report, tuple[PerOpPlan, ...]]


def _side_by_side(question: OperatorQuestion, deadline: Deadline, keep: int, executor: Pool | Ray) -> OperatorAnswer:
    """Groups of numbers of stages, a job each, all begun with the same plans; the answer is the best of them.

    Groups, not single numbers: within one a bound found for one number of stages serves the others.
    """
    groups = np.array_split(np.array(question.stage_range), max(2, getattr(executor, "workers", 4)))
    spans = [(int(group[0]), int(group[-1])) for group in groups if len(group)]
    known = started(question, deadline)
    jobs = [(replace(question, stages=span), deadline.left, keep, silent, known) for span in spans]
    made = list(each(executor, _part, jobs))
    found = sorted((answer for answer in made if answer is not None), key=lambda answer: answer.cost.seconds)
    if not found:
        deadline.check()
        raise InfeasibleError(nothing_fits(question))
    whole = len(made) == len(jobs) and all(answer is not None or not deadline.over for answer in made)
    bounds = [answer.bound for answer in found] + ([] if whole else [_plainest(question)])
    plans = dict.fromkeys(plan for answer in found for plan in (answer.plan, *answer.others))
    ranked = sorted(plans, key=lambda plan: evaluate(question, plan).seconds)
    return replace(
        found[0], question=question, bound=min(bounds), solved=sum(answer.solved for answer in found),
        others=tuple(plan for plan in ranked if plan != found[0].plan)[: keep - 1],
        cpu_seconds=deadline.used + sum(answer.cpu_seconds for answer in found),
        complete=whole and all(answer.complete for answer in found),
        interrupted=len(made) < len(jobs) or any(answer.interrupted for answer in found),
    )  # fmt: skip


def _part(job: _Job) -> OperatorAnswer | None:
    """One job, in its process; none: nothing fits, or there was no time."""
    try:
        return search(*job)
    except InfeasibleError:
        return None


def _plainest(question: OperatorQuestion) -> float:
    return min(plain_bound(question, size) for size in sample_counts(question))


def _alternatives(
    question: OperatorQuestion, found: OperatorAnswer, deadline: Deadline, more: int
) -> tuple[PerOpPlan, ...]:
    """Plans met on the way, and where they are too few the best of other numbers of stages."""
    plans = dict.fromkeys(found.others)
    for stages in question.stage_range:
        if len(plans) >= more - 1 or deadline.over:
            break
        if stages == len(found.plan.stages):
            continue
        try:
            other = search(replace(question, stages=(stages, stages)), deadline.left, 1)
        except InfeasibleError:
            continue
        except KeyboardInterrupt:  # the best is known: the others are those met so far
            break
        plans[other.plan] = None
    ranked = sorted(plans, key=lambda plan: evaluate(question, plan).seconds)
    return tuple(plan for plan in ranked if plan != found.plan)[: more - 1]
