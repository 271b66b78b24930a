"""`shardwise launch`: a plan as a job that runs, held against its prediction."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from shardwise import api
from shardwise.cli.export import TARGETS
from shardwise.cli.options import Number
from shardwise.cli.output import Output, output_options, show

if TYPE_CHECKING:
    from shardwise.measure.launch.launch import Launched
    from shardwise.measure.logs.record import StepRecord


@click.command("launch", epilog="Targets: " + ", ".join(TARGETS) + ". Without a version: the first of that name.")
@click.argument("plan", metavar="PLAN.json")
@click.option("--to", "target", metavar="TARGET[@VERSION]", required=True, help="The framework that runs it.")
@click.option("--steps", type=Number("option.steps"), default=12, show_default=True, help="Iterations.")
@click.option(
    "--launcher", type=click.Choice(["torchrun", "slurm"]), default="torchrun", show_default=True,
    help="torchrun: on this machine; slurm: by sbatch, which is waited for.",
)  # fmt: skip
@click.option("--out", metavar="FOLDER", help="Where files and runs go. [PLAN.TARGET beside the plan]")
@click.option(
    "--learn", metavar="[NAME]", is_flag=False, flag_value="",
    help="Store what the run teaches: --cluster 8xNAME. [our-GPU]",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Look whether it could start; write and start nothing.")
@click.option("--cpu", is_flag=True, help="On CPUs with gloo, to see that it starts; nothing is compared or learnt.")
@click.option("--force", is_flag=True, help="Write over files that Shardwise did not write, or that were edited.")
@output_options
def command(plan: str, target: str, output: Output, **options: Any) -> int:  # noqa: ANN401
    """Start a plan on the framework that it is for, and hold what it takes against what was predicted.

    Writes the files, looks for everything that they need (each fault comes with its cure), starts them, reads times and
    memory with the warm-up dropped, and keeps the run beside the plan: its log and measured.json, which `validate
    --data` reads. --learn stores the correction for this framework; later estimates with --cluster 8xNAME use and name
    it, and further runs under the same name make it better.

    \b
    shardwise launch plan.json --to megatron
    shardwise launch plan.json --to torchtitan --steps 20 --learn our-h200
    shardwise launch plan.json --to huggingface --cpu --steps 3
    shardwise launch plan.json --to megatron --launcher slurm
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.report.runs import launched_data, step_line

    live = not output.quiet and sys.stderr.isatty()

    def follow(step: StepRecord) -> None:
        line = step_line(step, options["steps"])
        if live:
            show(f"\r\x1b[K{line}", end="", err=True, raw=True)
        else:
            output.note(line)

    found = api.launch(plan, target, follow=follow, **options)
    if live:
        show("\r\x1b[K", end="", err=True, raw=True)
    _say(found, output)
    output.answer(launched_data(found))
    return 130 if found.interrupted else 0


def _say(found: Launched, output: Output) -> None:
    from shardwise.report.runs import HEADS, measured_line, rows

    for fault in found.export.losses:
        output.note(f"not as planned: {fault}")
    for note in found.export.by_hand:
        output.note(f"by hand: {note}")
    output.say(f"plan {found.export.plan} for {found.export.speaks}: {found.predicted.strategy}")
    if found.run is None:
        output.say(f"would start  {' '.join(found.command)}  in {found.folder}")
    if found.measured:
        output.say(measured_line(found.measured))
        output.table(HEADS, rows(found.lines))
    for note in found.notes:
        output.note(note)
    if found.run:
        output.say(f"the run is in {found.run}")
    if found.learnt:
        name = found.learnt.calibration.name
        output.say(f"learnt: --cluster 8x{name} predicts {found.predicted.strategy.runtime} with it")
