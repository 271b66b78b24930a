"""From the options of `shardwise schedule` to a timeline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardwise.cli.output import Output
from shardwise.cli.pipeline_costs import Pipeline, limited, plan_pipeline, read_costs, regrouped
from shardwise.cli.progress import progress
from shardwise.errors import Fault, InputError
from shardwise.pipeline.action import placed
from shardwise.pipeline.alternatives import optimise_alternatives
from shardwise.pipeline.arrays import Objective
from shardwise.pipeline.bounds import Bound
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.faults import find_fault
from shardwise.pipeline.generate import SHAPES, generate, split_costs
from shardwise.pipeline.optimise import Answer, bound_of, optimise
from shardwise.pipeline.prove import prove
from shardwise.pipeline.timeline import Timeline

if TYPE_CHECKING:
    from shardwise.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The options as they were given."""

    name: str
    pp: int | None
    vpp: int | None
    microbatches: int | None
    cost_text: str | None
    hop: float | None
    placement: str | None
    memory_limit: str | None
    free: float | None
    objective: str
    group: int
    splits: int
    plan: Plan | None
    effort: float
    time_limit: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """A schedule and what it reaches."""

    timeline: Timeline
    bound: Bound
    value: float
    note: str = ""
    over_limit: str = ""
    """Which limit the schedule breaks; a published schedule knows none."""
    proof: dict[str, Any]
    """The certificate of the bound and the order."""
    choice: tuple[int, ...] = ()
    interrupted: bool = False
    out_of_time: bool = False


def pipeline_of(ask: Ask) -> Pipeline:
    """The pipeline that the options describe, in the order that is asked for."""
    if ask.plan is not None:
        return plan_pipeline(ask.plan, ask.name, ask.placement, ask.memory_limit)
    missing = [("--pp", ask.pp), ("--microbatches", ask.microbatches), ("--costs", ask.cost_text)]
    faults = [Fault(option, "is missing; give it, or a plan with --plan") for option, value in missing if not value]
    if faults:
        raise InputError(faults)
    assert ask.pp and ask.microbatches and ask.cost_text  # noqa: S101, PT018 - for the type checker
    shape = SHAPES.get(ask.name)
    vpp = ask.vpp or (shape.vpp if shape else None) or 2
    placement = ask.placement or (shape.placement if shape else "v")
    given = read_costs(ask.cost_text, ask.pp, vpp, ask.hop, ask.free)
    found = limited(given, ask.memory_limit, placed(ask.pp, vpp, placement))
    return Pipeline(
        costs=found[0], pp=ask.pp, vpp=vpp, microbatches=ask.microbatches, placement=placement,
        alternatives=found if len(found) > 1 else (),
    )  # fmt: skip


def run_one(ask: Ask, pipeline: Pipeline, name: str, output: Output) -> Found:
    """One schedule of the pipeline, by name; a plan's pipeline is priced anew for every order."""
    if ask.plan is not None and name != ask.name:
        pipeline = plan_pipeline(ask.plan, name, ask.placement, ask.memory_limit)
    return _auto(ask, pipeline, output) if name == "auto" else _published(ask, pipeline, name)


def _auto(ask: Ask, pipeline: Pipeline, output: Output) -> Found:
    objective: Objective = "period" if ask.objective == "period" else "makespan"
    with progress("schedule", quiet=output.quiet) as state:
        best: list[Answer] = []

        def report(value: float, bound: float, looked: int) -> None:
            state.update(evaluated=max(0, looked - state.evaluated), best=value, bound=bound)

        best.append(_optimised(ask, pipeline, objective, report))
    if not best:  # Ctrl-C before there was a schedule to keep
        raise KeyboardInterrupt
    answer = best[0]
    words = f"{answer.evaluated} schedules looked at in {answer.seconds:.1f} CPU s"
    words += ", interrupted: the best so far" if answer.interrupted else ""
    words += ", stopped by the time limit: another run may differ" if answer.out_of_time else ""
    proof = prove(
        answer.schedule, pipeline.alternatives or (answer.timeline.costs,), value=answer.value, bound=answer.bound,
        objective=objective, choice=answer.choice, cases=answer.cases,
    )  # fmt: skip
    return Found(
        timeline=answer.timeline, bound=answer.bound, value=answer.value, note=words, choice=answer.choice,
        interrupted=answer.interrupted, out_of_time=answer.out_of_time, proof=proof,
    )  # fmt: skip


def _optimised(ask: Ask, pipeline: Pipeline, objective: Objective, report: object) -> Answer:
    common = {
        "pp": pipeline.pp, "vpp": pipeline.vpp, "microbatches": pipeline.microbatches, "placement": pipeline.placement,
        "objective": objective, "effort": ask.effort, "time_limit": ask.time_limit, "report": report,
    }  # fmt: skip
    if pipeline.alternatives:
        return optimise_alternatives(pipeline.alternatives, **common)  # type: ignore[arg-type]
    if pipeline.setup is not None:
        from shardwise.estimate.passes import best_order

        rest = {name: common[name] for name in ("objective", "effort", "time_limit", "report")}
        return best_order(pipeline.setup, pipeline.costs.memory_limit, **rest)
    return optimise(pipeline.costs, **common)  # type: ignore[arg-type]


def _published(ask: Ask, pipeline: Pipeline, name: str) -> Found:
    shape = SHAPES[name]
    vpp = shape.vpp or max(2, pipeline.vpp)
    costs = regrouped(pipeline.costs, pipeline.pp, vpp)
    if name == "seq-1f1b":
        costs = split_costs(costs, ask.splits)
    group = ask.group or (pipeline.setup.strategy.group if pipeline.setup else 0)
    schedule = generate(
        name, pp=pipeline.pp, vpp=vpp, microbatches=pipeline.microbatches, group=group, splits=ask.splits,
        costs=costs,
    )  # fmt: skip
    timeline = simulate(schedule, costs)
    objective: Objective = "period" if ask.objective == "period" else "makespan"
    bound = bound_of(_unlimited(costs), schedule=schedule, objective=objective)
    over = find_fault(schedule, costs) if costs.memory_limit else None
    value = timeline.period if objective == "period" else timeline.makespan
    proof = prove(schedule, (_unlimited(costs),), value=value, bound=bound, objective=objective)
    return Found(timeline=timeline, bound=bound, value=value, over_limit=str(over) if over else "", proof=proof)


def _unlimited(costs: Costs) -> Costs:
    """A published schedule does not know the limit, so it is held against the bound without one."""
    return replace(costs, memory_limit=())
