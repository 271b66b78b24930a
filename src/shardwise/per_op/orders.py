"""The order of passes for a plan that was found: its stages in the one simulator, under any schedule.

The search itself reckons with 1F1B (or GPipe) in closed form. Zero-bubble orders split backward into I and W and fill
waits with W: as the last step the stages found are simulated in every order that fits, and the fastest is told.
Profiles do not split backward: an operator with a weight matrix is taken to spend half of it on its weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from shardwise.errors import InfeasibleError, InputError
from shardwise.per_op.answer import Answer, Order
from shardwise.per_op.evaluate import Evaluation, evaluate
from shardwise.per_op.question import PerOpPlan, Question
from shardwise.per_op.tables import tables_of
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.generate import generate
from shardwise.pipeline.optimise import bound_of, optimise
from shardwise.units import show_bytes

MATRIX = 2.0**17
"""Bytes of weights from which on an operator has a matrix; norms and biases have less."""
FIXED = ("1f1b", "gpipe", "zb-h1", "zb-h2", "zb-1p", "zb-2p")
CHOICES = (*FIXED, "auto")
MOST_ACTIONS = 600_000
"""Larger pipelines are ordered by the published schedules only."""


class Split(NamedTuple):
    """Seconds of a stage's passes."""

    f: float
    i: float
    w: float


def splits(question: Question, plan: PerOpPlan, cost: Evaluation) -> list[Split]:
    """F, I and W of every stage; recompute is done before I, sends belong half to F and half to I."""
    found, first = [], 0
    for stage, own in zip(plan.stages, cost.stages, strict=True):
        tables = tables_of(question, plan.micro_batch, stage.gpus)
        rows = tables.rows[first : first + stage.size]
        layouts = np.array([tables.layouts.index(layout) for layout in stage.layouts])
        forward = tables.forward[layouts, rows]
        back = tables.work[layouts, rows] - forward
        w = float((back * np.where(tables.weights[layouts, rows] >= MATRIX, 0.5, 0.0)).sum())
        sent = (own.receive + own.send) / 2
        f = float(forward.sum()) + sent
        found.append(Split(f, own.seconds - f - w, w))
        first += stage.size
    return found


def costs_of(question: Question, plan: PerOpPlan, cost: Evaluation) -> Costs:
    """The plan's stages as the simulator's ranks."""
    passes = [Split(*(max(0.0, value) for value in split)) for split in splits(question, plan, cost)]
    kept = [float(stage.peak - stage.made_again) for stage in cost.stages]
    limit = question.memory / question.memory_factor
    return Costs(
        f=tuple(split.f for split in passes),
        i=tuple(split.i for split in passes),
        w=tuple(split.w for split in passes),
        activation=tuple(kept),
        static=tuple(stage.memory - stage.kept - own for stage, own in zip(cost.stages, kept, strict=True)),
        memory_limit=(limit,) * len(kept),
    )


def order_of(question: Question, plan: PerOpPlan, cost: Evaluation, name: str, seconds: float = 5.0) -> Order | None:
    """The plan under one schedule; `auto`: the best found within CPU seconds. None: it has no such order."""
    costs, pp = costs_of(question, plan, cost), len(plan.stages)
    if 3 * pp * cost.passes > MOST_ACTIONS:
        return None
    try:
        schedule = _scheduled(costs, pp, cost.passes, name, seconds)
    except (InputError, InfeasibleError):
        return None
    timeline = simulate(schedule, costs)
    peaks = tuple(peak * question.memory_factor for peak in timeline.peak)
    return Order(
        name=name,
        seconds=timeline.iteration,
        memory=peaks,
        fits=max(peaks) <= question.memory * (1 + 1e-9),
        bound=min(_bound(costs, schedule), timeline.iteration),
        bubble=timeline.bubble,
        schedule=schedule,
    )


def _scheduled(costs: Costs, pp: int, passes: int, name: str, seconds: float) -> Schedule:
    if name == "auto":
        return optimise(
            costs, pp=pp, vpp=1, microbatches=passes, placement="loop", effort=0.2, time_limit=seconds
        ).schedule
    return generate(name, pp=pp, microbatches=passes, costs=costs)


def _bound(costs: Costs, schedule: Schedule) -> float:
    try:
        return bound_of(costs, schedule=schedule).value
    except InfeasibleError:
        return 0.0


def ordered(question: Question, answer: Answer, names: tuple[str, ...], choose: str = "") -> Answer:
    """An answer with the orders of its plan. `choose`: the plan, of all that were found, that one order (`auto`: any)
    serves best; empty: the plan stays.
    """
    if choose and not answer.interrupted:
        answer = _rechosen(question, answer, tuple(name for name in names if name != "auto"), choose)
    found = orders(question, answer.plan, answer.cost, names)
    wanted = [order for order in found if order.fits and choose in {order.name, "auto"}]
    if choose and not wanted:
        need = min((max(o.memory) for o in found if choose in {o.name, "auto"}), default=0.0)
        why = f"needs {show_bytes(need)} of {show_bytes(question.memory)}" if need else "cannot order these stages"
        note = f"{choose} {why}: 1f1b stays"
        return replace(answer, orders=tuple(found), notes=(*answer.notes, note))
    return replace(answer, orders=tuple(found), order=wanted[0] if wanted else None)


def _rechosen(question: Question, answer: Answer, names: tuple[str, ...], choose: str) -> Answer:
    """The answer with the plan that the schedule serves best in front."""
    best: tuple[float, PerOpPlan] | None = None
    for plan in (answer.plan, *answer.others):
        cost = evaluate(question, plan)
        for order in orders(question, plan, cost, names):
            good = order.fits and choose in {order.name, "auto"}
            if good and (best is None or order.seconds < best[0] * (1 - 1e-12)):
                best = order.seconds, plan
    if best is None or best[1] == answer.plan:
        return answer
    others = tuple(plan for plan in (answer.plan, *answer.others) if plan != best[1])
    return replace(answer, plan=best[1], cost=evaluate(question, best[1]), others=others)


def orders(question: Question, plan: PerOpPlan, cost: Evaluation, names: tuple[str, ...] = CHOICES) -> list[Order]:
    """The plan under every schedule it can have: those that fit first, then by time, least memory, plainest."""
    found = [order for name in names if (order := order_of(question, plan, cost, name)) is not None]
    return sorted(found, key=lambda order: (not order.fits, _rounded(order.seconds), _rounded(max(order.memory))))


def _rounded(value: float) -> float:
    """Sums in another order differ by rounding: nine digits are the same."""
    return float(f"{value:.8e}")
