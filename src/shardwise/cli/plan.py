"""`shardwise plan`: find out how to split a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardwise import api
from shardwise.cli.options import (
    CLUSTER,
    GLOBAL_BATCH,
    MODEL,
    PACKINGS,
    GroupedCommand,
    Number,
    executor_options,
    fixes,
    several,
    share,
    typed_options,
)
from shardwise.cli.output import Output, markdown_option, output_options
from shardwise.cli.progress import progress
from shardwise.cli.report_files import plan_report_options, reports_of, write_reports
from shardwise.errors import Fault, InfeasibleError, InputError
from shardwise.units import show_seconds

if TYPE_CHECKING:
    from shardwise.search.question import Answer

_options = several(
    GLOBAL_BATCH,
    click.option(
        "--seq",
        type=Number("Strategy.seq"),
        default=4096,
        metavar="N",
        help="Tokens per sample. [4096]",
    ),
    click.option(
        "--documents",
        metavar="FILE",
        help="Lengths of the documents that samples are packed of. [a sample is one document]",
    ),
    click.option("--packing", type=click.Choice(PACKINGS), help="How they become samples, as for estimate. [packed]"),
    click.option("--runtime", default="megatron", metavar="NAME", help="Software that will run it. [megatron]"),
    click.option(
        "--only", multiple=True, metavar="CONDITIONS", help='Limits of the axes, such as "tp<=8 zero1 vpp=1".'
    ),
    click.option(
        "--fix",
        multiple=True,
        metavar="WORDS",
        help='Values that are given, such as "pp=4", "fp8" or "nosp"; or as for estimate: --pp 4.',
    ),
    click.option(
        "--memory",
        metavar="SIZE",
        help="What one GPU may use, such as 70GiB. [the GPU's, less --memory-margin]",
    ),
    click.option(
        "--memory-margin",
        type=Number("option.margin"),
        metavar="SIZE",
        help="Bytes of every GPU to leave free. [the memory model's error]",
    ),
    click.option(
        "--gap",
        type=Number("option.gap", share),
        default="0.5%",
        metavar="X%",
        help="Stop when the best is proven so near. [0.5%]",
    ),
    click.option(
        "--time",
        "time_limit",
        type=Number("option.time"),
        metavar="TIME",
        help="Stop after so long, such as 30s. [none]",
    ),
    click.option(
        "--fastest", is_flag=True, help="Recommend and write the fastest plan. [that of least expected regret]"
    ),
    click.option("--top", type=Number("option.top"), default=5, metavar="N", help="Layouts to show. [5]"),
    executor_options,
    click.option("--out", metavar="FILE", help="Write the plan."),
    click.option("--explain", is_flag=True, help="What the space is, and where time and memory go."),
)


def _moved(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value not in {None, "strategy"}:
        raise InputError(Fault("--space", "per-op is a verb of its own: shardwise plan-operators"))


_GROUPS = {
    "What to train, and on what": "cluster global_batch seq documents packing runtime",
    "Which strategies": "only fix memory memory_margin",
    "How long to search": "gap time_limit workers executor address",
    "What to say": "fastest top explain quiet",
    "What to write": "out html svg trace operators snapshot rank md json_file",
}


@click.command("plan", cls=GroupedCommand, groups=_GROUPS)
@click.argument("model", type=MODEL, required=False)
@click.option("--cluster", "-c", type=CLUSTER, metavar="64xh100|FILE", help="What it runs on.")
@_options
@click.option("--space", hidden=True, expose_value=False, callback=_moved)
@plan_report_options
@markdown_option
@output_options
@fixes
@click.pass_context
def command(context: click.Context, /, output: Output, **options: Any) -> int:  # noqa: ANN401
    """Find out how to split a model: which plan to run, the fastest, the simplest, and the nearest measured run.

    \b
    shardwise plan llama-3-70b --cluster 64xh100 --global-batch 1024 --seq 8192 --out plan.json
    shardwise plan llama-3-70b -c 64xh100 --global-batch 1024 --only "tp<=4 zero1" --fix pp=4
    shardwise plan llama-3-70b -c "32xh100 + 64xa100" --global-batch 1024   (several kinds of GPU)
    shardwise plan plan.json --only vpp=1   (model, cluster and batch of a plan)

    Operator by operator, each with a split of its own: shardwise plan-operators.
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.report.data import answer_data

    top, explain, out = (options.pop(name) for name in ("top", "explain", "out"))
    reports, only = reports_of(options), " ".join([*options.pop("only"), *options.pop("fix")])
    for name in {"global_batch", "seq", "runtime"} - typed_options(context):
        options[name] = None  # a plan in place of a model says it, or the default of api.plan stands
    with progress("strategies", quiet=output.quiet, show=show_seconds) as state:
        answer = api.plan(**options, only=only, report=state.follow)
    if answer.best is None:
        return _nothing(answer, output)
    found = api.plan_of(answer)
    _say(answer, output, top, only, explain=explain)
    output.answer(answer_data(answer, found, top))
    output.markdown(lambda: _markdown(answer, top))
    write_reports(found, reports, answer)
    if out:
        api.write_plan(found, out)
        output.wrote(f"the plan is in {out}")
    return 130 if answer.interrupted else 0


def _markdown(answer: Answer, top: int) -> str:
    from shardwise.report.markdown import answer_markdown

    return answer_markdown(answer, top)


def _say(answer: Answer, output: Output, top: int, only: str, *, explain: bool) -> None:
    if not output.prints or answer.best is None:
        return
    from shardwise.report import data as report
    from shardwise.report import estimate as tables

    question = answer.question
    supported = tables.unmeasured(question.cluster, question.runtime.name)
    for note in (*supported, *tables.presumed(question.model, question.base)):
        output.note(note)
    if question.conditions != " ".join(only.split()):  # it was a plan, which has its own
        output.note(report.kept_note("the search", question.conditions))
    state = "" if answer.finished else " (the best so far: the search was stopped)"
    output.say(f"{question.model.name} on {question.cluster.name} with {question.runtime.base}{state}")
    output.say()
    output.say(f"{'recommended':<14}{answer.best.strategy}")
    output.facts(report.facts(answer))
    output.say()
    output.table(*tables.stages(answer.best))
    if answer.top[1:]:
        output.say("\nthe best of every layout that was simulated")
        output.table(*report.candidates(answer, top))
    if explain:
        output.say("\nwhere the time goes (on the busiest pipeline rank)")
        output.table(*tables.time(answer.best))
        for line in report.space(answer):
            output.say(line)


def _nothing(answer: Answer, output: Output) -> int:
    """Nothing fits: by how much, and what would."""
    from shardwise.report.data import nothing_data

    output.answer(nothing_data(answer))
    output.markdown(lambda: _markdown(answer, 0))
    if answer.interrupted:
        raise KeyboardInterrupt
    raise InfeasibleError(api.why_nothing(answer))
