"""What must agree within the operators of a plan file: stages, splits and counts say parts of the same thing."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.errors import Fault
from shardwise.inputs.strategy import Strategy
from shardwise.plan.plan import Operators, OperatorStage


def operator_faults(told: Operators, strategy: Strategy, gpus: int) -> Iterator[Fault]:
    """Everything in which the operators of a plan for so many GPUs contradict themselves, or its micro batches."""
    samples, batch = max(1, strategy.micro_batch * strategy.dp), strategy.global_batch
    if told.microbatches != (wanted := max(1, batch // samples)):
        said = f"is {told.microbatches}; a global batch of {batch} in micro batches of {samples} samples has {wanted}"
        yield Fault("operators.microbatches", said)
    if told.seconds <= 0:
        yield Fault("operators.seconds", f"is {told.seconds:g}; an iteration takes more than nothing")
    sums = {"ops": len(told.names), "gpus": gpus}
    meant = {"ops": "operators are named", "gpus": "GPUs are in the cluster"}
    for name, wanted in sums.items():
        if (found := sum(getattr(stage, name) for stage in told.stages)) != wanted:
            yield Fault("operators.stages", f"have {found} {name} in all, but {wanted} {meant[name]}")
    for index, stage in enumerate(told.stages):
        for name, why in _stage_faults(stage):
            yield Fault(f"operators.stages.{index}.{name}", why)


def _stage_faults(stage: OperatorStage) -> Iterator[tuple[str, str]]:
    for name in ("ops", "gpus"):
        if getattr(stage, name) < 1:
            yield name, f"is {getattr(stage, name)}; a stage has at least 1"
    if len(stage.layouts) != stage.ops:
        yield "layouts", f"has {len(stage.layouts)} entries, the stage {stage.ops} operators; one each is needed"
    for place, (tp, dp, variant) in enumerate(stage.layouts):
        if tp < 1 or dp < 1 or variant < 0 or tp * dp != stage.gpus:
            yield f"layouts.{place}", f"is tp {tp} x dp {dp} of variant {variant}; the stage has {stage.gpus} GPUs"
            break
    if beyond := [place for place in stage.recompute if not 0 <= place < stage.ops]:
        yield "recompute", f"names operator {beyond[0]}; those of the stage are 0 to {stage.ops - 1}"
    if len(set(stage.recompute)) < len(stage.recompute):
        yield "recompute", "names an operator twice"
