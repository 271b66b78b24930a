"""The page of the command line: every verb with all its options, as `--help` says them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc

import click

from making import MARK, cell
from shardwise.cli.options import Flag, strategy_flags
from shardwise.cli.program import VERBS, group

LEAD = """`shardwise VERB --help` says the same. Every verb takes `--json FILE` (`-`: standard output, in place of the
text), `--quiet` and `--help`. [Exit codes](exit-codes.md) are the same everywhere; what stands in the JSON is in [the
answers](answers.md)."""
EVERYWHERE = {"--json", "--quiet", "--help"}
ASKING = """One flag for every field of a [strategy](strategy.md), with the same name. Flags go before `--strategy` and
`--from`. Megatron's spellings (`--tensor-model-parallel-size 8`) are taken too."""
_STRATEGY = {name for flag in strategy_flags() for name in flag.opts}


def page() -> str:
    """The text of the page."""
    rows = [f"| [`{verb}`](#{verb}) | {cell(text)} |" for verb, (_, text) in VERBS.items()]
    parts = ["# The command line", MARK, LEAD, "\n".join(["| verb | what it does |", "|---|---|", *rows])]
    context = click.Context(group, info_name="shardwise")
    for verb in VERBS:
        command = group.get_command(context, verb)
        assert command is not None  # noqa: S101 - for the type checker
        parts += _verb(command, click.Context(command, info_name=verb, parent=context), 2)
    asking = group.get_command(context, "check")
    assert asking is not None  # noqa: S101 - for the type checker
    flags = [param for param in asking.params if _is_strategy(param)]
    parts += ["## Flags of a strategy", ASKING, _options(flags, click.Context(asking))]
    return "\n\n".join(parts) + "\n"


def _verb(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    yield f"{'#' * level} {context.info_name}"
    yield from _help(command.help or "")
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield f"```text\n{' '.join(usage.split())}\n```"
    own = [param for param in command.params if not _is_strategy(param)]
    options = _options(own, context)
    if options:
        yield options
    if len(own) < len(command.params):
        yield "and the [flags of a strategy](#flags-of-a-strategy)."
    for name, below in getattr(command, "commands", {}).items():
        yield from _verb(
            below, click.Context(below, info_name=f"{context.info_name} {name}", parent=context.parent), level + 1
        )


def _help(text: str) -> Iterator[str]:
    """The paragraphs; those that stay as they are (click's mark) are commands."""
    for block in re.split(r"\n\s*\n", cleandoc(text)):
        if block.startswith("\b"):
            yield f"```sh\n{cleandoc(block[1:])}\n```"
        else:
            yield " ".join(block.split())


def _options(params: list[click.Parameter], context: click.Context) -> str:
    rows = []
    for param in params:
        record = param.get_help_record(context)
        if record and record[1] and not EVERYWHERE & set(param.opts):
            rows.append(f"| `{cell(' '.join(record[0].split()))}` | {cell(_plain(record[1]))} |")
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) if rows else ""


def _plain(text: str) -> str:
    """Help as text: what looks like Markdown or HTML is neither."""
    return re.sub(r"([*_<\[\]])", r"\\\1", " ".join(text.split()))


def _is_strategy(param: click.Parameter) -> bool:
    return isinstance(param, Flag) and bool(_STRATEGY & set(param.opts))
