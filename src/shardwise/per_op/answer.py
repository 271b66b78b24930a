"""What an engine answers, the book of plans that it keeps on the way, and when it must end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from shardwise.errors import InfeasibleError
from shardwise.per_op.evaluate import PerOpCost, evaluate
from shardwise.per_op.question import OperatorQuestion, PerOpPlan
from shardwise.pipeline.action import Schedule
from shardwise.search.question import Answer
from shardwise.units import show_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a search is."""

    best: float | None
    """Seconds of the best plan so far."""
    bound: float
    solved: int
    """Stages, plans or strategies that were looked at."""
    of: str = "stages"
    """What was counted."""


Report = Callable[[Standing], None]


def silent(standing: Standing) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One order of passes, simulated with the stages of a plan."""

    name: str
    seconds: float
    """Of an iteration: first start to last end on any stage, and the update."""
    times: tuple[float, ...]
    """Seconds of an iteration on every stage: its own first start to its last end, and the update."""
    work: tuple[float, ...]
    """Seconds that one micro batch takes on every stage, split into the passes of this order."""
    memory: tuple[float, ...]
    """Bytes of every stage at its peak, corrected by what was measured."""
    fits: bool
    bound: float
    """No order of these stages is faster, under this cost model."""
    bubble: float
    """Synchronous: 1 - work / time."""
    schedule: Schedule

    @property
    def gap(self) -> float:
        return max(0.0, self.seconds / self.bound - 1.0) if self.bound > 0 else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAnswer:
    """The best plan found, its cost, and how good it can be at most."""

    question: OperatorQuestion = field(compare=False, repr=False)
    """What was asked; `.notes` says what should be known of it."""
    plan: PerOpPlan
    """The best operator by operator: its stages, with the layout and the recompute of every operator. No stages: none
    fits, and `whole` is the answer."""
    cost: PerOpCost
    """Its seconds and bytes, stage by stage, in the order of passes that was chosen."""
    whole: Answer | None = None
    """Where a whole strategy is faster, by axes that no plan operator by operator has: the search of `plan` whose
    `fastest` it is. Then it is the answer."""
    bound: float
    """Seconds that no plan of the space is below, under this cost model, in the order that was searched with; where
    another was chosen, in any order of passes."""
    others: tuple[PerOpPlan, ...] = ()
    """Further plans, best first."""
    method: str = "exact"
    solved: int = 0
    """Stages that were solved exactly."""
    cpu_seconds: float = field(default=0.0, compare=False)
    complete: bool = True
    """Whether the search ended by itself and not by its time limit."""
    interrupted: bool = False
    """Ctrl-C ended the search."""
    notes: tuple[str, ...] = ()
    diary: tuple[str, ...] = ()
    orders: tuple[Order, ...] = ()
    """The plan under several schedules, simulated; those that fit first, then by time."""
    order: Order | None = None
    """The one that was chosen; `cost` is its."""

    @property
    def seconds(self) -> float:
        """Of an iteration: of the strategy where there is one, else of the plan."""
        best = self.whole and self.whole.fastest
        return best.iteration_seconds if best else self.cost.seconds

    @property
    def gap(self) -> float:
        return max(0.0, self.seconds / self.bound - 1.0) if self.bound > 0 else float("inf")

    @property
    def reordered(self) -> bool:
        """Whether the passes go in another order than the one that was searched with."""
        return self.order is not None and self.order.name != self.question.pricing.schedule

    @property
    def proven(self) -> bool:
        return self.complete and self.gap <= 1e-9


def nothing_fits(question: OperatorQuestion, *, proven: bool = True) -> str:
    fits = "fits" if proven else "was found that fits"
    return (
        f"no plan of the per-operator space {fits} {show_bytes(question.memory)} per GPU on {question.gpus} GPUs; "
        "give more GPUs or memory, a smaller micro batch, or more tensor parallel sizes in the profile"
    )


class Book:
    """Keeps the best few plans; every one is evaluated by the cost model before it is written down."""

    def __init__(self, question: OperatorQuestion, most: int) -> None:
        self.question, self.most = question, most
        self.plans: list[tuple[float, PerOpPlan]] = []
        self.diary: list[str] = []

    @property
    def best(self) -> float:
        return self.plans[0][0] if self.plans else float("inf")

    def keep(self, plan: PerOpPlan) -> PerOpCost:
        cost = evaluate(self.question, plan)
        if cost.fits(self.question.memory * (1 + 1e-12)) and all(plan != other for _, other in self.plans):
            self.plans.append((cost.seconds, plan))
            self.plans.sort(key=lambda item: item[0])
            del self.plans[self.most :]
        return cost

    def note(self, text: str) -> None:
        self.diary.append(text)

    def standing(self) -> str:
        if not self.plans:
            return "nothing fits yet"
        plan = self.plans[0][1]
        return f"best {self.best:.4f} s, {len(plan.stages)} stages, micro batches of {plan.samples} samples"


class NothingFoundError(InfeasibleError):
    """No plan was found, and that there is none is not proven."""


class OutOfTimeError(NothingFoundError):
    """The time limit ended a search before it had any plan."""


class Deadline:
    """So many CPU seconds from now."""

    __slots__ = ("began", "until")

    def __init__(self, seconds: float = float("inf")) -> None:
        self.began = time.process_time()
        self.until = self.began + seconds

    @property
    def over(self) -> bool:
        return time.process_time() > self.until

    @property
    def left(self) -> float:
        return max(0.0, self.until - time.process_time())

    @property
    def used(self) -> float:
        return time.process_time() - self.began

    def check(self) -> None:
        """End the work where the time is over; whoever holds the best so far catches this."""
        if self.over:
            raise OutOfTimeError("no plan was found in the time given; give more, or use --method alleviate")


ENDLESS = Deadline()
