"""The plans that a search has met, best first, and its diary."""

from __future__ import annotations

from shardwise.per_op.evaluate import Evaluation, evaluate
from shardwise.per_op.question import PerOpPlan, Question


class Book:
    """Keeps the best few plans; every one is evaluated by the cost model before it is written down."""

    def __init__(self, question: Question, most: int) -> None:
        self.question, self.most = question, most
        self.plans: list[tuple[float, PerOpPlan]] = []
        self.diary: list[str] = []

    @property
    def best(self) -> float:
        return self.plans[0][0] if self.plans else float("inf")

    def keep(self, plan: PerOpPlan) -> Evaluation:
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
        return f"best {self.best:.4f} s, {len(plan.stages)} stages, micro batch {plan.micro_batch}"
