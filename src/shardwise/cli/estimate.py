"""`shardwise estimate`: time, memory and MFU of one strategy, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardwise import api
from shardwise.cli.options import Asking, asks
from shardwise.cli.output import Output, markdown_option, output_options
from shardwise.cli.report_files import plan_report_options, reports_of, write_reports
from shardwise.errors import InfeasibleError

if TYPE_CHECKING:
    from shardwise.estimate.advice import Change
    from shardwise.estimate.detail import Detail
    from shardwise.estimate.estimate import Estimate
    from shardwise.frameworks.ask import Asked


@click.command("estimate", cls=Asking)
@click.option("--explain", is_flag=True, help="Show where every second and every byte goes, and what would help.")
@click.option("--out", metavar="FILE", help="Write the plan: inputs and predictions.")
@asks
@plan_report_options
@markdown_option
@output_options
def command(asked: Asked, output: Output, *, explain: bool, out: str | None, **files: Any) -> None:  # noqa: ANN401
    """Predict time, memory and MFU of one strategy, and say why.

    \b
    shardwise estimate llama-3-70b --cluster 64xh100 --tp 8 --pp 4 --global-batch 256 --seq 8192
    shardwise estimate llama-3-70b -c 64xh100 -s "tp8 pp4x2 mbs1 gbs256 seq8192" --explain
    shardwise estimate model.json --cluster system.json --strategy strategy.json   (SimuMax's files)
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.report import estimate as report
    from shardwise.report.data import estimate_data

    for note in asked.notes:
        output.note(note)
    # a plan in the order that it carries
    question = (asked.plan,) if asked.plan else (asked.model, asked.cluster, asked.strategy)
    found = api.estimate(*question, runtime=asked.runtime)
    for note in report.notes(found):
        output.note(note)
    changes = api.advise(found, runtime=asked.runtime) if explain or found.fits != "yes" else ()
    inside = api.detail(found, runtime=asked.runtime)
    output.answer(estimate_data(found, changes, inside))  # files first: printing can fail where the reader has gone
    output.markdown(lambda: _markdown(found))
    plan = api.plan_of(found)
    write_reports(plan, reports_of(files), runtime=asked.runtime)
    if out:
        api.write_plan(plan, out)
        output.wrote(f"the plan is in {out}")
    _say(found, asked, output, changes, inside if explain else None)
    if found.fits == "no":
        raise InfeasibleError(report.missing(found))


def _markdown(found: Estimate) -> str:
    from shardwise.report.markdown import estimate_markdown

    return estimate_markdown(found)


def _say(found: Estimate, asked: Asked, output: Output, changes: tuple[Change, ...], explained: Detail | None) -> None:
    if not output.prints:
        return
    from shardwise.report import estimate as report

    output.say(f"{found.model.name} on {found.cluster.name} with {asked.runtime.base}: {found.strategy}")
    output.say()
    output.facts(report.summary(found))
    output.say()
    output.table(*report.stages(found))
    if explained:
        output.say("\nwhere the time goes (on the busiest pipeline rank)")
        output.table(*report.time(found))
        if found.strategy.documents:
            output.say("\nhow documents become samples")
            output.table(*report.ways(found))
        if found.model.towers and found.strategy.pp > 1:
            output.say("\nwhere the towers may stand")
            output.table(*report.towers(found))
        output.say("\nwhere the memory goes, GiB per pipeline rank")
        output.table(*report.memory(found))
        output.say("\nwhat a micro batch computes and accesses in device memory, on one GPU of each pipeline rank")
        output.table(*report.work(explained))
        if explained.groups:
            output.say("\nwhat communication groups reach with their largest message, alone on the network")
            output.table(*report.groups(explained))
        output.say()
        output.say(f"calibrated on: {found.calibration}")
    if explained or changes:
        output.say()
        output.say(report.advice_title(found, changes))
        output.table(*report.advice(changes)) if changes else None
