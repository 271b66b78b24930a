"""`shardwise watch`: a job that runs elsewhere, by its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardwise import api
from shardwise.cli.output import Output, output_options

if TYPE_CHECKING:
    from shardwise.measure.logs.record import StepRecord
    from shardwise.measure.watch.drift import Drift


@click.command("watch")
@click.argument("log", metavar="LOG")
@click.option("--plan", required=True, metavar="PLAN.json", help="The plan that the job follows.")
@click.option("--follow", is_flag=True, help="Go on while the log grows, until its last step or Ctrl-C.")
@output_options
def command(log: str, plan: str, output: Output, *, follow: bool) -> int:
    """Read the log of a job, hold it against its plan, and say when it drifts and what of it.

    Reads Megatron's, torchtitan's, DeepSpeed's and Hugging Face Trainer's lines, and those of the programs that
    `export` writes. A slow phase is told within sixteen steps: the data loader, all compute (a throttled GPU, a slow
    node), communication, or what lies outside the timed parts, as far as the log has the times of parts. Steps that are
    slow at equal distances (checkpoints) and memory that creeps are told apart.

    \b
    shardwise watch train.log --plan plan.json
    shardwise watch slurm-1234.out --plan plan.json --follow
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.report import runs as report

    def tell(one: StepRecord | Drift) -> None:
        if follow and hasattr(one, "kind"):
            output.note(report.drift_line(one))  # type: ignore[arg-type]

    found = api.watch(log, plan, follow=follow, tell=tell)
    count = len(found.log.steps) or (found.measured.steps if found.measured else 0)
    output.say(f"{found.log.runtime or found.log.framework}: {count} step{'' if count == 1 else 's'} in {log}")
    for note in found.notes:
        output.note(note)
    if found.measured:
        output.say(report.measured_line(found.measured))
        output.table(report.HEADS, report.rows(found.lines))
        output.say(report.against_plan(found.measured.seconds, found.predicted))
    for drift in found.drifts:
        output.say(f"drift: {report.drift_line(drift)}")
    if now := report.present_line(found):
        output.say(now)
    if found.measured and not found.drifts and not found.measured.whole:
        output.say("no drift within the run")
    if found.interrupted:
        output.note(f"interrupted after step {found.log.steps[-1].step if found.log.steps else 0}")
    output.answer(report.watched_data(found))
    return 130 if found.interrupted else 0
