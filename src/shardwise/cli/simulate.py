"""`shardwise simulate`: replay any schedule, ours or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardwise.cli.options import Number
from shardwise.cli.output import Output, markdown_option, output_options
from shardwise.cli.pipeline_output import Files, file_options
from shardwise.errors import Fault, InputError

if TYPE_CHECKING:
    from shardwise.pipeline.timeline import Timeline


@click.command("simulate")
@click.argument("file", metavar="FILE.csv|ANSWER.json")
@click.option("--costs", "cost_text", metavar="F,I,W|FILE", help="Times of one chunk, or a JSON file.")
@click.option("--hop", type=Number("pipeline.time"), help="Latency of a message between ranks.")
@click.option("--memory-limit", metavar="1.5p|BYTES|none", help="Refuse the schedule where a rank needs more.")
@click.option("--free-at-input-grad", "free", type=Number("pipeline.share"), help="Share of memory that I frees.")
@click.option("--contention", is_flag=True, help="Messages on one link wait for each other.")
@file_options
@markdown_option
@output_options
def command(
    file: str, output: Output, *, cost_text: str | None, hop: float | None, memory_limit: str | None,
    free: float | None, contention: bool, csv: str | None, svg: str | None, html: str | None, trace: str | None,
) -> None:  # fmt: skip
    """Replay a schedule in PyTorch's compute-only CSV: times, bubbles and their causes, memory, critical path.

    \b
    shardwise simulate schedule.csv --costs 10,11,9 --hop 1 --html schedule.html
    shardwise simulate answer.json

    An answer of `schedule --json` holds its costs and its proof: the order and the bound are checked by code that
    shares nothing with the optimiser. Costs given beside it must be those that the proof is of.
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.cli.pipeline_costs import limited, read_costs
    from shardwise.cli.pipeline_output import figures, say_bound, say_timeline, write_files
    from shardwise.cli.schedule_proof import checked_proof, proven_costs, read_proof
    from shardwise.inputs.files import read_text
    from shardwise.pipeline.action import Schedule
    from shardwise.pipeline.engine import simulate
    from shardwise.pipeline.faults import validate
    from shardwise.pipeline.optimise import bound_of

    proof = read_proof(file) if Path(file).suffix == ".json" else None
    schedule = Schedule.parse(read_text(file) if proof is None else "\n".join(proof["rows"]), name=Path(file).stem)
    validate(schedule)
    if cost_text is not None:
        given = limited(read_costs(cost_text, schedule.pp, schedule.vpp, hop, free), memory_limit, schedule.rank_of)
    elif proof is None or hop is not None or free is not None or memory_limit is not None:
        raise InputError(Fault("--costs", "is missing; write f,i,w of one chunk, such as 10,11,9, or name a JSON file"))
    if proof is not None:
        output.say(checked_proof(proof, file, given if cost_text is not None else ()))
        given = (proven_costs(proof),)
    costs = replace(given[0], contention=contention)
    validate(schedule, costs)
    timeline = simulate(schedule, costs)
    bound = bound_of(costs, schedule=schedule)
    say_timeline(timeline, output, seconds=False)
    say_bound(bound, timeline.makespan, output, seconds=False)
    steps = timeline.critical_path() if schedule.actions <= 100_000 else ()
    if steps:
        chain = " ".join(str(step.action) for step in steps[-12:])
        output.say(f"critical path  {len(steps)} actions, ending {chain}")
    facts = {"makespan": f"{timeline.makespan:g}", "bubble": f"{100 * timeline.bubble:.2f}%"}
    write_files(timeline, Files(csv=csv, svg=svg, html=html, trace=trace), seconds=False, facts=facts)
    output.markdown(lambda: _markdown(timeline, bound.value))
    output.answer(figures(timeline, bound, timeline.makespan))


def _markdown(timeline: Timeline, bound: float) -> str:
    from shardwise.report.markdown_pipeline import timeline_markdown

    return timeline_markdown(timeline, bound=bound)
