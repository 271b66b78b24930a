"""An estimate as plain values: the `predictions` and `provenance` of a plan, and the answer in JSON."""

from __future__ import annotations

from typing import Any

from shardwise.cost.ledger import Ledger
from shardwise.cost.memory import RankMemory
from shardwise.estimate.estimate import Estimate
from shardwise.inputs.serialise import Plain, to_plain
from shardwise.pipeline.action import Schedule
from shardwise.plan.file import Plan
from shardwise.version import __version__

_NUMBERS = (
    "iteration_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds", "tokens_per_second_per_gpu",
    "tflops_per_gpu", "mfu", "mfu_full_attention", "hfu", "makespan", "bubble", "peak_bytes", "total_bytes", "fits",
)  # fmt: skip


def predictions(estimate: Estimate) -> Plain:
    """Everything that is predicted, each number with its parts."""
    strategy = estimate.strategy
    return {
        **{name: getattr(estimate, name) for name in _NUMBERS},
        "iteration_seconds_interval": list(estimate.time_interval),
        "tokens_per_iteration": strategy.global_batch * strategy.seq,
        "microbatches": strategy.microbatches,
        "memory_limit_bytes": estimate.cluster.gpu.memory,
        "memory_error": estimate.memory_error,
        "host_bytes": estimate.host_bytes,
        "time": ledger_dict(estimate.time),
        "update": to_plain(estimate.update._asdict()),
        "stages": [to_plain(stage._asdict()) for stage in estimate.stages],
        "memory": [memory_dict(rank) for rank in estimate.memory],
    }


def ledger_dict(ledger: Ledger) -> Plain:
    """A ledger as a table; parts and note only where there are any."""
    found: Plain = {"name": ledger.name, "value": ledger.value}
    if ledger.note:
        found["note"] = ledger.note
    if ledger.parts:
        found["parts"] = [ledger_dict(part) for part in ledger.parts]
    return found


def memory_dict(memory: RankMemory) -> Plain:
    """The memory of a pipeline rank as a table."""
    plain: dict[str, Any] = memory._asdict()
    return {**plain, "peak": ledger_dict(memory.peak)}


def provenance(estimate: Estimate) -> Plain:
    """What made the numbers."""
    return {"shardwise": __version__, "costs": "roofline", "calibration": estimate.calibration}


def plan_of(estimate: Estimate, order: Schedule | None = None) -> Plan:
    """The plan of an estimate; `order`: the one that it was made with, where that is not the strategy's."""
    return Plan(
        model=estimate.model,
        cluster=estimate.cluster,
        strategy=estimate.strategy,
        schedule={"name": order.name, "rows": order.csv().splitlines()} if order else None,
        predictions=predictions(estimate),
        provenance=provenance(estimate),
    )
