"""`shardwise export`: hand a plan over to the software that will run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardwise.cli.output import Output, output_options
from shardwise.errors import InputError

if TYPE_CHECKING:
    from shardwise.simulate.action import Schedule

TARGETS = ("torch-pipelining",)


@click.command("export")
@click.argument("file", metavar="PLAN.json|SCHEDULE.csv")
@click.option("--to", "target", type=click.Choice(TARGETS), required=True, help="What it is written for.")
@click.option("--out", metavar="FOLDER", default=".", show_default=True, help="Where the files go.")
@output_options
def command(file: str, output: Output, *, target: str, out: str) -> None:
    """Write the files that make a training framework do what a plan says.

    \b
    shardwise schedule auto --plan plan.json --out planned.json
    shardwise export planned.json --to torch-pipelining --out run/
    torchrun --nproc-per-node 8 run/run_pipeline.py run/schedule.csv --check
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.export.torch_pipelining import export_torch

    written = export_torch(_schedule(file), out)
    for path in written:
        output.say(f"wrote {path}")
    output.answer({"target": target, "files": [str(path) for path in written]})


def _schedule(file: str) -> Schedule:
    from shardwise.inputs.files import read_text
    from shardwise.plan.plan_file import read_plan
    from shardwise.simulate.action import Schedule

    if Path(file).suffix.lower() != ".json":
        return Schedule.parse(read_text(file), name=Path(file).stem)
    part = read_plan(file).schedule or {}
    rows = part.get("rows")
    if not isinstance(rows, list) or not rows:
        raise InputError(
            f"{file} has no rows of a schedule; make them with  shardwise schedule auto --plan {file} --out FILE"
        )
    return Schedule.parse("\n".join(map(str, rows)), name=str(part.get("name", "")))
