"""`shardwise show`: a plan as a person reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardwise.cli.output import Output, markdown_option, output_options, terminal_width
from shardwise.cli.report_files import report_options, reports_of, write_reports
from shardwise.units import show_seconds

if TYPE_CHECKING:
    from shardwise.estimate.estimate import Estimate
    from shardwise.plan.file import Plan


_LEGEND = ("F forward, B backward, micro batch", "chunk, F forward, B (or I and W) backward, micro batch")


@click.command("show")
@click.argument("plan", metavar="PLAN.json")
@click.option("--explain", is_flag=True, help="Show where every second and every byte goes.")
@report_options
@markdown_option
@output_options
def command(plan: str, output: Output, *, explain: bool, **files: Any) -> None:  # noqa: ANN401 - one an option
    """Show a plan: what it does, its stages, where time and memory go.

    \b
    shardwise show plan.json
    shardwise show plan.json --explain
    shardwise show plan.json --html plan.html   (one page to look at and to send)
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.cli.per_op_show import show_per_op
    from shardwise.frameworks.load import is_per_op
    from shardwise.plan.file import read_plan
    from shardwise.plan.predict import estimate_of
    from shardwise.report import estimate as report

    read = read_plan(plan)
    if is_per_op(read):
        show_per_op(read, plan, output)
        return
    found = estimate_of(read)
    predicted = read.predictions or {}
    output.answer({"strategy": str(read.strategy), "predictions": predicted, "partition": read.partition})
    output.markdown(lambda: _markdown(read, found))
    write_reports(read, reports_of(files))
    if not output.prints:
        return
    output.say(f"{read.model.name} on {read.cluster.name}: {read.strategy}")
    output.say()
    output.facts(report.summary(found))
    output.facts(_proof(read))
    _tell_change(predicted, found.iteration_seconds, output)
    output.say()
    output.table(*report.stages(found))
    _draw(read, output)
    output.say("\nwhere the time goes (on the busiest pipeline rank)")
    output.table(*report.time(found if explain else _short(found)))
    if explain:
        output.say("\nwhere the memory goes, GiB per pipeline rank")
        output.table(*report.memory(found))


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
    from shardwise.plan.predict import plan_iteration
    from shardwise.report.text import draw_ends

    picture = draw_ends(plan_iteration(plan), terminal_width() or 120)
    if picture:
        output.say(f"\nhow the pipeline fills and drains: {_LEGEND[plan.strategy.vpp > 1]}")
        output.say(picture)


def _proof(plan: Plan) -> list[tuple[str, str]]:
    from shardwise.plan.proof import check_proof
    from shardwise.report.estimate import searched

    proof = check_proof(plan)
    return [*([("proof", str(proof))] if proof else []), *searched(plan.predictions)]


def _tell_change(predicted: dict[str, Any], now: float, output: Output) -> None:
    """A plan may be older than the cost model that reads it."""
    then = predicted.get("iteration_seconds")
    if isinstance(then, int | float) and abs(now / then - 1) > 1e-6:
        output.note(f"the plan was written with {show_seconds(then)}; this version of the cost model says otherwise")
