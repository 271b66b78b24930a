"""`shardwise export`: hand a plan over to the software that will run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from shardwise import api
from shardwise.cli.output import Output, output_options
from shardwise.inputs.write import once_written

if TYPE_CHECKING:
    from shardwise.frameworks.target import Export

TARGETS = (
    "megatron@main", "megatron@0.19", "megatron@0.18", "megatron-bridge@0.6", "torchtitan@0.2", "torchtitan@0.3",
    "torchtitan@main", "huggingface@5", "deepspeed@0.19", "mindformers@2.1-graph", "mindformers@2.1-pynative",
    "paddle@3.0", "torch-pipelining@2.13",
)  # fmt: skip
"""What can be asked for, written out so that help need not load the exporters; a test holds it to the registry."""


class _Targets(click.ParamType[str]):
    name = "target"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del ctx, param
        return [CompletionItem(target) for target in TARGETS if target.startswith(incomplete)]


@click.command("export", epilog="Targets: " + ", ".join(TARGETS) + ". Without a version: the first of that name.")
@click.argument("file", metavar="PLAN.json")
@click.option("--to", "target", type=_Targets(), metavar="TARGET[@VERSION]", required=True, help="What to write for.")
@click.option("--out", metavar="FOLDER", default=".", show_default=True, help="Where the files go.")
@click.option(
    "--launcher", type=click.Choice(("torchrun", "slurm", "kubernetes")), default="torchrun", show_default=True,
    help="What starts the job; its file is written beside the script.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Refuse, with exit code 1, where only something near can be said.")
@click.option("--force", is_flag=True, help="Write over files that Shardwise did not write, or that were edited.")
@output_options
def command(file: str, output: Output, *, target: str, out: str, launcher: str, strict: bool, force: bool) -> None:
    """Write the files that make a training framework do what a plan says.

    \b
    shardwise export plan.json --to megatron --out run/
    shardwise export plan.json --to torchtitan@0.3 --strict
    shardwise export planned.json --to torch-pipelining --out run/   (a plan with a schedule, or a CSV of one)
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.report.data import export_data

    made = api.export(file, target, strict=strict, launcher=launcher)
    there = sorted(Path(out).glob("*"))
    written = api.write_export(made, out, force=force)
    _say(made, output)
    once_written(lambda: output.say("\n".join(f"wrote {path}" for path in written)))
    once_written(lambda: _say_gone(there, output))
    output.answer(export_data(made) | {"files": [str(path) for path in written]})


def _say_gone(there: list[Path], output: Output) -> None:
    for path in there:
        if not path.exists():
            output.say(f"removed {path}, of the export before: this one has no such file")


def _say(made: Export, output: Output) -> None:
    if not (made.strategy or made.shape):  # a schedule alone, no plan
        return
    for fault in made.losses:
        output.note(f"not as planned: {fault}")
    for note in made.by_hand:
        output.note(f"by hand: {note}")
    output.say(f"plan {made.plan} for {made.speaks}: {made.strategy or made.shape}")
    output.say(f"predicted   {made.prediction}")
    if made.runtime:
        output.say(f"runtime     {made.runtime}")
    if made.as_written:
        output.say(f"as written  {made.as_written}")
