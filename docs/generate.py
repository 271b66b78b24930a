# ruff: noqa: INP001 - a script, not a package
"""Write the reference pages of the three inputs from the strings under their fields: `make docs`."""

from __future__ import annotations

from pathlib import Path

from shardwise.inputs.cluster import Cluster, Gpu, Level
from shardwise.inputs.describe import FieldDoc, describe
from shardwise.inputs.model import Mla, Model, Moe
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import SCHEDULES, Lora, Strategy

FOLDER = Path(__file__).parent / "reference"
PAGES: dict[str, tuple[type, ...]] = {
    "model": (Model, Mla, Moe),
    "cluster": (Cluster, Gpu, Level),
    "strategy": (Strategy, Recompute, Lora),
}
LEADS = {
    "model": """What is trained. A file holds these names as TOML, YAML or JSON; `base = "llama-3-8b"` starts from a
model of the catalog. `mla` and `moe` are tables. A Hugging Face `config.json` and SimuMax's model file are read
too.""",
    "cluster": """What it runs on. `64xh100` is a cluster of the catalog with the usual network; a file holds these
names. Sizes and rates may carry a unit: `80GiB`, `900GB/s`, `400Gb/s`, `989TFLOPS`, `5us` (`b` is bit, `B`
is byte).""",
    "strategy": f"""How it is split. Every field is a flag (`micro_batch` is `--micro-batch`), a key of a strategy file,
and a word of [the strategy in one line](strategy-text.md). Schedules:
{", ".join(f"`{name}`" for name in SCHEDULES)}.""",
}
MARK = "<!-- Written by docs/generate.py from the source; run `make docs` after a change. -->"


def page(name: str) -> str:
    """The text of one page."""
    kinds = PAGES[name]
    parts = [f"# {name.capitalize()}", MARK, LEADS[name]]
    for kind in kinds:
        if kind is not kinds[0]:
            parts.append(f"## {kind.__name__}\n\n{' '.join((kind.__doc__ or '').split())}")
        rows = [_row(doc) for doc in describe(kind)]
        parts.append("\n".join(["| field | value | default | meaning |", "|---|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _row(doc: FieldDoc) -> str:
    value = ", ".join(f"`{choice}`" for choice in doc.choices) or doc.kind
    return f"| `{doc.name}` | {value} | {_default(doc)} | {_cell(doc.text)} |"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _default(doc: FieldDoc) -> str:
    if doc.required:
        return "needed"
    if doc.kind == "switch":
        return "on" if doc.default else "off"
    return "none" if doc.default in {None, ()} else f"`{doc.default}`"


if __name__ == "__main__":
    for name in PAGES:
        (FOLDER / f"{name}.md").write_text(page(name), encoding="utf-8")
