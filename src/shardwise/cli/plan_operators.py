"""`shardwise plan-operators`: every operator with a split of its own, from profiled operators."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from shardwise import api
from shardwise.cli.options import CLUSTER, GLOBAL_BATCH, MODEL, F, Flag, Number, executor_options, several
from shardwise.cli.output import Output, output_options
from shardwise.cli.progress import Progress
from shardwise.errors import Fault, InputError
from shardwise.inputs.serialise import to_json
from shardwise.inputs.write import write_now, write_text
from shardwise.units import show_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwise.per_op.answer import OperatorAnswer, Standing
    from shardwise.per_op.question import OperatorQuestion

_ASKED = (
    "model", "cluster", "global_batch", "seq", "runtime", "profiles", "profile", "layers", "layer_ops", "runs_with",
    "gpus", "gpus_per_node", "memory", "microbatches", "stages", "most_tp", "compatible", "compatible_space", "zero",
    "schedule", "p2p_overlap", "start", "operators_only",
)  # fmt: skip
_PARTS = "ms per pass; MiB"
_SEARCHED = ("method", "start", "hops", "trials", "best", "time_limit", "workers", "executor", "address", "schedule")


def _text(flag: str, metavar: str, text: str) -> Callable[[F], F]:
    return click.option(flag, metavar=metavar, help=text)


def _number(flag: str, row: str, text: str, default: float | None = None, metavar: str = "N") -> Callable[[F], F]:
    return click.option(flag, type=Number(row), default=default, metavar=metavar, help=text)


_profile_options = several(
    _text("--profiles", "FOLDER|ARCHIVE|FILE",
          "Operator profiles: Aceso's CSV files, or what the probe wrote. [made from MODEL and --cluster]"),
    _text("--write-operators", "FILE", "Write what `probe --operators` should measure; no search."),
    _text("--micro-batch", "N,N,...", "With --write-operators: samples of a replica to measure. [1,2,4,8]"),
    _text("--profile", "NAME", "Which model of the profiles, such as gpt_1_3B."),
    _number("--layers", "Model.layers", "Layers of the model; known for Aceso's sizes, and from --start FILE."),
    _text("--layer-ops", "FIRST,LAST", "First and last operator of a layer, where not known."),
    _text("--runs-with", "KEY=VALUE,...",
          "What the run will have, such as attention=plain: told where the profile differs."),
    _text("--save-profiles", "FOLDER", "Write the profile that is used, as CSV files."),
)  # fmt: skip
_space_options = several(
    _number("--gpus", "Cluster.gpus", "GPUs. [those of --cluster]"),
    _number("--gpus-per-node", "Cluster.gpus", "GPUs of one node. [8, or the cluster's]"),
    _text("--memory", "SIZE",
          "What one GPU may use, such as 70GiB; a bare number is MiB with --compatible. "
          "[the GPU's, less the memory model's own error]"),
    GLOBAL_BATCH,
    _text("--microbatches", "N,N,...", "Numbers of micro batches per iteration to try. [what the profile covers]"),
    _number("--seq", "Strategy.seq", "Tokens per sample, for made profiles. [4096]"),
    _text("--stages", "N|N-N", "Numbers of stages to try. [all]"),
    _number("--most-tp", "option.none", "Largest tensor parallel size. [a node]", 0),
    click.option("--compatible", is_flag=True, help="Aceso's cost model to the digit."),
    click.option("--compatible-space", is_flag=True,
                 help="Aceso's limits: 1, 2, 4 or 8 GPUs a stage, none across nodes, 16 stages."),
    _number("--zero", "Strategy.zero", "1: optimizer states sharded over replicas; 2: gradients too, in one stage. "
            "[the faster; 0 with --compatible]"),
    click.option("--schedule", type=click.Choice(["1f1b", "gpipe", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "auto"]),
                 help="Order of passes; all but gpipe are searched as 1f1b and then simulated. "
                 "[1f1b; any for whole strategies]"),
    click.option("--operators-only", is_flag=True,
                 help="Leave out whole strategies (chunks, cp, ep, ZeRO 3), the answer where they are faster."),
    _number("--p2p-overlap", "option.share", "Share of sends between stages that is hidden. [the runtime's]",
            metavar="X"),
)  # fmt: skip
_search_options = several(
    click.option("--runtime", default="megatron", metavar="NAME", help="Software that will run the plan. [megatron]"),
    click.option("--method", type=click.Choice(["auto", "exact", "alleviate"]), default="auto",
                 help="auto ends after 26 CPU s, exact when it has proven; alleviate explains. [auto]"),
    _text("--start", "KIND|FILE",
          "Start of alleviate: balanced, by-share, tail-heavy, or a plan in Aceso's JSON. [balanced]"),
    _number("--hops", "option.steps", "Changes in a row before alleviate turns back. [7]", 7),
    _number("--trials", "option.steps", "Descents of alleviate. [30]", 30),
    click.option("--time", "time_limit", cls=Flag, also=("--time-limit",), type=Number("option.seconds"),
                 metavar="TIME", help="CPU seconds, such as 60s; the best so far is the answer. [none]"),
    _text("--measured-memory", "stage0=SIZE,...",
          "Peaks of a run of the plan in --start, SIZE+SIZE where it ran out (held + asked for at the fault): the "
          "memory model is corrected and the search repeated."),
    _number("--best", "option.best", "Write so many plans. [1]", 1),
    executor_options,
    _text("--aceso", "FILE", "Write the plan as Aceso's runtime reads it."),
    _text("--out", "FILE", "Write the plan file (needs MODEL and --cluster)."),
    click.option("--explain", is_flag=True, help="Where time and memory go in every stage, and the tuning diary."),
    click.option("--show-start", is_flag=True, help="Show the starts for every number of stages, and search nothing."),
)  # fmt: skip


@click.command("plan-operators")
@click.argument("model", type=MODEL, required=False)
@click.option("--cluster", "-c", type=CLUSTER, metavar="64xh100|FILE", help="What it runs on.")
@_profile_options
@_space_options
@_search_options
@output_options
def command(output: Output, **options: Any) -> int:  # noqa: ANN401 - one an option
    """Decide for every operator which stage holds it, how its GPUs are split, and whether it is recomputed.

    \b
    shardwise plan-operators llama-3-8b --cluster 16xh100 --global-batch 128
    shardwise plan-operators --profiles v100-gpt --profile gpt_1_3B --gpus 8 --memory 28000MiB --compatible
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    _refuse(options)
    if options["write_operators"]:
        _write_request(options, output)
        return 0
    question = api.operator_question(**{name: options[name] for name in _ASKED})
    for note in (*question.notes, *(api.aceso_lacks(question) if options["aceso"] else ())):
        output.note(note)
    if options["save_profiles"]:
        api.write_profiles(question, options["save_profiles"])
    if options["show_start"]:
        _show_starts(question, options["start"], output)
        return 0
    if options["measured_memory"]:
        known = len(question.notes)
        question = api.measured_question(question, options["start"], options["measured_memory"])
        for note in question.notes[known:]:
            output.note(note)
    answer = _searched(question, options, output)
    _print(answer, output, explain=options["explain"])
    _write(answer, options, output)
    return 130 if answer.interrupted else 0


def _refuse(options: dict[str, Any]) -> None:
    faults = [
        Fault("--" + name.replace("_", "-"), "is empty; leave it out, or say what is meant")
        for name, value in options.items()
        if value == ""
    ]
    if options["micro_batch"] and not options["write_operators"]:
        said = "says which sizes the probe should measure, with --write-operators"
        faults.append(
            Fault("--micro-batch", f"{said}; say how many micro batches an iteration has with --microbatches")
        )
    known = options["model"] and options["cluster"]
    if options["out"] and not known:
        faults.append(Fault("--out", "a plan file holds its model and cluster: give MODEL and --cluster as well"))
    if options["write_operators"] and not known:
        faults.append(Fault("--write-operators", "needs MODEL and --cluster: they say which operators there are"))
    if faults:
        raise InputError(faults)


def _write_request(options: dict[str, Any], output: Output) -> None:
    """What the probe should measure."""
    path, model = options["write_operators"], api.load_model(options["model"])
    request: Any = api.operators_to_measure(
        model, options["cluster"], seq=options["seq"], runtime=options["runtime"], micro_batches=options["micro_batch"]
    )
    count = len(request["operators"])
    write_text(path, to_json(request))
    output.answer({"operators": count, "file": path})
    write_now()
    output.say(f"{count} operators of {model.name} at sequence length {request['seq']} are in {path}")
    output.say(f"measure them on a GPU: shardwise probe --operators {path} --out operators.json")


def _show_starts(question: OperatorQuestion, start: str | None, output: Output) -> None:
    """Every start with its stages, as the seed's author printed them; a plan of the user's own likewise."""
    from shardwise.report import operators as report

    starts = report.priced(question, api.operator_starts(question, start))
    for plan, cost in starts:
        output.say(report.start_line(question, plan, cost))
        output.table(*report.stages(plan, cost))
        output.table(*report.parts(cost), title=_PARTS)
    output.answer(report.starts_data(starts))


def _searched(question: OperatorQuestion, options: dict[str, Any], output: Output) -> OperatorAnswer:
    """Search, followed by a line on a terminal; Ctrl-C keeps the best so far."""
    state = Progress(title="stages", show=show_seconds, live=not output.quiet and sys.stderr.isatty())

    def follow(standing: Standing) -> None:
        state.title, state.evaluated = standing.of, standing.solved
        state.update(evaluated=0, best=standing.best, bound=standing.bound or None)

    try:
        searched = {name: options[name] for name in _SEARCHED}
        return api.plan_operators(question, **searched, compare=options["explain"], report=follow)
    finally:
        state.close()


def _print(answer: OperatorAnswer, output: Output, *, explain: bool) -> None:
    from shardwise.report import operators as report

    for line in report.summary(answer):
        output.say(line)
    if answer.plan.stages:
        output.table(*report.stages(answer.plan, answer.cost))
    for line in report.chosen(answer):
        output.say(line)
    if answer.orders:
        output.table(*report.orders(answer))
    if explain and answer.plan.stages:
        output.table(*report.parts(answer.cost), title=_PARTS)
        for line in answer.diary:
            output.say(f"  {line}")
    for note in report.notes(answer):
        output.note(note)
    output.answer(report.answer_data(answer))


def _write(answer: OperatorAnswer, options: dict[str, Any], output: Output) -> None:
    """The best plans as Aceso's JSON, and the plan file."""
    if options["aceso"]:
        if answer.whole:
            output.note(
                f"{options['aceso']} holds the best plan operator by operator: Aceso's runtime has no strategies"
            )
        written = api.write_aceso(answer, options["aceso"], options["best"])
        if written < options["best"]:
            output.wrote(f"{written} of {options['best']} plans were met on the way and written")
    if options["out"]:
        api.write_plan(api.plan_of(answer), options["out"])
