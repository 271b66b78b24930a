"""`shardwise balance patch`: an answer put into the user's own MindFormers YAML."""

from __future__ import annotations

import click

from shardwise import api
from shardwise.cli.output import Output, output_options, same_file
from shardwise.errors import Fault, InputError


@click.command("patch")
@click.argument("config", metavar="FILE")
@click.argument("answer", metavar="ANSWER")
@click.option("--out", metavar="FILE", help="Write there; by default FILE itself is changed.")
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 where something would change.")
@click.option("--keep-batch", is_flag=True, help="Leave micro_batch_num, and so the global batch, as it is.")
@output_options
def patch(output: Output, *, config: str, answer: str, out: str | None, check: bool, keep_batch: bool) -> int:
    """Put ANSWER (what `balance --json` wrote, or a plan) into FILE, a MindFormers YAML of graph mode (1.5 to 2.1).

    Offset, recompute lists, chunks, micro batches and the switch for the low-memory order are changed where they say
    something else; comments, order and everything else stay byte for byte. The change is shown as a diff. What is
    written is read back first: where it is not the answer, nothing is written.
    """
    if same_file(answer, out):
        raise InputError(Fault("--out", f"would replace {out}, which is ANSWER; give another name"))
    made = api.patch_mindformers(config, answer, out=out, keep_batch=keep_batch, write=not check)
    for note in made.notes:
        output.note(note)
    if made.changed:
        output.say(made.diff.rstrip("\n"))
    else:
        output.say(f"{config} says it already: nothing to change")
    if not check and (made.changed or out):
        output.wrote(f"written to {out or config}")
    output.answer({"file": out or config, "changed": made.changed, "diff": made.diff, "notes": made.notes})
    return int(check and made.changed)
