"""`shardwise export`: hand a plan over to the software that will run it."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from shardwise.cli.output import Output, output_options
from shardwise.errors import InputError

TARGETS = (
    "megatron@main", "torchtitan@0.2", "torchtitan@0.3", "torchtitan@main", "deepspeed@0.19", "mindformers@2.1-graph",
    "mindformers@2.1-pynative", "paddle@3.0", "torch-pipelining@2.13",
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
@click.option("--strict", is_flag=True, help="Refuse, with exit code 1, where only something near can be said.")
@click.option("--force", is_flag=True, help="Write over files that Shardwise did not write, or that were edited.")
@output_options
def command(file: str, output: Output, *, target: str, out: str, strict: bool, force: bool) -> None:
    """Write the files that make a training framework do what a plan says.

    \b
    shardwise export plan.json --to megatron --out run/
    shardwise export plan.json --to torchtitan@0.3 --strict
    shardwise export planned.json --to torch-pipelining --out run/   (a plan with a schedule, or a CSV of one)
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    if Path(file).suffix.lower() != ".json":
        _schedule_only(file, output, target=target, out=out, force=force)
        return
    from shardwise.cli.per_op_show import refuse_per_op
    from shardwise.frameworks.export import export
    from shardwise.frameworks.folder import write_export
    from shardwise.plan.file import read_plan

    read = read_plan(file)
    refuse_per_op(read, file, "export")
    made = export(read, target, strict=strict)
    written = write_export(made, out, force=force)
    for fault in made.losses:
        output.note(f"not as planned: {fault}")
    for note in made.by_hand:
        output.note(f"by hand: {note}")
    output.say(f"plan {made.plan} for {made.speaks}: {made.strategy}")
    output.say(f"predicted   {made.prediction}")
    if made.as_written:
        output.say(f"as written  {made.as_written}")
    _say_written(written, output)
    output.answer(
        {
            "target": made.target,
            "speaks": made.speaks,
            "plan": made.plan,
            "strategy": str(made.strategy),
            "predicted": made.prediction,
            "as_written": made.as_written,
            "losses": made.losses,
            "by_hand": made.by_hand,
            "files": [str(path) for path in written],
        }
    )


def _say_written(written: tuple[Path, ...], output: Output) -> None:
    from shardwise.inputs.write import once_written

    once_written(lambda: output.say("\n".join(f"wrote {path}" for path in written)))


def _schedule_only(file: str, output: Output, *, target: str, out: str, force: bool) -> None:
    """A schedule's CSV without a plan: only PyTorch's pipelining can take it."""
    from shardwise.frameworks.export import find
    from shardwise.frameworks.folder import write_export
    from shardwise.frameworks.torch.write import schedule_export
    from shardwise.inputs.files import read_text
    from shardwise.pipeline.action import Schedule

    found, version = find(target)
    if found.name != "torch-pipelining":
        raise InputError(f"{file} is a schedule, not a plan; {found.title} needs a plan: give a plan.json")
    made = schedule_export(Schedule.parse(read_text(file), name=Path(file).stem))
    written = write_export(made, out, force=force)
    _say_written(written, output)
    output.answer({"target": f"{found.name}@{version}", "files": [str(path) for path in written]})
