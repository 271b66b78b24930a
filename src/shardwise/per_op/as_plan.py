"""A per-operator answer as the typed plan that every verb reads."""

from __future__ import annotations

from dataclasses import fields, replace

from shardwise.errors import Fault, InputError
from shardwise.inputs.serialise import Plain, to_dict, to_plain
from shardwise.inputs.strategy import Strategy
from shardwise.per_op.answer import OperatorAnswer, Order
from shardwise.per_op.evaluate import PerOpCost
from shardwise.per_op.profiles.table import Profile
from shardwise.per_op.question import PerOpPlan
from shardwise.plan.plan import Operators, OperatorStage, Plan, ProofPart, Provenance
from shardwise.plan.proof import proof_of
from shardwise.search.api import plan_file_of
from shardwise.version import __version__


def plan_of(answer: OperatorAnswer) -> Plan:
    """The plan of an answer whose model and cluster are known: of a whole strategy where that is the answer; else its
    strategy is only the nearest plain one.
    """
    if answer.whole is not None:
        return plan_file_of(answer.whole)
    question, order = answer.question, answer.order
    if question.model is None or question.cluster is None:
        raise InputError(Fault("plan_operators", "a plan holds its model and cluster: give both beside the profiles"))
    first = answer.plan.stages[0].layouts[0]
    strategy = Strategy(
        tp=first.tp, pp=len(answer.plan.stages), dp=first.dp, zero=question.pricing.zero,
        micro_batch=answer.plan.samples // first.dp, global_batch=question.global_batch, seq=question.seq,
        schedule=schedule_of(answer), runtime=question.runtime.name if question.runtime else Strategy().runtime,
    )  # fmt: skip
    plan = Plan(
        model=question.model, cluster=question.cluster, strategy=strategy, operators=_operators(answer),
        order=order.schedule if order and order.name == "auto" else None,
        provenance=Provenance(shardwise=__version__, costs=question.pricing.name),
        run={"cpu_seconds": answer.cpu_seconds},
    )  # fmt: skip
    return replace(plan, proof=proof_of(plan, [ProofPart(bound=answer.bound)]))


def schedule_of(answer: OperatorAnswer) -> str:
    """The order of passes that was chosen, else the one that was reckoned with."""
    if answer.whole is not None and answer.whole.fastest is not None:
        return answer.whole.fastest.strategy.schedule
    return answer.order.name if answer.order else answer.question.pricing.schedule


def _operators(answer: OperatorAnswer) -> Operators:
    cost = answer.cost
    return Operators(
        names=answer.question.chain.names, microbatches=cost.passes, stages=stages_of(answer.plan, cost),
        seconds=float(cost.seconds), gpu_seconds=float(cost.gpu_seconds), bound=float(answer.bound),
        gap=float(answer.gap), zeros=answer.question.zeros, orders=tuple(map(order_data, answer.orders)),
        profile=profile_data(answer.question.profile),
    )  # fmt: skip


def stages_of(plan: PerOpPlan, cost: PerOpCost) -> tuple[OperatorStage, ...]:
    """The stages of a plan with what they take."""
    return tuple(
        OperatorStage(
            ops=stage.size, gpus=stage.gpus, layouts=tuple((own.tp, own.dp, own.variant) for own in stage.layouts),
            recompute=tuple(place for place, flag in enumerate(stage.recompute) if flag),
            seconds=float(cost.times[index]), memory=float(cost.memory[index]), ideal=float(cost.ideal[index]),
            lost=float(cost.lost[index]), spare=float(cost.spare[index]), parts=to_dict(cost.stages[index]),
        )
        for index, stage in enumerate(plan.stages)
    )  # fmt: skip


def order_data(order: Order) -> Plain:
    """An order of the passes, without its schedule."""
    found = {one.name: to_plain(getattr(order, one.name)) for one in fields(order) if one.name != "schedule"}
    return found | {"fits": "yes" if order.fits else "no"}


def profile_data(profile: Profile) -> Plain:
    """Where the times of operators come from."""
    return {"name": profile.name, "identity": profile.identity, "tags": profile.tags}
