"""`shardwise VERB`: runs a verb, and turns what goes wrong into a sentence and an exit code.

0 answered, 1 no feasible answer or does not fit, 2 bad input, 3 a job that was started died, 130 interrupted, 70 a
fault of ours.

Nothing is imported before `run`, so that Ctrl-C while the program loads is an interruption like any other. Only what
comes before the first line of this file, which is Python's own start, is Python's to answer for.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

_MOMENT = 0.25
"""Seconds within which Ctrl-C again means the same one."""
_REPORT = "please report it with the command you typed and the text that --debug prints"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The program; never returns."""
    code = 130
    try:
        _hear_once()
        code = run(arguments)
        _hear_nothing()
    except KeyboardInterrupt:  # before there was anything to interrupt, or one more while the first was told
        _hear_nothing()
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and give its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _open_closed()
        return _run(words)
    except KeyboardInterrupt:
        return _interrupted()


def _hear_once() -> None:
    """Ctrl-C several times in a moment is Ctrl-C: what the first one began, an answer or an end, is not cut short."""
    import signal
    from time import monotonic

    last = -_MOMENT

    def interrupt(*_: object) -> None:
        nonlocal last
        before, last = last, monotonic()
        if last - before >= _MOMENT:
            raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else ignored by who started us, as under nohup
        signal.signal(signal.SIGINT, interrupt)


def _hear_nothing() -> None:
    """Python's own end, its threads and buffers, cannot be interrupted in good order, and takes but a moment."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupted() -> int:
    """Told by the system's plainest means: what was being imported may be there by half."""
    try:
        os.write(2, b"error: interrupted\n")
    except OSError:  # nobody can be told; the exit code still says it
        _lead_nowhere(2)
    return 130


def _run(words: list[str]) -> int:
    from threading import get_ident

    import click

    from shardwise.api import flags_are_told
    from shardwise.cli.program import group
    from shardwise.errors import ShardwiseError

    flags_are_told.add(get_ident())
    try:
        code = group.main(args=words, prog_name="shardwise", standalone_mode=False)
        sys.stdout.flush()
    except click.Abort:
        raise KeyboardInterrupt from None
    except (ShardwiseError, click.ClickException) as error:
        return _say(_message(error), getattr(error, "exit_code", 2))
    except (BrokenPipeError, SystemExit):  # the latter is click's own answer to a reader that has gone
        return _close_pipe()
    except OSError as error:
        _close_pipe()
        return _say(_refusal(error), 2)
    except Exception as error:
        if "--debug" in words:
            raise
        return _say(f"an unexpected error: {_one_line(error)}. This is a fault of Shardwise: {_REPORT}", 70)
    finally:
        flags_are_told.discard(get_ident())
    return code if isinstance(code, int) else 0


def _open_closed() -> None:
    """Streams that the caller closed (`>&-`) lead nowhere instead of being absent; bars that a stream cannot say are
    question marks, not an error.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - open until the end
        elif hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="replace")


def _message(error: Exception) -> str:
    import click

    if isinstance(error, click.UsageError):
        return f"{error.format_message()}\nSee: {error.ctx.command_path if error.ctx else 'shardwise'} --help"
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


def _refusal(error: OSError) -> str:
    """The system's refusal; without the name of a file it was standard output."""
    return f"{error.filename or 'standard output'}: cannot be used: {error.strerror or error}"


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".")


def _say(message: str, code: int) -> int:
    """Print to standard error; red only where a person reads it."""
    import click

    from shardwise.cli.output import clean

    try:
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        click.echo(("error: " if plain else click.style("error: ", fg="red")) + clean(message), err=True)
    except OSError:  # nobody can be told; the exit code still says it
        _lead_nowhere(2)
    return code


def _close_pipe() -> int:
    """The reader has gone (`| head`): that is no error; keep Python from complaining at exit."""
    _lead_nowhere(1)
    return 0


def _lead_nowhere(descriptor: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


if __name__ == "__main__":
    main()
