"""The group of all verbs; a verb is imported only when it is called."""

from __future__ import annotations

import importlib

import click

from shardwise.version import __version__


class Verbs(click.Group):
    """A group that imports a verb only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(VERBS[cmd_name][0]).command
        assert isinstance(command, click.Command)  # noqa: S101 - for the type checker; the tests hold the table
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], VERBS, n=2, cutoff=0.5)
            offer = f"did you mean {' or '.join(near)}?" if near else f"the verbs are {', '.join(VERBS)}"
            ctx.fail(f"there is no verb {args[0]!r}; {offer}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="shardwise VERB --help says more. Exit codes: 0 answered, 1 nothing fits, 2 bad input, 3 a job that was "
    "started died, 130 interrupted.",
)
@click.version_option(__version__, prog_name="shardwise")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an unexpected error.")
@click.pass_context
def group(ctx: click.Context) -> None:
    """Plan distributed training of large models: the fastest layout that fits, its time, its memory, and why."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


VERBS: dict[str, tuple[str, str]] = {
    "estimate": ("shardwise.cli.estimate", "Predict time, memory and MFU of one strategy, and say why."),
    "plan": ("shardwise.cli.plan", "Find the fastest way to split a model, proven."),
    "plan-operators": ("shardwise.cli.plan_operators", "The same for every operator alone, from profiled operators."),
    "show": ("shardwise.cli.show", "Show a plan: what it does, its stages, where time and memory go."),
    "diff": ("shardwise.cli.diff", "Tell in what two plans, or two orders of a pipeline, differ."),
    "why": ("shardwise.cli.why", "Say why another strategy lost against a plan."),
    "what-if": ("shardwise.cli.what_if", "Plan again for other GPUs, networks or memory, and compare."),
    "sweep": ("shardwise.cli.sweep", "Plan a grid of clusters, batches and sequences: time, days, cost."),
    "balance": ("shardwise.cli.balance", "Spread layers and recompute over stages, from measured memory."),
    "schedule": ("shardwise.cli.schedule", "Order the passes of a pipeline: any known schedule, or the best one."),
    "simulate": ("shardwise.cli.simulate", "Replay a schedule from a file: times, memory, bubbles."),
    "export": ("shardwise.cli.export", "Write a plan as a training framework's files."),
    "launch": ("shardwise.cli.launch", "Start a plan as a job, hold it against its prediction, and learn from it."),
    "watch": ("shardwise.cli.watch", "Read a job's log: how it goes against its plan, and when it drifts."),
    "serve": ("shardwise.cli.serve", "Serve the page to plan with: choose, search, look inside, compare, export."),
    "check": ("shardwise.cli.check", "Tell everything that is wrong with a strategy, at once."),
    "probe": ("shardwise.cli.probe", "Measure a GPU, or write the program that does."),
    "calibrate": ("shardwise.cli.calibrate", "Fit the cost model to a probe, a trace or a log."),
    "rehearse": ("shardwise.cli.rehearse", "Run one rank of a plan on one GPU, or count its memory without."),
    "validate": ("shardwise.cli.validate", "Hold predictions against measured runs: errors, fits, regret."),
    "models": ("shardwise.cli.models", "List the models of the catalog, or show one with its parameters."),
    "clusters": ("shardwise.cli.clusters", "List the GPUs of the catalog, or show a cluster with its network."),
}
