# ruff: noqa: INP001 - a script, not a package
"""Write the generated pages and pictures of the docs anew: `make docs`. With --outputs, also what commands print."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from making import DOCS, answers, api, assumed, commands, console, fields, first, gpus, memory, pictures

PAGES: dict[str, Callable[[], str]] = {
    **{f"reference/{name}.md": partial(fields.page, name) for name in fields.PAGES},
    "reference/commands.md": commands.page,
    "reference/answers.md": answers.page,
    "reference/python.md": api.page,
    "reference/assumed.md": assumed.page,
    "reference/gpus.md": gpus.page,
    "explain/memory-examples.md": memory.memory_examples,
}
"""File -> what makes its text."""


def write() -> None:
    """Write every generated page and picture."""
    for name, made in PAGES.items():
        (DOCS / name).write_text(made(), encoding="utf-8")
    pictures.draw(DOCS / "pictures")


def refresh() -> None:
    """Write into the pages what their commands print today, where it is shown in full, and the page's first answer."""
    first.FILE.write_text(first.text(), encoding="utf-8")
    for path in console.PAGES:
        with tempfile.TemporaryDirectory() as folder:
            console.prepare(Path(folder))
            before = path.read_text(encoding="utf-8")
            after = console.refreshed(before, Path(folder))
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"{path.relative_to(DOCS.parent)}: outputs written anew")
    for translated, original in console.TRANSLATIONS.items():
        text = console.alike(translated.read_text(encoding="utf-8"), original.read_text(encoding="utf-8"))
        translated.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
    if "--outputs" in sys.argv[1:]:
        refresh()
