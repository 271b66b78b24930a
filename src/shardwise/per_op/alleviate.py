"""Iterative bottleneck alleviation: find the stage that holds all others up, and the primitive that relieves it.

Depth first over several hops, back-tracking, from any start; every accepted change is an entry of the diary. Budgets
are numbers of plans and trials, so that the same question has the same answer; a limit in seconds voids that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from shardwise.errors import InfeasibleError
from shardwise.per_op.answer import Deadline, OperatorAnswer, Report, Standing, nothing_fits, silent
from shardwise.per_op.evaluate import PerOpCost, evaluate
from shardwise.per_op.layer_bound import layer_bound, plain_bound
from shardwise.per_op.primitives import PRIMITIVES, Primitive, Situation
from shardwise.per_op.question import OperatorQuestion, PerOpPlan
from shardwise.per_op.start import STARTS
from shardwise.per_op.tables import sample_counts
from shardwise.per_op.together import each
from shardwise.per_op.workshop import PlanDraft, Workshop, draft_of
from shardwise.search.executor import Executor, Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class HopBudget:
    """When to stop."""

    hops: int = 7
    """Changes in a row before turning back (Aceso's --max-num-hops)."""
    trials: int = 30
    """Descents (--max-num-trials)."""
    plans: int = 3000
    """Plans evaluated per start."""
    seconds: float = float("inf")
    """CPU seconds in all (--time-budget-total)."""
    branch: int = 3
    """Candidates of a group that are followed further."""
    pool: float = 1.2
    """Plans within this factor of the best are kept to come back to."""


@dataclass(slots=True)
class _Walk:
    """One descent from one start."""

    shop: Workshop
    budget: HopBudget
    deadline: Deadline
    seen: set[PlanDraft] = field(default_factory=set)
    pool: dict[PlanDraft, float] = field(default_factory=dict)
    plans: int = 0
    path: list[str] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.plans >= self.budget.plans or self.deadline.over

    def value(self, draft: PlanDraft) -> float:
        """Seconds of what fits; what does not fit is worse than everything, by how much it is over."""
        cost = self.shop.made(draft)[1]
        over = max(cost.memory) / self.shop.question.memory
        return cost.seconds if over <= 1 else 1e9 * over

    def descend(self, draft: PlanDraft, target: float, hops: int) -> PlanDraft | None:
        """A draft that beats the target within so many hops."""
        cost = self.shop.made(draft)[1]
        for stage in _bottlenecks(self.shop.question, cost)[:2]:
            bench = Situation(self.shop.question, draft, cost, stage)
            for group in groups(bench):
                made = self._candidates(bench, group)
                if made and made[0][0] < target * (1 - 1e-12):
                    self.path.append(_entry(bench, made[0], self.value(draft)))
                    return made[0][2]
                for value, told, other in made[: self.budget.branch] if hops > 1 else ():
                    if self.over:
                        return None
                    found = self.descend(other, target, hops - 1)
                    if found is not None:
                        self.path.insert(0, _entry(bench, (value, told, other), self.value(draft)))
                        return found
        return None

    def _candidates(self, bench: Situation, group: list[Primitive]) -> list[tuple[float, str, PlanDraft]]:
        """All drafts of a group's primitives that are legal and new, best first."""
        made = []
        for primitive in group:
            for told, draft in primitive.apply(bench):
                if draft in self.seen or self.over or not self.shop.legal(draft):
                    continue
                self.seen.add(draft)
                self.plans += 1
                value = self.value(draft)
                self.pool[draft] = value
                made.append((value, told, draft))
        return sorted(made, key=lambda item: item[0])


def _bottlenecks(question: OperatorQuestion, cost: PerOpCost) -> list[int]:
    """Stages by what is short: memory where anything is over the limit, else time."""
    values = cost.memory if max(cost.memory) > question.memory else cost.times
    return sorted(range(len(values)), key=lambda index: (-values[index], index))


def groups(bench: Situation) -> list[list[Primitive]]:
    """Primitives in the order of what the bottleneck suffers from most."""
    if max(bench.cost.memory) > bench.question.memory:
        return [[primitive for primitive in PRIMITIVES if primitive.memory == "-"]]
    left, ordered = list(PRIMITIVES), []
    for _, resource in sorted(shares(bench), reverse=True):
        lowering = [primitive for primitive in left if getattr(primitive, resource) == "-"]
        ordered.append(lowering)
        left = [primitive for primitive in left if primitive not in lowering]
    return [group for group in [*ordered, left] if group]


def shares(bench: Situation) -> list[tuple[float, str]]:
    """The bottleneck's part of all stages' compute, lost efficiency and recompute: which resource is to be lowered."""
    again = [stage.recompute for stage in bench.cost.stages]
    found = []
    for values, resource in ((bench.cost.ideal, "time"), (bench.cost.lost, "communication"), (again, "memory")):
        total = sum(values)
        found.append((values[bench.stage] / total if total > 0 and values[bench.stage] > 0 else 0.0, resource))
    return found


_RESOURCE = {"time": "compute", "communication": "lost efficiency", "memory": "recompute"}


def _entry(bench: Situation, made: tuple[float, str, PlanDraft], before: float) -> str:
    value, told, _ = made
    over = max(bench.cost.memory) > bench.question.memory
    share, resource = max(shares(bench))
    why = "memory" if over else f"time, most in {_RESOURCE[resource]} ({share:.0%} of all stages')"
    return f"stage {bench.stage} is short of {why}: {told}; {_said(before)} -> {_said(value)}"


def _said(value: float) -> str:
    return f"{value:.4f} s" if value < 1e9 else f"does not fit ({value / 1e9:.2f} of the limit)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """The best plan that hops from a start reach, and how it was reached."""

    plan: PerOpPlan
    cost: PerOpCost
    diary: tuple[str, ...]
    interrupted: bool = False
    out_of_time: bool = False


def descend_from(question: OperatorQuestion, start: PerOpPlan, budget: HopBudget) -> Descent:
    """Hop from a start until nothing helps any more, the budget is spent, or Ctrl-C."""
    shop = Workshop(question)
    walk = _Walk(shop, budget, Deadline(budget.seconds))
    best = draft_of(start)
    walk.seen.add(best)
    diary = [f"start with {len(start.stages)} stages: {_said(walk.value(best))}"]
    current, interrupted = best, False
    try:
        for _ in range(budget.trials):
            walk.path = []
            found = walk.descend(current, walk.value(best), budget.hops)
            if found is not None:
                diary += walk.path
                best = current = found
                continue
            other = _next(walk, current, best)
            if other is None:
                break
            current = other
    except KeyboardInterrupt:
        interrupted = True
    diary.append(f"{_end(walk, interrupted)} ({walk.plans} plans looked at): {_said(walk.value(best))}")
    plan, cost = shop.made(best)
    return Descent(
        plan=plan, cost=cost, diary=tuple(diary), interrupted=interrupted, out_of_time=walk.deadline.over
    )  # fmt: skip


def _next(walk: _Walk, current: PlanDraft, best: PlanDraft) -> PlanDraft | None:
    """Where to go back to: the best draft met that is near the best of all."""
    walk.pool.pop(current, None)
    most = walk.budget.pool * walk.value(best)
    near = [(value, index, draft) for index, (draft, value) in enumerate(walk.pool.items())
            if value <= most and draft != best]  # fmt: skip
    if walk.over or not near:
        return None
    found = min(near)[2]
    walk.pool.pop(found)
    return found


def _end(walk: _Walk, interrupted: bool) -> str:
    if interrupted:
        return "stopped by Ctrl-C"
    if walk.deadline.over:
        return "the time limit ended it"
    return "the number of plans ended it" if walk.over else "no primitive helps any more"


def _one(job: tuple[OperatorQuestion, PerOpPlan, HopBudget]) -> Descent:
    """One start, for a process of its own."""
    return descend_from(*job)


def alleviate(
    question: OperatorQuestion,
    starts: tuple[PerOpPlan, ...] = (),
    budget: HopBudget | None = None,
    keep: int = 8,
    executor: Executor | None = None,
    report: Report = silent,
) -> OperatorAnswer:
    """Alleviation from given starts, or from the balanced one of every number of stages, side by side."""
    budget, deadline = budget or HopBudget(), Deadline((budget or HopBudget()).seconds)
    descents: list[Descent] = []
    interrupted = False
    try:
        for made in each(executor, _one, _shared(question, starts or starts_of(question), budget, deadline, executor)):
            descents.append(made)
            fitting = [descent.cost.seconds for descent in descents if descent.cost.fits(question.memory)]
            report(Standing(best=min(fitting, default=None), bound=0.0, solved=len(descents)))
            if made.interrupted:
                break
    except KeyboardInterrupt:  # between two descents, which answer it themselves
        interrupted = True
    found = sorted((item for item in descents if item.cost.fits(question.memory)), key=lambda item: item.cost.seconds)
    interrupted = interrupted or any(item.interrupted for item in descents)
    if not found:
        if interrupted:
            raise KeyboardInterrupt
        raise InfeasibleError(nothing_fits(question))
    best = found[0]
    return OperatorAnswer(
        question=question, plan=best.plan, cost=evaluate(question, best.plan),
        bound=min(_bound(question, deadline), best.cost.seconds),
        others=tuple(dict.fromkeys(item.plan for item in found[1:]))[: keep - 1], method="alleviate",
        solved=len(descents), cpu_seconds=deadline.used, interrupted=interrupted, diary=best.diary,
        complete=not interrupted and not any(item.out_of_time for item in descents),
    )  # fmt: skip


def _shared(
    question: OperatorQuestion,
    starts: tuple[PerOpPlan, ...],
    budget: HopBudget,
    deadline: Deadline,
    executor: Executor | None,
) -> Iterator[tuple[OperatorQuestion, PerOpPlan, HopBudget]]:
    """A job per start; the seconds that are left are shared among those that are left, and among processes."""
    workers = executor.workers if isinstance(executor, Pool) else 1
    for index, start in enumerate(starts):
        seconds = deadline.left * min(1.0, workers / (len(starts) - index))
        yield question, start, replace(budget, seconds=seconds)


def _bound(question: OperatorQuestion, deadline: Deadline) -> float:
    sizes = sample_counts(question)
    plain = min(plain_bound(question, size) for size in sizes)
    return plain if deadline.over else max(plain, min(layer_bound(question, size) for size in sizes))


def starts_of(question: OperatorQuestion, kind: str = "balanced") -> tuple[PerOpPlan, ...]:
    """One start per number of stages; numbers that the GPUs do not divide into are left out."""
    made = (STARTS[kind](question, stages) for stages in question.stage_range)
    return tuple(plan for plan in made if plan is not None)
