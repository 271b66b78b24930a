"""What `plan` reaches with axes that a search operator by operator does not have: said beside its answer."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.errors import InfeasibleError, InputError
from shardwise.inputs.strategy import Strategy
from shardwise.per_op.answer import OperatorAnswer
from shardwise.per_op.operators import OperatorPricing
from shardwise.per_op.question import OperatorQuestion
from shardwise.units import show_percent, show_seconds

MOST_SECONDS = 5.0
"""CPU seconds of the search over strategies."""
LEAST = 5e-4
"""Share of the seconds that is worth a note: less reads as 0.0%."""


def left_out(answer: OperatorAnswer, seconds: float) -> tuple[str, ...]:
    """A note where a strategy with other axes is faster. `seconds`: CPU seconds that are left."""
    question, pricing = answer.question, answer.question.pricing
    if not isinstance(pricing, OperatorPricing) or pricing.measured is not None or seconds <= 1.0:
        return ()
    if pricing.cluster.gpus != question.gpus or question.space == "compatible" or question.memory_factor != 1.0:
        return ()
    found = _fastest(question, pricing, min(seconds, MOST_SECONDS))
    if found is None or found[1] >= answer.cost.seconds * (1 - LEAST):
        return ()
    strategy, value = found
    axes = ", ".join(_axes(question, strategy))
    if not axes:
        return ()
    faster = show_percent(1 - value / answer.cost.seconds)
    return (
        f"`plan` finds {show_seconds(value)}, {faster} less, with {strategy}: plans operator by operator lack {axes}",
    )


def _fastest(question: OperatorQuestion, pricing: OperatorPricing, seconds: float) -> tuple[Strategy, float] | None:
    from shardwise.search.api import answer_of, question_of

    stages = question.stage_range if question.stages != (1, 1) or not question.zeros else range(1, question.gpus + 1)
    only = f"tp<={question.tp_limit} pp>={stages[0]} pp<={stages[-1]}"
    try:
        asked = question_of(
            pricing.model, pricing.cluster, global_batch=question.global_batch, seq=question.seq, only=only,
            runtime=pricing.runtime, base=pricing.base, memory_margin=pricing.cluster.gpu.memory - question.limit,
        )  # fmt: skip
        best = answer_of(asked, time_limit=seconds).fastest
    except (InputError, InfeasibleError):
        return None
    if best is None or (question.sample_counts and _samples(best.strategy) not in question.sample_counts):
        return None
    return best.strategy, best.iteration_seconds


def _samples(strategy: Strategy) -> int:
    return strategy.micro_batch * strategy.dp


def _axes(question: OperatorQuestion, strategy: Strategy) -> Iterator[str]:
    """Of a strategy, what no plan per operator has."""
    s = strategy
    if s.vpp > 1:
        yield "several chunks a rank"
    elif s.pp > 1 and s.schedule != question.pricing.schedule:
        yield f"{s.schedule} while searching (--schedule orders the plans found)"
    if s.cp > 1:
        yield "context parallelism"
    if s.ep > 1:
        yield "expert parallelism"
    if s.zero not in (question.zeros or (question.pricing.zero,)) or (s.zero > 1 and s.pp > 1):
        yield f"ZeRO {s.zero}{' in a pipeline' if s.pp > 1 else ''}"
    if s.zero_group:
        yield "HSDP"
    if s.recompute.modules:
        yield "modules whose output is made again"
