"""`shardwise balance`: layers and recompute of every stage and chunk; with `guide`, `dryrun` and `quick`."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from shardwise.cli.balance_steps import dryrun, guide, quick
from shardwise.cli.options import Number, numbers
from shardwise.cli.output import Output, markdown_option, output_options


@click.group("balance", invoke_without_command=True, subcommand_metavar="[guide|dryrun|quick]")
@click.option("--problem", metavar="FILE", help="A problem in one JSON file, numbers taken as given.")
@click.option("--init", "-init", metavar="FILE", help="Init YAML: measured peaks, times or traces.")
@click.option("--peaks", metavar="FOLDER", multiple=True, help="Dry-run folder of a round: its logs give the peaks.")
@click.option("--peak", type=click.Choice(["actual", "used"]), default="actual", help="Which peak line counts.")
@click.option(
    "--times",
    type=numbers("pipeline.time"),
    metavar="H,B,T",
    help="Forward times of head, body layer and tail, in place of traces.",
)
@click.option("--guide", "-guide", "asks_guide", is_flag=True, help="The same as `balance guide`.")
@click.option("--model", "-m", metavar="NAME", help="Keep the fitted layer model as NAME.json, or read it.")
@click.option("--pp", "-s", type=Number("Strategy.pp"), default=4, show_default=True, help="Stages.")
@click.option("--vpp", "-i", type=Number("Strategy.vpp"), default=1, show_default=True, help="Chunks of a stage.")
@click.option(
    "--microbatches", "-mb", type=Number("Strategy.microbatches"), default=4, show_default=True, help="Micro batches."
)
@click.option(
    "--memory",
    "-mem",
    type=numbers("pipeline.limit"),
    metavar="MB",
    default="56000",
    show_default=True,
    help="Limit; or one per stage.",
)
@click.option("--low-memory", "-lm", type=Number("option.switch"), default=0, help="1: the low-memory interleave.")
@click.option("--seq-split", "-seq", type=Number("option.splits"), default=1, help="Pieces of a sequence.")
@click.option("--train", "-train", metavar="FILE", help="Training YAML: what pieces of a sequence hold whole.")
@click.option("--time-limit", "-t", type=Number("option.time"), default=60.0, show_default=True,
              help="CPU seconds.")  # fmt: skip
@click.option(
    "--naive", "-naive", type=Number("option.switch"), default=0, help="1: compare with all and no recompute."
)
@click.option("--manual", "-manual", metavar="FILE", multiple=True, help="YAML of strategies to compare with.")
@click.option("--schedule", metavar="NAME", help="Order of work; by default 1f1b, interleaved or low-memory.")
@click.option("--hop", type=Number("pipeline.time"), default=0.0, help="Time of a message between stages.")
@click.option("--empty", metavar="ends|any|0,7", help="Chunks that may be without layers.")
@click.option("--seed", type=Number("option.seed"), default=1, help="Of the search; same seed, same answer.")
@click.option("--effort", type=Number("option.effort"), default=1.0, help="More or fewer search steps.")
@click.option("--svg", metavar="FILE", help="Pipeline and memory of every compared strategy.")
@click.option("--html", metavar="FILE", help="The timeline as a page.")
@click.option("--trace", metavar="FILE", help="The timeline for Perfetto.")
@click.option("--plan", metavar="FILE", help="Balance a plan; or the plan that gets the layers.")
@click.option("--write-plan", metavar="FILE", help="Write it with the new layers.")
@markdown_option
@output_options
@click.pass_context
def command(ctx: click.Context, /, output: Output, *, asks_guide: bool, **options: Any) -> int | None:  # noqa: ANN401
    """Spread layers and recompute over stages so that the simulated iteration is shortest and every stage fits.

    \b
    shardwise balance guide --stages 16 --layers 96 --select --comm --both
    shardwise balance --init init.yaml -m demo -s 16 -i 3 -mb 16 -mem 56000 -lm 1
    shardwise balance --problem problem.json --json answer.json
    shardwise balance --plan plan.json --write-plan balanced.json
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    if ctx.invoked_subcommand is not None:
        return None
    if asks_guide:
        ctx.invoke(guide)
        return None
    from shardwise.cli.balance_solve import Asked, balance

    options["low_memory"], options["naive"] = bool(options["low_memory"]), bool(options["naive"])
    given = frozenset(name for name in options if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT)
    return balance(Asked(**options, given=given), output)


for step in (guide, dryrun, quick):
    command.add_command(step)
