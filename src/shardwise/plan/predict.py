"""What a plan takes in the order that it carries: its estimate, its iteration as a timeline; and an estimate's plan."""

from __future__ import annotations

from dataclasses import replace

from shardwise.check.check import ensure
from shardwise.cost.chunk import placement_of
from shardwise.errors import InputError
from shardwise.estimate.estimate import Estimate, assemble, estimate
from shardwise.estimate.iteration import Iteration, iteration_of
from shardwise.estimate.passes import timeline_of
from shardwise.estimate.predictions import predictions_of
from shardwise.estimate.setup import setup_of
from shardwise.inputs.cluster import Cluster
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
    """What a plan takes, in the order that it carries, held against the memory that it was made for."""
    limit = asked_limit(plan)
    return estimate(plan.model, plan.cluster, plan.strategy, runtime=runtime, order=plan.order, memory_limit=limit)


def asked_limit(plan: Plan) -> float | None:
    """Bytes that a rank of a plan may need; none: it does not say, all of its GPU's."""
    return plan.memory_limit if plan.predictions and plan.predictions.memory_limit else None


def order_for(plan: Plan, strategy: Strategy) -> Schedule | None:
    """The order that a plan carries, where another strategy has the same passes on the same ranks."""
    shapes = [(s.pp, s.vpp, s.microbatches, s.schedule, placement_of(s)) for s in (plan.strategy, strategy)]
    return plan.order if shapes[0] == shapes[1] else None


def refuse_other_plan(found: Estimate, plan: Plan) -> None:
    """An estimate goes with the plan that it is of, in the order that the plan carries."""
    ours, theirs = found.strategy, plan.strategy
    shapes = [f"pp {s.pp}, vpp {s.vpp} and {s.microbatches} micro batches" for s in (ours, theirs)]
    if shapes[0] != shapes[1]:
        raise InputError(f"the estimate has {shapes[0]}, the plan {shapes[1]}; estimate that plan, or leave it out")
    rows = [None if order is None else order.csv() for order in (found.order, plan.order)]
    if rows[0] != rows[1]:
        raise InputError("the estimate was made in another order than the plan's; estimate the plan, or leave it out")


def moved(plan: Plan, cluster: Cluster) -> Plan:
    """The plan on another cluster, not predicted there; its memory limit stays where the GPU does."""
    if cluster == plan.cluster:
        return plan
    return replace(
        plan, cluster=cluster, predictions=plan.predictions if cluster.gpu == plan.cluster.gpu else None, proof=None
    )


def changed(plan: Plan, strategy: Strategy) -> Plan:
    """The plan with another strategy, in the order that its name stands for."""
    return replace(plan, strategy=strategy, order=None, balance=None, proof=None)


def plan_of(estimate: Estimate) -> Plan:
    """The plan of an estimate, in the order and under the memory limit that it was made with."""
    return Plan(
        model=estimate.model,
        cluster=estimate.cluster,
        strategy=estimate.strategy,
        order=estimate.order,
        predictions=predictions_of(estimate, memory_limit=estimate.memory_limit),
        provenance=provenance_of(estimate),
    )


def provenance_of(estimate: Estimate) -> Provenance:
    """What made the numbers."""
    return Provenance(shardwise=__version__, costs="roofline", calibration=estimate.calibration)


def plan_iteration(plan: Plan, *, runtime: Runtime | None = None) -> Timeline:
    """The passes that the estimate is made of; memory in bytes of the whole device, with the plan's limit."""
    runtime = runtime or load_runtime(plan.strategy.runtime)
    ensure(plan.model, plan.cluster, plan.strategy, runtime)
    setup = setup_of(plan.model, plan.cluster, plan.strategy, runtime, memory_limit=asked_limit(plan))
    return timeline_of(setup, plan.order)


def whole_iteration(plan: Plan, *, runtime: Runtime | None = None) -> Iteration:
    """All of a plan's iteration, what its estimate counts beside the passes too."""
    runtime = runtime or load_runtime(plan.strategy.runtime)
    ensure(plan.model, plan.cluster, plan.strategy, runtime)
    limit = asked_limit(plan)
    setup = setup_of(plan.model, plan.cluster, plan.strategy, runtime, memory_limit=limit)
    return iteration_of(setup, assemble(setup, plan.order))


def reordered(strategy: Strategy, name: str, layers: int, placement: Placement | None = None) -> Strategy:
    """The strategy in another order, with the chunks that it wants: cut anew, evenly, where they are others.

    `layers`: of the model; `placement`: of what is optimised, if it is to be another.
    """
    shape = SHAPES.get(name)
    vpp = strategy.vpp if shape is None else shape.vpp or max(2, strategy.vpp)
    where = (placement or placement_of(strategy)) if shape is None else shape.placement
    group = strategy.group if name == "interleaved" else 0
    made = replace(strategy, schedule=name, vpp=vpp, placement=where, group=group)  # type: ignore[arg-type]
    if (vpp, where) == (strategy.vpp, placement_of(strategy)):
        return made
    if len(set(strategy.recompute.layers)) > 1:
        raise InputError(
            f"the plan recomputes {','.join(map(str, strategy.recompute.layers))} layers of its {strategy.chunks} "
            f"chunks, and {name} has {strategy.pp * vpp} on other ranks; plan again with --only schedule={name}"
        )
    made = replace(made, layers=(), first_layers=0, last_layers=0, count_embedding=False, count_head=False)
    return with_layers(layers, made) if is_uneven(layers, made) else made
