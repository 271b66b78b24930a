"""Fit a calibration to a probe: family by family, each with the few numbers that its kernels depend on.

Order matters: bandwidth is part of every product's floor, so streaming kernels come first; products come before
grouped ones, which are a share of them. Every fifth row is kept out of the fit and shows what it is worth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt

from shardwise.cost.kernels import Machine, machine_of
from shardwise.cost.reach import probed
from shardwise.inputs.calibration import Calibration
from shardwise.inputs.cluster import Cluster, Gpu
from shardwise.inputs.runtime import Kernels, Runtime
from shardwise.measure.fit import samples
from shardwise.measure.fit.links import fit_links
from shardwise.measure.fit.minimise import Bounds, minimise, number, off, with_numbers
from shardwise.measure.fit.probe_file import Probe
from shardwise.measure.fit.result import Fit, FitPoint, FittedFamily
from shardwise.measure.fit.samples import Sample
from shardwise.measure.fit.steps import fit_steps

ENOUGH = 4
"""Rows below which a family keeps the numbers of its base."""
FIFTH = 5
# Host seconds of launching `add` on the machine whose launch overheads the runtimes carry (16-core Xeon of the H200).
REFERENCE_LAUNCH = 6.79e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTask:
    """One family: its rows, the numbers to move, and how the machine is set up for it."""

    name: str
    rows: list[Sample] = field(hash=False)
    bounds: Bounds = field(default_factory=dict, hash=False)
    """Numbers to fit; none: a check."""
    dtype: str = "bf16"
    flash2: bool = False


def tasks(probe: Probe) -> Iterator[FitTask]:
    """All families in the order in which they are fitted."""
    yield FitTask(
        name="streaming kernels", rows=samples.streams(probe),
        bounds={"bandwidth": (0.3, 1.0), "kernel_fixed": (2e-7, 2e-5)},
    )  # fmt: skip
    yield FitTask(
        name="products bf16", rows=samples.products(probe, "bf16"),
        bounds={"gemm.bf16": (0.1, 1.0), "gemm_depth": (5.0, 400.0), "gemm_fixed": (5e-7, 3e-5), "wave": (0.005, 1.0)},
    )  # fmt: skip
    for dtype in ("fp16", "fp32", "tf32", "fp8"):
        rows = samples.products(probe, dtype)
        yield FitTask(name=f"products {dtype}", rows=rows, bounds={f"gemm.{dtype}": (0.05, 1.0)}, dtype=dtype)
    odd = samples.products(probe, "bf16", odd=True)
    yield FitTask(name="misaligned products", rows=odd, bounds={"misaligned": (1.0, 20.0)})
    yield FitTask(name="grouped products", rows=samples.grouped(probe), bounds={"grouped": (0.2, 1.3)})
    yield FitTask(
        name="attention", rows=samples.attention(probe, ("default", "cudnn")),
        bounds={"attention.0": (0.05, 1.0), "attention.1": (0.05, 1.0), "attention_half.0": (20.0, 4000.0),
                "attention_half.1": (20.0, 4000.0), "narrow_head": (0.3, 1.0)},
    )  # fmt: skip
    yield FitTask(
        name="attention (flash 2)", rows=samples.attention(probe, ("flash",)),
        bounds={"flash2.0": (0.05, 1.0), "flash2.1": (0.05, 1.0)}, flash2=True,
    )  # fmt: skip
    yield FitTask(name="norms and rotary", rows=list(samples.chains(probe)))


def fit_probe(probe: Probe, gpu: Gpu, base: Calibration, name: str, cluster: Cluster | None = None) -> Fit:
    """A calibration of `gpu` from a probe; what was not measured keeps the numbers of `base`.

    `cluster`: as many of these GPUs as ran the probe; what it measured of collectives is fitted to its network.
    """
    notes: list[str] = []
    found = replace(base, name=name, source=probe.source, host=_host(probe, base, notes), kernels="")
    todo = [task for task in tasks(probe) if task.rows]
    for task in todo:
        if task.bounds and len(task.rows) < ENOUGH:
            notes.append(f"{task.name}: {len(task.rows)} rows are too few; {base.name}'s numbers stay")
        elif task.bounds:
            found = _fitted(task, gpu, found)
    families = [_family(task, gpu, found) for task in todo]  # before the steps: kernels were measured by themselves
    found, steps = fit_steps(probe, gpu, found)
    found, links = fit_links(probe.rows("distributed"), cluster, found, notes)
    every = [sample for task in todo for sample in task.rows]
    error = round(max(0.02, steps.mean), 4) if steps else 0.0
    found = replace(found, probed=probed(sample.op for sample in every), time_error=error)
    return Fit(calibration=found, families=(*families, *(one for one in (steps, links) if one)), notes=tuple(notes))


def machine_for(task: FitTask, gpu: Gpu, calibration: Calibration) -> Machine:
    kernels = Kernels(attention="flash2" if task.flash2 else "best")
    # no cache: the search asks for each machine once
    return machine_of.__wrapped__(
        gpu, calibration, Runtime(name="probe", kernels=kernels), task.dtype, accumulating=False
    )


def _fitted(task: FitTask, gpu: Gpu, calibration: Calibration) -> Calibration:
    rows = [row for index, row in enumerate(task.rows) if not _held_out(index, task.rows)]
    start = {name: min(high, max(low, number(calibration, name))) for name, (low, high) in task.bounds.items()}

    def loss(numbers: dict[str, float]) -> float:
        machine = machine_for(task, gpu, with_numbers(calibration, numbers))
        # long kernels make a step's time, short ones decide the fixed costs: the square root lets both speak
        return sum(off(row.predicted(machine), row.seconds) * sqrt(row.seconds) for row in rows)

    found = minimise(loss, start, task.bounds)
    return with_numbers(calibration, {name: float(f"{value:.4g}") for name, value in found.items()})


def _held_out(index: int, rows: Sequence[Sample]) -> bool:
    return len(rows) >= 2 * FIFTH and index % FIFTH == FIFTH - 1


def _family(task: FitTask, gpu: Gpu, calibration: Calibration) -> FittedFamily:
    machine = machine_for(task, gpu, calibration)
    points = tuple(
        FitPoint(
            label=row.label, measured=row.seconds, predicted=row.predicted(machine),
            held_out=bool(task.bounds) and _held_out(index, task.rows),
        )
        for index, row in enumerate(task.rows)
    )  # fmt: skip
    return FittedFamily(name=task.name, points=points, fitted=bool(task.bounds) and len(task.rows) >= ENOUGH)


def _host(probe: Probe, base: Calibration, notes: list[str]) -> float:
    """Speed of the host: launch overheads of the runtimes were measured where `add` takes REFERENCE_LAUNCH."""
    for row in probe.rows("launch"):
        if row["op"] == "add" and row["side"] == "host":
            return float(f"{REFERENCE_LAUNCH / row['seconds']:.3g}")
    notes.append(f"launch overhead was not measured; {base.name}'s host speed stays")
    return base.host
