"""What a plan takes in the order that it carries: its estimate, its iteration as a timeline; and an estimate's plan."""

from __future__ import annotations

from dataclasses import replace

from shardwise.cost.chunk import placement_of
from shardwise.errors import InputError
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.estimate.passes import timeline_of
from shardwise.estimate.predictions import predictions_of
from shardwise.estimate.setup import setup_of
from shardwise.inputs.layers import is_uneven, with_layers
from shardwise.inputs.load import load_runtime
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Placement, Strategy
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.generate import SHAPES
from shardwise.pipeline.timeline import Timeline
from shardwise.plan.plan import Plan, Provenance
from shardwise.version import __version__


def estimate_of(plan: Plan, *, runtime: Runtime | None = None) -> Estimate:
    """What a plan takes, in the order that it carries."""
    return estimate(plan.model, plan.cluster, plan.strategy, runtime=runtime, order=plan.order)


def plan_of(estimate: Estimate, order: Schedule | None = None) -> Plan:
    """The plan of an estimate; `order`: the one that it was made with, where that is not the strategy's."""
    return Plan(
        model=estimate.model,
        cluster=estimate.cluster,
        strategy=estimate.strategy,
        order=order,
        predictions=predictions_of(estimate),
        provenance=provenance_of(estimate),
    )


def provenance_of(estimate: Estimate) -> Provenance:
    """What made the numbers."""
    return Provenance(shardwise=__version__, costs="roofline", calibration=estimate.calibration)


def plan_iteration(plan: Plan, *, runtime: Runtime | None = None) -> Timeline:
    """The passes that the estimate is made of; memory in bytes of the whole device, with the device's limit."""
    runtime = runtime or load_runtime(plan.strategy.runtime)
    return timeline_of(setup_of(plan.model, plan.cluster, plan.strategy, runtime), plan.order)


def reordered(strategy: Strategy, name: str, layers: int, placement: Placement | None = None) -> Strategy:
    """The strategy in another order, with the chunks that it wants: cut anew, evenly, where they are others.

    `layers`: of the model; `placement`: of what is optimised, if it is to be another.
    """
    shape = SHAPES.get(name)
    vpp = strategy.vpp if shape is None else shape.vpp or max(2, strategy.vpp)
    where = (placement or placement_of(strategy)) if shape is None else shape.placement
    made = replace(strategy, schedule=name, vpp=vpp, placement=where)  # type: ignore[arg-type]
    if (vpp, where) == (strategy.vpp, placement_of(strategy)):
        return made
    if len(set(strategy.recompute.layers)) > 1:
        raise InputError(
            f"the plan recomputes {','.join(map(str, strategy.recompute.layers))} layers of its {strategy.chunks} "
            f"chunks, and {name} has {strategy.pp * vpp} on other ranks; plan again with --only schedule={name}"
        )
    made = replace(made, layers=(), first_layers=0, last_layers=0, count_embedding=False, count_head=False)
    return with_layers(layers, made) if is_uneven(layers, made) else made
