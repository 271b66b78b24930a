"""`shardwise show`: a plan as a person reads it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from shardwise import api
from shardwise.cli.output import Output, markdown_option, output_options, terminal_width
from shardwise.cli.report_files import report_options, reports_of, write_reports
from shardwise.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from shardwise.estimate.estimate import Estimate
    from shardwise.plan.plan import Operators, OperatorStage, Plan


def show_per_op(plan: Plan, operators: Operators, output: Output) -> None:
    """Stages, layouts, predictions and bound, as they were written."""
    from shardwise.plan.proof import ended

    output.answer(api.plan_table(plan))
    count, stale = len(operators.stages), ended(plan)
    output.say(f"{plan.model.name} on {plan.cluster.name}, operator by operator: {count} stage{'s'[: count > 1]}, "
               f"{operators.microbatches} micro batches of a global batch of {plan.strategy.global_batch}")  # fmt: skip
    proven = f"bound {show_seconds(operators.bound)}" if not stale else f"bound unknown ({stale}; plan again)"
    costs = plan.provenance.costs if plan.provenance else "full"
    output.say(f"{show_seconds(operators.seconds)} per iteration, {proven} under the {costs} cost model; "
               f"order of passes {plan.strategy.schedule}")  # fmt: skip
    rows = [_row(index, stage) for index, stage in enumerate(operators.stages)]
    output.table(("stage", "ops", "GPUs", "tp x dp of its operators", "again", "iteration", "memory"), rows)


def _row(index: int, stage: OperatorStage) -> list[str]:
    counts = Counter(f"{tp} x {dp}" for tp, dp, _ in stage.layouts)
    said = ", ".join(f"{layout} ({count})" if len(counts) > 1 else layout for layout, count in counts.most_common(4))
    return [
        str(index), str(stage.ops), str(stage.gpus), said, str(len(stage.recompute)), show_seconds(stage.seconds),
        show_bytes(stage.memory),
    ]  # fmt: skip


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
    from shardwise.report import estimate as report

    read = api.read_plan(plan)
    if read.operators:
        show_per_op(read, read.operators, output)
        return
    found = api.estimate(read)
    output.answer({"strategy": str(read.strategy), **api.plan_table(read)})
    output.markdown(lambda: _markdown(read, found))
    write_reports(read, reports_of(files))
    if not output.prints:
        return
    output.say(f"{read.model.name} on {read.cluster.name}: {read.strategy}")
    output.say()
    output.facts(report.summary(found))
    output.facts(report.proven(read))
    if note := report.outdated(read, found):
        output.note(note)
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
    from shardwise.report.text import draw_ends

    picture = draw_ends(api.timeline(plan), terminal_width() or 120)
    if picture:
        output.say(f"\nhow the pipeline fills and drains: {_LEGEND[plan.strategy.vpp > 1]}")
        output.say(picture)
