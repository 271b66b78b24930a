"""`shardwise rehearse`: one rank of a plan, run for real on one GPU, or counted without any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardwise import api
from shardwise.cli.options import Number
from shardwise.cli.output import Output, output_options
from shardwise.errors import Fault, InputError

if TYPE_CHECKING:
    from shardwise.estimate.predictions import RehearsedLine
    from shardwise.measure.rehearse.rehearse import Rehearsal


@click.command("rehearse")
@click.argument("plan", metavar="PLAN.json")
@click.option("--rank", metavar="ppN", help="Pipeline rank; its tensor and data parallel members are alike.")
@click.option("--write", metavar="FILE", help="Write the program for that rank (one file, torch only).")
@click.option(
    "--device", type=click.Choice(["cuda", "meta"]), help="cuda: run it here; meta: count its memory, no GPU."
)
@click.option(
    "--with",
    "builder",
    type=click.Choice(["megatron", "torchtitan"]),
    help="Let Megatron-Core (dense, needs a GPU) or torchtitan 0.2 (pp 1) build the rank.",
)
@click.option("--trace", metavar="FILE.py:BUILD", help="Of a traced module: its own file, which is executed.")
@click.option("--read", metavar="FILE", help="Hold a result of the program against the plan.")
@click.option("--out", metavar="FILE", help="Write the plan with what was rehearsed in it.")
@click.option("--result", metavar="FILE", help="Keep the program's result.")
@click.option("--repeats", type=Number("option.steps"), default=3, show_default=True, help="Iterations that are timed.")
@output_options
def command(plan: str, output: Output, *, write: str | None, out: str | None, **options: Any) -> None:  # noqa: ANN401
    """Run one rank of a plan on one GPU, all other ranks faked, and hold it against the prediction.

    \b
    shardwise rehearse plan.json --rank pp2 --write rehearse_pp2.py    copy it to a GPU machine, run it there
    shardwise rehearse plan.json --read result.json --out plan2.json   fold the result back into the plan
    shardwise rehearse plan.json --rank pp2 --device cuda              both at once, on a machine with a GPU
    shardwise rehearse plan.json --rank pp2 --device meta              exact memory of the program, no GPU
    shardwise rehearse plan.json --rank pp2 --with megatron            Megatron-Core's own modules instead of ours
    shardwise rehearse plan.json --with torchtitan --device meta       torchtitan's trainer, its memory counted
    shardwise rehearse plan.json --trace my_model.py:build --device meta   your own module, its memory counted
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    if options["trace"] and write:
        told = "writes a program that needs torch alone, and your module's file is not in it; leave --write out"
        raise InputError(Fault("--write", told))
    if write and not options["read"]:
        made = {name: options[name] for name in ("rank", "device", "builder")}
        _write(plan, write, api.rehearsal_program(plan, **made), output)
        return
    found = api.rehearse(plan, executing=output.note_executed, **options)
    _say(found, output)
    if out:
        api.write_plan(found.plan, out)
        output.wrote(f"the plan with the rehearsal is in {out}")
    output.answer({
        "rank": found.rank, "device": found.device,
        "lines": [
            {"what": x.what, "predicted": x.predicted, "measured": x.measured, "error": x.error} for x in found.lines
        ],
    })  # fmt: skip


def _write(plan: str, path: str, program: tuple[int, str], output: Output) -> None:
    from shardwise.inputs.write import write_now, write_text

    rank, text = program
    write_text(path, text)
    output.answer({"program": path, "rank": rank})
    write_now()
    output.say(f"wrote rank pp{rank} to {path}; on a GPU machine:")
    output.say(f"  python {path} --out result.json")
    output.say(f"then here:  shardwise rehearse {plan} --read result.json")


def _say(found: Rehearsal, output: Output) -> None:
    result = found.result
    by = f" by {result['framework']}" if "framework" in result else ""
    output.say(f"rank pp{found.rank} of {result['name']} on {found.device}{by}")
    output.table(("", "predicted", "rehearsed", "error"), [_row(line) for line in found.lines])
    if result.get("faked_seconds"):
        output.say(f"({result['faked_seconds']:.3g} s of filling in for other ranks are taken off)")


def _row(line: RehearsedLine) -> tuple[str, ...]:
    from shardwise.units import show_bytes, show_seconds

    show = show_bytes if line.unit == "bytes" else show_seconds
    return line.what, show(line.predicted), show(line.measured), f"{100 * line.error:+.1f}%"
