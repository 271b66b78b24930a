"""A per-operator plan file as a person reads it; its strategy is only the nearest plain one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shardwise.cli.output import Output
from shardwise.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from shardwise.plan.plan import Operators, OperatorStage, Plan


def show_per_op(plan: Plan, operators: Operators, output: Output) -> None:
    """Stages, layouts, predictions and bound, as they were written."""
    from shardwise.plan.file import plan_table
    from shardwise.plan.proof import ended

    output.answer(plan_table(plan))
    count, stale = len(operators.stages), ended(plan)
    output.say(f"{plan.model.name} on {plan.cluster.name}, operator by operator: {count} stage{'s'[: count > 1]}, "
               f"{operators.microbatches} micro batches of a global batch of {plan.strategy.global_batch}")  # fmt: skip
    proven = f"bound {show_seconds(operators.bound)}" if not stale else f"bound unknown ({stale}; plan again)"
    costs = plan.provenance.costs if plan.provenance else "full"
    output.say(f"{show_seconds(operators.seconds)} per iteration, {proven} under the {costs} cost model; "
               f"order of passes {plan.strategy.schedule}")  # fmt: skip
    rows = [_row(index, stage) for index, stage in enumerate(operators.stages)]
    output.table(("stage", "ops", "GPUs", "tp x dp of its operators", "again", "iteration", "memory"), rows)


def _row(index: int, stage: OperatorStage) -> list[str]:
    counts = Counter(f"{tp} x {dp}" for tp, dp, _ in stage.layouts)
    said = ", ".join(f"{layout} ({count})" if len(counts) > 1 else layout for layout, count in counts.most_common(4))
    return [
        str(index), str(stage.ops), str(stage.gpus), said, str(len(stage.recompute)), show_seconds(stage.seconds),
        show_bytes(stage.memory),
    ]  # fmt: skip
