"""`shardwise what-if`: a plan on another cluster."""

from __future__ import annotations

import click

from shardwise.cli.options import Number, share
from shardwise.cli.output import Output, output_options
from shardwise.cli.progress import progress
from shardwise.errors import Fault, InfeasibleError, InputError
from shardwise.units import show_bytes, show_percent, show_seconds


@click.command("what-if")
@click.argument("plan", metavar="PLAN.json")
@click.option("--gpus", type=Number("Cluster.gpus"), metavar="N", help="Another number of GPUs.")
@click.option("--net", metavar="2x|RATE", help="Network between nodes: times what it is, or a rate such as 400Gb/s.")
@click.option("--memory", type=Number("Gpu.memory"), metavar="SIZE", help="Memory of a GPU, such as 141GB.")
@click.option(
    "--gap",
    type=Number("option.gap", share),
    default="2%",
    metavar="X%",
    help="How near the bound the new plan must be. [2%]",
)
@click.option("--out", metavar="FILE", help="Write the new plan.")
@output_options
def command(
    plan: str, output: Output, *, gpus: int | None, net: str | None, memory: float | None, gap: float, out: str | None
) -> int:
    """Plan again for other GPUs, networks or memory, and compare with the plan kept as it is.

    \b
    shardwise what-if plan.json --gpus 128
    shardwise what-if plan.json --net 2x --memory 141GB
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.cli.per_op_show import refuse_per_op
    from shardwise.cli.plan_strategy import follow
    from shardwise.plan.file import read_plan, write_plan
    from shardwise.search.api import plan_file_of
    from shardwise.search.what_if import changed, what_if

    if not (gpus or net or memory):
        raise InputError(Fault("what-if", "nothing is changed; give --gpus, --net or --memory"))
    read = read_plan(plan)
    refuse_per_op(read, plan, "what-if")
    cluster = changed(read.cluster, gpus=gpus, net=net, memory=memory)
    with progress("strategies", quiet=output.quiet, show=show_seconds) as state:
        found = what_if(read, cluster, gap=gap, report=lambda search: follow(search, state))
    best = found.again.best
    rows = [("the plan as it is", found.before), ("the same strategy there", found.kept), ("the best there", best)]
    output.answer(
        {name: None if one is None else {"strategy": str(one.strategy), "iteration_seconds": one.iteration_seconds,
         "mfu": one.mfu, "fits": one.fits, "total_bytes": one.total_bytes} for name, one in rows}
    )  # fmt: skip
    output.table(
        ("", "iteration", "MFU", "memory", "fits", "strategy"),
        [
            (name, show_seconds(one.iteration_seconds), show_percent(one.mfu), show_bytes(one.total_bytes), one.fits,
             str(one.strategy))
            for name, one in rows
            if one is not None
        ],
    )  # fmt: skip
    if found.refused:
        output.note(f"the same strategy cannot run there: {found.refused}")
    if found.again.interrupted:
        return 130
    if best is None:
        raise InfeasibleError(f"no strategy fits {read.model.name} on {found.cluster.name} so changed")
    if out:
        write_plan(plan_file_of(found.again), out)
        output.wrote(f"the new plan is in {out}")
    return 0
