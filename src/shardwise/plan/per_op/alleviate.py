"""Iterative bottleneck alleviation: find the stage that holds all others up, and the primitive that relieves it.

Depth first over several hops, back-tracking, from any start; every accepted change is an entry of the diary. Budgets
are numbers of plans and trials, so that the same question has the same answer; a limit in seconds voids that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shardwise.errors import InfeasibleError
from shardwise.plan.per_op.answer import Answer, nothing_fits
from shardwise.plan.per_op.evaluate import Evaluation, evaluate
from shardwise.plan.per_op.layer_bound import layer_bound
from shardwise.plan.per_op.primitives import PRIMITIVES, Bench, Primitive
from shardwise.plan.per_op.search import plain_bound
from shardwise.plan.per_op.space import micro_batches
from shardwise.plan.per_op.start import STARTS
from shardwise.plan.per_op.types import PerOpPlan, Question
from shardwise.plan.per_op.workshop import Draft, Workshop, draft_of

Mapped = Callable[..., Iterable[tuple[float, PerOpPlan, list[str]] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When to stop."""

    hops: int = 7
    """Changes in a row before turning back (Aceso's --max-num-hops)."""
    trials: int = 30
    """Descents (--max-num-trials)."""
    plans: int = 3000
    """Plans evaluated per start."""
    seconds: float = float("inf")
    """CPU seconds per start (--time-budget-total)."""
    branch: int = 3
    """Candidates of a group that are followed further."""
    pool: float = 1.2
    """Plans within this factor of the best are kept to come back to."""


@dataclass(slots=True)
class _Walk:
    """One descent from one start."""

    shop: Workshop
    budget: Budget
    until: float
    seen: set[Draft] = field(default_factory=set)
    pool: dict[Draft, float] = field(default_factory=dict)
    plans: int = 0
    path: list[str] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.plans >= self.budget.plans or time.process_time() > self.until

    def value(self, draft: Draft) -> float:
        """Seconds of what fits; what does not fit is worse than everything, by how much it is over."""
        cost = self.shop.made(draft)[1]
        over = max(cost.memory) / self.shop.question.memory
        return cost.seconds if over <= 1 else 1e9 * over

    def descend(self, draft: Draft, target: float, hops: int) -> Draft | None:
        """A draft that beats the target within so many hops."""
        cost = self.shop.made(draft)[1]
        for stage in _bottlenecks(self.shop.question, cost)[:2]:
            bench = Bench(self.shop.question, draft, cost, stage)
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

    def _candidates(self, bench: Bench, group: list[Primitive]) -> list[tuple[float, str, Draft]]:
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


def _bottlenecks(question: Question, cost: Evaluation) -> list[int]:
    """Stages by what is short: memory where anything is over the limit, else time."""
    values = cost.memory if max(cost.memory) > question.memory else cost.times
    return sorted(range(len(values)), key=lambda index: (-values[index], index))


def groups(bench: Bench) -> list[list[Primitive]]:
    """Primitives in the order of what the bottleneck suffers from most."""
    if max(bench.cost.memory) > bench.question.memory:
        return [[primitive for primitive in PRIMITIVES if primitive.memory == "-"]]
    left, ordered = list(PRIMITIVES), []
    for _, resource in sorted(shares(bench), reverse=True):
        lowering = [primitive for primitive in left if getattr(primitive, resource) == "-"]
        ordered.append(lowering)
        left = [primitive for primitive in left if primitive not in lowering]
    return [group for group in [*ordered, left] if group]


def shares(bench: Bench) -> list[tuple[float, str]]:
    """The bottleneck's part of all stages' compute, lost efficiency and recompute: which resource is to be lowered."""
    again = [stage.again for stage in bench.cost.stages]
    found = []
    for values, resource in ((bench.cost.ideal, "time"), (bench.cost.lost, "communication"), (again, "memory")):
        total = sum(values)
        found.append((values[bench.stage] / total if total > 0 and values[bench.stage] > 0 else 0.0, resource))
    return found


_RESOURCE = {"time": "compute", "communication": "lost efficiency", "memory": "recompute"}


def _entry(bench: Bench, made: tuple[float, str, Draft], before: float) -> str:
    value, told, _ = made
    over = max(bench.cost.memory) > bench.question.memory
    share, resource = max(shares(bench))
    why = "memory" if over else f"time, most in {_RESOURCE[resource]} ({share:.0%} of all stages')"
    return f"stage {bench.stage} is short of {why}: {told}; {_said(before)} -> {_said(value)}"


def _said(value: float) -> str:
    return f"{value:.4f} s" if value < 1e9 else f"does not fit ({value / 1e9:.2f} of the limit)"


def descend_from(question: Question, start: PerOpPlan, budget: Budget) -> tuple[Draft, list[str], Workshop]:
    """The best draft that hops from a start reach, and how it was reached."""
    shop = Workshop(question)
    walk = _Walk(shop, budget, time.process_time() + budget.seconds)
    best = draft_of(start)
    walk.seen.add(best)
    diary = [f"start with {len(start.stages)} stages: {_said(walk.value(best))}"]
    current = best
    for _ in range(budget.trials):
        walk.path = []
        found = walk.descend(current, walk.value(best), budget.hops)
        if found is not None:
            diary += walk.path
            best = current = found
            continue
        walk.pool.pop(current, None)
        near = [(value, index, draft) for index, (draft, value) in enumerate(walk.pool.items())
                if value <= budget.pool * walk.value(best) and draft != best]  # fmt: skip
        if walk.over or not near:
            break
        current = min(near)[2]
        walk.pool.pop(current)
    diary.append(f"no primitive helps any more ({walk.plans} plans looked at): {_said(walk.value(best))}")
    return best, diary, shop


def _one(job: tuple[Question, PerOpPlan, Budget]) -> tuple[float, PerOpPlan, list[str]] | None:
    """One start, for a process of its own; none: nothing that fits was reached."""
    question, start, budget = job
    draft, diary, shop = descend_from(question, start, budget)
    plan, cost = shop.made(draft)
    return (cost.seconds, plan, diary) if cost.fits(question.memory) else None


def alleviate(
    question: Question,
    starts: tuple[PerOpPlan, ...] = (),
    budget: Budget | None = None,
    keep: int = 8,
    mapped: Mapped = map,
) -> Answer:
    """Alleviation from given starts, or from the balanced one of every number of stages.

    `mapped`: an executor's map, to run the starts side by side.
    """
    began = time.process_time()
    budget = budget or Budget()
    jobs = [(question, start, budget) for start in starts or starts_of(question)]
    found = [made for made in mapped(_one, jobs) if made is not None]
    if not found:
        raise InfeasibleError(nothing_fits(question))
    found.sort(key=lambda item: item[0])
    bound = min(max(plain_bound(question, size), layer_bound(question, size)) for size in micro_batches(question))
    return Answer(
        plan=found[0][1],
        cost=evaluate(question, found[0][1]),
        bound=min(bound, found[0][0]),
        others=tuple(dict.fromkeys(plan for _, plan, _ in found[1:]))[: keep - 1],
        method="alleviate",
        cpu_seconds=time.process_time() - began,
        complete=budget.seconds == float("inf"),
        diary=tuple(found[0][2]),
    )


def starts_of(question: Question, kind: str = "balanced") -> tuple[PerOpPlan, ...]:
    """One start per number of stages; numbers that the GPUs do not divide into are left out."""
    made = (STARTS[kind](question, stages) for stages in question.stage_range)
    return tuple(plan for plan in made if plan is not None)
