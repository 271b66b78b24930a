"""What verbs print: tables for people on standard output, JSON for programs, notes on standard error."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

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
            click.echo(text)

    def note(self, text: str) -> None:
        if not self.quiet:
            click.echo(f"note: {text}", err=True)

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
        """A table with the first column to the left and the others to the right."""
        if not self.prints:
            return
        from rich.table import Table

        table = Table(box=None, pad_edge=False, title=title or None, title_justify="left", header_style="bold")
        for index, head in enumerate(heads):
            table.add_column(head, justify="right" if index else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console().print(table)

    def answer(self, value: object) -> None:
        """Write the answer as JSON, if that was asked for."""
        if self.json is None:
            return
        from shardwise.inputs.serialise import to_json
        from shardwise.inputs.write import write_text

        text = to_json(value)
        if self.json == "-":
            click.echo(text, nl=False)
        else:
            write_text(self.json, text)


def console() -> Console:
    """Rich's console: colour only on a terminal, wide lines where a program reads."""
    from rich.console import Console

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 240
    return Console(width=width, highlight=False, markup=False, emoji=False)


def output_options(verb: F) -> F:
    """--json, --quiet and --debug; the verb gets `output`."""

    def collected(**options: Any) -> Any:  # noqa: ANN401 - whatever the verb takes and returns
        output = Output(json=options.pop("json_file"), quiet=options.pop("quiet"))
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
