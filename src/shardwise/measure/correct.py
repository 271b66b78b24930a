"""Corrections of a calibration from what a user already has: a trace or a memory snapshot of a run that a plan
describes. What logs teach is in `learn.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isfinite

from shardwise.cost.ledger import Ledger
from shardwise.cost.memory import RankMemory
from shardwise.errors import InputError
from shardwise.estimate.estimate import Estimate, assemble
from shardwise.estimate.setup import setup_of
from shardwise.inputs.calibration import Calibration, Learnt
from shardwise.inputs.calibrations import calibration_of
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.trace import Trace
from shardwise.measure.fit.snapshot import Snapshot
from shardwise.measure.learn import LEAST, MOST
from shardwise.units import show_bytes

KINDS = ("gemm", "attention", "memory")
TWICE = 2.0
"""Times a predicted peak beyond which a snapshot is of something else."""
SMALL = 1e-4
"""Seconds below which a kind is too little to correct."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A calibration with corrections, and what they rest on."""

    calibration: Calibration
    rows: tuple[tuple[str, float, float], ...] = field(hash=False)
    """Kind, predicted seconds before, measured seconds."""
    before: float
    """Predicted iteration seconds with the old calibration."""
    after: float
    """The same with the corrected one."""
    learnt: Learnt | None = None
    """What runs of the runtime taught, where a run corrected it."""


def predicted(model: Model, cluster: Cluster, strategy: Strategy, calibration: Calibration) -> Estimate:
    return assemble(setup_of(model, cluster, strategy, load_runtime(strategy.runtime), calibration))


def seconds_by_kind(time: Ledger) -> dict[str, float]:
    """Kernel seconds of an iteration on the busiest rank; the optimizer's kernels move memory."""
    found = dict.fromkeys(KINDS, 0.0)
    for part in time.parts:
        for kind in KINDS:
            found[kind] += part.part(kind)
    found["memory"] += time.part("optimizer")
    return found


def _refuse(what: str, measured: float, told: float) -> None:
    raise InputError(
        f"{what}: {measured:.3g} s an iteration where the plan says {told:.3g} s, and no correction from x{LEAST:g} "
        f"to x{MOST:g} explains that; is it a run of this plan, with as many iterations as said?"
    )


def from_trace(
    trace: Trace, steps: int, model: Model, cluster: Cluster, strategy: Strategy, *, name: str, source: str
) -> Correction:
    """Kind by kind: measured over predicted kernel seconds of an iteration."""
    base = calibration_of(cluster.gpu)
    before = predicted(model, cluster, strategy, base)
    told = seconds_by_kind(before.time)
    measured = {kind: trace.seconds[kind] / steps for kind in KINDS}
    factors = {kind: measured[kind] / told[kind] for kind in KINDS if min(measured[kind], told[kind]) > SMALL}
    for kind, factor in factors.items():
        if not LEAST <= factor <= MOST:
            _refuse(f"{kind} kernels of the trace", measured[kind], told[kind])
    if not factors:
        raise InputError(
            "no kind of kernel can be corrected: the trace holds under 0.1 ms an iteration of products, attention and "
            "memory-bound kernels; was the GPU profiled, and is --steps right?"
        )
    changed = _changed(base, factors, name, source)
    after = predicted(model, cluster, strategy, changed)
    rows = tuple((kind, told[kind], measured[kind]) for kind in KINDS)
    return Correction(calibration=changed, rows=rows, before=before.iteration_seconds, after=after.iteration_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCorrection:
    """What a snapshot says about the memory of one rank."""

    calibration: Calibration
    rank: int
    predicted: Ledger
    """The predicted peak of that rank, by part."""
    measured: float
    """Its peak in the snapshot."""
    reserved: float
    """What the GPU keeps back, with what the prediction lacks (or has too much) in it."""

    missing: float
    """What is kept back from now on beside what was: measured - predicted, as far as there is something to give."""


def from_snapshot(
    snapshot: Snapshot, rank: int | None, model: Model, cluster: Cluster, strategy: Strategy, *, name: str, source: str
) -> MemoryCorrection:
    """Hold a rank's allocated peak against a snapshot; the difference is kept back from now on, named in the source.

    `rank`: the pipeline rank that wrote it; none: the fullest.
    """
    base = calibration_of(cluster.gpu)
    memory = predicted(model, cluster, strategy, base).memory
    told = max(memory, key=lambda one: one.peak.value) if rank is None else memory[rank]
    _refuse_other_memory(snapshot.peak, told, cluster)
    reserved = float(f"{max(0.0, cluster.gpu.reserved + snapshot.peak - told.peak.value):.6g}")
    missing = reserved - cluster.gpu.reserved
    told_source = f"{base.source}; {source}: {missing / 2**30:+.2f} GiB of memory"
    changed = replace(base, name=name, source=told_source, kernels=base.kernels or base.name)
    return MemoryCorrection(
        calibration=changed, rank=told.rank, predicted=told.peak, measured=snapshot.peak, reserved=reserved,
        missing=missing,
    )  # fmt: skip


def _refuse_other_memory(peak: float, told: RankMemory, cluster: Cluster) -> None:
    """A snapshot that this rank cannot have written would change every later answer."""
    gpu, predicted = cluster.gpu, told.peak.value
    if peak > gpu.memory:
        why = f"and {gpu.name} has {show_bytes(gpu.memory)}"
    elif not 1 / TWICE <= peak / predicted <= TWICE:
        why = f"where {show_bytes(predicted)} are predicted for pp{told.rank}, over {TWICE:g} times off"
    else:
        return
    raise InputError(
        f"the snapshot's peak is {show_bytes(peak)}, {why}; is it of a run of this plan, over a whole iteration, and "
        "is --rank the pipeline rank that wrote it?"
    )


def _changed(base: Calibration, factors: dict[str, float], name: str, source: str) -> Calibration:
    merged = {
        kind: float(f"{base.corrections.get(kind, 1.0) * factor:.4g}")
        for kind, factor in factors.items()
        if isfinite(factor) and factor > 0
    }
    corrections = {**base.corrections, **merged}
    return replace(base, name=name, source=f"{base.source}; {source}", corrections=corrections, kernels="")
