"""The files a result is sent around in: one HTML page, a figure, a trace. `--md` is `output.markdown_option`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardwise.errors import ShardwiseError
from shardwise.inputs.write import write_text

if TYPE_CHECKING:
    from shardwise.inputs.plan_file import Plan
    from shardwise.inputs.runtime import Runtime
    from shardwise.plan.search.types import Candidate

F = TypeVar("F", bound=Callable[..., Any])
LARGEST_EXPORT = 200_000
"""Characters that the files of one target may have inside a page; larger ones are left to `shardwise export`."""


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
        from shardwise.report.page import page_of
        from shardwise.report.view import plan_view

        view = plan_view(plan, candidates, runtime=runtime)
        write_text(reports.html, page_of([view], plans=[plan_data(plan)], exports=[exports_data(plan)]))
    if reports.svg or reports.trace:
        _write_timeline(plan, reports, runtime)


def _write_timeline(plan: Plan, reports: Reports, runtime: Runtime | None) -> None:
    from shardwise.plan.estimate import estimate
    from shardwise.plan.timeline import iteration, plan_iteration
    from shardwise.report.svg import timeline_svg
    from shardwise.report.trace import chrome_trace

    found = estimate(plan.model, plan.cluster, plan.strategy, runtime=runtime)
    ordered = bool((plan.schedule or {}).get("rows"))
    timeline = plan_iteration(plan, found) if ordered else iteration(found, runtime=runtime)
    if reports.svg:
        title = f"{plan.model.name} on {plan.cluster.name}: {plan.strategy}"
        write_text(reports.svg, timeline_svg(timeline, title, seconds=True))
    if reports.trace:
        write_text(reports.trace, chrome_trace(timeline))


def plan_data(plan: Plan) -> dict[str, Any]:
    """What the plan's file would hold."""
    from shardwise.inputs.plan_file import plan_text

    found: dict[str, Any] = json.loads(plan_text(plan))
    return found


def exports_data(plan: Plan) -> list[dict[str, Any]]:
    """The files of every target that can say the plan, as the page shows them; a refusal is shown as its sentence."""
    from shardwise.export.registry import TARGETS

    names = [f"{name}@{version}" for name, target in TARGETS.items() for version in target.versions]
    return [made for name in names if (made := _export(plan, name)) is not None]


def _export(plan: Plan, target: str) -> dict[str, Any] | None:
    from shardwise.export.registry import export

    try:
        made = export(plan, target)
    except ShardwiseError as error:
        return {"target": target, "error": str(error)}
    if sum(len(file.text) for file in made.files) > LARGEST_EXPORT:
        return None
    return {
        "target": target, "speaks": made.speaks, "losses": [str(fault) for fault in made.losses],
        "by_hand": list(made.by_hand), "files": [{"name": file.name, "text": file.text} for file in made.files],
    }  # fmt: skip
