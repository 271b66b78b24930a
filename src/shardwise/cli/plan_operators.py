"""`shardwise plan-operators`: every operator with a split of its own, from profiled operators."""

from __future__ import annotations

from typing import Any

import click

from shardwise.cli.options import CLUSTER, GLOBAL_BATCH, MODEL, Number, executor_options, several, typed_options
from shardwise.cli.output import Output, output_options

_profile_options = several(
    click.option(
        "--profiles",
        metavar="FOLDER|ARCHIVE|FILE",
        help="Operator profiles: Aceso's CSV files, or what the probe wrote. [made from MODEL and --cluster]",
    ),
    click.option("--write-operators", metavar="FILE", help="Write what `probe --operators` should measure; no search."),
    click.option(
        "--micro-batch",
        metavar="N,N,...",
        help="With --write-operators: samples of a replica to measure. [1,2,4,8]",
    ),
    click.option("--profile", metavar="NAME", help="Which model of the profiles, such as gpt_1_3B."),
    click.option(
        "--layers",
        type=Number("Model.layers"),
        metavar="N",
        help="Layers of the model; known for Aceso's sizes.",
    ),
    click.option("--layer-ops", metavar="FIRST,LAST", help="First and last operator of a layer, where not known."),
    click.option(
        "--runs-with",
        metavar="KEY=VALUE,...",
        help="What the run will have, such as attention=plain: told where the profile differs.",
    ),
    click.option("--save-profiles", metavar="FOLDER", help="Write the profile that is used, as CSV files."),
)


_space_options = several(
    click.option("--gpus", type=Number("Cluster.gpus"), metavar="N", help="GPUs. [those of --cluster]"),
    click.option(
        "--gpus-per-node",
        type=Number("Cluster.gpus"),
        metavar="N",
        help="GPUs of one node. [8, or the cluster's]",
    ),
    click.option(
        "--memory",
        metavar="SIZE",
        help="What one GPU may use, such as 28000MiB. [the GPU's, less the memory model's own error]",
    ),
    GLOBAL_BATCH,
    click.option(
        "--microbatches",
        metavar="N,N,...",
        help="Numbers of micro batches per iteration to try. [what the profile covers]",
    ),
    click.option(
        "--seq",
        type=Number("Strategy.seq"),
        default=4096,
        metavar="N",
        help="Tokens per sample, for made profiles. [4096]",
    ),
    click.option("--stages", metavar="N|N-N", help="Numbers of stages to try. [all]"),
    click.option(
        "--most-tp",
        type=Number("option.none"),
        default=0,
        metavar="N",
        help="Largest tensor parallel size. [a node]",
    ),
    click.option("--compatible", is_flag=True, help="Aceso's cost model to the digit."),
    click.option(
        "--compatible-space",
        is_flag=True,
        help="Aceso's limits: 1, 2, 4 or 8 GPUs a stage, none across nodes, 16 stages.",
    ),
    click.option(
        "--zero",
        type=Number("Strategy.zero"),
        help="1: optimizer states sharded over replicas; 2: gradients too, in one stage. [1; 0 with --compatible]",
    ),
    click.option(
        "--schedule",
        type=click.Choice(["1f1b", "gpipe", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "auto"]),
        default="1f1b",
        help="Order of passes; all but gpipe are searched as 1f1b and then simulated. [1f1b]",
    ),
    click.option(
        "--p2p-overlap",
        type=Number("option.share"),
        metavar="X",
        help="Share of sends between stages that is hidden. [the runtime's]",
    ),
)


_search_options = several(
    click.option("--runtime", default="megatron", metavar="NAME", help="Software that will run the plan. [megatron]"),
    click.option(
        "--method",
        type=click.Choice(["auto", "exact", "deep", "alleviate"]),
        default="auto",
        help="exact proves; deep is for hundreds of layers; alleviate explains. [auto]",
    ),
    click.option(
        "--start",
        metavar="KIND|FILE",
        help="Start of alleviate: balanced, by-share, tail-heavy, or a plan in Aceso's JSON. [balanced]",
    ),
    click.option(
        "--hops",
        type=Number("option.steps"),
        default=7,
        metavar="N",
        help="Changes in a row before alleviate turns back. [7]",
    ),
    click.option("--trials", type=Number("option.steps"), default=30, metavar="N", help="Descents of alleviate. [30]"),
    click.option(
        "--time-limit",
        type=Number("option.seconds"),
        metavar="TIME",
        help="CPU seconds, such as 60s; the best so far is the answer. [none]",
    ),
    click.option(
        "--measured-memory",
        metavar="stage0=SIZE,...",
        help="Peaks of a run of the plan in --start: the memory model is corrected and the search repeated.",
    ),
    click.option("--best", type=Number("option.best"), default=1, metavar="N", help="Write so many plans. [1]"),
    executor_options,
    click.option("--aceso", metavar="FILE", help="Write the plan as Aceso's runtime reads it."),
    click.option("--out", metavar="FILE", help="Write the plan file (needs MODEL and --cluster)."),
    click.option("--explain", is_flag=True, help="Where time and memory go in every stage, and the tuning diary."),
    click.option("--show-start", is_flag=True, help="Show the starts for every number of stages, and search nothing."),
)


@click.command("plan-operators")
@click.argument("model", type=MODEL, required=False)
@click.option("--cluster", "-c", type=CLUSTER, metavar="64xh100|FILE", help="What it runs on.")
@_profile_options
@_space_options
@_search_options
@output_options
@click.pass_context
def command(context: click.Context, /, output: Output, **options: Any) -> int:  # noqa: ANN401
    """Decide for every operator which stage holds it, how its GPUs are split, and whether it is recomputed.

    \b
    shardwise plan-operators llama-3-8b --cluster 16xh100 --global-batch 128
    shardwise plan-operators --profiles v100-gpt --profile gpt_1_3B --gpus 8 --memory 28000MiB --compatible
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.cli.per_op import run

    return run(options, output, typed_options(context))
