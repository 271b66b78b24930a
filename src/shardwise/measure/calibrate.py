"""From measurements of a GPU (a probe), of its network (logs of nccl-tests), or of a run that followed a plan (a trace,
a log, a memory snapshot), to a calibration that is stored as a GPU of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, FileError, InputError
from shardwise.estimate.estimate import Estimate
from shardwise.frameworks.load import load_cluster
from shardwise.inputs.calibration import Calibration
from shardwise.inputs.calibrations import calibration_of, load_calibration
from shardwise.inputs.cluster import Gpu
from shardwise.inputs.load import gpu_names
from shardwise.inputs.lookup import normal
from shardwise.inputs.trace import read_trace
from shardwise.inputs.write import together
from shardwise.measure.correct import Correction, MemoryCorrection, from_snapshot, from_trace
from shardwise.measure.fit.fit import fit_probe
from shardwise.measure.fit.links import fit_links, refuse_impossible
from shardwise.measure.fit.nccl_tests import read_log as read_nccl
from shardwise.measure.fit.probe_file import Probe, read_probe
from shardwise.measure.fit.result import Fit
from shardwise.measure.fit.sanity import astray, refuse_strange
from shardwise.measure.fit.snapshot import Snapshot, read_snapshot
from shardwise.measure.fit.store import check_name, store, stored_base
from shardwise.measure.learn import learn, predicted, with_learnt
from shardwise.measure.logs.match import read_run
from shardwise.measure.logs.steady import Steady, steady
from shardwise.measure.rehearse.spec import rank_number
from shardwise.measure.runs import Row, cases, joined, keep_rows, known_rows, run_row
from shardwise.measure.watch.drift import quiet
from shardwise.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A calibration, what it stands on, and what it rests on: a fit, or a correction."""

    calibration: Calibration
    base: str
    """The GPU that it is built on."""
    notes: tuple[str, ...] = ()
    """What was noticed on the way."""
    fit: Fit | None = None
    """Of a probe."""
    correction: Correction | None = None
    """By a trace or a log."""
    memory: MemoryCorrection | None = None
    """By a snapshot."""
    snapshot: Snapshot | None = None
    runs: tuple[Row, ...] = ()
    """Rows of the runs that it was learnt from, the last one new."""
    measured: tuple[str, ...] = ()
    """What a trace or a log says, in sentences."""


_USED = {"probe": (), "nccl": (), "trace": ("plan", "steps"), "log": ("plan",), "snapshot": ("plan", "rank")}
"""What each source makes use of, beside the name and the base."""


def calibrate(
    name: str,
    *,
    probe: str | Path | None = None,
    nccl: Sequence[str | Path] = (),
    trace: str | Path | None = None,
    log: str | Path | None = None,
    snapshot: str | Path | None = None,
    plan: Plan | None = None,
    base: str | None = None,
    rank: str | None = None,
    steps: int | None = None,
) -> Calibrated:
    """Calibrate by one of the five; what says nothing to it is refused: who gives it expects something of it."""
    sources = {"probe": probe, "nccl": nccl, "trace": trace, "log": log, "snapshot": snapshot}
    given = [source for source, path in sources.items() if path]
    if len(given) != 1:
        raise InputError(
            "give one of PROBE.json, --nccl, --trace, --log and --snapshot FILE; each calibrates by itself"
        )
    _refuse_idle(given[0], {"plan": plan, "steps": steps, "rank": rank})
    if probe:
        return by_probe(probe, name, base)
    if nccl:
        return by_nccl(nccl, name, base)
    if plan is None:
        raise InputError(Fault("--plan", "is missing; a run says nothing without the plan it followed"))
    if trace:
        return by_trace(trace, plan, name, base, steps)
    return by_log(log, plan, name, base) if log else by_snapshot(str(snapshot), plan, name, base, rank)


def _refuse_idle(source: str, options: dict[str, object]) -> None:
    idle = [name for name, value in options.items() if value and name not in _USED[source]]
    way = "a probe" if source == "probe" else f"--{source}"
    if idle:
        raise InputError([Fault(f"--{name}", f"says nothing to {way}; leave it out") for name in idle])


def by_probe(path: str | Path, name: str, base: str | None = None) -> Calibrated:
    """Fit the cost model to a probe; `base`: the catalog GPU that it is, where the probe does not name it."""
    probe = read_probe(path)
    if probe.hardware.get("device") == "cpu":
        raise FileError(path, "was measured on a CPU, which only tests the probe; run it on a GPU")
    base = base or _base_of(probe.gpu)
    name = check_name(name, base)
    notes = [f"{death}; the other cases are used" for death in probe.deaths]
    if not probe.complete:
        notes.insert(0, "the probe did not come to its end: families that it lacks keep the base's numbers")
    cluster = load_cluster(f"{_ranks(probe)}x{base}")
    fit = fit_probe(probe, cluster.gpu, calibration_of(cluster.gpu), name, cluster)
    return Calibrated(calibration=fit.calibration, base=base, notes=(*notes, *fit.notes), fit=fit)


def by_nccl(paths: Sequence[str | Path], name: str, base: str | None = None) -> Calibrated:
    """The network as logs of nccl-tests show it; `base`: the GPU that it joins, where the logs do not name it."""
    logs = [read_nccl(path) for path in paths]
    base = base or _base_of(next((gpu for _, gpu in logs if gpu), ""))
    name = check_name(name, base)
    rows = [row for found, _ in logs for row in found]
    placed = [{**row, "stride": apart} for row in rows if (apart := _apart(row, base))]
    if not placed:
        raise InputError("of each node some GPUs took part and some did not; measure with one GPU of each node, or all")
    cluster = load_cluster(f"{max(row['ranks'] * row['stride'] for row in placed)}x{base}")
    refuse_impossible(placed, cluster, calibration_of(cluster.gpu))
    notes: list[str] = []
    if unnamed := sorted({row["ranks"] for row in placed if not row["hosts"]}):
        told = ", ".join(str(ranks) for ranks in unnamed)
        notes.append(f"no lines `# Rank`: {told} ranks, told by bus over algorithm bandwidth, are taken to fill nodes")
    if len(placed) < len(rows):
        notes.append(f"{len(rows) - len(placed)} rows are left out: of each node some GPUs took part and some did not")
    under = calibration_of(cluster.gpu)
    source = f"collectives measured by nccl-tests ({len(placed)} rows), kernels as {under.name}"
    start = replace(under, name=name, source=source, kernels=under.kernels or under.name)
    found, family = fit_links(placed, cluster, start, notes)
    said = tuple(
        f"{line.kind} over {line.size} ranks, {line.stride} apart: {len(line.sizes)} sizes, "
        f"{line.sizes[-1] / line.seconds[-1] / 1e9:.4g} GB/s at the largest"
        for line in found.collectives if line.sizes
    )  # fmt: skip
    if family:
        notes.append(f"groups that were not measured: {family.name} are off by {100 * family.mean:.0f}% in the mean")
    return Calibrated(calibration=found, base=base, notes=tuple(notes), measured=said)


def _apart(row: dict[str, Any], base: str) -> int:
    """Ranks between the members of a group of so many ranks on so many hosts; 0: they are not evenly apart."""
    node = load_cluster(f"1x{base}").levels[0].size
    hosts = row["hosts"] or -(-row["ranks"] // node)
    each = row["ranks"] // hosts
    if hosts == 1 or each == node:
        return 1
    return node if each == 1 else 0


def _ranks(probe: Probe) -> int:
    """How many GPUs ran the probe together."""
    return max((row["ranks"] for row in probe.rows("distributed")), default=1)


def _base_of(device: str) -> str:
    """The catalog GPU that a driver's name means: `NVIDIA H200` is h200."""
    words = normal(device)
    fitting = [name for name in gpu_names() if name in words]
    if not fitting:
        raise InputError(Fault("--base", f"is missing: no GPU of the catalog is named in {device!r}; give one"))
    return max(fitting, key=len)


def by_trace(path: str | Path, plan: Plan, name: str, base: str | None = None, steps: int | None = None) -> Calibrated:
    """Correct kind by kind from a profiler's trace; `steps`: iterations in it, where it marks none."""
    base, name = _followed(plan, base, name)
    trace = read_trace(path)
    steps = steps or trace.steps
    if not steps:
        raise InputError(Fault("--steps", f"is missing; {path} marks no iterations (ProfilerStep#N)"))
    said = [f"{trace.events:,} device events of {steps} iteration(s)"]
    if trace.seconds["communication"]:
        hidden = "some of it hidden, so it is shown and not corrected"
        said.append(f"communication kernels: {trace.seconds['communication'] / steps:.4g} s an iteration, {hidden}")
    found = from_trace(
        trace, steps, plan.model, plan.cluster, plan.strategy, name=name, source=f"corrected by {path}"
    )  # fmt: skip
    return Calibrated(calibration=found.calibration, base=base, correction=found, measured=tuple(said))


def by_log(path: str | Path, plan: Plan, name: str, base: str | None = None) -> Calibrated:
    """Learn from the iteration times of a log of any framework; earlier runs under the name count too."""
    log, ran = read_run(str(path), plan)
    calm, left_out = quiet(log.steps)
    found = by_run(ran.told, steady(calm, str(path)), log.framework, name, base)
    notes = [*ran.notes, *log.notes, *left_out, *found.notes]
    if found.calibration.name != name:
        notes.append(f"{name} is stored as {found.calibration.name}, by which --cluster finds it")
    return replace(found, notes=tuple(notes))


def by_run(told: Estimate, kept: Steady, framework: str, name: str, base: str | None = None) -> Calibrated:
    """Learn from a measured run of what was estimated, and from the earlier ones that the name knows of its runtime."""
    before, gpu, name = learnable(told, name, base)
    rows = joined(known_rows(name), run_row(told, kept, framework, gpu))
    runs = cases(rows, told.strategy.runtime)
    learnt = learn(runs, before)
    source = before.source if before.name == name else f"{before.source}; kernels as {before.name}"
    made = replace(with_learnt(before, learnt), name=name, source=source, kernels=before.kernels or before.name)
    said = (
        f"{framework}: {kept.seconds:.4g} s an iteration (median of {kept.steps} after {kept.warm_up} of warm-up, "
        f"spread {100 * kept.spread:.0f}%)"
    )
    first, then = (predicted(runs[-1], one, before).iteration_seconds for one in (None, learnt))
    correction = Correction(
        calibration=made, rows=(("iteration", first, kept.seconds),), before=first, after=then, learnt=learnt
    )
    notes = (kept.note,) if kept.note else ()
    return Calibrated(
        calibration=made, base=gpu.name, correction=correction, measured=(said,), notes=notes, runs=tuple(rows)
    )


def learnable(told: Estimate, name: str, base: str | None = None) -> tuple[Calibration, Gpu, str]:
    """What a run corrects: what is stored under the name, less what was learnt, or the calibration of its GPU; that
    GPU, and the name as it will be looked up.
    """
    ran, runtime = told.cluster.gpu, told.strategy.runtime.partition("+")[0]
    stored = stored_base(name)
    gpu = load_cluster(f"1x{base or stored or ran.name}").gpu
    _refuse_other_gpu(gpu.name, ran)
    own = check_name(name, gpu.name)
    found = load_calibration(own) if stored else calibration_of(gpu)
    return replace(found, learnt=tuple(one for one in found.learnt if one.runtime != runtime)), gpu, own


def by_snapshot(
    path: str | Path, plan: Plan, name: str, base: str | None = None, rank: str | None = None
) -> Calibrated:
    """Correct what a GPU keeps back from a CUDA memory snapshot; `rank`: the one that wrote it, such as pp2."""
    base, name = _followed(plan, base, name)
    snapshot = read_snapshot(path)
    number = None if rank is None else rank_number(rank, plan.strategy.pp)
    source = f"memory corrected by {path}"
    found = from_snapshot(snapshot, number, plan.model, plan.cluster, plan.strategy, name=name, source=source)
    notes = () if found.reserved else (f"{base} keeps nothing else back: the rest of the difference is not corrected",)
    return Calibrated(calibration=found.calibration, base=base, notes=notes, memory=found, snapshot=snapshot)


def _followed(plan: Plan, base: str | None, name: str) -> tuple[str, str]:
    """The GPU that is corrected, the one of the run, and its new name."""
    base = base or plan.cluster.gpu.name
    name = check_name(name, base)
    _refuse_other_gpu(base, plan.cluster.gpu)
    return base, name


def _refuse_other_gpu(base: str, ran: Gpu) -> None:
    """What is stored stands on a GPU of the catalog or of the user's: it must be there, and the one of the run."""
    try:
        found = load_cluster(f"1x{base}").gpu
    except InputError as error:
        raise InputError(Fault("--base", f"names the GPU to build on: {error}")) from None
    if found.flops != ran.flops or found.memory != ran.memory:
        told = f"is {base}, and the plan's run was on {ran.name}, another GPU; correct {ran.name}, or plan for {base}"
        raise InputError(Fault("--base", told))


def judged(found: Calibrated) -> tuple[str, ...]:
    """Refuse a fit of another GPU than its base; what is strange about one that is kept."""
    if found.fit is None:
        return ()
    refuse_strange(found.fit, found.base)
    return tuple(
        f"{one.name} do not follow their formula: half of them are off by over {100 * one.median:.0f}%"
        for one in astray(found.fit)
    )


def stored(found: Calibrated) -> tuple[Path, Path]:
    """Store it in the user's folder, where `--cluster 64xNAME` finds it; the files of calibration and GPU."""
    judged(found)
    with together():
        if found.runs:
            keep_rows(found.calibration.name, list(found.runs))
        return store(found.calibration, found.base, reserved=found.memory.reserved if found.memory else None)
