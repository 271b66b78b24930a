"""`shardwise sweep`: a grid of clusters, batches and sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardwise import api
from shardwise.cli.options import MODEL, PACKINGS, Number, fixes, numbers, share, typed_options
from shardwise.cli.output import Output, output_options
from shardwise.cli.progress import progress
from shardwise.errors import Fault, InfeasibleError, InputError
from shardwise.inputs.gate import Scalar, typed

if TYPE_CHECKING:
    from shardwise.search.stages import LengthStage


def _price(text: str, row: Scalar, at: str) -> float:
    """`2.5/h`, `$2.5` or `2.5`."""
    return typed(text.strip().removesuffix("/h").lstrip("$"), row, at)


@click.command("sweep")
@click.argument("model", type=MODEL)
@click.option("--cluster", "-c", "clusters", multiple=True, required=True, metavar="64xh100,128xh100", help="Clusters.")
@click.option(
    "--global-batch",
    "global_batches",
    type=numbers("Strategy.global_batch"),
    default="1024",
    metavar="N,N",
    help="Samples per iteration. [1024]",
)
@click.option(
    "--seq", "sequences", type=numbers("Strategy.seq"), default="4096", metavar="N,N", help="Tokens per sample. [4096]"
)
@click.option(
    "--stages",
    default="",
    metavar="N:X%,N:X%",
    help="Lengths one after the other, each for a share of --tokens, such as 8192:90%,32768:10%: days and cost in sum.",
)
@click.option("--documents", metavar="FILE", help="As for plan.")
@click.option("--packing", type=click.Choice(PACKINGS), help="As for plan. [packed]")
@click.option("--runtime", default="megatron", metavar="NAME", help="Software that will run it. [megatron]")
@click.option("--only", multiple=True, metavar="CONDITIONS", help="As for plan.")
@click.option("--fix", multiple=True, metavar="WORDS", help="As for plan; --tp 2 too.")
@click.option(
    "--gap",
    type=Number("option.gap", share),
    default="2%",
    metavar="X%",
    help="As for plan, which searches to 0.5%. [2%]",
)
@click.option(
    "--tokens",
    type=Number("option.tokens"),
    metavar="N",
    help="Tokens of the whole run, such as 15T: days, GPU-hours and cost.",
)
@click.option(
    "--price",
    type=Number("option.price", _price),
    default="0",
    metavar="X/h",
    help="Price of a GPU and hour, such as 2.5/h.",
)
@click.option(
    "--mtbf",
    type=Number("option.mtbf"),
    metavar="TIME",
    help="Time between failures of one GPU, such as 50000h: goodput.",
)
@click.option(
    "--checkpoint",
    type=Number("option.checkpoint"),
    metavar="TIME",
    help="Seconds that a checkpoint stops training. [from size and store]",
)
@click.option(
    "--store",
    type=Number("option.store"),
    default="2GB/s",
    metavar="RATE",
    help="What a node writes checkpoints with. [2GB/s]",
)
@click.option("--csv", "csv_file", metavar="FILE", help="Write the table as CSV.")
@click.option("--chart", "chart_file", metavar="FILE", help="Write the Pareto chart as SVG.")
@output_options
@fixes
def command(model: str, output: Output, **options: Any) -> int:  # noqa: ANN401 - read one by one
    """Plan a grid of clusters, batches and sequences: time, tokens, days, cost.

    \b
    shardwise sweep llama-3-70b -c 64xh100,128xh100,256xh100 --global-batch 1024 --seq 8192
    shardwise sweep llama-3-70b -c 256xh100 --stages 8192:90%,32768:8%,131072:2% --tokens 15T   (long context)
    shardwise sweep llama-3-70b -c 512xh100,512xh200 --tokens 15T --price 2.5/h --mtbf 50000h --chart pareto.svg
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.inputs.write import write_text
    from shardwise.report.sweep import chart, csv_text, grid_table, runs_table, searched_to

    grid = {"batches": options["global_batches"], "sequences": options["sequences"]}
    stages = _stages(options, grid)
    clusters = list(dict.fromkeys(name for text in options["clusters"] for name in text.split(",")))
    total = len(clusters) * len(grid["batches"]) * len(grid["sequences"])
    with progress("points of the grid", total=total, quiet=output.quiet) as state:
        cells = api.sweep(
            model, clusters, **grid, runtime=options["runtime"], gap=options["gap"],
            only=" ".join([*options["only"], *options["fix"]]),
            **_run(options), **{name: options[name] for name in ("documents", "packing", "stages")},
            told=lambda _: state.update(),
        )  # fmt: skip
    runs = api.staged_runs(cells, stages) if stages else ()
    output.answer({"cells": cells, **({"runs": runs} if stages else {})})
    output.table(*grid_table(cells))
    if stages:
        output.say("\nall stages, one after the other")
        output.table(*runs_table(runs))
    output.say(
        ""
        if stages
        else "\n* no other point beats it in both " + ("days and cost" if options["tokens"] else "speed and GPUs")
    )
    output.say(searched_to(options["gap"]))
    for text, path in ((csv_text, options["csv_file"]), (chart, options["chart_file"])):
        if path:
            write_text(path, text(cells))
            output.wrote(f"written: {path}")
    if len(cells) < total:
        output.note(f"stopped after {len(cells)} of {total} points")
        return 130
    if not any(cell.strategy for cell in cells):
        raise InfeasibleError("no point of the grid has a strategy that fits")
    return 0


def _run(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] or 0.0 for name in ("tokens", "price", "mtbf", "checkpoint", "store")}


def _stages(options: dict[str, Any], grid: dict[str, Any]) -> tuple[LengthStage, ...]:
    """Lengths that follow each other, in place of those of the grid."""
    found = api.read_stages(options["stages"]) if options["stages"] else ()
    if found and "sequences" in typed_options(click.get_current_context()):
        raise InputError(Fault("--stages, --seq", "both give lengths; keep one of them"))
    if found and not options["tokens"]:
        raise InputError(Fault("--tokens", "is missing; say how many tokens all stages train on, such as 15T"))
    if found:
        grid["sequences"] = [stage.seq for stage in found]
    return found
