"""`shardwise why`: why another strategy lost against a plan."""

from __future__ import annotations

import click

from shardwise.cli.output import Output, output_options
from shardwise.units import show_seconds

SHOWN = 8


@click.command("why")
@click.argument("plan", metavar="PLAN.json")
@click.argument("strategy", metavar="STRATEGY")
@output_options
def command(plan: str, strategy: str, output: Output) -> None:
    """Say why another strategy lost against a plan: too large by how much and where, or slower in which parts.

    What STRATEGY leaves out is the plan's.

    \b
    shardwise why plan.json "tp4 pp8"
    shardwise why plan.json "recompute=full"
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.cli.per_op_show import refuse_per_op
    from shardwise.plan.file import read_plan
    from shardwise.search.why import against, sentences

    read = read_plan(plan)
    refuse_per_op(read, plan, "why")
    found = against(read, strategy)
    output.answer(
        {"change": found.change, "slower": found.slower, "missing_bytes": found.missing, "rank": found.rank,
         "parts": [{"name": p.name, "plan": p.best, "other": p.other, "lost": p.lost} for p in found.parts]}
    )  # fmt: skip
    output.say(f"plan    {read.strategy}")
    output.say(f"other   {found.other.strategy}")
    output.say(f"change  {found.change}")
    output.say()
    for line in sentences(found):
        output.say(line)
    output.say()
    rows = [
        (
            part.name,
            show_seconds(part.best),
            show_seconds(part.other),
            f"{'+' if part.lost > 0 else ''}{show_seconds(part.lost)}",
        )
        for part in found.parts[:SHOWN]
        if part.lost
    ]
    output.table(("where", "plan", "other", "lost"), rows)
