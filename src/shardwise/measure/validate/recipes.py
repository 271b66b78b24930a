"""Settings that a published table leaves out: what its notes say, else what the recipe behind it sets."""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardwise.inputs.recompute import Recompute

Row = dict[str, Any]
_FILE = Path(__file__).parent / "data" / "recipes.toml"
_BRIDGE = "megatron bridge"
_DISPATCHERS = {"deepep": "deepep", "hybridep": "hybridep", "alltoall": "all-to-all", "allgather": "all-gather"}
# Layers of every chunk of DeepSeek-V3 by the number of chunks; the last one holds what predicts further ahead, too. Its
# makers do not print theirs, and are taken to cut it as evenly.
_DEEPSEEK_V3 = {8: (8,) * 7 + (5,), 16: (4,) * 15 + (1,), 32: (1,) + (2,) * 30 + (0,)}
# Llama 3 405B: the first chunk has only the embedding, the last only the output layer and the loss (arXiv 2407.21783,
# section 3.3.2), so that its 16 stages have 8 chunks of one layer each.
_LLAMA_3 = (0,) + (1,) * 126 + (0,)


def unprinted(row: Row, notes: list[str]) -> dict[str, Any]:
    """Fields of a strategy that the columns of a row do not hold."""
    if not row["model"].get("moe"):
        return {}
    found = {**_recipe(row), **_said(row)}
    if found.pop("told", False):
        notes.append("dispatcher, CUDA graphs and recompute as in the recipe")
    modules = found.pop("recompute", None)
    if modules and row["parallel"]["recompute"] is None:
        found["recompute"] = Recompute(modules=tuple(modules))
    if row["parallel"]["ep"] in {None, 1}:
        found.pop("ep_overlap", None)
    return found


# Recipes of Megatron-Core with Transformer Engine that published runs were made with: first pattern that a row's source
# and framework match. Megatron Bridge (`perf_recipes`, 067f987): gradients reduced in bf16, fp8 with a scale for every
# tensor, parameters in the format of the products. NeMo and MLPerf: delayed scaling, parameters in fp8; the rows that
# say so reduce gradients in bf16. AutoModel (36044ad3, `components/models`, `moe/parallelizer.py`) builds parameters in
# bf16, hands them to torch's Adam, and reduces gradients in fp32; Nemotron's recipe of DGX Cloud (8f5cbb3,
# `nemotron4-340b-synth.yaml`) asks for an optimizer in bf16, for which NeMo stores no fp32 parameters.
_FORMATS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("automodel", {"master": "pure", "grad_dtype": "fp32"}),
    (
        "dgxc .*nemotron/readme_340b",
        {"master": "pure", "grad_dtype": "bf16", "scaling": "delayed", "fp8_weights": True},
    ),
    ("megatron bridge", {"grad_dtype": "bf16", "scaling": "tensor", "fp8_weights": True}),
    ("mlperf", {"scaling": "delayed", "fp8_weights": True}),
    ("dgxc", {"grad_dtype": "bf16", "scaling": "delayed", "fp8_weights": True}),  # as those of its rows that say it
    ("nemo .*transformerengine", {"grad_dtype": "bf16", "scaling": "delayed", "fp8_weights": True}),
)


def formats_of(row: Row) -> dict[str, Any]:
    """Formats of gradients, scales, weights and attention: what a row says of them, else what its recipe does."""
    page, precision = str((row.get("source") or {}).get("path", "")), row["precision"]
    said = f"{row['source_key']} {row['framework']} {page}".lower()
    fields = next((dict(fields) for pattern, fields in _FORMATS if re.search(pattern, said)), {})
    if str(row["parallel"].get("fsdp")) == "Megatron-FSDP":  # it scatters gradients in the format of its parameters
        fields["grad_dtype"] = "bf16"
    if grads := str(precision.get("grads", "")):
        fields["grad_dtype"] = "bf16" if grads.startswith(("bf16", "fp16")) else "fp32"
    detail = f"{precision.get('detail', '')} {row.get('notes') or ''}".lower()
    if "rowwise" in str(precision.get("detail", "")):
        fields["scaling"] = "row"
    if "blocks of 128" in detail:
        fields["scaling"] = "block"
    if "bf16 moments" in detail:
        fields["optimizer"] = "adamw-bf16"
    if "fp8 all-gather" in detail or "fp8 fsdp all-gather" in detail:
        fields["fp8_weights"] = True
    if "fp8 attention" in detail:
        fields["fp8_attention"] = True
    if "offloaded to the host" in detail:
        fields["offload"] = "activations"
    narrow = precision["compute"] in {"fp8", "mxfp8", "nvfp4"}
    always = {"grad_dtype", "master", "offload", "optimizer"}
    return {name: value for name, value in fields.items() if narrow or name in always}


def own_layers(row: Row) -> tuple[int, ...]:
    """The cut of a recipe that has one of its own."""
    p, m = row["parallel"], row["model"]
    if row["source_key"] == "llama3-paper" and p["pp"] == 16 and m["layers"] == 126:
        return _LLAMA_3
    if m["name"] != "deepseek-v3" or m["layers"] != 61 or not re.search("megatron|deepseek", row["framework"].lower()):
        return ()
    return _DEEPSEEK_V3.get(int(p["pp"] or 1) * int(p.get("vpp") or 1), ())


def _said(row: Row) -> dict[str, Any]:
    """What the row's own words say."""
    named = str(row["parallel"].get("dispatcher") or row["model"]["moe"].get("dispatcher") or "")
    text = f"{named} {row.get('notes') or ''}".lower()
    found: dict[str, Any] = {}
    name = next((ours for word, ours in _DISPATCHERS.items() if word in text), None)
    if name:
        found["dispatcher"] = name
    if "ep overlap" in text:
        found["ep_overlap"] = True
    if "partial cuda graphs" in text:
        found["cuda_graphs"] = "attention"
    elif row.get("cuda_graphs"):
        found["cuda_graphs"] = "layer"
    return found


def dropped(row: Row) -> bool:
    """Whether tokens beyond an expert's even share are dropped, and room up to it is padded."""
    return "token drop" in str(row.get("notes") or "").lower()


@lru_cache(maxsize=1)
def _recipes() -> tuple[Row, ...]:
    return tuple(tomllib.loads(_FILE.read_text(encoding="utf-8"))["recipe"])


def _recipe(row: Row) -> dict[str, Any]:
    if _BRIDGE not in row["framework"].lower():
        return {}
    if dropped(row):  # shapes are fixed then, and whole layers were captured
        return {"cuda_graphs": "layer", "told": True}
    found = next((one for one in _recipes() if _matches(one, row)), None)
    return {**found["settings"], "told": True} if found else {}


def _matches(recipe: Row, row: Row) -> bool:
    p, family = row["parallel"], str(row["gpu"].get("family"))
    return (
        re.search(recipe["models"], row["model"]["name"]) is not None
        and family in recipe.get("gpus", [family])
        and row["precision"]["compute"] in recipe.get("precisions", [row["precision"]["compute"]])
        and release(row) >= recipe.get("since", 0.0)
        and not (recipe.get("chunked") and int(p["pp"] or 1) > 1 and not p.get("vpp"))
    )


NEWEST = 26.08


def release(row: Row) -> float:
    """The release that a row was printed for: a row is kept for the newest, and its notes list the older ones."""
    source = row.get("source") or {}
    if str(source.get("path", "")).endswith("performance-summary.md"):
        return NEWEST
    table = re.match(r"(\d\d\.\d\d)", str(source.get("table", "")))
    if table:
        return float(table[1])
    others = re.findall(r"(\d\d\.\d\d)(\.\d+)?: \d+", str(row.get("notes") or ""))
    if not others:
        return 0.0
    newest, patch = max(others)
    return 26.06 if (newest, patch) >= ("26.04", ".01") else float(newest)
