"""`shardwise check`: everything that is wrong with a strategy, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardwise import api
from shardwise.cli.options import Asking, asks
from shardwise.cli.output import Output, output_options
from shardwise.errors import InputError
from shardwise.inputs.layers import spread

if TYPE_CHECKING:
    from shardwise.frameworks.ask import Asked


@click.command("check", cls=Asking)
@asks
@output_options
def command(asked: Asked, output: Output) -> None:
    """Tell everything that is wrong with a strategy, at once.

    \b
    shardwise check llama3-70b --cluster 64xh100 --tp 8 --pp 4 --global-batch 256
    shardwise check llama3-70b -c 64xh100 -s "tp8 pp4x2 mbs1 gbs256 seq8192"
    shardwise check plan.json   (its proof too)
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    for note in asked.notes:
        output.note(note)
    faults = api.check(asked.model, asked.cluster, asked.strategy, runtime=asked.runtime)
    proof = api.check_proof(asked.plan) if asked.plan and not faults else None
    proven = {"proof": {"holds": not proof.fault, "said": str(proof)}} if proof else {}
    output.answer(
        {"valid": not faults, "strategy": str(asked.strategy), "faults": faults, **proven, "inputs": _inputs(asked)}
    )
    if faults:
        raise InputError(faults)
    _say(asked, output)
    if proof:
        output.say(f"  proof: {proof}")


def _inputs(asked: Asked) -> dict[str, object]:
    return {"model": asked.model, "cluster": asked.cluster, "strategy": asked.strategy}


def _say(asked: Asked, output: Output) -> None:
    s, layers = asked.strategy, spread(asked.model.depth, asked.strategy)
    output.say(f"valid: {s}")
    output.say(f"  {asked.model.name} on {asked.cluster.name} with {asked.runtime.base}")
    counts = f"{', '.join(map(str, s.batches))} (by kind of GPU)" if s.batches else s.microbatches
    output.say(f"  {counts} micro batches of {s.micro_batch} on each of {s.dp} replicas")
    if s.pp > 1:
        output.say(f"  layers of the chunks: {','.join(map(str, layers))}")
