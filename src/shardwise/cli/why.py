"""`shardwise why`: why another strategy lost against a plan."""

from __future__ import annotations

import click

from shardwise.cli.output import Output, output_options
from shardwise.units import show_bytes, show_seconds

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
    from shardwise.inputs.check import ensure
    from shardwise.inputs.layers import is_uneven, with_layers
    from shardwise.inputs.load import load_runtime
    from shardwise.inputs.plan_file import read_plan
    from shardwise.plan.estimate import estimate
    from shardwise.plan.why import filled, why

    read = read_plan(plan)
    other = filled(strategy, read.strategy, read.cluster.gpus)
    if other.chunks <= read.model.layers and is_uneven(read.model.layers, other):
        other = with_layers(read.model.layers, other)
    ensure(read.model, read.cluster, other, load_runtime(other.runtime))
    limit = float((read.predictions or {}).get("memory_limit", read.cluster.gpu.memory))
    best = estimate(read.model, read.cluster, read.strategy)
    found = why(best, estimate(read.model, read.cluster, other), limit)
    output.answer(
        {"change": found.change, "slower": found.slower, "missing_bytes": found.missing, "rank": found.rank,
         "parts": [{"name": p.name, "plan": p.best, "other": p.other, "lost": p.lost} for p in found.parts]}
    )  # fmt: skip
    output.say(f"plan    {read.strategy}")
    output.say(f"other   {other}")
    output.say(f"change  {found.change}")
    output.say()
    if found.missing:
        fullest = max(found.other.memory, key=lambda rank: rank.total)
        output.say(
            f"does not fit: pipeline rank {found.rank} needs {show_bytes(fullest.total)} of {show_bytes(limit)} that "
            f"may be used, {show_bytes(found.missing)} too much; the peak is in {fullest.at}"
        )
    word = "slower" if found.slower >= 0 else "faster"
    both = f"{show_seconds(found.other.iteration_seconds)} against {show_seconds(best.iteration_seconds)}"
    output.say(f"{abs(found.slower):.1%} {word}: {both}")
    output.say()
    rows = [
        (part.name, show_seconds(part.best), show_seconds(part.other), f"{part.lost:+.4g} s")
        for part in found.parts[:SHOWN]
        if part.lost
    ]
    output.table(("where", "plan", "other", "lost"), rows)
