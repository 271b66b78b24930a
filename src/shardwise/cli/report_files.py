"""The files a result is sent around in: one HTML page, a figure, a trace. `--md` is `output.markdown_option`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardwise.inputs.write import write_text

if TYPE_CHECKING:
    from shardwise.inputs.runtime import Runtime
    from shardwise.plan.plan import Plan
    from shardwise.search.question import Candidate

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Where they go."""

    html: str | None = None
    svg: str | None = None
    trace: str | None = None


def report_options(verb: F) -> F:
    """--html, --svg and --trace; `reports_of` takes them out of the options."""
    for option in (
        click.option("--trace", metavar="FILE", help="Write a trace for Perfetto or chrome://tracing."),
        click.option("--svg", metavar="FILE", help="Write a figure for a paper: pipeline on top, memory below."),
        click.option(
            "--html", metavar="FILE", help="Write one HTML page to look at and to send; it needs nothing else."
        ),
    ):
        verb = option(verb)
    return verb


def reports_of(options: dict[str, Any]) -> Reports:
    """The reports that were asked for, taken out of the options."""
    return Reports(**{name: options.pop(name) for name in ("html", "svg", "trace")})


def write_reports(
    plan: Plan, reports: Reports, candidates: Iterable[Candidate] = (), *, runtime: Runtime | None = None
) -> None:
    """Write what was asked for of a plan."""
    if reports.html:
        from shardwise.report.view import plan_view

        write_page(reports.html, [plan], [plan_view(plan, candidates, runtime=runtime)])
    if reports.svg or reports.trace:
        _write_timeline(plan, reports, runtime)


def write_page(path: str, plans: Sequence[Plan], views: Sequence[dict[str, Any]] = ()) -> None:
    """One page of one plan, or of several side by side, with their plan files and every target's files."""
    from shardwise.frameworks.export import every_export
    from shardwise.plan.file import plan_table
    from shardwise.report.page import page_of
    from shardwise.report.view import plan_view

    shown = views or [plan_view(plan) for plan in plans]
    exports = [every_export(plan) for plan in plans]
    write_text(path, page_of(shown, plans=[plan_table(plan) for plan in plans], exports=exports))


def _write_timeline(plan: Plan, reports: Reports, runtime: Runtime | None) -> None:
    from shardwise.plan.predict import plan_iteration
    from shardwise.report.svg import timeline_svg
    from shardwise.report.trace import chrome_trace

    timeline = plan_iteration(plan, runtime=runtime)
    if reports.svg:
        title = f"{plan.model.name} on {plan.cluster.name}: {plan.strategy}"
        write_text(reports.svg, timeline_svg(timeline, title, seconds=True))
    if reports.trace:
        write_text(reports.trace, chrome_trace(timeline))
