"""`shardwise schedule`: a published schedule by name, or the best one for given costs and memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from shardwise import api
from shardwise.cli.options import Flag, Number
from shardwise.cli.output import Output, markdown_option, output_options, terminal_width
from shardwise.cli.progress import progress
from shardwise.cli.report_files import drawing_options, drawings_of, write_drawings
from shardwise.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from shardwise.pipeline.timeline import Timeline
    from shardwise.search.schedule import Scheduled


@click.command("schedule")
@click.argument("name", metavar="NAME|auto")
@click.option("--pp", type=Number("Strategy.pp"), help="Pipeline ranks.")
@click.option("--vpp", type=Number("option.vpp"), help="Chunks a rank; default: what the schedule wants, 2 for auto.")
@click.option("--microbatches", type=Number("Strategy.microbatches"), help="Micro batches per iteration.")
@click.option("--costs", metavar="F,I,W|FILE", help="Times of one chunk, or a JSON file of costs.")
@click.option("--hop", type=Number("pipeline.time"), help="Latency of a message between ranks.")
@click.option("--transfer", type=Number("pipeline.time"), help="Time of a message on its link, beside --hop.")
@click.option("--contention", is_flag=True, help="Messages on one link wait for each other.")
@click.option("--placement", metavar="loop|v|MAP", help="Where chunks lie, such as 0,1,1,0; default for auto: v.")
@click.option(
    "--memory",
    "memory_limit",
    cls=Flag,
    also=("--memory-limit",),
    metavar="1.5p|BYTES|none",
    help="Memory of every rank, in 1F1B's or in bytes.",
)
@click.option("--offload", type=Number("pipeline.time"), help="Time of one activation to host memory, or back.")
@click.option("--free-at-input-grad", type=Number("pipeline.share"), help="Share of memory that I frees.")
@click.option("--objective", type=click.Choice(["makespan", "period"]), default="makespan", show_default=True)
@click.option("--group", type=Number("Strategy.group"), default=0, help="Micro batch group of interleaved; 0: pp.")
@click.option("--splits", type=Number("option.splits"), default=2, show_default=True, help="Pieces of seq-1f1b.")
@click.option("--plan", metavar="FILE", help="Take pipeline and costs from a plan.")
@click.option("--out", metavar="FILE", help="Write the plan with this schedule in it; needs --plan.")
@click.option("--compare", metavar="NAME,...", help="Print these schedules beside it, same model, in one table.")
@click.option("--effort", type=Number("option.effort"), default=1.0, show_default=True, help="Tries of auto.")
@click.option(
    "--time",
    "time_limit",
    cls=Flag,
    also=("--time-limit",),
    type=Number("option.time"),
    help="CPU seconds that auto may take.",
)
@drawing_options
@markdown_option
@output_options
def command(name: str, output: Output, **options: Any) -> int | None:  # noqa: ANN401 - one an option, as api.schedule has them
    """Order the work of a pipeline: a published schedule by name, or `auto` for the best under a memory limit.

    \b
    shardwise schedule auto --pp 8 --vpp 2 --microbatches 16 --costs 10,11,9 --hop 1 --memory 1.5p
    shardwise schedule zb-v --pp 8 --microbatches 16 --costs 10,11,9 --hop 1 --compare auto,1f1b,interleaved
    shardwise schedule auto --plan plan.json --out planned.json --html schedule.html

    Costs are of one chunk. Schedules: gpipe 1f1b interleaved zb-h1 zb-h2 zb-1p zb-2p zb-v v-half v-min dualpipe-v
    seq-1f1b low-memory auto; of costs also dualpipe.
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    compare, target, files = options.pop("compare"), options.pop("out"), drawings_of(options)
    names = [part.strip() for part in (compare or "").split(",") if part.strip()]
    if compare is not None and not names:
        raise InputError(f"--compare {compare!r} names no schedule; write names such as 1f1b,zb-v, or leave it out")
    if target and not options["plan"]:
        raise InputError("--out writes a plan with the schedule in it; name the plan to start from with --plan")
    began = time.process_time()
    found = _followed(name, output, compare=names, runnable=bool(target), **options)
    unused = {key: options[key] for key in ("group", "splits", "effort", "time_limit")}
    for note in _notes(found, [name, *names], unused, csv=bool(files.csv)):
        output.note(note)
    _say(found, output)
    facts = {"makespan": f"{found.timeline.makespan:g}", "bubble": f"{100 * found.timeline.bubble:.2f}%",
             "bound": f"{found.bound.value:g}"}  # fmt: skip
    others = [one.timeline for one in found.others if hasattr(one, "timeline")]
    seconds = found.pipeline.seconds
    write_drawings(found.timeline, files, seconds=seconds, facts=facts, bound=found.bound.value, others=others)
    if target and not found.over_limit:
        api.write_plan(api.plan_of(found), target)
    output.markdown(lambda: _markdown(found, [found.timeline, *others] if names else []))
    output.answer(_data(found, time.process_time() - began))
    if found.over_limit:
        raise InfeasibleError(found.over_limit)
    return 130 if found.interrupted else None


def _followed(name: str, output: Output, **options: Any) -> Scheduled:  # noqa: ANN401 - of api.schedule
    """The schedule, with a line on a terminal while it is looked for."""
    found: Scheduled | None = None
    with progress("schedule", quiet=output.quiet) as state:
        found = api.schedule(
            name, **options,
            report=lambda best, bound, looked: state.update(
                evaluated=max(0, looked - state.evaluated), best=best, bound=bound
            ),
        )  # fmt: skip
    if found is None:  # Ctrl-C before there was a schedule to keep
        raise KeyboardInterrupt
    return found


def _notes(found: Scheduled, names: list[str], unused: dict[str, Any], *, csv: bool) -> list[str]:
    from shardwise.report.pipeline import copy_notes, host_notes, link_notes, shape_notes, unused_notes

    line, cut = found.timeline, found.interrupted or found.out_of_time
    return [
        *unused_notes(names, **unused), *shape_notes(found), *link_notes(line), *host_notes(line, csv=csv, cut=cut),
        *copy_notes(line, csv=csv),
    ]  # fmt: skip


def _say(found: Scheduled, output: Output) -> None:
    if not output.prints:
        return
    from shardwise.report.pipeline import HEADS, bound_line, compared_row, timeline_lines

    order, seconds = found.timeline.schedule.name, found.pipeline.seconds
    output.say(f"{order}: {found.note}" if found.note else order)
    for line in timeline_lines(found.timeline, seconds=seconds, width=terminal_width() or 160):
        output.say(line)
    output.say(bound_line(found.bound, found.value, seconds=seconds))
    if found.others:
        output.say("")
        output.table(HEADS, [compared_row(one) for one in (found, *found.others)])


def _markdown(found: Scheduled, others: list[Timeline]) -> str:
    from shardwise.report.markdown_pipeline import timeline_markdown

    seconds = found.pipeline.seconds
    return timeline_markdown(found.timeline, bound=found.bound.value, seconds=seconds, others=others)


def _data(found: Scheduled, cpu_seconds: float) -> dict[str, object]:
    from shardwise.kernels import library
    from shardwise.report.pipeline import schedule_data

    run = {"seconds": cpu_seconds, "out_of_time": found.out_of_time, "kernels": library() is not None}
    return schedule_data(found) | {"run": run}
