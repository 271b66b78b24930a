"""What verbs print: tables for people on standard output, JSON for programs, notes on standard error."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from shardwise.errors import Fault, FileError, InputError

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where an answer goes."""

    json: str | None = None
    """File for the answer as JSON; `-`: standard output, in place of the text."""
    quiet: bool = False
    """Print the answer only: no notes, no progress."""

    @property
    def prints(self) -> bool:
        """Whether text for people goes to standard output."""
        return self.json != "-"

    def say(self, text: str = "") -> None:
        if self.prints:
            show(text)

    def note(self, text: str) -> None:
        if not self.quiet:
            show(f"note: {text}", err=True)

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
        """A table with the first column to the left and the others to the right."""
        if not self.prints:
            return
        from rich.table import Table

        table = Table(box=None, pad_edge=False, title=title or None, title_justify="left", header_style="bold")
        for index, head in enumerate(heads):
            table.add_column(head, justify="right" if index else "left", no_wrap=True)
        for row in rows:
            table.add_row(*map(clean, row))
        with _to_nowhere_once_gone(sys.stdout):
            console().print(table)

    def answer(self, value: object) -> None:
        """Write the answer as JSON, if that was asked for."""
        if self.json is None:
            return
        from shardwise.inputs.serialise import to_json
        from shardwise.inputs.write import write_text

        text = to_json(value)
        if self.json == "-":
            show(text, end="", raw=True)
        else:
            write_text(self.json, text)


def show(text: str, *, end: str = "\n", err: bool = False, raw: bool = False) -> None:
    """Print; a reader that has gone (`| head`) ends neither the work nor the writing of files."""
    with _to_nowhere_once_gone(sys.stderr if err else sys.stdout):
        click.echo((text if raw else clean(text)) + end, nl=False, err=err)


# What turns or hides text: controls but tab and newline, marks of direction, separators of lines, lone surrogates.
_STRANGE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def clean(text: str) -> str:
    """Text for a terminal: a name from a file may neither move the cursor nor reverse what stands beside it."""
    return _STRANGE.sub(lambda found: ascii(found[0])[1:-1], text)


@contextmanager
def _to_nowhere_once_gone(stream: TextIO) -> Iterator[None]:
    """Where the reader of a stream has gone, lead the stream to nowhere and go on."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def console() -> Console:
    """Rich's console: colour only on a terminal, wide lines where a program reads."""
    from rich.console import Console

    class Plain(Console):
        """Rich ends the program where the reader has gone; ours goes on."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 240
    return Plain(width=width, highlight=False, markup=False, emoji=False)


def _refuse_targets(json: str | None, options: dict[str, Any]) -> None:
    """A file that cannot be written is told before the work, not after it."""
    if json != "-":
        _refuse_target("--json", json, "give the name of a file, or - for standard output")
    params = click.get_current_context().command.params
    if any(param.name == "out" and getattr(param, "metavar", "") == "FILE" for param in params):
        if options.get("out") == "-":
            raise InputError(Fault("--out", "- is no file; give a name for the plan (--json - prints the answer)"))
        _refuse_target("--out", options.get("out"), "give the name of a file")


def _refuse_target(option: str, path: str | None, fix: str) -> None:
    if path is None:
        return
    if not path:
        raise InputError(Fault(option, f"is empty; {fix}"))
    target = Path(path)
    if target.is_dir():
        raise FileError(path, "is a folder; give the name of a file")
    if not target.parent.is_dir():
        raise FileError(path, f"the folder {target.parent} does not exist; make it first")
    # A file is replaced by name, so that its folder must be writable; a device is written itself.
    if not os.access(target if target.exists() and not target.is_file() else target.parent, os.W_OK):
        raise FileError(path, "may not be written: permission denied; choose another place")


def output_options(verb: F) -> F:
    """--json, --quiet and --debug; the verb gets `output`."""

    def collected(**options: Any) -> Any:  # noqa: ANN401 - whatever the verb takes and returns
        output = Output(json=options.pop("json_file"), quiet=options.pop("quiet"))
        _refuse_targets(output.json, options)
        return verb(output=output, **options)

    collected.__name__, collected.__doc__ = verb.__name__, verb.__doc__
    collected.__click_params__ = getattr(verb, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--debug", is_flag=True, expose_value=False, hidden=True),
        click.option("--quiet", "-q", is_flag=True, help="Print the answer only: no notes, no progress."),
        click.option("--json", "json_file", metavar="FILE", help="Write the answer as JSON; - is standard output."),
    ):
        collected = option(collected)
    return collected  # type: ignore[return-value]
