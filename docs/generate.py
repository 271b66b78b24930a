# ruff: noqa: INP001 - a script, not a package
"""Write the reference pages of the inputs from the strings under their fields, and the worked examples: `make docs`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardwise.inputs.cluster import Cluster, Gpu, Level
from shardwise.inputs.describe import FieldDoc, describe
from shardwise.inputs.load import load_cluster, load_model
from shardwise.inputs.model import Mla, Model, Moe
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import SCHEDULES, Lora, Strategy
from shardwise.plan.estimate import Estimate, estimate
from shardwise.report.estimate import memory

HOME = Path(__file__).parent
FOLDER = HOME / "reference"
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


EXAMPLES = {
    "pp4, 8 micro batches of 1, with recompute": "pp4 mbs1 gbs8 seq4096 recompute=full runtime=paddle",
    "pp4, 8 micro batches of 1, without recompute": "pp4 mbs1 gbs8 seq4096 runtime=paddle",
    "pp2 tp2, 8 micro batches of 2, without recompute": "tp2 pp2 mbs2 gbs16 seq4096 runtime=paddle",
}
"""Title -> strategy of the worked examples of memory: the settings of a report on memory estimation for Paddle."""


def memory_examples() -> str:
    """The page of worked examples: ledgers of a model cut to 4 layers on 4 GPUs."""
    lead = """Llama 2 7B cut to 4 layers (`docs/explain/four-layers.toml`) on 4 A100 with Paddle's static graph, in
sequences of 4096: three settings that a report on memory estimation measured. GiB per pipeline rank; how each part
comes about is said in [where the memory goes](memory.md)."""
    parts = ["# Memory, worked out", MARK, lead]
    model, cluster = load_model(str(HOME / "explain" / "four-layers.toml")), load_cluster("4xa100")
    for title, text in EXAMPLES.items():
        found = estimate(model, cluster, Strategy.parse(text))
        heads, rows = memory(found)
        lines = [_line(heads), _line(["---"] + ["---:"] * (len(heads) - 1)), *map(_line, rows)]
        parts += [f"## {title}", f'`--strategy "{text}"`', "\n".join(lines), _reading(found)]
    return "\n\n".join(parts) + "\n"


def _reading(found: Estimate) -> str:
    """The backward peak of the fullest rank in words."""
    rank = max(found.memory, key=lambda one: one.peak.value)
    stays, kept, peak = (f"{value / 2.0**30:.2f}" for value in (rank.static, rank.kept_per_microbatch, rank.backward))
    others = rank.in_flight - 1
    working = (rank.backward - rank.static - others * rank.kept_per_microbatch) / 2.0**30
    held = (
        f"{others:.0f} other micro batches keep {kept} each, and the one at work" if others else "the one micro batch"
    )
    return (
        f"Rank {rank.rank} is the fullest. Backward peaks at {peak} GiB: {stays} always stay, {held} needs "
        f"{working:.2f} at its highest point ({rank.at})."
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


if __name__ == "__main__":
    (HOME / "explain" / "memory-examples.md").write_text(memory_examples(), encoding="utf-8")
    for name in PAGES:
        (FOLDER / f"{name}.md").write_text(page(name), encoding="utf-8")
