"""Corrections of a calibration from what a user already has: a trace, a log or a memory snapshot of a run that a plan
describes. Of logs the lines of Megatron and torchtitan are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from statistics import median

from shardwise.cost.ledger import Ledger
from shardwise.cost.memory import RankMemory
from shardwise.errors import FileError, InputError
from shardwise.estimate.estimate import Estimate, assemble
from shardwise.estimate.setup import setup_of
from shardwise.inputs.calibration import Calibration
from shardwise.inputs.calibrations import calibration_of
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.gate import refusal
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.streams import blocks
from shardwise.inputs.trace import Trace
from shardwise.measure.fit.snapshot import Snapshot
from shardwise.units import show_bytes

KINDS = ("gemm", "attention", "memory")
LEAST, MOST = 0.02, 50.0
"""Corrections beyond these are no corrections: it is another run, or another unit."""
REACHED = 0.05
"""Share of the measured iteration within which a corrected one must come."""
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


def from_log(log: Log, model: Model, cluster: Cluster, strategy: Strategy, *, name: str, source: str) -> Correction:
    """One factor for all kernels such that the predicted iteration takes as long as the measured one."""
    base = calibration_of(cluster.gpu)
    before = predicted(model, cluster, strategy, base).iteration_seconds
    low, high = LEAST, MOST
    for _ in range(40):  # waiting for launches and links does not scale with kernels: no closed form
        middle = (low * high) ** 0.5
        changed = _changed(base, dict.fromkeys(KINDS, middle), name, source)
        after = predicted(model, cluster, strategy, changed).iteration_seconds
        low, high = (middle, high) if after < log.seconds else (low, middle)
    if abs(after / log.seconds - 1) > REACHED:
        _refuse("an iteration of the log", log.seconds, before)
    rows = (("iteration", before, log.seconds),)
    return Correction(calibration=changed, rows=rows, before=before, after=after)


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


WARM_UP = 2
"""First lines that are left out when there are more: they hold compilation and allocation."""
_MEGATRON = re.compile(rb"elapsed time per iteration \(ms\):[ \t]*([0-9]{1,15}(?:\.[0-9]{0,15})?)(?![0-9.])")
_TORCHTITAN = re.compile(rb"\btps:[ \t]*([0-9,]{1,20}(?:\.[0-9]{1,15})?)(?![0-9.])")
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Seconds per iteration of a run."""

    framework: str
    seconds: float
    """Median over the iterations, the first ones left out."""
    spread: float
    """(largest - smallest) / median."""
    lines: int


def read_log(path: str | Path, *, tokens_per_gpu: float) -> Log:
    """Read a log. `tokens_per_gpu`: tokens of an iteration per GPU, which turn torchtitan's `tps` into seconds."""
    found: dict[str, list[float]] = {"megatron": [], "torchtitan": []}
    for block in map(_plain, blocks(path)):
        found["megatron"] += [float(match[1]) / 1e3 for match in _MEGATRON.finditer(block)]
        rates = [float(match[1].replace(b",", b"") or 0) for match in _TORCHTITAN.finditer(block)]
        found["torchtitan"] += [tokens_per_gpu / rate for rate in rates if rate]
    framework = max(found, key=lambda name: len(found[name]))
    times = found[framework]
    if not times:
        raise FileError(
            path,
            'has no iteration times; Megatron writes "elapsed time per iteration (ms): N", torchtitan "tps: N"',
        )
    kept = times[WARM_UP:] if len(times) > WARM_UP else times
    middle = median(kept)
    if fault := refusal(middle, SCALARS["log.iteration"]):
        raise FileError(path, f"has iterations of {middle:g} s: {fault}")
    return Log(framework=framework, seconds=middle, spread=(max(kept) - min(kept)) / middle, lines=len(kept))


def _plain(block: bytes) -> bytes:
    return _COLOUR.sub(b"", block) if b"\x1b" in block else block
