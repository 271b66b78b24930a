"""`shardwise validate`: predictions held against measured runs."""

from __future__ import annotations

import click

from shardwise import api
from shardwise.cli.output import Output, output_options
from shardwise.errors import InputError


@click.command("validate")
@click.option("--data", "files", multiple=True, metavar="FILE", help="Measured runs; may be given several times.")
@click.option("--cluster", metavar="FILE", help="Predict the rows of this cluster's GPU with it; others are skipped.")
@output_options
def command(files: tuple[str, ...], cluster: str | None, output: Output) -> None:
    """Predict measured runs and show the errors, by source, GPU and precision.

    Without --data, the published and our own measured runs that come with Shardwise. FILE is JSON in the form of one
    of them, told by its content: a list of published runs, or {"rows": [...]} of steps or ranks measured on one GPU, or
    of runs that name SimuMax's system file, which is looked for beside FILE. --cluster takes what `estimate` takes.

    \b
    shardwise validate
    shardwise validate --data my_runs.json --json errors.json
    shardwise validate --data published.json --cluster b200_bf16_ceperm.json
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.report import validation as report

    found = api.validate(*files, cluster=cluster)
    output.answer(report.validation_data(found))
    if not found.outcomes:
        lines = "\n".join(report.reasons(found))
        raise InputError(f"none of the {len(found.skipped):,} rows can be predicted:\n{lines}")
    for line in report.counted(found):
        output.say(line)
    for table in report.tables(found):
        output.say(f"\n{table.title}")
        output.table(table.heads, table.rows)
        if table.below:
            output.say(table.below)
