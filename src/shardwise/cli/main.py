"""`shardwise VERB`: finds the verb, runs it, and turns what goes wrong into a sentence and an exit code.

0 answered, 1 no feasible answer or does not fit, 2 bad input, 130 interrupted, 70 a fault of ours.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from shardwise import __version__
from shardwise.cli.verbs import VERBS
from shardwise.errors import ShardwiseError

_REPORT = "please report it with the command you typed and the text that --debug prints"


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
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="shardwise VERB --help says more. Exit codes: 0 answered, 1 nothing fits, 2 bad input, 130 interrupted.",
)
@click.version_option(__version__, prog_name="shardwise")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an unexpected error.")
def group() -> None:
    """Plan distributed training of large models: the fastest layout that fits, its time, its memory, and why."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The program; never returns."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and give its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = group.main(args=words, prog_name="shardwise", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _close_pipe()
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", 130)
    except (ShardwiseError, click.ClickException) as error:
        return _say(_message(error), getattr(error, "exit_code", 2))
    except Exception as error:
        if "--debug" in words:
            raise
        return _say(f"an unexpected error: {_one_line(error)}. This is a fault of Shardwise: {_REPORT}", 70)
    return code if isinstance(code, int) else 0


def _message(error: Exception) -> str:
    if isinstance(error, click.UsageError):
        return f"{error.format_message()}\nSee: {error.ctx.command_path if error.ctx else 'shardwise'} --help"
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".")


def _say(message: str, code: int) -> int:
    """Print to standard error; red only where a person reads it."""
    try:
        click.echo(click.style("error: ", fg="red") + message, err=True)
    except BrokenPipeError:
        return _close_pipe()
    return code


def _close_pipe() -> int:
    """The reader has gone (`| head`): that is no error; keep Python from complaining at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    main()
