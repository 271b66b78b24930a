"""`shardwise calibrate`: from measurements of a machine, or of a run, to a GPU that `--cluster` knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardwise import api
from shardwise.cli.options import Number
from shardwise.cli.output import Output, output_options
from shardwise.errors import Fault, InputError

if TYPE_CHECKING:
    from shardwise.measure.calibrate import Calibrated
    from shardwise.measure.correct import Correction, MemoryCorrection
    from shardwise.measure.fit.result import Fit
    from shardwise.measure.fit.snapshot import Snapshot


@click.command("calibrate")
@click.argument("probe", metavar="[PROBE.json]", required=False)
@click.option("--name", required=True, metavar="NAME", help="What the calibrated GPU is called: --cluster 64xNAME.")
@click.option("--base", metavar="GPU", help="Catalog GPU that it is; default: the one the probe names, or the plan's.")
@click.option("--svg", metavar="FILE", help="Draw how well each family of kernels fits.")
@click.option("--nccl", multiple=True, metavar="LOG", help="What all_reduce_perf and its kin of nccl-tests printed.")
@click.option("--trace", metavar="TRACE", help="Correct from a profiler's Chrome trace (.json, .json.gz).")
@click.option("--log", metavar="FILE", help="Learn from the iteration times of a framework's log.")
@click.option("--snapshot", metavar="FILE", help="Correct memory from a CUDA memory snapshot (pickle or JSON).")
@click.option("--rank", metavar="ppN", help="Pipeline rank that wrote the snapshot; default: the fullest.")
@click.option("--plan", metavar="FILE", help="The plan that the traced or logged run followed.")
@click.option("--steps", type=Number("option.steps"), help="Iterations in the trace, where it marks none.")
@click.option("--dry-run", is_flag=True, help="Show the fit and store nothing.")
@output_options
def command(name: str, output: Output, *, svg: str | None, dry_run: bool, **options: Any) -> None:  # noqa: ANN401
    """Fit the cost model to a probe of one GPU or to nccl-tests, or correct it by a trace, log or snapshot of a run.

    \b
    shardwise calibrate h200.json --name my-h200 --svg fit.svg
    shardwise calibrate --nccl all_reduce_perf.log --nccl all_gather_perf.log --base h100 --name our-h100
    shardwise calibrate --trace trace.json.gz --plan plan.json --name our-h100
    shardwise calibrate --log train.log --plan plan.json --name our-h100
    shardwise calibrate --snapshot snapshot.pickle --plan plan.json --name our-h100
    shardwise estimate llama3-70b --cluster 64xmy-h200 --tp 8 --pp 2

    `shardwise probe` says how to make PROBE.json. What is stored goes to $SHARDWISE_HOME or ~/.config/shardwise.
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    if svg and not options["probe"]:
        raise InputError(Fault("--svg", "draws the fit of a probe; leave it out"))
    found = api.calibrate(name, **options)
    if found.fit is None:
        for line in found.measured:
            output.say(line)
    for note in found.notes:
        output.note(note)
    data: dict[str, object] = {"calibration": found.calibration, "base": found.base}
    if found.fit:
        _say_fit(found.fit, output)
        _draw(found.fit, svg, output)
        data |= {"families": _families(found.fit), "notes": found.fit.notes}
    elif found.correction:
        _say_correction(found.correction, output)
        data |= {"before": found.correction.before, "after": found.correction.after}
    elif found.memory and found.snapshot:
        _say_memory(found.memory, found.snapshot, output)
        data |= {
            "rank": found.memory.rank, "predicted": found.memory.predicted.value, "measured": found.memory.measured,
            "reserved": found.memory.reserved, "parts": found.snapshot.parts,
        }  # fmt: skip
    _store(found, output, dry=dry_run)
    output.answer(data)


def _draw(fit: Fit, svg: str | None, output: Output) -> None:
    if not svg:
        return
    from shardwise.inputs.write import write_now, write_text
    from shardwise.report.svg import fit_svg

    write_text(svg, fit_svg(fit))
    write_now()  # it shows what is strange about a fit that is refused
    output.note(f"the picture is in {svg}")


def _store(found: Calibrated, output: Output, *, dry: bool) -> None:
    for note in api.judge_calibration(found):
        output.note(note)
    if dry:
        output.note("nothing is stored (--dry-run)")
        return
    from shardwise.inputs.write import once_written

    kept, gpu = api.store_calibration(found)
    name = found.calibration.name
    once_written(lambda: output.say(f"stored: --cluster 64x{name} uses {kept} (GPU: {gpu})"))


def _say_correction(found: Correction, output: Output) -> None:
    rows = [
        (kind, f"{old:.4g} s", f"{new:.4g} s", f"x{new / old:.3g}" if old else "-") for kind, old, new in found.rows
    ]
    output.table(("kind", "predicted", "measured", "correction"), rows)
    output.say(f"the plan's iteration: {found.before:.4g} s before, {found.after:.4g} s corrected")


def _say_memory(found: MemoryCorrection, snapshot: Snapshot, output: Output) -> None:
    from shardwise.units import show_bytes

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


def _families(fit: Fit) -> list[dict[str, object]]:
    return [
        {
            "name": one.name, "rows": len(one.points), "fitted": one.fitted, "mean": one.mean, "median": one.median,
            "held_out": one.held_out, "bias": one.bias, "worst": one.worst.label, "max": abs(one.worst.error),
        }
        for one in fit.families
    ]  # fmt: skip


def _say_fit(fit: Fit, output: Output) -> None:
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
