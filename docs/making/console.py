"""What the pages show is run: a `console` block holds commands after `$` and what they print; `...` leaves text out.

All commands of a page run in one new folder, in order, so that a page may write a plan and read it again; `docs` leads
to the docs there. Seconds of computation are not compared.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from making import DOCS
from shardwise.cli.main import run as shardwise
from shardwise.inputs import lookup

_ALL = (*sorted(DOCS.parent.glob("README*.md")), *sorted(DOCS.rglob("*.md")))
PAGES = tuple(path for path in _ALL if not path.name.endswith(".zh.md"))
TRANSLATIONS = {path: path.with_name(path.name.replace(".zh.md", ".md")) for path in _ALL if path not in PAGES}
"""A page in Chinese -> the page whose commands and answers it shows; they are run there alone."""
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
OTHER_PROGRAMS = {"cat", "head", "ls", "tail"}
"""Programs beside ours that a page may use to look at what was written."""
_COMPUTING = re.compile(r"\d[\d.,]*(?= (?:CPU s|s of computing)\b)")
"""Numbers that differ from run to run."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a page and what the page says it prints."""

    text: str
    shown: str

    @property
    def codes(self) -> frozenset[int]:
        """Exit codes that go with it: 1 or 2 where only an error is printed, 1 where one follows an answer."""
        lines = self.shown.splitlines()
        if lines and lines[0].startswith("error:"):
            return frozenset({1, 2})
        return frozenset({1 if any(line.startswith("error:") for line in lines) else 0})


def commands(text: str) -> Iterator[Command]:
    """The commands of a page; a line that ends in a backslash goes on in the next."""
    for block in BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            found = re.match(r"((?:.*\\\n)*.*)\n?", part)
            assert found is not None  # noqa: S101 - it matches anything
            yield Command(found[1], part[found.end() :].rstrip("\n"))


def prepare(folder: Path) -> None:
    """What the commands of a page find in their folder."""
    (folder / "docs").symlink_to(DOCS)


def run(command: Command, folder: Path) -> tuple[int, str]:
    """Exit code and everything printed in the order of a terminal, but without a terminal's width and colours."""
    program, *words = shlex.split(command.text.replace("\\\n", " "))
    with chdir(folder), _home("home"):
        if program == "shardwise":
            printed = StringIO()
            with redirect_stdout(printed), redirect_stderr(printed):
                code = shardwise(words)
            return code, printed.getvalue().strip("\n")
        if program not in OTHER_PROGRAMS:
            raise ValueError(f"{program} is not run by the docs; use a sh block for what is only shown")
        done = subprocess.run([program, *words], check=False, text=True, capture_output=True)  # noqa: S603 - our pages
        return done.returncode, (done.stdout + done.stderr).strip("\n")


@contextmanager
def _home(path: str) -> Iterator[None]:
    """What is stored on the way (calibrations) goes to the page's folder."""
    before = os.environ.get("SHARDWISE_HOME")
    os.environ["SHARDWISE_HOME"] = path
    lookup.forget()
    try:
        yield
    finally:
        if before is None:
            del os.environ["SHARDWISE_HOME"]
        else:
            os.environ["SHARDWISE_HOME"] = before
        lookup.forget()


def agrees(shown: str, printed: str) -> bool:
    """Whether what was printed is what the page shows: its pieces between `...` in their order, all of it."""
    shown, printed = (_COMPUTING.sub("#", text).rstrip() for text in (shown, printed))
    first, *others = shown.split("...")
    if not others:
        return shown == printed
    *middle, last = others
    if not printed.startswith(first):
        return False
    at = len(first)
    for piece in middle:
        found = printed.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return len(printed) - at >= len(last) and printed.endswith(last)


def alike(translated: str, original: str) -> str:
    """The translated page with the answers that its commands have in the original; others are left out."""
    shown = {command.text: command.shown for command in commands(original)}
    for command in commands(translated):
        line = f"$ {command.text}\n"
        old = f"{line}{command.shown}\n" if command.shown else line
        answer = shown[command.text]
        translated = translated.replace(old, f"{line}{answer}\n" if answer else line, 1)
    return translated


def refreshed(text: str, folder: Path) -> str:
    """The page with what its commands print today; outputs that leave text out are kept."""
    for command in commands(text):
        _, printed = run(command, folder)
        if "..." not in command.shown and not agrees(command.shown, printed):
            line = f"$ {command.text}\n"
            old = f"{line}{command.shown}\n" if command.shown else line
            text = text.replace(old, f"{line}{printed}\n", 1)
    return text
