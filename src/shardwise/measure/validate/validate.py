"""Every row of files of measured runs, predicted and held against what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.estimate.estimate import Estimate, assemble
from shardwise.estimate.intervals import (
    COMPOSED,
    LAUNCH,
    PARTIAL,
    Interval,
    Spread,
    around,
    causes_of,
    launch_bound,
    probability,
    spread_of,
    width_in,
)
from shardwise.estimate.setup import Setup, setup_of
from shardwise.frameworks.load import load_cluster
from shardwise.inputs.calibration import Calibration
from shardwise.inputs.calibrations import calibration_of
from shardwise.inputs.load import counted_gpus
from shardwise.measure.validate.case import MeasuredRun, Skipped
from shardwise.measure.validate.rows import read_file, shipped_files, sized


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Predictions beside their measurements, in the order of the rows."""

    results: tuple[Outcome | Skipped, ...]

    @property
    def outcomes(self) -> list[Outcome]:
        return [one for one in self.results if isinstance(one, Outcome)]

    @property
    def skipped(self) -> list[Skipped]:
        return [one for one in self.results if isinstance(one, Skipped)]


def validate(files: Iterable[str | Path] = (), cluster: str | None = None) -> Validation:
    """Predict every row of the files; without files, of the data that come with the package.

    `cluster`: a name or file, without a number of GPUs, that the rows of its GPU are predicted with.
    """
    given = counted_gpus(cluster)[1] if cluster else None
    sized.cache_clear()
    if given:
        load_cluster(given)  # a wrong one is an error, not a reason to skip each row
    rows = [row for path in (tuple(files) or shipped_files()) for row in read_file(path, given)]
    return Validation(results=tuple(_predicted(row) for row in rows))


def _predicted(row: MeasuredRun | Skipped) -> Outcome | Skipped:
    if isinstance(row, Skipped):
        return row
    try:
        return predict(row)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        reason = f"cannot be estimated: its values do not go together ({row.strategy} on {row.cluster.name})"
        return Skipped(id=row.id, source=row.source, reason=reason)


def row_of(result: Outcome | Skipped) -> dict[str, Any]:
    """A result as a row of the JSON answer."""
    if isinstance(result, Skipped):
        return {"id": result.id, "source": result.source, "skipped": result.reason}
    case = result.case
    row: dict[str, Any] = {
        "id": case.id,
        "source": case.source,
        "gpu": case.gpu,
        "precision": case.precision,
        "complete": case.complete,
        "strategy": str(case.strategy),
        "runtime": case.runtime.name,
        "predicted": result.predicted,
        "measured": case.measured,
        "error": result.error,
    }
    return {**row, "assumed": list(case.notes)} if case.notes else row


Values = dict[str, float | bool | Interval]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A prediction beside its measurement."""

    case: MeasuredRun
    predicted: Values
    error: dict[str, float]
    """predicted / measured - 1 for every number that has both."""
    causes: tuple[str, ...] = ()
    """Why the prediction may be wrong: what its intervals are made of."""
    launch: float = 0.0
    """How launch-bound it is, from 0 to 1, at which the cause is named."""

    def inside(self, quantity: str) -> bool:
        """Whether what was measured lies in the interval of a quantity that was."""
        low, high = self.interval(quantity)
        return low <= float(self.case.measured[quantity]) <= high

    def interval(self, quantity: str) -> Interval:
        found = self.predicted[INTERVALS[quantity]]
        assert isinstance(found, tuple)  # noqa: S101 - for the type checker: `predict` put it there
        return found


INTERVALS = {"iteration_seconds": "time_interval", "peak_bytes": "memory_interval"}
"""Quantity -> its interval."""


def predict(case: MeasuredRun) -> Outcome | Skipped:
    """Estimate a case and compare."""
    try:
        setup = setup_of(case.model, case.cluster, case.strategy, case.runtime, _calibration(case))
        estimate = assemble(setup)
    except (ShardwiseError, ZeroDivisionError, ValueError) as fault:
        return Skipped(id=case.id, source=case.source, reason=f"cannot be estimated: {fault}")
    predicted = _rank(case, estimate) if case.rank is not None else _whole(case, estimate)
    error = {
        key: float(value) / float(case.measured[key]) - 1
        for key, value in predicted.items()
        if key in case.measured and not isinstance(value, bool | tuple) and case.measured[key]
    }
    causes = _causes(case, setup, estimate)
    # of a composed row the parts wait for launches, otherwise than a run does
    launch = 0.0 if case.composed else launch_bound(estimate.time)
    width = spread_of(causes, case.runtime.name, setup.calibration, case.cluster.site, launch)
    return Outcome(
        case=case, predicted={**predicted, **bars(predicted, width)}, error=error, causes=causes, launch=launch
    )  # fmt: skip


def _probability(case: MeasuredRun, estimate: Estimate, total: float) -> float:
    """That the device suffices, as `fits` of a row has it: sources are silent on their hosts."""
    width = width_in(estimate.total_bytes, estimate.total_bytes_interval)
    return probability(total, case.cluster.gpu.memory, width)


def bars(predicted: Values, width: Spread) -> Values:
    """The intervals around what is predicted."""
    widths = dict(zip(INTERVALS, width, strict=True))
    return {INTERVALS[name]: around(float(predicted[name]), widths[name]) for name in INTERVALS}  # type: ignore[arg-type]


def _causes(case: MeasuredRun, setup: Setup, estimate: Estimate) -> tuple[str, ...]:
    """Those of the question, and what the row itself leaves open."""
    name = case.runtime.name
    found = causes_of(case.model, case.cluster, case.strategy.dtype, name, setup.calibration, estimate.time)
    if case.composed:
        return (*(name for name in found if name != LAUNCH), COMPOSED)
    return found if case.complete else (*found, PARTIAL)


# A few steps after a rest keep clocks that a job of minutes does not: the same library's jobs of minutes take 4% longer
# on the same H200, and so do Megatron's and torchtitan's.
BURST = 1.05
# Faked collectives leave most of every gathered activation unset; products of such data draw little power, so the GPU
# keeps its full clock (H200: 850 to 890 TFLOP/s where random data sustain 680 to 730).
UNSET_DATA = 1.2


def _calibration(case: MeasuredRun) -> Calibration:
    """The GPU's, at the clocks that it was measured with."""
    calibration = calibration_of(case.cluster.gpu)
    if case.source == "h200_huggingface":
        f, b = calibration.attention
        return replace(_clocked(calibration, BURST), attention=(f * BURST, b * BURST))
    return calibration if case.rank is None or case.strategy.tp == 1 else _clocked(calibration, UNSET_DATA)


def _clocked(calibration: Calibration, factor: float) -> Calibration:
    return replace(calibration, gemm={dtype: share * factor for dtype, share in calibration.gemm.items()})


def _whole(case: MeasuredRun, estimate: Estimate) -> Values:
    fullest = max(estimate.memory, key=lambda rank: rank.total)
    peak = {
        "allocated": max(rank.peak.value for rank in estimate.memory),
        "reserved": max(rank.reserved for rank in estimate.memory),
        "device": fullest.total,
    }[case.memory_kind]
    values: Values = {
        "iteration_seconds": estimate.iteration_seconds,
        "peak_bytes": peak,
        "reserved_bytes": max(rank.reserved for rank in estimate.memory),
        "fits": fullest.total <= case.cluster.gpu.memory,
        "fits_probability": _probability(case, estimate, fullest.total),
    }
    if case.source == "h200_huggingface":
        values |= {
            "forward_seconds": estimate.forward_seconds,
            "backward_seconds": estimate.backward_seconds,
            "optimizer_seconds": estimate.optimizer_seconds,
            "static_bytes": fullest.static,
        }
    return values


def _rank(case: MeasuredRun, estimate: Estimate) -> Values:
    """One rank alone: its own compute, no communication and no waiting."""
    rank = case.rank or 0
    stage, memory = estimate.stages[rank], estimate.memory[rank]
    passes = case.strategy.microbatches * stage.alone
    passes += case.runtime.overheads.iteration
    return {
        "iteration_seconds": passes + estimate.optimizer_by_rank[rank],
        "forward_backward_seconds": passes,
        "optimizer_seconds": estimate.optimizer_by_rank[rank],
        "peak_bytes": max(memory.forward, memory.backward, memory.optimizer),
        "peak_forward_backward_bytes": max(memory.forward, memory.backward),
        "peak_optimizer_bytes": memory.optimizer,
        "static_bytes": memory.static,
        "fits": memory.total <= case.cluster.gpu.memory,
        "fits_probability": _probability(case, estimate, memory.total),
    }
