"""Inside one rank of a plan: the operators of its passes, and what it allocates in an iteration."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.check.check import ensure
from shardwise.cost.memory import RankMemory
from shardwise.errors import Fault, InputError
from shardwise.estimate.allocations import Allocations, allocations_of
from shardwise.estimate.estimate import Estimate, assemble
from shardwise.estimate.iteration import Iteration, iteration_of
from shardwise.estimate.operators import PassTrace, pass_trace
from shardwise.estimate.passes import footprints_of, longest
from shardwise.estimate.setup import Setup, setup_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.runtime import Runtime
from shardwise.plan.plan import Plan
from shardwise.plan.predict import asked_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPasses:
    """One forward and one backward pass of every chunk of a rank."""

    passes: tuple[PassTrace, ...]
    held: tuple[float, ...]
    """Bytes that the rank holds as each chunk's forward begins, with as many other passes in flight as at its peak."""
    memory: RankMemory


def rank_passes(plan: Plan, rank: int | None = None, *, runtime: Runtime | None = None) -> RankPasses:
    """Of one rank; none: the busiest."""
    setup, found, whole = _whole(plan, runtime)
    work = whole.timeline.work
    own = work.index(max(work)) if rank is None else _known(rank, plan)
    footprint, memory = footprints_of(setup)[own], found.memory[own]
    # what stands beside the pass with the highest forward stands beside the others too
    beside = memory.forward - (footprint.first.forward - footprint.first.kept)
    passes = tuple(pass_trace(setup, chunk) for chunk in setup.rank_indices(own))
    return RankPasses(passes=passes, held=tuple(beside - one.kept for one in passes), memory=memory)


def rank_allocations(plan: Plan, rank: int | None = None, *, runtime: Runtime | None = None) -> Allocations:
    """Of one rank; none: the fullest."""
    setup, found, whole = _whole(plan, runtime)
    totals = [one.total for one in found.memory]
    return allocations_of(setup, whole, totals.index(max(totals)) if rank is None else _known(rank, plan))


def _whole(plan: Plan, runtime: Runtime | None) -> tuple[Setup, Estimate, Iteration]:
    runtime = runtime or load_runtime(plan.strategy.runtime)
    ensure(plan.model, plan.cluster, plan.strategy, runtime)
    setup = setup_of(plan.model, plan.cluster, plan.strategy, runtime, memory_limit=asked_limit(plan))
    found = assemble(setup, plan.order)
    return longest(setup), found, iteration_of(setup, found)


def _known(rank: int, plan: Plan) -> int:
    if not 0 <= rank < plan.strategy.pp:
        raise InputError(Fault("--rank", f"is {rank}; the plan has pipeline ranks 0 to {plan.strategy.pp - 1}"))
    return rank
