"""The order of passes for a plan that was found: its stages in the one simulator, under any schedule.

The search itself reckons with 1F1B (or GPipe) in closed form. Zero-bubble orders split backward into I and W and fill
waits with W: as the last step the stages found are simulated in every order that fits, and the fastest is told.
"""

from __future__ import annotations

from dataclasses import replace

from shardwise.errors import InfeasibleError, InputError
from shardwise.per_op.answer import OperatorAnswer, Order
from shardwise.per_op.evaluate import PerOpCost, evaluate
from shardwise.per_op.question import OperatorQuestion, PerOpPlan
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.generate import generate
from shardwise.pipeline.optimise import bound_of, optimise
from shardwise.units import show_bytes

FIXED = ("1f1b", "gpipe", "zb-h1", "zb-h2", "zb-1p", "zb-2p")
CHOICES = (*FIXED, "auto")
MOST_ACTIONS = 600_000
"""Larger pipelines are ordered by the published schedules only."""


def order_of(
    question: OperatorQuestion, plan: PerOpPlan, cost: PerOpCost, name: str, seconds: float = 5.0
) -> Order | None:
    """The plan under one schedule; `auto`: the best found within CPU seconds. None: it has no such order."""
    pricing, pp = question.pricing, len(plan.stages)
    costs = pricing.pass_costs(question, plan, split=name not in {"1f1b", "gpipe"})
    if 3 * pp * cost.passes > MOST_ACTIONS:
        return None
    try:
        schedule = _scheduled(costs, pp, cost.passes, name, seconds)
    except (InputError, InfeasibleError):
        return None
    timeline = simulate(schedule, costs)
    peaks = tuple(peak * question.memory_factor for peak in timeline.peak)
    return Order(
        name=name, seconds=pricing.iteration(question, plan, timeline.iteration), memory=peaks,
        fits=max(peaks) <= question.memory * (1 + 1e-9), bubble=timeline.bubble, schedule=schedule,
        bound=pricing.iteration(question, plan, min(_bound(costs, schedule), timeline.iteration)),
    )  # fmt: skip


def _scheduled(costs: Costs, pp: int, passes: int, name: str, seconds: float) -> Schedule:
    if name == "auto":
        found = optimise(costs, pp=pp, vpp=1, microbatches=passes, placement="loop", effort=0.2, time_limit=seconds)
        return found.schedule
    return generate(name, pp=pp, microbatches=passes, costs=costs)


def _bound(costs: Costs, schedule: Schedule) -> float:
    try:
        return bound_of(costs, schedule=schedule).value
    except InfeasibleError:
        return 0.0


def ordered(answer: OperatorAnswer, names: tuple[str, ...], choose: str = "") -> OperatorAnswer:
    """An answer with the orders of its plan. `choose`: the plan, of all that were found, that one order (`auto`: any)
    serves best; empty: the plan stays.
    """
    question = answer.question
    if choose and not answer.interrupted:
        answer = _rechosen(answer, tuple(name for name in names if name != "auto"), choose)
    found = orders(question, answer.plan, answer.cost, names)
    wanted = [order for order in found if order.fits and choose in {order.name, "auto"}]
    if choose and not wanted:
        need = min((max(o.memory) for o in found if choose in {o.name, "auto"}), default=0.0)
        why = f"needs {show_bytes(need)} of {show_bytes(question.memory)}" if need else "cannot order these stages"
        note = f"{choose} {why}: 1f1b stays"
        return replace(answer, orders=tuple(found), notes=(*answer.notes, note))
    return replace(answer, orders=tuple(found), order=wanted[0] if wanted else None)


def in_order(answer: OperatorAnswer, schedule: str, *, compare: bool = False) -> OperatorAnswer:
    """The answer in the order that was asked for. `compare`: with every other order of a pipeline beside it."""
    plain = schedule in {"1f1b", "gpipe"}
    if plain and not (compare and len(answer.plan.stages) > 1):
        return answer
    names = CHOICES if schedule in {"1f1b", "auto"} else tuple(dict.fromkeys(("1f1b", schedule)))
    return ordered(answer, names, choose="" if plain else schedule)


def _rechosen(answer: OperatorAnswer, names: tuple[str, ...], choose: str) -> OperatorAnswer:
    """The answer with the plan that the schedule serves best in front."""
    question = answer.question
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


def orders(
    question: OperatorQuestion, plan: PerOpPlan, cost: PerOpCost, names: tuple[str, ...] = CHOICES
) -> list[Order]:
    """The plan under every schedule it can have: those that fit first, then by time, least memory, plainest."""
    found = [order for name in names if (order := order_of(question, plan, cost, name)) is not None]
    return sorted(found, key=lambda order: (not order.fits, _rounded(order.seconds), _rounded(max(order.memory))))


def _rounded(value: float) -> float:
    """Sums in another order differ by rounding: nine digits are the same."""
    return float(f"{value:.8e}")
