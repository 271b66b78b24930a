"""What verbs print: tables for people on standard output, JSON for programs, notes on standard error."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from shardwise.errors import Fault, FileError, InfeasibleError, InputError
from shardwise.inputs.write import once_written, together, write_text

if TYPE_CHECKING:
    from rich.console import Console

    from shardwise.cli.tables import TablePiece

F = TypeVar("F", bound=Callable[..., Any])
_NAMES = 14
"""Columns of the names before facts."""
ANSWERS = 1
"""Goes up when a key of an answer in JSON goes away or means something else; new keys may come at any time."""
_ENDLESS = 100_000
"""Columns where no line may be broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where an answer goes."""

    json: str | None = None
    """File for the answer as JSON; `-`: standard output, in place of the text."""
    quiet: bool = False
    """Print the answer only: no notes, no progress."""
    md: str | None = None
    """File for the answer as Markdown; `-`: standard output, in place of the text."""

    answered: list[bool] = field(default_factory=list, compare=False)
    """Not empty: the answer was given."""
    lacked: list[bool] = field(default_factory=list, compare=False)
    """Not empty: it was said that there are no kernels."""

    @property
    def prints(self) -> bool:
        """Whether text for people goes to standard output."""
        return "-" not in {self.json, self.md}

    def say(self, text: str = "") -> None:
        if self.prints:
            show(text)

    def note(self, text: str) -> None:
        if not self.quiet:
            show(f"note: {text}", err=True)

    def note_executed(self, file: Path) -> None:
        """That code of the user's runs."""
        self.note(f"{file} is executed now: it is your code, and may do whatever you may")

    def note_lack(self) -> None:
        """Say, once, that there was work for the C kernels and that they are not there."""
        from shardwise import kernels

        if kernels.missed() and not self.lacked:
            self.lacked.append(True)
            self.note(kernels.LACKING)

    def wrote(self, text: str) -> None:
        """A note on a file, once all files of the command are there."""
        once_written(lambda: self.note(text))

    def facts(self, rows: Iterable[tuple[str, str]]) -> None:
        """Names and what is said about them, aligned; long texts are broken where a person reads."""
        width = terminal_width()
        for name, text in rows:
            self.say(_hanging(f"{name:<{_NAMES}}", text, width) if width else f"{name:<{_NAMES}}{text}")

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
        """A table, texts to the left and numbers to the right; in pieces where it is too wide."""
        if not self.prints:
            return
        from shardwise.cli.tables import fitted

        if title:
            self.say(title)
        pieces = fitted(heads, [tuple(map(clean, row)) for row in rows], terminal_width())
        for index, piece in enumerate(pieces):
            if index:
                self.say()
            self._print(piece)

    def _print(self, piece: TablePiece) -> None:
        from shardwise.cli.tables import hung, sides, styled

        if piece.hanging:
            head, below, *lines = hung(piece)
            show("\n".join([bold(head), bold(below), *lines]), raw=True)
            return
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for head, side in zip(piece.heads, sides(piece), strict=True):
            table.add_column(head, justify=side, no_wrap=len(piece.heads) > 2, overflow="fold")  # type: ignore[arg-type]
        for row in piece.rows:
            table.add_row(*map(styled, row))
        screen = console()
        with screen.capture() as printed:
            screen.print(table)
        show("\n".join(line.rstrip() for line in printed.get().splitlines()), raw=True)

    def answer(self, value: object) -> None:
        """Write the answer as JSON, if that was asked for."""
        self.answered.append(True)
        if self.json is None:
            return
        from shardwise import kernels
        from shardwise.inputs.serialise import to_json

        if isinstance(value, dict):
            value = {"schema": _schema(), **value}
            if kernels.missed():
                value |= {"run": {**(value.get("run") or {}), "kernels": False}}
        text = to_json(value)
        if self.json == "-":
            show(text, end="", raw=True)
        else:
            write_text(self.json, text)

    def markdown(self, made: Callable[[], str]) -> None:
        """Write the answer as Markdown, if that was asked for."""
        if self.md is None:
            return
        if self.md == "-":
            show(made(), end="")
        else:
            write_text(self.md, made())


def _schema() -> str:
    """What a program that reads an answer may hold on to: its verb, and how its keys are meant."""
    _, *verb = click.get_current_context().command_path.split()
    return f"shardwise/answer/{'-'.join(verb)}/{ANSWERS}"


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
    """Rich's console: colour only on a terminal (and not with NO_COLOR), lines of any width where a program reads."""
    from rich.console import Console

    return Console(width=terminal_width() or _ENDLESS, highlight=False, markup=False, emoji=False)


def terminal_width() -> int | None:
    """Columns of the terminal that standard output goes to; none where a program reads."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def bold(text: str) -> str:
    """Bold on a terminal that knows it."""
    return click.style(text, bold=True) if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" else text


def _hanging(name: str, text: str, width: int) -> str:
    from textwrap import fill

    room = max(width, _NAMES + 20)
    return fill(
        text, room, initial_indent=name, subsequent_indent=" " * _NAMES, break_long_words=False, break_on_hyphens=False
    )


_WRITTEN = {"html", "svg", "trace", "csv", "operators", "snapshot", "out"}
"""Options that name a file to write, in every verb that has them."""


def _refuse_targets(output: Output, options: dict[str, Any]) -> None:
    """A file that cannot be written is told before the work, not after it."""
    if output.json == output.md == "-":
        raise InputError(Fault("--md", "and --json both go to standard output; give one of them a file"))
    files = {"--json": output.json, "--md": output.md}
    for option, target in files.items():
        if target != "-":
            _refuse_target(option, target, "give the name of a file, or - for standard output")
    for param in click.get_current_context().command.params:
        # what is read, or is a folder, has another word there
        if param.name in _WRITTEN and getattr(param, "metavar", "") == "FILE":
            files[f"--{param.name}"] = target = options.get(param.name)
            if target == "-":
                raise InputError(Fault(f"--{param.name}", "- is no file; give a name (--json - prints the answer)"))
            _refuse_target(f"--{param.name}", target, "give the name of a file")
    _refuse_twice(files)
    _refuse_over_inputs({o: files.get(o) for o in _ANSWERS}, options)


_ANSWERS = ("--json", "--md", "--html", "--svg", "--trace", "--csv", "--snapshot", "--operators")


def _refuse_over_inputs(files: dict[str, str | None], options: dict[str, Any]) -> None:
    """An answer never takes the place of a file that the same call reads, such as the user's own YAML."""
    for param in click.get_current_context().command.params:
        given = options.get(param.name or "")
        said = max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name
        for one in (given,) if isinstance(given, str) else given if isinstance(given, tuple) else ():
            for option, target in files.items():
                if option != said and same_file(one, target):
                    raise InputError(Fault(option, f"would replace {target}, which is {said}; give another name"))


def same_file(one: object, target: str | None) -> bool:
    """Whether two names are of one file that is there."""
    if not isinstance(one, str) or target is None:
        return False
    try:
        return Path(target).is_file() and Path(one).samefile(target)
    except (OSError, ValueError):  # no such file, or no path at all
        return False


def _refuse_twice(files: dict[str, str | None]) -> None:
    """Of two answers under one name only one would be left."""
    seen: dict[Path, str] = {}
    for option, target in files.items():
        if target in {None, "-"} or (Path(target or "").exists() and not Path(target or "").is_file()):
            continue
        other = seen.setdefault(Path(os.path.abspath(target or "")), option)  # noqa: PTH100 - links may go in circles
        if other != option:
            raise InputError(Fault(option, f"and {other} both go to {target}; give each a file of its own"))


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


def markdown_option(verb: F) -> F:
    """--md; `output_options` takes it, the verb calls `output.markdown`."""
    text = "Write the answer as Markdown for a pull request; - is standard output."
    return click.option("--md", metavar="FILE", help=text)(verb)


def output_options(verb: F) -> F:
    """--json, --quiet and --debug; the verb gets `output`."""

    def collected(**options: Any) -> Any:  # noqa: ANN401 - whatever the verb takes and returns
        output = Output(json=options.pop("json_file"), quiet=options.pop("quiet"), md=options.pop("md", None))
        _refuse_targets(output, options)
        with together():
            try:
                return verb(output=output, **options)
            except InfeasibleError as error:
                if not output.answered:  # who reads the JSON must not find an older answer, or none
                    output.answer({"fits": "no", "why": str(error)})
                raise
            finally:
                output.note_lack()

    collected.__name__, collected.__doc__ = verb.__name__, verb.__doc__
    collected.__click_params__ = getattr(verb, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--debug", is_flag=True, expose_value=False, hidden=True),
        click.option("--quiet", "-q", is_flag=True, help="Print the answer only: no notes, no progress."),
        click.option("--json", "json_file", metavar="FILE", help="Write the answer as JSON; - is standard output."),
    ):
        collected = option(collected)
    return collected  # type: ignore[return-value]
