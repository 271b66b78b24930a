"""The files a result is sent around in: one HTML page, a figure, a trace. `--md` is `output.markdown_option`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardwise import api
from shardwise.cli.options import Number
from shardwise.errors import Fault, InputError
from shardwise.inputs.write import write_text

if TYPE_CHECKING:
    from shardwise.inputs.runtime import Runtime
    from shardwise.pipeline.timeline import Timeline
    from shardwise.plan.plan import Plan
    from shardwise.search.question import Answer

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Where they go."""

    html: str | None = None
    svg: str | None = None
    trace: str | None = None
    csv: str | None = None
    operators: str | None = None
    snapshot: str | None = None
    rank: int | None = None
    """The rank that the last two are of; none: the busiest, and the fullest."""


def report_options(verb: F) -> F:
    """--html, --svg and --trace; `reports_of` takes them out of the options."""
    for option in (
        click.option("--trace", metavar="FILE", help="Write a trace for Perfetto; of plans, with all traffic."),
        click.option("--svg", metavar="FILE", help="Write a figure for a paper: pipeline on top, memory below."),
        click.option(
            "--html", metavar="FILE", help="Write one HTML page to look at and to send; it needs nothing else."
        ),
    ):
        verb = option(verb)
    return verb


def plan_report_options(verb: F) -> F:
    """The same for a plan, and what is inside of one rank; `reports_of` takes them out of the options."""
    for option in (
        click.option("--rank", type=Number("option.none"), help="Pipeline rank of --operators and --snapshot."),
        click.option(
            "--snapshot", metavar="FILE", help="Write a rank's memory for PyTorch's viewer (pytorch.org/memory_viz)."
        ),
        click.option(
            "--operators", metavar="FILE", help="Write the operators and the memory of one pass: a trace, or FILE.svg."
        ),
    ):
        verb = option(verb)
    return report_options(verb)


def reports_of(options: dict[str, Any]) -> Reports:
    """The reports that were asked for, taken out of the options."""
    found = Reports(**{name: options.pop(name) for name in _OF_PLANS})
    if found.rank is not None and not (found.operators or found.snapshot):
        raise InputError(Fault("--rank", "is of --operators and --snapshot; add one of them, or leave it out"))
    return found


_OF_PLANS = ("html", "svg", "trace", "operators", "snapshot", "rank")


def drawing_options(verb: F) -> F:
    """The same for a schedule, and --csv; `drawings_of` takes them out of the options."""
    csv = click.option("--csv", metavar="FILE", help="Write the schedule as PyTorch's compute-only CSV.")
    return csv(report_options(verb))


def drawings_of(options: dict[str, Any]) -> Reports:
    """The drawings that were asked for, taken out of the options."""
    return Reports(**{name: options.pop(name) for name in ("html", "svg", "trace", "csv")})


def write_drawings(
    timeline: Timeline,
    files: Reports,
    *,
    seconds: bool,
    facts: dict[str, str],
    bound: float | None = None,
    others: Sequence[Timeline] = (),
) -> None:
    """Write what was asked for; `others` stand beside the timeline in the page."""
    title = f"{timeline.schedule.name or 'schedule'}, pp {timeline.schedule.pp}, vpp {timeline.schedule.vpp}"
    if files.csv:
        write_text(files.csv, timeline.schedule.csv())
    if files.svg:
        from shardwise.report.svg import timeline_svg

        write_text(files.svg, timeline_svg(timeline, title, seconds=seconds))
    if files.html:
        from shardwise.report.page import timeline_page

        text = timeline_page(timeline, timeline.schedule.name, facts, seconds=seconds, bound=bound, others=others)
        write_text(files.html, text)
    if files.trace:
        from shardwise.report.trace import chrome_trace

        write_text(files.trace, chrome_trace(timeline, unit=1e6 if seconds else 1.0))


def write_reports(
    plan: Plan, reports: Reports, answer: Answer | None = None, *, runtime: Runtime | None = None
) -> None:
    """Write what was asked for of a plan; `answer`: of the search that found it."""
    if reports.html:
        from shardwise.report.data import plans_page
        from shardwise.report.view import plan_view

        write_text(reports.html, plans_page([plan], [plan_view(plan, answer, runtime=runtime)], answer))
    if reports.svg or reports.trace:
        _write_timeline(plan, reports, runtime)
    if reports.operators:
        _write_operators(plan, reports.operators, reports.rank, runtime)
    if reports.snapshot:
        from shardwise.report.snapshot import snapshot_bytes

        write_text(reports.snapshot, snapshot_bytes(api.rank_allocations(plan, rank=reports.rank, runtime=runtime)))


def _write_operators(plan: Plan, path: str, rank: int | None, runtime: Runtime | None) -> None:
    """A figure where the name ends so, else a trace."""
    from shardwise.report.pass_trace import operators_trace
    from shardwise.report.svg_pass import pass_svg

    inside = api.rank_passes(plan, rank=rank, runtime=runtime)
    figure = path.lower().endswith(".svg")
    write_text(path, pass_svg(inside, f"{plan.model.name}, {plan.strategy}") if figure else operators_trace(inside))


def _write_timeline(plan: Plan, reports: Reports, runtime: Runtime | None) -> None:
    from shardwise.report.svg import timeline_svg
    from shardwise.report.trace import iteration_trace

    whole = api.iteration(plan, runtime=runtime)
    if reports.svg:
        title = f"{plan.model.name} on {plan.cluster.name}: {plan.strategy}"
        write_text(reports.svg, timeline_svg(whole.timeline, title, seconds=True, whole=whole))
    if reports.trace:
        write_text(reports.trace, iteration_trace(whole))
