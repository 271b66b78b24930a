"""A plan balanced: its layers, and what every stage recomputes, cut anew for the strategy that it has.

The cut is found as the search finds it and priced by the estimate; no cut that fits takes less than the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

from shardwise.errors import Fault, InfeasibleError, InputError
from shardwise.estimate.estimate import Estimate, estimate, within
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.partition.problem import BalanceAnswer, Problem
from shardwise.plan.plan import Balance, Plan, Recomputed
from shardwise.plan.predict import asked_limit, estimate_of, plan_of
from shardwise.search.cut_bound import Effort, Lessons, prove
from shardwise.search.cuts import cuts_freely
from shardwise.search.question import Question, question_about
from shardwise.search.recomputes import AS_NEEDED
from shardwise.search.refine import Refined, refine
from shardwise.units import show_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Balanced:
    """A plan before and after."""

    before: Estimate
    after: Estimate
    """The same as before where that is no slower and fits."""
    limit: float
    """Bytes that a rank may need."""
    bound: float
    """No cut that fits takes less; 0: not known."""

    @property
    def gap(self) -> float:
        return self.after.iteration_seconds / self.bound - 1 if self.bound else float("inf")


def balanced(plan: Plan, *, limit: float | None = None) -> Balanced:
    """The fastest cut of a plan's strategy that fits into `limit` bytes of every rank, by default the plan's limit."""
    strategy = plan.strategy
    limit = asked_limit(plan) if limit is None else limit
    question = question_about(plan, strategy, limit or plan.cluster.gpu.memory)
    runtime = question.runtime
    _refuse(question, strategy)
    before = within(estimate_of(plan), limit)
    free = _free(strategy, runtime)
    found = refine(question, free, thorough=True)
    kept = before.total_bytes <= question.memory_limit
    if found is None or not (found.allowed or kept):
        raise InfeasibleError(_lacking(found, question.memory_limit))
    after = estimate(plan.model, plan.cluster, found.strategy, runtime=runtime, memory_limit=limit)
    if kept and (not found.allowed or before.iteration_seconds <= after.iteration_seconds):
        after = before
    enough = after.iteration_seconds / (1 + 1e-6)
    bound = max(prove(question, free, enough, Lessons(), effort) for effort in get_args(Effort))
    return Balanced(before=before, after=after, limit=question.memory_limit, bound=min(bound, after.iteration_seconds))


def refuse_other_pipeline(plan: Plan, problem: Problem) -> None:
    """A problem's layers go into a plan of the same pipeline only."""
    faults = [
        Fault(name, f"is {theirs} in the plan, but {ours} in what is to be balanced; they must be the same")
        for name, theirs, ours in (
            ("pp", plan.strategy.pp, problem.pp),
            ("vpp", plan.strategy.vpp, problem.vpp),
            ("layers", plan.model.depth, problem.layers),
        )
        if theirs != ours
    ]
    if faults:
        raise InputError(faults)


def with_layers_of(plan: Plan, answer: BalanceAnswer, data: dict[str, Any]) -> Plan:
    """The plan with the layers of a balanced problem, predicted anew by the cost model; `data`: the answer in JSON."""
    refuse_other_pipeline(plan, answer.problem)
    strategy = replace(
        plan.strategy, layers=answer.best.partition.layers, first_layers=0, last_layers=0, count_embedding=False,
        count_head=False, schedule=data["schedule"],
    )  # fmt: skip
    mixed = tuple(
        Recomputed(kind=run["kind"], choices={name: tuple(counts) for name, counts in run["choices"].items()})
        for run in data["counts_by_kind"]
    )
    found = Balance(
        problem=answer.problem.name, recompute=mixed, simulated=answer.simulated, bound=answer.bound,
        peak=answer.best.peak,
    )  # fmt: skip
    made = plan_of(estimate(plan.model, plan.cluster, strategy, memory_limit=asked_limit(plan)))
    return replace(made, balance=found, run={**(plan.run or {}), "balance_seconds": data["seconds"]})


def _refuse(question: Question, strategy: Strategy) -> None:
    if strategy.pp == 1:
        raise InputError("the plan has one pipeline stage (pp 1): there is nothing to balance")
    if not cuts_freely(question, strategy):
        why = (
            f"{strategy.runtime} cuts layers evenly" if not question.runtime.can.uneven_layers else
            f"{strategy.schedule} orders its passes by their costs"
        )  # fmt: skip
        cure = "estimate the plan with another runtime or schedule first, and balance that"
        raise InputError(f"the layers of this plan cannot be cut freely: {why}; {cure}")


def _free(strategy: Strategy, runtime: Runtime) -> Strategy:
    """The strategy with its cut left open, and, where the runtime can, what every stage recomputes too."""
    recompute = strategy.recompute
    if recompute.active and "per-stage" in runtime.can.recompute:
        recompute = Recompute(full=recompute.full, modules=recompute.modules, layers=AS_NEEDED, group=recompute.group)
    return replace(
        strategy, layers=(), first_layers=0, last_layers=0, count_embedding=False, count_head=False,
        recompute=recompute,
    )  # fmt: skip


def _lacking(found: Refined | None, limit: float) -> str:
    if found is None:
        return "no cut of this strategy can be simulated"
    seen = f"{show_bytes(found.total_bytes)} of {show_bytes(limit)}"
    return f"no cut was found that fits: the leanest of those seen needs {seen}; recompute more or raise pp"
