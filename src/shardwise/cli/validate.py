"""`shardwise validate`: predictions held against measured runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from shardwise import api
from shardwise.cli.output import Output, markdown_option, output_options
from shardwise.cli.progress import progress
from shardwise.errors import Fault, InputError

if TYPE_CHECKING:
    from shardwise.report.validation import Listing


@click.command("validate")
@click.option("--data", "files", multiple=True, metavar="FILE", help="Measured runs; may be given several times.")
@click.option("--cluster", metavar="FILE", help="Predict the rows of this cluster's GPU with it; others are skipped.")
@click.option("--advice", is_flag=True, help="Hold what we propose against what practitioners chose and reached.")
@markdown_option
@output_options
def command(files: tuple[str, ...], cluster: str | None, output: Output, *, advice: bool) -> int:
    """Predict measured runs and show the errors, by source, GPU and precision.

    Without --data, the published and our own measured runs that come with Shardwise. FILE is JSON in the form of one
    of them, told by its content: a list of published runs, or {"rows": [...]} of steps or ranks measured on one GPU, or
    of runs that name SimuMax's system file, which is looked for beside FILE. --cluster takes what `estimate` takes.

    With --advice, well-known set-ups and groups of runs that differ only in layout are planned under their own
    conditions (some minutes; Ctrl-C keeps what is done): our prediction of the published layout, our proposal, its
    claim over what was published, and the parts of the time that the difference is made of.

    \b
    shardwise validate
    shardwise validate --data my_runs.json --json errors.json
    shardwise validate --data published.json --cluster b200_bf16_ceperm.json
    shardwise validate --advice --md advice.md
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    if advice:
        return _advice(files, cluster, output)
    from shardwise.report import validation as report

    found = api.validate(*files, cluster=cluster)
    output.answer(report.validation_data(found))
    if not found.outcomes:
        lines = "\n".join(report.reasons(found))
        raise InputError(f"none of the {len(found.skipped):,} rows can be predicted:\n{lines}")
    _say(output, report.counted(found), report.tables(found))
    output.markdown(lambda: report.validation_markdown(found))
    return 0


def _advice(files: tuple[str, ...], cluster: str | None, output: Output) -> int:
    from shardwise.report import advice as report

    if cluster:
        raise InputError(Fault("--cluster", "--advice plans for the cluster of every run; leave one of the two out"))
    with progress("set-ups", quiet=output.quiet) as state:
        found = api.validate_advice(*files, told=state.count)
    output.answer(report.advice_data(found))
    if not found.setups and not found.groups:
        raise InputError("there is nothing to advise on: no two timed runs differ only in layout")
    _say(output, report.sentences(found), report.tables(found))
    output.markdown(lambda: report.advice_markdown(found))
    return 0 if found.finished else 130


def _say(output: Output, lines: Iterable[str], tables: Iterable[Listing]) -> None:
    for line in lines:
        output.say(line)
    for table in tables:
        output.say(f"\n{table.title}")
        output.table(table.heads, table.rows)
        if table.below:
            output.say(table.below)
