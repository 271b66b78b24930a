"""The iteration of an estimate or a plan as a timeline: when every pass runs, and what every rank holds meanwhile."""

from __future__ import annotations

from dataclasses import replace

from shardwise.errors import InputError
from shardwise.inputs.load import load_runtime
from shardwise.inputs.plan_file import Plan
from shardwise.inputs.runtime import Runtime
from shardwise.plan.estimate import Estimate, pass_costs
from shardwise.plan.passes import timeline_of
from shardwise.plan.setup import setup_of
from shardwise.simulate import Schedule, simulate
from shardwise.simulate.timeline import Timeline


def iteration(found: Estimate, *, runtime: Runtime | None = None) -> Timeline:
    """The passes that the estimate was made of; memory in bytes of the whole device, with the device's limit."""
    setup = setup_of(found.model, found.cluster, found.strategy, runtime or load_runtime(found.strategy.runtime))
    timeline = timeline_of(setup, pass_costs(setup))
    costs = timeline.costs
    peaks = replace(timeline, costs=replace(costs, static=())).peak
    # what a rank needs beside its activations: the total of the estimate is then the peak of the curve
    static = tuple(max(0.0, one.total - peak) for one, peak in zip(found.memory, peaks, strict=True))
    limits = (found.cluster.gpu.memory,) * found.strategy.pp
    return replace(timeline, costs=replace(costs, static=static, memory_limit=limits))


def plan_iteration(plan: Plan, found: Estimate) -> Timeline:
    """The timeline of a plan: in the order that it carries where `schedule --plan` wrote one, else its strategy's."""
    timeline = iteration(found)
    rows = (plan.schedule or {}).get("rows")
    if not rows:
        return timeline
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise InputError("schedule.rows of the plan must be a list of texts, one row of actions per rank")
    schedule = Schedule.parse("\n".join(rows), name=str((plan.schedule or {}).get("name", "")))
    return simulate(schedule, timeline.costs)
