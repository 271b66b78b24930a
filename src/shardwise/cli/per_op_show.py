"""A per-operator plan file as a person reads it; its strategy is only the nearest plain one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shardwise.cli.output import Output
from shardwise.errors import Fault, InputError
from shardwise.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from shardwise.plan.file import Plan


def show_per_op(plan: Plan, path: str, output: Output) -> None:
    """Stages, layouts, predictions and bound, as they were written."""
    try:
        rows = [_row(index, stage, cost) for index, (stage, cost) in enumerate(_stages(plan))]
        seconds, bound = (float(value) for value in (plan.predictions["cost"]["seconds"], plan.predictions["bound"]))  # type: ignore[index]
        count = microbatches_of(plan)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"its stages or predictions are not whole ({type(error).__name__}: {error}); plan again"
        raise InputError(Fault(path, why)) from None
    output.answer({"predictions": plan.predictions, "partition": plan.partition, "schedule": plan.schedule})
    from shardwise.plan.proof import ended

    source, stale = plan.provenance or {}, ended(plan)
    stages = f"{len(rows)} stage{'' if len(rows) == 1 else 's'}"
    output.say(f"{plan.model.name} on {plan.cluster.name}, operator by operator: {stages}, "
               f"{count} micro batches of a global batch of {plan.strategy.global_batch}")  # fmt: skip
    proven = f"bound {show_seconds(bound)}" if not stale else f"bound unknown ({stale}; plan again)"
    output.say(f"{show_seconds(seconds)} per iteration, {proven} under the "
               f"{source.get('cost_model', 'full')} cost model; order of passes "
               f"{(plan.schedule or {}).get('name', '1f1b')}")  # fmt: skip
    output.table(("stage", "ops", "GPUs", "tp x dp of its operators", "again", "iteration", "memory"), rows)


def microbatches_of(plan: Plan) -> int:
    """Of an iteration; older plans say the samples of one."""
    partition = plan.partition or {}
    if "microbatches" in partition:
        return int(partition["microbatches"])
    return plan.strategy.global_batch // int(partition["micro_batch"])


def _stages(plan: Plan) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return list(zip(plan.partition["stages"], plan.predictions["cost"]["stages"], strict=True))  # type: ignore[index]


def _row(index: int, stage: dict[str, Any], cost: dict[str, Any]) -> list[str]:
    counts = Counter(f"{int(tp)} x {int(dp)}" for tp, dp, _ in stage["layouts"])
    said = ", ".join(f"{layout} ({count})" if len(counts) > 1 else layout for layout, count in counts.most_common(4))
    return [
        str(index), str(int(stage["ops"])), str(int(stage["gpus"])), said, str(len(stage["recompute"])),
        show_seconds(float(cost["seconds"])), show_bytes(float(cost["memory"])),
    ]  # fmt: skip
