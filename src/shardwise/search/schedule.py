"""A pipeline put in order: a published schedule by name, or the best one for its costs and memory.

The pipeline is described by costs, or it is a plan's: then its passes cost what an estimate of the plan says, the
device's memory is the limit, and every order is priced anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwise.check.check import ensure
from shardwise.errors import Fault, InputError, ShardwiseError, UnknownNameError
from shardwise.estimate.estimate import estimate
from shardwise.estimate.passes import SEQUENCE_PIECES, SPLIT, best_order, pass_costs
from shardwise.estimate.setup import Setup, setup_of
from shardwise.inputs.gate import held, word
from shardwise.inputs.load import load_runtime
from shardwise.inputs.mixed import Mixed
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.strategy import SCHEDULES, Placement, Strategy
from shardwise.pipeline.action import placed
from shardwise.pipeline.alternatives import optimise_alternatives
from shardwise.pipeline.arrays import Objective
from shardwise.pipeline.bounds import Bound
from shardwise.pipeline.contention import linked
from shardwise.pipeline.costs import Costs, regrouped
from shardwise.pipeline.costs_text import costs_of, limited
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.faults import find_fault
from shardwise.pipeline.generate import SHAPES, generate, split_costs
from shardwise.pipeline.offload import offloaded
from shardwise.pipeline.offload_search import with_host
from shardwise.pipeline.optimise import OrderAnswer, bound_of, optimise
from shardwise.pipeline.order_search import Report
from shardwise.pipeline.orders.both_ways import both_ways, dualpipe
from shardwise.pipeline.placements import is_map
from shardwise.pipeline.prove import prove
from shardwise.pipeline.replay import bound_for
from shardwise.pipeline.timeline import Timeline
from shardwise.plan.plan import Plan
from shardwise.plan.predict import asked_limit, plan_of, reordered
from shardwise.search.order_shape import TWO, as_word, shape_of

ALONE = "any order whose passes run one after the other, on this placement"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is to be scheduled, as `api.schedule` takes it."""

    name: str
    pp: int | None = None
    vpp: int | None = None
    microbatches: int | None = None
    costs: Costs | Sequence[Costs] | str | None = None
    hop: float | None = None
    placement: str | None = None
    memory_limit: str | None = None
    free_at_input_grad: float | None = None
    objective: Objective = "makespan"
    group: int = 0
    splits: int = 2
    plan: Plan | None = None
    transfer: float | None = None
    contention: bool = False
    offload: float | None = None
    effort: float = 1.0
    time_limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What is scheduled: the chunks, their costs and where they lie."""

    costs: Costs
    pp: int
    vpp: int
    microbatches: int
    placement: str
    alternatives: tuple[Costs, ...] = ()
    """Costs of every alternative (plain, recomputed ...), the first of which is `costs`."""
    setup: Setup | None = None
    """Of a plan: times are seconds, bytes are bytes, not the user's own units."""
    plan: Plan | None = None
    """The plan whose pipeline it is, as it was before."""

    @property
    def seconds(self) -> bool:
        return self.setup is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scheduled:
    """A schedule and what it reaches."""

    name: str
    """The name that was asked for; `auto`: the best that was found."""
    pipeline: Pipeline
    timeline: Timeline
    """Its passes, one after the other on every rank."""
    bound: Bound
    """No order of these passes takes less, under the cost model in use."""
    value: float
    """Its makespan, or its period where that is the objective."""
    objective: Objective = "makespan"
    note: str = ""
    """What the search did."""
    over_limit: str = ""
    """Which limit the schedule breaks; a published schedule knows none."""
    proof: dict[str, Any]
    """The certificate of the bound and the order."""
    choice: tuple[int, ...] = ()
    """Per chunk, the alternative that was taken."""
    interrupted: bool = False
    """Ctrl-C was pressed: the best so far."""
    out_of_time: bool = False
    """The time limit ended the search: another run may differ."""
    others: tuple[Scheduled | Refused, ...] = ()
    """The schedules that it is compared with, of the same pipeline."""

    @property
    def gap(self) -> float:
        """Value over bound, less 1."""
        return max(0.0, self.value / self.bound.value - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A schedule that cannot order the pipeline, and why."""

    name: str
    why: str


def schedule(ask: Ask, compare: Sequence[str] = (), report: Report | None = None) -> Scheduled:
    """The schedule that is asked for, and those to compare it with."""
    word(ask.objective, ("makespan", "period"), "objective")
    for name, row in (("effort", "option.effort"), ("splits", "option.splits"), ("group", "option.none")):
        held(getattr(ask, name), SCALARS[row], name)
    for name in (ask.name, *compare):
        if name not in (*SCHEDULES, TWO):
            raise UnknownNameError("schedule", name, (*SCHEDULES, TWO))
    if ask.plan is not None:
        _refuse_beside_plan(ask, (ask.name, *compare))
    pipeline = pipeline_of(ask)
    found = run_one(ask, pipeline, ask.name, report)
    names = dict.fromkeys(name for name in compare if name != ask.name)
    return replace(found, others=tuple(_tried(ask, pipeline, name) for name in names)) if names else found


_OF_PLAN = ("pp", "vpp", "microbatches", "costs", "hop", "free_at_input_grad")
"""What describes a pipeline, and a plan says."""


def _refuse_beside_plan(ask: Ask, names: Sequence[str]) -> None:
    """A plan that no verb takes, what it says already, and what its strategy has no word for."""
    assert ask.plan  # noqa: S101 - for the type checker
    faults = [
        Fault(f"--{name.replace('_', '-')}", "the plan says it; leave it out, or --plan")
        for name in _OF_PLAN
        if getattr(ask, name) is not None
    ]
    faults += [
        Fault(f"--{name}", "is not a plan's to say: its messages are one time each, and its activations stay; "
              "give costs in place of the plan, or leave it out")
        for name in ("transfer", "contention", "offload") if getattr(ask, name)
    ]  # fmt: skip
    if TWO in names:
        faults.append(Fault(TWO, "has two copies of the model, and a plan's strategy has no word for that; give costs"))
    if ask.splits != SEQUENCE_PIECES:
        told = f"is {ask.splits}, and a plan's strategy has no word for it: seq-1f1b has {SEQUENCE_PIECES} pieces there"
        faults.append(Fault("--splits", f"{told}; leave it out"))
    if ask.group and "interleaved" not in names:
        faults.append(Fault("--group", f"is {ask.group}, and only interleaved has groups; leave it out"))
    if faults:
        raise InputError(faults)
    ensure(ask.plan.model, ask.plan.cluster, ask.plan.strategy, load_runtime(ask.plan.strategy.runtime))


def in_order(found: Scheduled, plan: Plan | None = None) -> Plan:
    """The plan in its new order, predicted anew; an order that follows no name is written out.

    `plan`: must be the one that was ordered, where it is given.
    """
    old, setup = found.pipeline.plan, found.pipeline.setup
    if old is None or setup is None:
        raise InputError("the schedule is of costs, not of a plan; order the plan itself: schedule(name, plan=plan)")
    if plan is not None and (plan.model, plan.cluster, plan.strategy) != (old.model, old.cluster, old.strategy):
        raise InputError(
            f"the schedule is of {old.model.name} on {old.cluster.name} with {old.strategy}, the plan is "
            f"{plan.model.name} on {plan.cluster.name} with {plan.strategy}; order that plan, or leave it out"
        )
    order = found.timeline.schedule if found.name == "auto" else None
    limit = _kept_limit(old, found.pipeline.costs)
    return plan_of(estimate(old.model, old.cluster, setup.strategy, order=order, memory_limit=limit))


def _kept_limit(plan: Plan, costs: Costs) -> float | None:
    """The memory limit of an order as its plan keeps it: one number for all ranks, none for all of the GPU's."""
    limits = set(costs.memory_limit)
    if len(limits) > 1 or isinstance(plan.cluster, Mixed):
        return asked_limit(plan)
    return next((limit for limit in limits if limit != plan.cluster.gpu.memory), None)


def refuse_unrunnable(plan: Plan, name: str, placement: Placement | None = None, group: int = 0) -> None:
    """What a plan's runtime cannot run is not written into the plan."""
    strategy = _strategy_in(plan, name, placement, group)
    ensure(plan.model, plan.cluster, strategy, load_runtime(strategy.runtime))


def pipeline_of(ask: Ask) -> Pipeline:
    """The pipeline that is described, in the order that is asked for."""
    if ask.plan is not None:
        return plan_pipeline(ask, ask.plan, ask.name)
    missing = [("--pp", ask.pp or is_map(ask.placement)), ("--microbatches", ask.microbatches), ("--costs", ask.costs)]
    faults = [Fault(option, "is missing; give it, or a plan with --plan") for option, value in missing if not value]
    if faults:
        raise InputError(faults)
    assert ask.microbatches and ask.costs  # noqa: S101, PT018 - for the type checker
    pp, vpp, placement = shape_of(ask.name, ask.pp, ask.vpp, ask.placement)
    given = costs_of(ask.costs, pp, vpp, ask.hop, ask.free_at_input_grad)
    given = with_host(linked(given, ask.transfer, contention=ask.contention), ask.offload)
    found = limited(given, ask.memory_limit, placed(pp, vpp, placement))
    return Pipeline(
        costs=found[0], pp=pp, vpp=vpp, microbatches=ask.microbatches, placement=placement,
        alternatives=found if len(found) > 1 else (),
    )  # fmt: skip


def plan_pipeline(ask: Ask, plan: Plan, name: str) -> Pipeline:
    """The pipeline of a plan in an order: what an estimate of it replays, the plan's memory as the limit."""
    strategy = _strategy_in(plan, name, as_word(ask.placement), ask.group)
    runtime = load_runtime(strategy.runtime)
    setup = setup_of(plan.model, plan.cluster, strategy, runtime, memory_limit=plan.memory_limit)
    rank_of = placed(strategy.pp, strategy.vpp, setup.placement)
    costs = pass_costs(setup, split=name in SPLIT | {"auto"})
    return Pipeline(
        costs=limited((costs,), ask.memory_limit, rank_of)[0], pp=strategy.pp, vpp=strategy.vpp,
        microbatches=strategy.microbatches, placement=setup.placement, setup=setup, plan=plan,
    )  # fmt: skip


def _strategy_in(plan: Plan, name: str, placement: Placement | None, group: int = 0) -> Strategy:
    own = plan.strategy.schedule == name and not (name == "auto" and placement)
    made = plan.strategy if own else reordered(plan.strategy, name, plan.model.depth, placement)
    return replace(made, group=group) if group and name == "interleaved" else made


def run_one(ask: Ask, pipeline: Pipeline, name: str, report: Report | None = None) -> Scheduled:
    """One schedule of the pipeline, by name; a plan's pipeline is priced anew for every order."""
    if ask.plan is not None and name != ask.name:
        pipeline = plan_pipeline(ask, ask.plan, name)
    if name == TWO:
        return _both_ways(ask, pipeline)
    return _auto(ask, pipeline, report) if name == "auto" else _published(ask, pipeline, name)


def _tried(ask: Ask, pipeline: Pipeline, name: str) -> Scheduled | Refused:
    try:
        return run_one(ask, pipeline, name)
    except ShardwiseError as error:
        return Refused(name=name, why=str(error))


def _auto(ask: Ask, pipeline: Pipeline, report: Report | None) -> Scheduled:
    answer = _optimised(ask, pipeline, report)
    words = f"{answer.evaluated} schedule{'s' * (answer.evaluated != 1)} looked at in {answer.seconds:.1f} CPU s"
    words += ", interrupted: the best so far" if answer.interrupted else ""
    words += ", stopped by the time limit: another run may differ" if answer.out_of_time else ""
    paired = answer.timeline.costs.pairs  # a certificate knows passes that run one after the other
    proof = {} if paired else prove(
        answer.schedule, pipeline.alternatives or (answer.timeline.costs,), value=answer.value, bound=answer.bound,
        objective=ask.objective, choice=answer.choice, cases=answer.cases,
    )  # fmt: skip
    return Scheduled(
        name="auto", pipeline=pipeline, timeline=answer.timeline, bound=answer.bound, value=answer.value,
        objective=ask.objective, note=words, choice=answer.choice, interrupted=answer.interrupted,
        out_of_time=answer.out_of_time, proof=proof,
    )  # fmt: skip


def _optimised(ask: Ask, pipeline: Pipeline, report: Report | None) -> OrderAnswer:
    effort: Any = {
        "objective": ask.objective, "effort": ask.effort, "time_limit": ask.time_limit, "report": report,
    }  # fmt: skip
    if pipeline.setup is not None:
        return best_order(pipeline.setup, pipeline.costs.memory_limit, **effort)
    shape: Any = {
        "pp": pipeline.pp, "vpp": pipeline.vpp, "microbatches": pipeline.microbatches, "placement": pipeline.placement,
    }  # fmt: skip
    if pipeline.alternatives:
        return optimise_alternatives(pipeline.alternatives, **shape, **effort)
    return optimise(pipeline.costs, **shape, **effort)


def _published(ask: Ask, pipeline: Pipeline, name: str) -> Scheduled:
    vpp = SHAPES[name].vpp or max(2, pipeline.vpp)
    costs = regrouped(pipeline.costs, pipeline.pp, vpp)
    if name == "seq-1f1b":
        costs = split_costs(costs, ask.splits)
    group = ask.group or (pipeline.setup.strategy.group if pipeline.setup else 0)
    order = generate(
        name, pp=pipeline.pp, vpp=vpp, microbatches=pipeline.microbatches, group=group, splits=ask.splits,
        costs=costs,
    )  # fmt: skip
    timeline = (costs.offloads and offloaded(order, costs, ask.objective)) or simulate(order, costs)
    order = timeline.schedule
    # A published schedule does not know the limit, so it is held against the bound without one.
    unlimited = replace(costs, memory_limit=())
    bound = bound_of(unlimited, schedule=order, objective=ask.objective)
    bound = replace(bound, scope=ALONE) if costs.pairs else bound
    over = find_fault(order, costs) if costs.memory_limit else None
    value = timeline.period if ask.objective == "period" else timeline.makespan
    proven = (costs if order.offloads else unlimited,)
    return Scheduled(
        name=name, pipeline=pipeline, timeline=timeline, bound=bound, value=value, objective=ask.objective,
        over_limit=str(over) if over else "",
        proof=prove(order, proven, value=value, bound=bound, objective=ask.objective),
    )  # fmt: skip


def _both_ways(ask: Ask, pipeline: Pipeline) -> Scheduled:
    """DualPipe on the stages of the same model; its bound is a plain one, and it carries no proof."""
    costs = both_ways(regrouped(pipeline.costs, pipeline.pp, 1))
    order = dualpipe(pipeline.pp, pipeline.microbatches)
    timeline = (costs.offloads and offloaded(order, costs, ask.objective)) or simulate(order, costs)
    over = find_fault(timeline.schedule, costs) if costs.memory_limit else None
    return Scheduled(
        name=TWO, pipeline=pipeline, timeline=timeline, bound=bound_for(order, replace(costs, memory_limit=())),
        value=timeline.period if ask.objective == "period" else timeline.makespan, objective=ask.objective,
        note="two copies of the model, micro batches from both ends", over_limit=str(over) if over else "", proof={},
    )  # fmt: skip
