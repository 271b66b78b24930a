"""Whole strategies beside plans operator by operator: `plan` searches axes that those lack (chunks, context and expert
parallelism, ZeRO 3, modules that are made again). The faster of both is the answer, so that it is never slower than
`plan`'s under the same conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.errors import InfeasibleError, InputError
from shardwise.inputs.strategy import Strategy
from shardwise.per_op.answer import Deadline, NothingFoundError, OperatorAnswer, Report, Standing, silent
from shardwise.per_op.evaluate import PerOpCost
from shardwise.per_op.layer_bound import plain_bound
from shardwise.per_op.operators import OperatorPricing
from shardwise.per_op.orders import in_order
from shardwise.per_op.question import OperatorQuestion, PerOpPlan
from shardwise.per_op.solve import Method, solve
from shardwise.per_op.tables import sample_counts
from shardwise.search.api import answer_of, question_of
from shardwise.search.findings import Stop
from shardwise.search.question import Answer
from shardwise.search.search import Search

SAME = 1e-9
"""Share of the seconds below which two answers are one."""
PART = 0.3
"""Share of the time given in which strategies are searched; operators have the rest."""
MOMENT = 0.5
"""CPU seconds that operators have in any case."""
NOTHING = PerOpPlan(stages=(), samples=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategies:
    """What was found of whole strategies."""

    answer: Answer | None
    """The search that found the fastest; none: no strategy fits, or the question has none."""
    bound: float
    """Seconds that no strategy is below under what was asked."""
    interrupted: bool = False

    @property
    def seconds(self) -> float:
        found = self.answer and self.answer.fastest
        return found.iteration_seconds if found else float("inf")


def answered(
    question: OperatorQuestion,
    method: Method,
    *,
    schedule: str | None,
    compare: bool,
    limit: float | None,
    report: Report,
    stop: Stop | None,
    **how: Any,  # noqa: ANN401 - each as `solve` types it
) -> OperatorAnswer:
    """The answer of `solve` in the order that is asked for, or the best strategy; alleviation shows its own answer."""
    if method == "alleviate":
        question = replace(question, only=None)

    def search(limit: float | None, report: Report) -> OperatorAnswer:
        return in_order(solve(question, method, limit=limit, report=report, **how), schedule, compare=compare)

    return best_of(question, search, schedule, limit, report, stop)


def best_of(
    question: OperatorQuestion,
    search: Callable[[float | None, Report], OperatorAnswer],
    schedule: str | None = None,
    limit: float | None = None,
    report: Report = silent,
    stop: Stop | None = None,
) -> OperatorAnswer:
    """The faster of the best strategy and of what a search per operator finds, which is given its CPU seconds."""
    deadline = Deadline(float("inf") if limit is None else limit)
    others = strategies(question, schedule, limit, stop, report)
    if others.interrupted:
        return _alone(question, others, KeyboardInterrupt())
    try:
        found = search(None if limit is None else max(MOMENT, deadline.left), _told(report, others))
    except (InfeasibleError, KeyboardInterrupt) as error:
        return _alone(question, others, error)
    if others.answer is None or others.seconds >= found.cost.seconds * (1 - SAME):
        return found
    bound = min(found.bound, others.bound)
    return replace(found, whole=others.answer, bound=bound, complete=found.complete and others.answer.finished)


def strategies(
    question: OperatorQuestion,
    schedule: str | None = None,
    limit: float | None = None,
    stop: Stop | None = None,
    report: Report = silent,
) -> Strategies:
    """The fastest whole strategy under the conditions of a question; `limit`: CPU seconds that all is to take."""
    pricing = question.pricing
    if question.only is None or not isinstance(pricing, OperatorPricing) or question.memory_factor != 1.0:
        return Strategies(answer=None, bound=float("inf"))
    order = () if schedule in {None, "auto"} else (f"schedule={schedule}",)
    asked = [(*question.only.split(), *order, *more) for more in _splits(question)]
    each, found = None if limit is None else PART * limit / len(asked), list[Answer]()
    for only in asked:
        found += _searched(question, pricing, " ".join(only), each, stop, report)
        if found and found[-1].interrupted:
            break
    best = min((one for one in found if one.fastest), key=_seconds, default=None)
    bound = min((one.bound for one in found if one.fastest or not one.finished), default=float("inf"))
    return Strategies(answer=best, bound=bound, interrupted=any(one.interrupted for one in found))


def _seconds(answer: Answer) -> float:
    return answer.fastest.iteration_seconds if answer.fastest else float("inf")


def _splits(question: OperatorQuestion) -> Iterator[tuple[str, ...]]:
    """Conditions for every size of a micro batch that was asked for: it is that of all replicas together."""
    if not question.sample_counts:
        yield ()
    for samples in question.sample_counts:
        for dp in range(1, question.gpus + 1):
            if samples % dp == 0 == question.gpus % dp:
                yield f"dp={dp}", f"mbs={samples // dp}"


def _searched(
    question: OperatorQuestion,
    pricing: OperatorPricing,
    only: str,
    limit: float | None,
    stop: Stop | None,
    report: Report,
) -> Iterator[Answer]:
    """None where the runtime has no such strategy."""

    def told(search: Search) -> None:
        best = search.best.seconds if search.best else None
        report(Standing(best=best, bound=0.0, solved=search.points, of="strategies"))

    try:
        asked = question_of(
            pricing.model, pricing.cluster, global_batch=question.global_batch, seq=question.seq, only=only,
            runtime=pricing.runtime, base=pricing.base, memory_margin=pricing.cluster.gpu.memory - question.limit,
        )  # fmt: skip
        yield answer_of(asked, time_limit=limit, stop=stop, report=told, fastest=True)
    except (InputError, InfeasibleError):
        return


def _alone(question: OperatorQuestion, others: Strategies, error: BaseException) -> OperatorAnswer:
    """The fastest strategy, where no plan operator by operator was found; raises the error where there is none."""
    if (best := others.answer) is None:
        raise error
    bound, open_ = others.bound, not isinstance(error, InfeasibleError) or isinstance(error, NothingFoundError)
    if open_:
        asked = (question, *question.also)
        bound = min(bound, *(plain_bound(one, size) for one in asked for size in sample_counts(one)))
    note = () if isinstance(error, KeyboardInterrupt) else (f"operator by operator: {error}",)
    cost = PerOpCost(
        stages=(), passes=0, times=(), ideal=(), lost=(), spare=(), gpu_seconds=float("inf"), seconds=float("inf")
    )
    return OperatorAnswer(
        question=question, plan=NOTHING, cost=cost, whole=best, bound=bound, notes=note,
        complete=not open_ and best.finished, interrupted=isinstance(error, KeyboardInterrupt),
        cpu_seconds=best.cpu_seconds,
    )  # fmt: skip


def _told(report: Report, others: Strategies) -> Report:
    """Reports of the search per operator, with the strategies that are known already."""
    if not np.isfinite(others.seconds):
        return report

    def told(standing: Standing) -> None:
        best = others.seconds if standing.best is None else min(standing.best, others.seconds)
        report(replace(standing, best=best, bound=min(standing.bound, others.bound)))

    return told


def lacking(answer: OperatorAnswer) -> tuple[str, ...]:
    """The axes that a strategy owes its lead to, as far as plans operator by operator lack them."""
    best = answer.whole and answer.whole.fastest
    return tuple(_axes(answer.question, best.strategy)) if best else ()


def _axes(question: OperatorQuestion, strategy: Strategy) -> Iterator[str]:
    """Of a strategy, what no plan per operator has."""
    s = strategy
    if s.vpp > 1:
        yield "several chunks a rank"
    elif s.pp > 1 and s.schedule != question.pricing.schedule:
        yield f"{s.schedule} while searching (--schedule orders the plans found)"
    if s.cp > 1:
        yield "context parallelism"
    if s.ep > 1:
        yield "expert parallelism"
    if s.zero not in (question.zeros or (question.pricing.zero,)) or (s.zero > 1 and s.pp > 1):
        yield f"ZeRO {s.zero}{' in a pipeline' if s.pp > 1 else ''}"
    if s.zero_group:
        yield "HSDP"
    if s.recompute.modules:
        yield "modules whose output is made again"
