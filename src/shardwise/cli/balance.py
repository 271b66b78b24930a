"""`shardwise balance`: layers and recompute of every stage and chunk; its steps are commands of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from shardwise import api
from shardwise.cli.balance_loop import SHARED, loop
from shardwise.cli.balance_patch import patch
from shardwise.cli.balance_steps import dryrun, guide, quick
from shardwise.cli.options import Flag, Number, numbers, share
from shardwise.cli.output import Output, markdown_option, output_options
from shardwise.cli.progress import progress
from shardwise.cli.report_files import Reports
from shardwise.errors import Fault, InputError
from shardwise.inputs.write import write_text

if TYPE_CHECKING:
    from shardwise.partition.compare import Compared
    from shardwise.partition.decompose import MemoryFit
    from shardwise.partition.problem import BalanceAnswer, Problem
    from shardwise.plan.plan import Plan


@click.group("balance", invoke_without_command=True, subcommand_metavar="[guide|dryrun|quick|patch|loop]")
@click.option("--problem", metavar="FILE", help="A problem in one JSON file, numbers taken as given.")
@click.option("--init", "-init", metavar="FILE", help="Init YAML: measured peaks, times or traces.")
@click.option("--peaks", metavar="FOLDER", multiple=True, help="Dry-run folder of a round: its logs give the peaks.")
@click.option("--peak", type=click.Choice(["actual", "used"]), default="actual", help="Which peak line counts.")
@click.option(
    "--times",
    type=numbers("pipeline.time"),
    metavar="H,B,T",
    help="Forward times of head, body layer and tail, in place of traces.",
)
@click.option("--guide", "-guide", "asks_guide", is_flag=True, help="The same as `balance guide`.")
@click.option("--model", "-m", metavar="NAME", help="Keep the fitted layer model as NAME.json, or read it.")
@click.option("--pp", "-s", type=Number("Strategy.pp"), default=4, show_default=True, help="Stages.")
@click.option("--vpp", "-i", type=Number("Strategy.vpp"), default=1, show_default=True, help="Chunks of a stage.")
@click.option(
    "--microbatches", "-mb", type=Number("Strategy.microbatches"), default=4, show_default=True, help="Micro batches."
)
@click.option(
    "--memory",
    "-mem",
    type=numbers("pipeline.limit"),
    metavar="MB",
    default="56000",
    show_default=True,
    help="Limit, or one per stage: MB as in the problem; with --plan of 10^6 bytes (what is printed then is GiB).",
)
@click.option("--confidence", type=Number("option.confidence", share), default=0.95, show_default=True,
              help="Probability that a stage stays within its limit, where peaks were measured.")  # fmt: skip
@click.option("--low-memory", "-lm", type=Number("option.switch"), default=0, help="1: the low-memory interleave.")
@click.option("--seq-split", "-seq", type=Number("option.splits"), default=1, help="Pieces of a sequence.")
@click.option("--train", "-train", metavar="FILE", help="Training YAML: what pieces of a sequence hold whole.")
@click.option("--time", "-t", "time_limit", cls=Flag, also=("--time-limit",), type=Number("option.time"), default=60.0,
              show_default=True, help="CPU seconds, used up unless the answer is proven.")  # fmt: skip
@click.option(
    "--naive", "-naive", type=Number("option.switch"), default=0, help="1: compare with all and no recompute."
)
@click.option("--manual", "-manual", metavar="FILE", multiple=True, help="YAML of strategies to compare with.")
@click.option("--schedule", metavar="NAME", help="Order of work; by default 1f1b, interleaved or low-memory.")
@click.option("--hop", type=Number("pipeline.time"), default=0.0, help="Time of a message between stages.")
@click.option("--empty", metavar="ends|any|0,7", help="Chunks that may be without layers.")
@click.option("--seed", type=Number("option.seed"), default=1, help="Of the search.")
@click.option(
    "--effort",
    type=Number("option.effort"),
    help="Count steps (1: many), not seconds: the same answer on every machine.",
)
@click.option("--svg", metavar="FILE", help="Pipeline and memory of every compared strategy.")
@click.option("--html", metavar="FILE", help="The timeline as a page.")
@click.option("--trace", metavar="FILE", help="The timeline for Perfetto.")
@click.option("--plan", metavar="FILE", help="Balance a plan; or the plan that gets the layers.")
@click.option(
    "--out", "write_plan", cls=Flag, also=("--write-plan",), metavar="FILE", help="Write it with the new layers."
)
@markdown_option
@output_options
@click.pass_context
def command(ctx: click.Context, /, output: Output, *, asks_guide: bool, **options: Any) -> int | None:  # noqa: ANN401
    """Spread layers and recompute over stages so that the simulated iteration is shortest and every stage fits.

    \b
    shardwise balance guide --stages 16 --layers 96 --select --comm --both
    shardwise balance --init init.yaml -m demo -s 16 -i 3 -mb 16 -mem 56000 -lm 1
    shardwise balance --problem problem.json --json answer.json
    shardwise balance --plan plan.json --out balanced.json
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    if ctx.invoked_subcommand is not None:
        return None
    if asks_guide:
        ctx.invoke(guide)
        return None
    shown = {name: options.pop(name) for name in ("svg", "html", "trace")}
    for name in ("low_memory", "naive"):
        options[name] = bool(options[name])
    default = {name for name in options if ctx.get_parameter_source(name) is ParameterSource.DEFAULT}
    given = {name: value for name, value in options.items() if name not in default and value is not None}
    if "plan" in given and not given.keys() & _DESCRIBES:
        return _of_plan(given, output, frozenset({name for name, value in shown.items() if value}))
    return _balance(options, given, Reports(**shown), output)


_DESCRIBES = frozenset({"problem", "init", "model"})
"""Options that say what is balanced; without them a plan does."""
_SOLVES = ("time_limit", "effort", "seed")
_COMPARES = ("naive", "manual")
_PLANS = ("plan", "write_plan")


def _of_plan(given: dict[str, Any], output: Output, shown: frozenset[str]) -> int:
    """Balance a plan, which says everything but the memory; print it beside what it was, and write it."""
    from shardwise.report import balance as report
    from shardwise.report import estimate as tables

    odd = sorted(shown | given.keys() - {*_PLANS, "memory"})
    if odd:
        raise InputError(
            Fault(f"--{odd[0].replace('_', '-')}", "goes with --problem or --init; the plan says it: leave it out")
        )
    limit = min(given["memory"]) * 1e6 if "memory" in given else None
    found = api.balance_plan(given["plan"], memory_limit=limit)
    output.say(f"before   {found.before.strategy}")
    output.say(f"after    {found.after.strategy}")
    output.say()
    output.facts([*tables.summary(found.after), *report.plan_facts(found)])
    output.say()
    output.table(*tables.stages(found.after))
    if "write_plan" in given:
        api.write_plan(api.plan_of(found), given["write_plan"])
        output.note(f"the plan is in {given['write_plan']}")
    output.answer(report.plan_data(found))
    return 0


def _balance(options: dict[str, Any], given: dict[str, Any], files: Reports, output: Output) -> int:
    """Solve, compare, print and write; 130 when stopped by Ctrl-C with a best so far."""
    from shardwise.report import balance as report

    read = api.read_problem(**{name: value for name, value in given.items() if name in api.DESCRIBES})
    if read.extra:
        _say_fit(read.extra, output)
    others = api.compare_balance(read.value, naive=options["naive"], manual=options["manual"])
    plan = _into(given, read.value)
    for note in (*read.notes, *others.notes, *(report.plan_notes(plan, read.value) if plan else ())):
        output.note(note)
    _refuse_same(files.svg, others.value)
    with progress("balance", quiet=output.quiet) as state:
        answer = api.balance(
            read.value, plan=plan, **{name: options[name] for name in _SOLVES},
            report=lambda best, bound, looked: state.update(
                evaluated=looked - state.evaluated, best=best, bound=bound or None
            ),
        )  # fmt: skip
    compared = report.beside(answer, others.value)
    _say(answer, compared, output)
    _write_pictures(files, answer, compared)
    if plan is not None:
        api.write_plan(api.plan_of(answer, plan), given["write_plan"])
    output.markdown(lambda: _markdown(answer, compared))
    output.answer(report.answer_data(answer, compared[1:]))
    return 130 if answer.interrupted else 0


def _into(given: dict[str, Any], problem: Problem) -> Plan | None:
    """The plan that gets the layers of a problem, checked before anything is solved."""
    if not given.keys() & set(_PLANS):
        return None
    if not given.keys() >= set(_PLANS):
        raise InputError(Fault("--out", "goes with --plan FILE, the plan whose layers are balanced; give both"))
    plan = api.read_plan(given["plan"])
    try:
        api.refuse_other_pipeline(plan, problem)
    except InputError as error:
        raise InputError(error.faults, title=given["plan"]) from None
    return plan


def _say_fit(fit: MemoryFit, output: Output) -> None:
    from shardwise.report import balance as report

    output.table(["part of memory", "MB", "+-"], report.fit_rows(fit))
    output.table(*report.residual_rows(fit))
    output.say(report.fit_line(fit))
    output.say()


def _say(answer: BalanceAnswer, compared: list[Compared], output: Output) -> None:
    from shardwise.report import balance as report

    output.table(*report.plan_rows(answer.problem, answer.best))
    output.say()
    for note in report.answer_notes(answer):
        output.note(note)
    for line in report.answer_lines(answer):
        output.say(line)
    if len(compared) > 1:
        output.say()
        output.table(*report.compared_rows(compared))


def _markdown(answer: BalanceAnswer, compared: list[Compared]) -> str:
    from shardwise.report.markdown_pipeline import balance_markdown

    return balance_markdown(answer, compared[1:] and compared)


def _refuse_same(svg: str | None, others: list[Compared]) -> None:
    """Refuse two pictures of one name."""
    names = [Path(svg).name] if svg else []
    for one in others:
        if svg and one.file_name and (name := Path(one.file_name).name) in names:
            raise InputError(
                Fault(f"{one.name}.file_name", f"is {name!r}, where another picture goes; give each its own")
            )
        names.append(Path(one.file_name).name)


def _write_pictures(files: Reports, answer: BalanceAnswer, compared: list[Compared]) -> None:
    """The figure of all strategies, one of each that names a file, the page and the trace."""
    from shardwise.report.page import page_of
    from shardwise.report.svg import compared_svg, strategy_svg
    from shardwise.report.trace import chrome_trace
    from shardwise.report.view import balance_views

    if files.svg:
        write_text(files.svg, compared_svg(compared))
        for one in compared[1:]:
            if one.file_name:
                path = Path(files.svg).parent / Path(one.file_name).name
                write_text(path, strategy_svg(one))
    if files.html:
        write_text(files.html, page_of(balance_views(answer, compared[1:])))
    if files.trace:
        write_text(files.trace, chrome_trace(answer.best.timeline))


loop.params += [option for option in command.params if option.name in SHARED]
for step in (guide, dryrun, quick, patch, loop):
    command.add_command(step)
