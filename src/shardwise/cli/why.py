"""`shardwise why`: why another strategy lost against a plan."""

from __future__ import annotations

import click

from shardwise import api
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
    from shardwise.report.data import why_data, why_lines

    found = api.why(plan, strategy)
    output.answer(why_data(found))
    if found.note:
        output.note(found.note)
    output.say(f"plan    {found.best.strategy}")
    output.say(f"other   {found.other.strategy}")
    output.say(f"change  {found.change}")
    output.say()
    for line in why_lines(found):
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
