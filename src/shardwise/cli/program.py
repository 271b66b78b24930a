"""The group of all verbs; a verb is imported only when it is called."""

from __future__ import annotations

import importlib

import click

from shardwise.cli.verbs import VERBS
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
    epilog="shardwise VERB --help says more. Exit codes: 0 answered, 1 nothing fits, 2 bad input, 130 interrupted.",
)
@click.version_option(__version__, prog_name="shardwise")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an unexpected error.")
@click.pass_context
def group(ctx: click.Context) -> None:
    """Plan distributed training of large models: the fastest layout that fits, its time, its memory, and why."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
