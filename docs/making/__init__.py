"""What writes the generated pages and pictures, and runs what the pages show; `make docs` and the tests use it."""

from pathlib import Path

DOCS = Path(__file__).parents[1]
MARK = "<!-- Written by docs/generate.py from the source; run `make docs` after a change. -->"


def cell(text: str) -> str:
    """Text that may stand in a table."""
    return text.replace("|", r"\|")


def row(cells: "list[str] | tuple[str, ...]") -> str:
    """A row of a table."""
    return "| " + " | ".join(map(cell, cells)) + " |"
