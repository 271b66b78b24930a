"""`shardwise calibrate`: from measurements of a machine, or of a run, to a GPU that `--cluster` knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardwise.cli.options import Number
from shardwise.cli.output import Output, output_options
from shardwise.errors import Fault, FileError, InputError

if TYPE_CHECKING:
    from shardwise.inputs.calibration import Calibration
    from shardwise.inputs.cluster import Gpu
    from shardwise.measure.correct import Correction
    from shardwise.measure.fit.probe_file import Probe
    from shardwise.measure.fit.result import Fit
    from shardwise.plan.plan import Plan


@click.command("calibrate")
@click.argument("probe_file", metavar="[PROBE.json]", required=False)
@click.option("--name", required=True, metavar="NAME", help="What the calibrated GPU is called: --cluster 64xNAME.")
@click.option("--base", metavar="GPU", help="Catalog GPU that it is; default: the one the probe names, or the plan's.")
@click.option("--svg", metavar="FILE", help="Draw how well each family of kernels fits.")
@click.option("--trace", metavar="TRACE", help="Correct from a profiler's Chrome trace (.json, .json.gz).")
@click.option("--log", metavar="FILE", help="Correct from a Megatron or torchtitan log's iteration times.")
@click.option("--snapshot", metavar="FILE", help="Correct memory from a CUDA memory snapshot (pickle or JSON).")
@click.option("--rank", metavar="ppN", help="Pipeline rank that wrote the snapshot; default: the fullest.")
@click.option("--plan", "plan_file", metavar="FILE", help="The plan that the traced or logged run followed.")
@click.option("--steps", type=Number("option.steps"), help="Iterations in the trace, where it marks none.")
@click.option("--dry-run", is_flag=True, help="Show the fit and store nothing.")
@output_options
def command(output: Output, **options: Any) -> None:  # noqa: ANN401 - one an option
    """Fit the cost model to a probe of one GPU, or correct it by a trace, a log or a memory snapshot of a run.

    \b
    shardwise calibrate h200.json --name my-h200 --svg fit.svg
    shardwise calibrate --trace trace.json.gz --plan plan.json --name our-h100
    shardwise calibrate --log train.log --plan plan.json --name our-h100
    shardwise calibrate --snapshot snapshot.pickle --plan plan.json --name our-h100
    shardwise estimate llama3-70b --cluster 64xmy-h200 --tp 8 --pp 2

    `shardwise probe` says how to make PROBE.json. What is stored goes to $SHARDWISE_HOME or ~/.config/shardwise.
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    given = [name for name in ("probe_file", "trace", "log", "snapshot") if options[name]]
    if len(given) != 1:
        raise InputError("give one of PROBE.json, --trace, --log and --snapshot FILE; each calibrates by itself")
    _refuse_idle(given[0], options)
    if given[0] == "probe_file":
        _from_probe(options, output)
    elif given[0] == "snapshot":
        _from_snapshot(options, output)
    else:
        _from_run(options, output)


# What each source makes use of, beside --name, --base and --dry-run.
_USED = {
    "probe_file": ("svg",), "trace": ("plan_file", "steps"), "log": ("plan_file",), "snapshot": ("plan_file", "rank"),
}  # fmt: skip


def _refuse_idle(source: str, options: dict[str, Any]) -> None:
    """An option that would be ignored is told: who gives it expects something of it."""
    idle = [name for name in ("svg", "plan_file", "steps", "rank") if options[name] and name not in _USED[source]]
    if idle:
        way = "a probe" if source == "probe_file" else f"--{source}"
        names = (f"--{name.removesuffix('_file')}" for name in idle)
        raise InputError([Fault(name, f"says nothing to {way}; leave it out") for name in names])


def _from_probe(options: dict[str, Any], output: Output) -> None:
    from shardwise.frameworks.load import load_cluster
    from shardwise.inputs.calibrations import calibration_of
    from shardwise.measure.fit.fit import fit_probe
    from shardwise.measure.fit.probe_file import read_probe
    from shardwise.measure.fit.sanity import astray, refuse_strange
    from shardwise.measure.fit.store import check_name

    probe = read_probe(options["probe_file"])
    if probe.hardware.get("device") == "cpu":
        raise FileError(options["probe_file"], "was measured on a CPU, which only tests the probe; run it on a GPU")
    base = options["base"] or _base_of(probe.gpu)
    name = check_name(options["name"], base)
    if not probe.complete:
        output.note("the probe did not come to its end: families that it lacks keep the base's numbers")
    for death in probe.deaths:
        output.note(f"{death}; the other cases are used")
    cluster = load_cluster(f"{_ranks(probe)}x{base}")
    fit = fit_probe(probe, cluster.gpu, calibration_of(cluster.gpu), name, cluster)
    _say_fit(fit, output)
    if options["svg"]:
        from shardwise.inputs.write import write_now, write_text
        from shardwise.report.svg import fit_svg

        write_text(options["svg"], fit_svg(fit))
        write_now()  # it shows what is strange about a fit that is refused
        output.note(f"the picture is in {options['svg']}")
    refuse_strange(fit, base)
    for one in astray(fit):
        output.note(f"{one.name} do not follow their formula: half of them are off by over {100 * one.median:.0f}%")
    _store(fit.calibration, base, output, dry=options["dry_run"])
    output.answer({"calibration": fit.calibration, "base": base, "families": _families(fit), "notes": fit.notes})


def _ranks(probe: Probe) -> int:
    """How many GPUs ran the probe together."""
    return max((row["ranks"] for row in probe.rows("distributed")), default=1)


def _base_of(device: str) -> str:
    """The catalog GPU that a driver's name means: `NVIDIA H200` is h200."""
    from shardwise.inputs.load import gpu_names
    from shardwise.inputs.lookup import normal

    words = normal(device)
    fitting = [name for name in gpu_names() if name in words]
    if not fitting:
        raise InputError(Fault("--base", f"is missing: no GPU of the catalog is named in {device!r}; give one"))
    return max(fitting, key=len)


def _families(fit: Fit) -> list[dict[str, object]]:
    return [
        {
            "name": one.name, "rows": len(one.points), "fitted": one.fitted, "mean": one.mean, "median": one.median,
            "held_out": one.held_out, "bias": one.bias, "worst": one.worst.label, "max": abs(one.worst.error),
        }
        for one in fit.families
    ]  # fmt: skip


def _say_fit(fit: Fit, output: Output) -> None:
    for note in fit.notes:
        output.note(note)
    output.say(f"{fit.calibration.name}: {fit.calibration.source}")
    rows = [
        (
            one.name, str(len(one.points)), "yes" if one.fitted else "check", f"{100 * one.mean:.1f}%",
            "-" if one.held_out is None else f"{100 * one.held_out:.1f}%", f"{100 * one.median:.1f}%",
            f"{100 * one.bias:+.1f}%", f"{100 * one.worst.error:+.0f}% {one.worst.label}",
        )
        for one in fit.families
    ]  # fmt: skip
    output.table(("kernels", "rows", "fitted", "mean", "kept out", "median", "bias", "worst"), rows)
    found = fit.calibration
    shares = ", ".join(f"{dtype} {100 * share:.1f}%" for dtype, share in found.gemm.items())
    output.say(f"products reach {shares} of the peak in a step; depth {found.gemm_depth:g}, wave {found.wave:g}")
    f, b = (100 * share for share in found.attention)
    output.say(f"attention {f:.1f}% forward, {b:.1f}% backward; memory {100 * found.bandwidth:.1f}% of its bandwidth")


def _followed(options: dict[str, Any]) -> tuple[Plan, str, str]:
    """The plan that a run followed, the GPU that is corrected, and its new name."""
    from shardwise.measure.fit.store import check_name
    from shardwise.plan.file import read_plan

    if not options["plan_file"]:
        raise InputError(Fault("--plan", "is missing; a run says nothing without the plan it followed"))
    plan = read_plan(options["plan_file"])
    base = options["base"] or plan.cluster.gpu.name
    name = check_name(options["name"], base)
    _refuse_other_gpu(base, plan.cluster.gpu)
    return plan, base, name


def _refuse_other_gpu(base: str, ran: Gpu) -> None:
    """What is stored stands on a GPU of the catalog or of the user's: it must be there, and the one of the run."""
    from shardwise.frameworks.load import load_cluster

    try:
        found = load_cluster(f"1x{base}").gpu
    except InputError as error:
        raise InputError(Fault("--base", f"names the GPU to build on: {error}")) from None
    if found.flops != ran.flops or found.memory != ran.memory:
        told = f"is {base}, and the plan's run was on {ran.name}, another GPU; correct {ran.name}, or plan for {base}"
        raise InputError(Fault("--base", told))


def _from_snapshot(options: dict[str, Any], output: Output) -> None:
    from shardwise.measure.correct import from_snapshot
    from shardwise.measure.fit.snapshot import read_snapshot
    from shardwise.measure.rehearse.spec import rank_number
    from shardwise.units import show_bytes

    plan, base, name = _followed(options)
    snapshot = read_snapshot(options["snapshot"])
    rank = None if options["rank"] is None else rank_number(options["rank"], plan.strategy.pp)
    source = f"memory corrected by {options['snapshot']}"
    found = from_snapshot(snapshot, rank, plan.model, plan.cluster, plan.strategy, name=name, source=source)
    output.say(f"peak of {snapshot.events:,} allocations and frees: {show_bytes(snapshot.peak)}, made of")
    parts = sorted(snapshot.parts.items(), key=lambda item: -item[1])
    output.table(("in the snapshot", ""), [(part, show_bytes(size)) for part, size in parts])
    if snapshot.sites:
        output.table(("most of it at", ""), [(site, show_bytes(size)) for site, size in snapshot.sites])
    rows = [(part.name, show_bytes(part.value)) for part in found.predicted.parts]
    output.table((f"predicted for pp{found.rank}", show_bytes(found.predicted.value)), rows)
    error = found.predicted.value / found.measured - 1
    output.say(f"predicted / measured - 1: {100 * error:+.1f}%; {show_bytes(abs(found.missing))} "
               f"{'more' if found.missing > 0 else 'less'} is kept back from now on")  # fmt: skip
    if not found.reserved:
        output.note(f"{base} keeps nothing else back: the rest of the difference is not corrected")
    _store(found.calibration, base, output, dry=options["dry_run"], reserved=found.reserved)
    output.answer({
        "calibration": found.calibration, "base": base, "rank": found.rank, "predicted": found.predicted.value,
        "measured": found.measured, "reserved": found.reserved, "parts": snapshot.parts,
    })  # fmt: skip


def _from_run(options: dict[str, Any], output: Output) -> None:
    plan, base, name = _followed(options)
    found = _traced(options, plan, name, output) if options["trace"] else _logged(options, plan, name, output)
    rows = [
        (kind, f"{old:.4g} s", f"{new:.4g} s", f"x{new / old:.3g}" if old else "-") for kind, old, new in found.rows
    ]
    output.table(("kind", "predicted", "measured", "correction"), rows)
    output.say(f"the plan's iteration: {found.before:.4g} s before, {found.after:.4g} s corrected")
    _store(found.calibration, base, output, dry=options["dry_run"])
    output.answer({"calibration": found.calibration, "base": base, "before": found.before, "after": found.after})


def _traced(options: dict[str, Any], plan: Plan, name: str, output: Output) -> Correction:
    from shardwise.inputs.trace import read_trace
    from shardwise.measure.correct import from_trace

    trace = read_trace(options["trace"])
    steps = options["steps"] or trace.steps
    if not steps:
        raise InputError(Fault("--steps", f"is missing; {options['trace']} marks no iterations (ProfilerStep#N)"))
    output.say(f"{trace.events:,} device events of {steps} iteration(s)")
    if trace.seconds["communication"]:
        hidden = "some of it hidden, so it is shown and not corrected"
        output.say(f"communication kernels: {trace.seconds['communication'] / steps:.4g} s an iteration, {hidden}")
    return from_trace(
        trace, steps, plan.model, plan.cluster, plan.strategy, name=name, source=f"corrected by {options['trace']}"
    )


def _logged(options: dict[str, Any], plan: Plan, name: str, output: Output) -> Correction:
    from shardwise.measure.correct import from_log, read_log

    strategy = plan.strategy
    log = read_log(options["log"], tokens_per_gpu=strategy.global_batch * strategy.seq / strategy.world)
    output.say(
        f"{log.framework}: {log.seconds:.4g} s an iteration (median of {log.lines}, spread {100 * log.spread:.0f}%)"
    )
    return from_log(log, plan.model, plan.cluster, strategy, name=name, source=f"corrected by {options['log']}")


def _store(calibration: Calibration, base: str, output: Output, *, dry: bool, reserved: float | None = None) -> None:
    if dry:
        output.note("nothing is stored (--dry-run)")
        return
    from shardwise.inputs.write import once_written
    from shardwise.measure.fit.store import store

    kept, gpu = store(calibration, base, reserved=reserved)
    once_written(lambda: output.say(f"stored: --cluster 64x{calibration.name} uses {kept} (GPU: {gpu})"))
