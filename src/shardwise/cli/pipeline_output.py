"""What `schedule` and `simulate` print and write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from shardwise.cli.output import Output, terminal_width
from shardwise.inputs.write import write_text
from shardwise.pipeline.bounds import Bound
from shardwise.pipeline.timeline import Timeline
from shardwise.units import show_bytes, show_percent, show_seconds

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where the drawings go."""

    csv: str | None = None
    svg: str | None = None
    html: str | None = None
    trace: str | None = None


def file_options(verb: F) -> F:
    """--csv, --svg, --html and --trace."""
    for option in (
        click.option("--trace", metavar="FILE", help="Write a trace for Perfetto or chrome://tracing."),
        click.option("--html", metavar="FILE", help="Write one HTML page: timeline to zoom, memory below."),
        click.option("--svg", metavar="FILE", help="Write a figure: pipeline on top, memory below."),
        click.option("--csv", metavar="FILE", help="Write the schedule as PyTorch's compute-only CSV."),
    ):
        verb = option(verb)
    return verb


def write_files(
    timeline: Timeline,
    files: Files,
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


def figures(timeline: Timeline, bound: Bound | None, value: float) -> dict[str, object]:
    """The numbers of an answer, by their names in the JSON."""
    schedule = timeline.schedule
    found: dict[str, object] = {
        "schedule": schedule.name, "pp": schedule.pp, "vpp": schedule.vpp, "microbatches": schedule.microbatches,
        "makespan": timeline.makespan, "period": timeline.period, "bubble": timeline.bubble,
        "period_bubble": timeline.period_bubble, "seed_rate": timeline.seed_rate, "peak": list(timeline.peak),
        "bubbles": timeline.bubbles(), "period_bubbles": timeline.period_bubbles(),
    }  # fmt: skip
    if bound is not None:
        gap = max(0.0, value / bound.value - 1.0)
        found |= {"bound": bound.value, "gap": gap, "proven": value <= bound.value * (1 + 1e-9)}
    return found


def time_text(value: float, *, seconds: bool) -> str:
    return show_seconds(value) if seconds else f"{value:.6g}"


def bytes_text(value: float, *, seconds: bool) -> str:
    return show_bytes(value) if seconds else f"{value:g}"


def say_timeline(timeline: Timeline, output: Output, *, seconds: bool) -> None:
    """Times, bubbles with their causes, memory, and the drawing where it fits."""
    parts = timeline.bubbles()
    causes = ", ".join(f"{name} {show_percent(share, 2)}" for name, share in parts.items() if share > 5e-5)
    output.say(f"makespan       {time_text(timeline.makespan, seconds=seconds)}")
    output.say(f"period         {time_text(timeline.period, seconds=seconds)}")
    output.say(f"bubble         {show_percent(timeline.bubble, 2)} synchronous ({causes or 'none'})")
    output.say(f"               {show_percent(timeline.period_bubble, 2)} period, {timeline.seed_rate:.4f} seed rate")
    peaks = [bytes_text(peak, seconds=seconds) for peak in timeline.peak]
    shown = peaks if len(peaks) <= 16 else [*peaks[:8], "...", *peaks[-4:]]
    output.say(f"peak memory    {' '.join(shown)}")
    from shardwise.report.text import draw_ends

    picture = draw_ends(timeline, terminal_width() or 160)
    if picture:
        output.say("\n" + picture)


def say_bound(bound: Bound, value: float, output: Output, *, seconds: bool) -> None:
    gap = max(0.0, value / bound.value - 1.0)
    proof = "optimal, proven" if gap <= 1e-9 else f"gap {show_percent(gap, 2)}"
    output.say(
        f"bound          {time_text(bound.value, seconds=seconds)} for {bound.scope} ({proof}; "
        f"under this cost model, rank {bound.rank}, {bound.kind})"
    )
