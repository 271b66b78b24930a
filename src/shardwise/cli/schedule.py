"""`shardwise schedule`: a published schedule by name, or the best one for given costs and memory."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from shardwise.cli.options import Number
from shardwise.cli.output import Output, markdown_option, output_options
from shardwise.cli.pipeline_output import Files, file_options
from shardwise.errors import InfeasibleError, InputError, ShardwiseError, UnknownNameError

if TYPE_CHECKING:
    from shardwise.cli.pipeline_costs import Pipeline
    from shardwise.cli.schedule_run import Ask, Found
    from shardwise.pipeline.timeline import Timeline
    from shardwise.plan.plan import Plan


@click.command("schedule")
@click.argument("name", metavar="NAME|auto")
@click.option("--pp", type=Number("Strategy.pp"), help="Pipeline ranks.")
@click.option("--vpp", type=Number("option.vpp"), help="Chunks a rank; default: what the schedule wants, 2 for auto.")
@click.option("--microbatches", type=Number("Strategy.microbatches"), help="Micro batches per iteration.")
@click.option("--costs", "cost_text", metavar="F,I,W|FILE", help="Times of one chunk, or a JSON file of costs.")
@click.option("--hop", type=Number("pipeline.time"), help="Latency of a message between ranks.")
@click.option("--placement", type=click.Choice(["loop", "v"]), help="Where chunks lie; default for auto: v.")
@click.option("--memory-limit", metavar="1.5p|BYTES|none", help="Memory of every rank, in 1F1B's or in bytes.")
@click.option("--free-at-input-grad", "free", type=Number("pipeline.share"), help="Share of memory that I frees.")
@click.option("--objective", type=click.Choice(["makespan", "period"]), default="makespan", show_default=True)
@click.option("--group", type=Number("Strategy.group"), default=0, help="Micro batch group of interleaved; 0: pp.")
@click.option("--splits", type=Number("option.splits"), default=2, show_default=True, help="Pieces of seq-1f1b.")
@click.option("--plan", "plan_file", metavar="FILE", help="Take pipeline and costs from a plan.")
@click.option("--out", metavar="FILE", help="Write the plan with this schedule in it; needs --plan.")
@click.option("--compare", metavar="NAME,...", help="Print these schedules beside it, same model, in one table.")
@click.option("--effort", type=Number("option.effort"), default=1.0, show_default=True, help="Tries of auto.")
@click.option("--time-limit", type=Number("option.time"), help="CPU seconds that auto may take.")
@file_options
@markdown_option
@output_options
def command(name: str, output: Output, **options: Any) -> int | None:  # noqa: ANN401 - one an option, as Ask has them
    """Order the work of a pipeline: a published schedule by name, or `auto` for the best under a memory limit.

    \b
    shardwise schedule auto --pp 8 --vpp 2 --microbatches 16 --costs 10,11,9 --hop 1 --memory-limit 1.5p
    shardwise schedule zb-v --pp 8 --microbatches 16 --costs 10,11,9 --hop 1 --compare auto,1f1b,interleaved
    shardwise schedule auto --plan plan.json --out planned.json --html schedule.html

    Costs are of one chunk. Schedules: gpipe 1f1b interleaved zb-h1 zb-h2 zb-1p zb-2p zb-v v-half v-min dualpipe-v
    seq-1f1b low-memory auto.
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.cli.schedule_run import Ask, pipeline_of

    compare, target = options.pop("compare"), options.pop("out")
    names = [part.strip() for part in (compare or "").split(",") if part.strip()]
    for one in (name, *names):
        _known(one)
    drawings = {key: options.pop(key) for key in ("csv", "svg", "html", "trace")}
    ask = Ask(name=name, plan=_plan(options.pop("plan_file")), **options)
    if target and ask.plan is None:
        raise InputError("--out writes a plan with the schedule in it; name the plan to start from with --plan")
    pipeline = pipeline_of(ask)
    if target:
        _refuse(ask, pipeline)
    return _answer(ask, pipeline, names, Files(**drawings), target, output)


def _plan(path: str | None) -> Plan | None:
    from shardwise.cli.per_op_show import refuse_per_op
    from shardwise.plan.file import read_plan

    plan = read_plan(path) if path else None
    if plan is not None and path:
        refuse_per_op(plan, path, "schedule")
    return plan


def _refuse(ask: Ask, pipeline: Pipeline) -> None:
    """What the plan's runtime cannot run is not written into a plan."""
    from shardwise.check.check import ensure
    from shardwise.inputs.load import load_runtime

    assert ask.plan and pipeline.setup  # noqa: S101, PT018 - for the type checker
    ensure(ask.plan.model, ask.plan.cluster, pipeline.setup.strategy, load_runtime(pipeline.setup.strategy.runtime))


def _known(name: str) -> None:
    from shardwise.inputs.strategy import SCHEDULES

    if name not in SCHEDULES:
        raise UnknownNameError("schedule", name, SCHEDULES)


def _answer(
    ask: Ask, pipeline: Pipeline, names: list[str], files: Files, target: str | None, output: Output
) -> int | None:
    from shardwise.cli.pipeline_output import figures, say_bound, say_timeline, write_files
    from shardwise.cli.schedule_run import run_one
    from shardwise.kernels import library

    began = time.process_time()
    found = run_one(ask, pipeline, ask.name, output)
    answer = figures(found.timeline, found.bound, found.value) | {"objective": ask.objective, "choice": found.choice}
    answer["proof"] = found.proof
    if output.prints:
        output.say(f"{found.timeline.schedule.name}: {found.note}" if found.note else found.timeline.schedule.name)
        say_timeline(found.timeline, output, seconds=pipeline.seconds)
        say_bound(found.bound, found.value, output, seconds=pipeline.seconds)
    facts = {"makespan": f"{found.timeline.makespan:g}", "bubble": f"{100 * found.timeline.bubble:.2f}%",
             "bound": f"{found.bound.value:g}"}  # fmt: skip
    others: list[Timeline] = []
    if names:
        answer["compare"] = _compared(ask, pipeline, names, output, others)
    write_files(
        found.timeline, files, seconds=pipeline.seconds, facts=facts, bound=found.bound.value, others=others[1:]
    )
    if target:
        _write_plan(ask, pipeline, found, target)
    output.markdown(lambda: _markdown(found, others, pipeline))
    answer["run"] = {
        "seconds": time.process_time() - began, "out_of_time": found.out_of_time, "kernels": library() is not None,
    }  # fmt: skip
    output.answer(answer)
    if found.over_limit:
        raise InfeasibleError(found.over_limit)
    return 130 if found.interrupted else None


def _write_plan(ask: Ask, pipeline: Pipeline, found: Found, target: str) -> None:
    """The plan in its new order, predicted anew; an order that follows no name is written out."""
    from shardwise.estimate.estimate import estimate
    from shardwise.plan.file import write_plan
    from shardwise.plan.predict import plan_of

    assert ask.plan and pipeline.setup  # noqa: S101, PT018 - for the type checker
    order = found.timeline.schedule if ask.name == "auto" else None
    made = estimate(ask.plan.model, ask.plan.cluster, pipeline.setup.strategy, order=order)
    write_plan(plan_of(made, order), target)


def _over(found: Found, pipeline: Pipeline) -> str:
    """Why it is over the limit; bytes are in the column before."""
    return "over the limit" if found.over_limit and pipeline.seconds else found.over_limit or ""


def _markdown(found: Found, others: list[Timeline], pipeline: Pipeline) -> str:
    from shardwise.report.markdown_pipeline import timeline_markdown

    return timeline_markdown(found.timeline, bound=found.bound.value, seconds=pipeline.seconds, others=others)


def _compared(
    ask: Ask, pipeline: Pipeline, names: list[str], output: Output, timelines: list[Timeline]
) -> list[dict[str, object]]:
    """One line a schedule; a schedule that cannot run says why instead. Their timelines are added to the list."""
    from shardwise.cli.pipeline_output import bytes_text, figures, time_text
    from shardwise.cli.schedule_run import run_one
    from shardwise.units import show_percent

    rows, answers = list[list[str]](), list[dict[str, object]]()
    for name in dict.fromkeys((ask.name, *names)):
        try:
            found = run_one(ask, pipeline, name, replace(output, quiet=True))
        except ShardwiseError as error:
            rows.append([name, "-", "-", "-", "-", "-", str(error).splitlines()[0][:70]])
            answers.append({"schedule": name, "error": str(error)})
            continue
        numbers = figures(found.timeline, found.bound, found.value)
        answers.append(numbers | {"schedule": name})
        line = found.timeline
        timelines.append(line)
        rows.append([
            name, time_text(line.makespan, seconds=pipeline.seconds), time_text(line.period, seconds=pipeline.seconds),
            show_percent(line.bubble, 2), show_percent(line.period_bubble, 2),
            bytes_text(max(line.peak), seconds=pipeline.seconds), _over(found, pipeline),
        ])  # fmt: skip
    output.say("")
    output.table(("schedule", "makespan", "period", "bubble", "period bubble", "peak", "note"), rows)
    return answers
