"""`shardwise show`: a plan as a person reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardwise import api
from shardwise.cli.output import Output, markdown_option, output_options, terminal_width
from shardwise.cli.report_files import plan_report_options, reports_of, write_reports
from shardwise.errors import Fault, InputError

if TYPE_CHECKING:
    from shardwise.estimate.estimate import Estimate
    from shardwise.plan.plan import Plan


@click.command("show")
@click.argument("plan", metavar="PLAN.json")
@click.option("--explain", is_flag=True, help="Show where every second and every byte goes.")
@plan_report_options
@markdown_option
@output_options
def command(plan: str, output: Output, *, explain: bool, **files: Any) -> None:  # noqa: ANN401 - one an option
    """Show a plan: what it does, its stages, where time and memory go.

    \b
    shardwise show plan.json
    shardwise show plan.json --explain
    shardwise show plan.json --html plan.html   (one page to look at and to send)
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.report import estimate as report
    from shardwise.report import operators as per_op

    read = api.read_plan(plan)
    if read.operators:
        _refuse_files(plan, {**files, "md": output.md})
        output.answer(api.plan_table(read))
        for line in per_op.written_lines(read, read.operators):
            output.say(line)
        output.table(*per_op.written_stages(read.operators))
        return
    found, now = api.estimate(read), api.renewed(read)
    output.answer({"strategy": str(read.strategy), **api.plan_table(now.plan), "outdated": now.outdated})
    output.markdown(lambda: _markdown(read, found))
    write_reports(read, reports_of(files))
    if not output.prints:
        return
    output.say(f"{read.model.name} on {read.cluster.name}: {read.strategy}")
    output.say()
    output.facts(report.summary(found))
    output.facts(report.proven(read))
    if now.note:
        output.note(now.note)
    output.say()
    output.table(*report.stages(found))
    _draw(read, output)
    output.say("\nwhere the time goes (on the busiest pipeline rank)")
    output.table(*report.time(found if explain else _short(found)))
    if explain:
        output.say("\nwhere the memory goes, GiB per pipeline rank")
        output.table(*report.memory(found))


def _refuse_files(plan: str, files: dict[str, str | None]) -> None:
    """Pages and figures are of whole strategies: of a per-operator plan they would be another one's."""
    why = f"{plan} is a per-operator plan, of which there are no such files; leave it out, or write --json FILE"
    if asked := [Fault(f"--{name}", why) for name, file in files.items() if file]:
        raise InputError(asked)


def _short(found: Estimate) -> Estimate:
    """The same with a time ledger of one level."""
    from dataclasses import replace

    parts = tuple(part._replace(parts=()) for part in found.time.parts)
    return replace(found, time=found.time._replace(parts=parts))


def _markdown(plan: Plan, found: Estimate) -> str:
    from shardwise.report.markdown import plan_markdown

    return plan_markdown(plan, found)


def _draw(plan: Plan, output: Output) -> None:
    """How the pipeline fills and drains."""
    if plan.strategy.pp == 1:
        return
    from shardwise.report.text import draw_ends, legend

    timeline = api.timeline(plan)
    picture = draw_ends(timeline, terminal_width() or 120)
    if picture:
        output.say(f"\nhow the pipeline fills and drains: {legend(timeline.schedule)}")
        output.say(picture)
