"""What a plan takes in the order that it carries: its estimate, and its iteration as a timeline."""

from __future__ import annotations

from dataclasses import replace

from shardwise.cost.chunk import placement_of
from shardwise.errors import InputError
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.estimate.passes import timeline_of
from shardwise.estimate.setup import setup_of
from shardwise.inputs.layers import is_uneven, with_layers
from shardwise.inputs.load import load_runtime
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Placement, Strategy
from shardwise.pipeline.action import Schedule, placed
from shardwise.pipeline.faults import validate
from shardwise.pipeline.generate import SHAPES
from shardwise.pipeline.timeline import Timeline
from shardwise.plan.file import Plan


def estimate_of(plan: Plan, *, runtime: Runtime | None = None) -> Estimate:
    """What a plan takes, in the order that it carries."""
    return estimate(plan.model, plan.cluster, plan.strategy, runtime=runtime, order=order_in(plan))


def plan_iteration(plan: Plan, *, runtime: Runtime | None = None) -> Timeline:
    """The passes that the estimate is made of; memory in bytes of the whole device, with the device's limit."""
    runtime = runtime or load_runtime(plan.strategy.runtime)
    return timeline_of(setup_of(plan.model, plan.cluster, plan.strategy, runtime), order_in(plan))


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


def order_in(plan: Plan) -> Schedule | None:
    """The order that a plan carries where `schedule --plan` wrote one; none: its strategy's."""
    rows, strategy = (plan.schedule or {}).get("rows"), plan.strategy
    if not rows:
        return None
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise InputError("schedule.rows of the plan must be a list of texts, one row of actions per rank")
    order = Schedule.parse("\n".join(rows), name=str((plan.schedule or {}).get("name", "")))
    shape, wanted = (order.pp, order.chunks, order.microbatches), (strategy.pp, strategy.chunks, strategy.microbatches)
    if shape != wanted:
        raise InputError(
            "schedule.rows of the plan have {} ranks, {} chunks and {} micro batches; ".format(*shape)
            + "its strategy has {}, {} and {}: leave the rows out, or order the plan anew".format(*wanted)
        )
    validate(order, rank_of=placed(strategy.pp, strategy.vpp, placement_of(strategy)))
    return order
