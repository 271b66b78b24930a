"""Reference pages of the inputs, from the strings under their fields."""

from __future__ import annotations

from making import MARK, cell
from shardwise.inputs import lookup
from shardwise.inputs.cluster import Cluster, Gpu, Level
from shardwise.inputs.describe import FieldDoc, describe
from shardwise.inputs.documents import Documents
from shardwise.inputs.gate import Scalar, shown
from shardwise.inputs.load import SITES, load_runtime, load_site, runtime_names
from shardwise.inputs.mixed import Mixed
from shardwise.inputs.model import Mla, Model, Moe, RopeScaling
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.runtime import Abilities, Kernels, Memory, Overheads, Overlap, Runtime
from shardwise.inputs.scalars import row_of
from shardwise.inputs.site import USUAL, Site
from shardwise.inputs.strategy import SCHEDULES, Lora, Strategy

PAGES: dict[str, tuple[type, ...]] = {
    "model": (Model, RopeScaling, Mla, Moe),
    "cluster": (Cluster, Gpu, Level, Site, Mixed),
    "strategy": (Strategy, Recompute, Lora, Documents),
    "runtime": (Runtime, Abilities, Kernels, Memory, Overlap, Overheads),
}
LEADS = {
    "model": """What is trained. A file holds these names as TOML, YAML or JSON; `base = "llama-3-8b"` starts from a
model of the catalog. `rope_scaling`, `mla` and `moe` are tables. A Hugging Face `config.json` and SimuMax's model file
are read too.""",
    "cluster": """What it runs on. `64xh100` is a cluster of the catalog with the usual network; a file holds these
names. Sizes and rates may carry a unit: `80GiB`, `900GB/s`, `400Gb/s`, `989TFLOPS`, `5us` (`b` is bit, `B`
is byte).""",
    "strategy": f"""How it is split. Every field is a flag (`micro_batch` is `--micro-batch`), a key of a strategy file,
and a word of [the strategy in one line](strategy-text.md). Schedules:
{", ".join(f"`{name}`" for name in SCHEDULES)}.""",
    "runtime": """The software that will run the plan: what it can do, which kernels it has, what it keeps and what it
overlaps. A runtime is a file of these names (`inputs/catalog/runtimes`), not branches in the code; `--runtime NAME`
chooses one, and `NAME+kernels.loss=fused+overlap.tp=0` changes values of it.""",
}


def page(name: str) -> str:
    """The text of one page."""
    kinds = PAGES[name]
    parts = [f"# {name.capitalize()}", MARK, LEADS[name]]
    if name == "runtime":
        parts.append(_runtimes())
    for kind in kinds:
        if kind is not kinds[0]:
            parts.append(f"## {kind.__name__}\n\n{' '.join((kind.__doc__ or '').split())}")
        parts.append(table(kind))
    if name == "cluster":
        parts.append(_sites())
    return "\n\n".join(parts) + "\n"


def results(kind: type) -> str:
    """The fields of something that is only given out."""
    rows = [f"| `{doc.name}` | {doc.kind} | {cell(doc.text)} |" for doc in describe(kind)]
    return "\n".join(["| field | value | meaning |", "|---|---|---|", *rows])


def table(kind: type) -> str:
    """The fields of one of our types."""
    return "\n".join(
        ["| field | value | default | meaning |", "|---|---|---|---|", *(_row(kind, doc) for doc in describe(kind))]
    )


def _row(kind: type, doc: FieldDoc) -> str:
    value = ", ".join(f"`{choice}`" for choice in doc.choices) or f"{doc.kind}{_range(row_of(kind, doc.name))}"
    return f"| `{doc.name}` | {value} | {_default(doc)} | {cell(doc.text)} |"


def _range(row: Scalar | None) -> str:
    """What is taken: the plausible band where there is one, else the range; 0 where it stands for none."""
    if row is None:
        return ""
    low, high = row.usual or (row.least, row.most)
    none = "0 or " if row.least == 0 < low and not row.above else ""
    return f", {none}{'above ' if row.above and low == row.least else ''}{shown(low)} to {shown(high)}"


def _default(doc: FieldDoc) -> str:
    if doc.required:
        return "needed"
    if doc.kind == "switch":
        return "on" if doc.default else "off"
    if doc.kind in PARTS:
        return "see below"
    return "none" if doc.default in {None, ()} else f"`{doc.default}`"


PARTS = {kind.__name__ for kind in PAGES["runtime"][1:]} | {"Site"}


def _runtimes() -> str:
    rows = [f"| `{name}` | {cell(load_runtime(name).title)} |" for name in runtime_names()]
    return "\n".join(["| runtime | what it is |", "|---|---|", *rows])


def _sites() -> str:
    sites = [USUAL, *(load_site(name) for name in lookup.names(SITES))]
    rows = [
        f"| `{one.name}` | {one.slowdown:g} | {one.fabric:g} | {one.spread:g} | {cell(one.source)} |" for one in sites
    ]
    return "\n".join(["| site | slowdown | fabric | spread | learnt from |", "|---|---|---|---|---|", *rows])
