"""`shardwise what-if`: a plan on another cluster."""

from __future__ import annotations

import click

from shardwise import api
from shardwise.cli.options import Number, share
from shardwise.cli.output import Output, output_options
from shardwise.cli.progress import progress
from shardwise.errors import InfeasibleError
from shardwise.units import show_seconds


@click.command("what-if")
@click.argument("plan", metavar="PLAN.json")
@click.option("--gpus", type=Number("Cluster.gpus"), metavar="N", help="Another number of GPUs.")
@click.option("--net", metavar="2x|RATE", help="Network between nodes: times what it is, or a rate such as 400Gb/s.")
@click.option("--memory", type=Number("Gpu.memory"), metavar="SIZE", help="Memory of a GPU, such as 141GB.")
@click.option(
    "--gap",
    type=Number("option.gap", share),
    default="0.5%",
    metavar="X%",
    help="How near the bound the new plan must be. [0.5%]",
)
@click.option("--only", default="", metavar="CONDITIONS", help="As for plan; those of the plan on other axes stay.")
@click.option("--out", metavar="FILE", help="Write the new plan.")
@output_options
def command(
    plan: str,
    output: Output,
    *,
    gpus: int | None,
    net: str | None,
    memory: float | None,
    gap: float,
    only: str,
    out: str | None,
) -> int:
    """Plan again for other GPUs, networks or memory, and compare with the plan kept as it is.

    Planned again is under the conditions (`--only`, `--fix`) that the plan was made under.

    \b
    shardwise what-if plan.json --gpus 128
    shardwise what-if plan.json --net 2x --memory 141GB
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.report.data import kept_note, what_if_data, what_if_table

    with progress("strategies", quiet=output.quiet, show=show_seconds) as state:
        found = api.what_if(plan, gpus=gpus, net=net, memory=memory, gap=gap, only=only, report=state.follow)
    output.answer(what_if_data(found))
    output.table(*what_if_table(found))
    kept = found.again.question.conditions
    if kept:
        output.note(kept_note("the best there", kept))
    if found.note:
        output.note(found.note)
    if found.refused:
        output.note(f"the same strategy cannot run there: {found.refused}")
    if found.again.interrupted:
        return 130
    if found.again.best is None:
        under = f" under {kept}" if kept else ""
        raise InfeasibleError(f"no strategy fits {found.before.model.name} on {found.cluster.name} so changed{under}")
    if out:
        api.write_plan(api.plan_of(found), out)
        output.wrote(f"the new plan is in {out}")
    return 0
