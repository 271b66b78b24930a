# ruff: noqa: INP001 - read by Sphinx
"""How Sphinx builds the docs: `make docs`. The pages are plain Markdown that reads as well on a code host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import shardwise

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Shardwise"
author = "the Shardwise authors"
version = release = shardwise.__version__
extensions = ["myst_parser"]
exclude_patterns = ["_build", "making"]
html_theme = "furo"
html_title = f"Shardwise {version}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_sphinx = False
highlight_language = "text"
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # examples of files may leave parts out

HERE = Path(__file__).parent
PARTS = {"tutorial": "Tutorial", "how-to": "How to", "reference": "Reference", "explain": "Explain"}
FIRST = {
    "tutorial": ["ten-minutes", "first-check"],
    "how-to": ["plan", "estimate", "fit-in-fewer-gpus", "balance", "schedules", "compare-schedules", "per-op-search"],
    "reference": ["commands", "python", "answers", "strategy", "strategy-text", "model", "cluster", "runtime"],
    "explain": ["time", "memory", "memory-examples", "bubbles-and-bounds", "zero-bubble", "search", "calibration"],
}
"""The pages that come first; the others follow by name."""


def tables_of_contents() -> str:
    """One hidden table of contents a part, so that a new page needs no entry anywhere."""
    parts = []
    for folder, title in PARTS.items():
        names = [path.stem for path in sorted((HERE / folder).glob("*.md"))]
        names = [*filter(names.__contains__, FIRST[folder]), *(name for name in names if name not in FIRST[folder])]
        entries = "\n".join(f"{folder}/{name}" for name in names)
        parts.append(f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}\n```")
    return "\n\n".join(parts)


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Sphinx hands every page's text as a list of one."""
    del app
    if name == "index":
        source[0] += f"\n\n{tables_of_contents()}\n"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
