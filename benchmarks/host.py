"""Steps that the host bounds against their predictions: `python benchmarks/host.py [NAME ...]`.

The rows are those of `benchmarks/h200_host.py` (benchmarks/data/h200_host.json), visit by visit: a model as it is
traced and, where it can be, as it is described. The host's speed is what was measured beside the steps: forward a small
sum, and in visit 4 a product in backward, too; in visit 1, where neither was, the site's. Rows whose numbers fitted
what a call takes are told apart.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import shardwise
import towers  # it stands beside this file
from kinds import HOST_BOUND, Held, tell
from shardwise.inputs.load import load_site
from shardwise.inputs.model import Model

HERE = Path(__file__).parent
DATA = json.loads((HERE / "data" / "h200_host.json").read_text(encoding="utf-8"))
SUM, SUM_TRACKED, PRODUCT_BACK = 6.79, 7.9, 12.85
"""Microseconds on usual hosts: a sum, one that autograd follows, and a product in backward."""
TRACED_FIT = {"llama", "qwen3_moe", "minimax", "qwen3_next", "deepseek_v32", "t5", "vit", "resnet50", "mamba2"}
DESCRIBED_FIT = {"llama", "qwen3_moe", "t5", "vit", "internvl", "qwen3_vl"}
NARROW: dict[str, Any] = {"layers": 12, "hidden": 768, "heads": 12, "head_size": 64}
T5 = {**towers.T5, "head_size": 64}
SMALL = {
    "small_llama": (Model(name="llama", **NARROW, kv_heads=4, ffn=2048, vocab=32000), "seq512"),
    "small_gpt2": (Model(name="gpt2", **NARROW, kv_heads=12, ffn=3072, vocab=50257, gelu_steps=True, max_positions=1024,
                         tied=True, **towers.PLAIN), "seq512"),
    "small_bert": (towers.sized("bert", 12, 768, 12, 3072, **towers.PLAIN, vocab=30522, max_positions=512,
                                token_types=2, tied=True, head_dense=True, head_bias=True, embedding_norm=True),
                   "seq128"),
    "small_vit": (towers.sized("vit", 12, 384, 6, 1536, **towers.PLAIN, vocab=1000, max_positions=197, head_bias=True,
                               pooled=True, stem=towers.Stem(size=224, patch=16, leading=1)), "seq197"),
    "small_t5": (towers.sized("t5", 8, 512, 6, 1024, **T5, causal=True, tied=True,
                              towers=(towers.sized("encoder", 8, 512, 6, 1024, **T5),)), "seq128 source256"),
    "small_whisper": (towers.sized("whisper", 6, 512, 8, 2048, **towers.WHISPER, vocab=51865, tied=True, causal=True,
                                   max_positions=448, towers=(towers.sized(
                                       "encoder", 6, 512, 8, 2048, **towers.WHISPER, max_positions=1500,
                                       stem=towers.Stem(size=3000, patch=2, channels=80, flat=True, kernel=3)),)),
                      "seq128"),
}  # fmt: skip
DESCRIBED = {**towers.MODELS, **SMALL}
Row = dict[str, Any]


def speed(row: Row) -> float:
    """Of the host beside a row's steps, over usual ones."""
    if row["sums"] is None:
        return load_site("virtual-h200").host
    forward, back = row["sums"]
    return SUM / forward if back is None else (SUM_TRACKED + PRODUCT_BACK) / (forward + back)


@functools.cache
def traced(name: str, inputs: str) -> Model:
    file = "h200_host" if name.startswith("small_") else "h200_kinds"
    return shardwise.trace_module(f"{HERE / file}.py:{name}", inputs)


def held(row: Row, model: Model, line: str, *, fit: bool) -> Held:
    samples = re.search(r"=(\d+)", row["inputs"])[1]  # type: ignore[index]
    cluster = replace(shardwise.load_cluster("1xh200"), site=replace(load_site("virtual-h200"), host=speed(row)))
    text = f"dp1 mbs{samples} gbs{samples} {line} master=pure runtime=huggingface"
    found = shardwise.estimate(model, cluster, shardwise.load_strategy(text, cluster))
    group = "used" if fit else "new" if row["id"].startswith("small_") else "kept out"
    if row["step_ms"] > HOST_BOUND * row["device_ms"]:
        group += ", host-bound"
    peak = row["peak_allocated"] - row["inputs_bytes"]
    return Held(row["id"], group, found.iteration_seconds, row["step_ms"] / 1e3, found.peak_bytes, peak)


def main(names: list[str]) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    for visit in DATA["visits"]:
        rows = [
            row for row in visit["rows"]
            if row["batch"] == "given" and "device_ms" in row and (not names or row["id"] in names)
        ]  # fmt: skip
        described = [held(row, *DESCRIBED[row["id"]], fit=row["id"] in DESCRIBED_FIT)
                     for row in rows if row["id"] in DESCRIBED]  # fmt: skip
        if described:
            print(f"visit {visit['visit']}, described")
            tell(sorted(described, key=lambda one: (one.group, one.name)))
        alone = [row for row in rows if "pictures" not in row["inputs"]]
        if alone:
            print(f"visit {visit['visit']}, traced")
            models = [traced(row["id"], re.sub(r"=(\d+)", "=1", row["inputs"])) for row in alone]
            found = [
                held(row, model, f"seq{model.traced.seq}", fit=row["id"] in TRACED_FIT)  # type: ignore[union-attr]
                for row, model in zip(alone, models, strict=True)
            ]
            tell(sorted(found, key=lambda one: (one.group, one.name)))


if __name__ == "__main__":
    main(sys.argv[1:])
