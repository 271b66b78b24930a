"""`shardwise balance loop`: plan, dry-run, fit, and plan again until prediction and peaks agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardwise import api
from shardwise.cli.options import Number, share
from shardwise.cli.output import Output, output_options

if TYPE_CHECKING:
    from shardwise.measure.dry_loop import DryRound, Looped

SHARED = frozenset({
    "init", "peaks", "peak", "times", "model", "pp", "vpp", "microbatches", "memory", "low_memory", "confidence",
    "time_limit", "effort", "seed",
})  # fmt: skip
"""Options that are those of `balance` itself."""


@click.command("loop")
@click.argument("config", metavar="FILE")
@click.option("--training", metavar="COMMAND", required=True, help="Training command of one rank, {config} in it.")
@click.option("--ranks", type=Number("Cluster.gpus"), required=True, help="All devices of the training.")
@click.option("--run", is_flag=True, help="Run every round's script here; else stop when it is written.")
@click.option("--rounds", type=Number("option.best"), default=3, show_default=True, help="At most so many.")
@click.option("--tolerance", type=Number("option.share", share), default=0.02, show_default=True,
              help="Share of a peak within which prediction and measurement agree.")  # fmt: skip
@click.option("--out", metavar="FOLDER", default="balance_loop", show_default=True, help="Folder of the rounds.")
@output_options
def loop(output: Output, **options: Any) -> int:  # noqa: ANN401
    """Balance, dry-run the plan, fit what its stages held, and balance again until prediction and peaks agree.

    Every round patches FILE, your MindFormers YAML, into its folder (FOLDER/round_1/ ...) beside dryrun.sh, which runs
    the training command once per stage in MindSpore's simulation mode, no device needed. With --run that script is
    run here at once, by bash, and the next round follows; without, you run it where MindFormers is, and give the same
    command again: the loop goes on with the logs that are there. Nothing else is executed.

    \b
    shardwise balance loop pretrain.yaml --init init.yaml -s 16 -i 3 -mb 16 -mem 56000 -lm 1 \\
        --training "python run_mindformer.py --config {config}" --ranks 1024
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.report import dry_loop as report

    options["low_memory"] = bool(options["low_memory"])

    def measured(one: DryRound) -> None:
        output.table(*report.round_rows(one), title=f"round {one.number}: simulated {one.simulated:,.2f}")
        output.say(report.round_line(one))
        output.say()

    found = api.balance_loop(options.pop("config"), **options, tell=output.note, report=measured)
    for line in report.loop_lines(found):
        output.say(line)
    output.answer(report.loop_data(found))
    return _code(found)


def _code(found: Looped) -> int:
    return 130 if found.interrupted else int(found.state == "over")
