"""`shardwise simulate`: replay a schedule from a CSV file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardwise import api
from shardwise.cli.options import Flag, Number
from shardwise.cli.output import Output, markdown_option, output_options, terminal_width
from shardwise.cli.report_files import drawing_options, drawings_of, write_drawings

if TYPE_CHECKING:
    from shardwise.pipeline.replay import Replay
    from shardwise.pipeline.timeline import Timeline


@click.command("simulate")
@click.argument("file", metavar="FILE.csv|ANSWER.json")
@click.option("--costs", metavar="F,I,W|FILE", help="Times of one chunk, or a JSON file.")
@click.option("--hop", type=Number("pipeline.time"), help="Latency of a message between ranks.")
@click.option("--transfer", type=Number("pipeline.time"), help="Time of a message on its link, beside --hop.")
@click.option("--contention", is_flag=True, help="Messages on one link wait for each other.")
@click.option(
    "--memory",
    "memory_limit",
    cls=Flag,
    also=("--memory-limit",),
    metavar="1.5p|BYTES|none",
    help="Refuse the schedule where a rank needs more.",
)
@click.option("--offload", type=Number("pipeline.time"), help="Time of one activation to host memory, or back.")
@click.option("--free-at-input-grad", type=Number("pipeline.share"), help="Share of memory that I frees.")
@click.option("--combine", is_flag=True, help="Run every forward together with the full backward right after it.")
@click.option("--copies", type=Number("option.copies"), default=1, help="Copies of the model: 2 of dualpipe.")
@drawing_options
@markdown_option
@output_options
def command(file: str, output: Output, **options: Any) -> None:  # noqa: ANN401 - one an option, as api.simulate has them
    """Replay a schedule in PyTorch's compute-only CSV: times, bubbles and their causes, memory, critical path.

    \b
    shardwise simulate schedule.csv --costs 10,11,9 --hop 1 --html schedule.html
    shardwise simulate answer.json

    An answer of `schedule --json` holds its costs and its proof: the order and the bound are checked by code that
    shares nothing with the optimiser. Costs given beside it must be those that the proof is of.
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.report.pipeline import copy_notes, figures, host_notes, link_notes, pair_notes

    files = drawings_of(options)
    found = api.simulate(file, **options)
    timeline = found.timeline
    csv = bool(files.csv)
    notes = *link_notes(timeline), *host_notes(timeline, csv=csv), *copy_notes(timeline, csv=csv)
    for note in (*pair_notes(timeline, asked=options["combine"]), *notes):
        output.note(note)
    if output.prints:
        _say(found, output)
    facts = {"makespan": f"{timeline.makespan:g}", "bubble": f"{100 * timeline.bubble:.2f}%"}
    write_drawings(timeline, files, seconds=False, facts=facts)
    output.markdown(lambda: _markdown(timeline, found.bound.value))
    output.answer(figures(timeline, found.bound, timeline.makespan))


def _say(found: Replay, output: Output) -> None:
    from shardwise.report.pipeline import bound_line, timeline_lines

    timeline = found.timeline
    lines = [found.proof] if found.proof else []
    lines += timeline_lines(timeline, seconds=False, width=terminal_width() or 160)
    lines.append(bound_line(found.bound, timeline.makespan, seconds=False))
    steps = timeline.critical_path() if timeline.schedule.actions <= 100_000 else ()
    if steps:
        chain = " ".join(str(step.action) for step in steps[-12:])
        lines.append(f"critical path  {len(steps)} actions, ending {chain}")
    for line in lines:
        output.say(line)


def _markdown(timeline: Timeline, bound: float) -> str:
    from shardwise.report.markdown_pipeline import timeline_markdown

    return timeline_markdown(timeline, bound=bound)
