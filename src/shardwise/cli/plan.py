"""`shardwise plan`: find the fastest way to split a model."""

from __future__ import annotations

from typing import Any

import click

from shardwise.cli.options import CLUSTER, GLOBAL_BATCH, MODEL, Number, executor_options, several, share, typed_options
from shardwise.cli.output import Output, markdown_option, output_options
from shardwise.cli.report_files import report_options
from shardwise.errors import Fault, InputError

_options = several(
    GLOBAL_BATCH,
    click.option(
        "--seq",
        type=Number("Strategy.seq"),
        default=4096,
        metavar="N",
        help="Tokens per sample. [4096]",
    ),
    click.option("--runtime", default="megatron", metavar="NAME", help="Software that will run it. [megatron]"),
    click.option(
        "--only", multiple=True, metavar="CONDITIONS", help='Limits of the axes, such as "tp<=8 zero1 vpp=1".'
    ),
    click.option(
        "--fix", multiple=True, metavar="WORDS", help='Values that are given, such as "pp=4", "fp8" or "nosp".'
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
    click.option("--top", type=Number("option.top"), default=5, metavar="N", help="Layouts to show. [5]"),
    executor_options,
    click.option("--out", metavar="FILE", help="Write the plan."),
    click.option("--explain", is_flag=True, help="What the space is, and where time and memory go."),
)


def _moved(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value not in {None, "strategy"}:
        raise InputError(Fault("--space", "per-op is a verb of its own: shardwise plan-operators"))


@click.command("plan")
@click.argument("model", type=MODEL, required=False)
@click.option("--cluster", "-c", type=CLUSTER, metavar="64xh100|FILE", help="What it runs on.")
@_options
@click.option("--space", hidden=True, expose_value=False, callback=_moved)
@report_options
@markdown_option
@output_options
@click.pass_context
def command(context: click.Context, /, output: Output, **options: Any) -> int:  # noqa: ANN401
    """Find the fastest way to split a model.

    \b
    shardwise plan llama-3-70b --cluster 64xh100 --global-batch 1024 --seq 8192 --out plan.json
    shardwise plan llama-3-70b -c 64xh100 --global-batch 1024 --only "tp<=4 zero1" --fix pp=4
    shardwise plan plan.json --only vpp=1   (model, cluster and batch of a plan)

    Operator by operator, each with a split of its own: shardwise plan-operators.
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.cli.plan_strategy import run

    return run(options, output, typed_options(context))
