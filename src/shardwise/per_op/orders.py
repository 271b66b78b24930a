"""The order of passes for a plan that was found: its stages in the one simulator, under any schedule.

The search itself reckons with 1F1B (or GPipe) in closed form. Zero-bubble orders split backward into I and W and fill
waits with W: as the last step the stages found are simulated in every order, and the fastest that fits and that the
runtime has is the answer's: its seconds, its memory, and a bound that holds in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.check.rule import either
from shardwise.errors import Fault, InfeasibleError, InputError
from shardwise.per_op.answer import OperatorAnswer, Order
from shardwise.per_op.evaluate import PerOpCost, evaluate, with_spare
from shardwise.per_op.layer_bound import plain_bound
from shardwise.per_op.question import OperatorQuestion, PerOpPlan
from shardwise.per_op.tables import sample_counts
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.generate import generate
from shardwise.pipeline.optimise import bound_of, optimise
from shardwise.units import show_bytes

FIXED = ("1f1b", "gpipe", "zb-h1", "zb-h2", "zb-1p", "zb-2p")
CHOICES = (*FIXED, "auto")
ORDER = "1f1b"
"""The one that is reckoned with where none is asked for."""
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
    seconds = pricing.iteration(question, plan, timeline.iteration)
    return Order(
        name=name, seconds=seconds, memory=peaks, work=tuple(busy / cost.passes for busy in timeline.work),
        times=tuple(seconds - timeline.iteration + span for span in timeline.spans),
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
    wanted = [order for order in found if _good(question, order, choose)]
    if choose and not wanted:
        need = min((max(o.memory) for o in found if choose in {o.name, "auto"}), default=0.0)
        why = f"needs {show_bytes(need)} of {show_bytes(question.memory)}" if need else "cannot order these stages"
        note = f"{choose} {why}: 1f1b stays"
        return replace(answer, orders=tuple(found), notes=(*answer.notes, note))
    chosen = replace(answer, orders=tuple(found), order=wanted[0] if wanted else None)
    return _predicted(chosen, wanted[0]) if chosen.reordered else chosen


def _good(question: OperatorQuestion, order: Order, choose: str) -> bool:
    """Whether an order may be the answer's; `choose` auto: any."""
    return order.fits and choose in {order.name, "auto"} and runs(question, order.name)


def runs(question: OperatorQuestion, name: str) -> bool:
    """Whether the runtime has an order."""
    return question.runtime is None or name in question.runtime.can.schedules


def _predicted(answer: OperatorAnswer, order: Order) -> OperatorAnswer:
    """The answer in another order than it was searched with: what its stages take there, and a bound for any order."""
    question, plan, cost = answer.question, answer.plan, answer.cost
    stages = tuple(
        replace(stage, work=stage.work + work - stage.seconds, kept=stage.kept + peak / cost.factor - stage.memory)
        for stage, work, peak in zip(cost.stages, order.work, order.memory, strict=True)
    )
    gpu_seconds = cost.passes * sum(own.gpus * work for own, work in zip(plan.stages, order.work, strict=True))
    lost = tuple(stage.work - ideal for stage, ideal in zip(stages, cost.ideal, strict=True))
    made = replace(cost, stages=stages, times=order.times, seconds=order.seconds, lost=lost, gpu_seconds=gpu_seconds)
    wholes = [ideal * own.gpus for ideal, own in zip(cost.ideal, plan.stages, strict=True)]
    bound = min(plain_bound(question, size) for size in sample_counts(question))
    return replace(answer, cost=with_spare(question, plan, made, wholes), bound=bound)


def order_faults(question: OperatorQuestion, schedule: str) -> Iterator[Fault]:
    """Before a search: an order that there is not, that the runtime cannot run, or that the question is not for."""
    searched, runtime = question.pricing.schedule, question.runtime
    if schedule not in CHOICES:
        yield Fault("--schedule", f"{schedule!r} is no order of these passes; choose {', '.join(CHOICES)}")
    elif runtime and not runs(question, schedule) and question.stage_range[-1:] != range(1, 2):
        own = either(name for name in CHOICES if runs(question, name))
        yield Fault("strategy.schedule", f"{schedule} is not in runtime {runtime.base}; use {own}")
    elif schedule == "gpipe" != searched:
        why = f"is gpipe, which keeps all micro batches, but the question was made for {searched}"
        yield Fault("--schedule", f"{why}; make it with schedule gpipe")


def in_order(answer: OperatorAnswer, schedule: str | None, *, compare: bool = False) -> OperatorAnswer:
    """The answer in the order that was asked for. `compare`: with every other order of a pipeline beside it."""
    schedule = schedule or ORDER
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
            if _good(question, order, choose) and (best is None or order.seconds < best[0] * (1 - 1e-12)):
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
