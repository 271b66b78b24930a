"""Encoders, encoders with a decoder and models with towers, as described, against their steps on one H200.

`python benchmarks/towers.py [NAME ...]`: the same steps as `kinds.py`, whose models are traced; here a model of ours
says its sizes. Rows where the host takes a fifth longer than the kernels are marked, and count on their own.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import shardwise
from kinds import HOST_BOUND, Held, tell  # it stands beside this file
from shardwise.inputs.load import load_site
from shardwise.inputs.model import Model
from shardwise.inputs.parameters import count
from shardwise.inputs.towers import Projector, Stem

HERE = Path(__file__).parent
BIASES: dict[str, Any] = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
PLAIN: dict[str, Any] = {"norm": "layernorm", "activation": "gelu", "position": "learned", **BIASES}


def sized(name: str, layers: int, hidden: int, heads: int, ffn: int, **more: Any) -> Model:
    own = {"kv_heads": heads, "head_size": hidden // heads, "causal": False, **more}
    return Model(name=name, layers=layers, hidden=hidden, heads=heads, ffn=ffn, **own)


def text(name: str, tower: Model, *, layers: int = 8, ffn: int = 5632, heads: int = 16, **more: Any) -> Model:
    own = {"kv_heads": 4, "head_size": 128, "vocab": 32064, "causal": True, **more}
    return sized(name, layers, 2048, heads, ffn, towers=(tower,), **own)


T5: dict[str, Any] = {"activation": "geglu", "position": "relative", "max_positions": 32, "vocab": 32128}
WHISPER: dict[str, Any] = {**PLAIN, "key_bias": False, "heads_first": True}
QWEN25 = sized(
    "vision", 8, 1280, 16, 3420, **BIASES, fused_qkv=True, windows=(64, 64, 64, 0), chunked=True, final_norm=False,
    stem=Stem(size=672, patch=14, frames=2, bias=False), projector=Projector(merge=2, norm="tokens", inner=(5120,)),
)  # fmt: skip
QWEN3 = sized(
    "vision", 8, 1152, 16, 4304, **{**PLAIN, "position": "learned+rope"}, fused_qkv=True, max_positions=2304,
    final_norm=False, stem=Stem(size=768, patch=16, frames=2),
    projector=Projector(merge=2, norm="tokens", inner=(4608,), taps=3),
)  # fmt: skip
SIGLIP = sized(
    "vision", 8, 1152, 16, 4304, **PLAIN, max_positions=4096, stem=Stem(size=896, patch=14),
    projector=Projector(merge=4, pooled=True, norm="tokens", rms=True, bias=False),
)  # fmt: skip
INTERN = sized(
    "vision", 12, 1024, 16, 4096, **{**PLAIN, "qkv_bias": False}, max_positions=1025, layer_scale=True,
    final_norm=False, stem=Stem(size=448, patch=14, leading=1),
    projector=Projector(merge=2, norm="merged", inner=(2048,)),
)  # fmt: skip
MODELS = {
    "bert": (sized("bert", 24, 1024, 16, 4096, **PLAIN, vocab=30522, max_positions=512, token_types=2, tied=True,
                   head_dense=True, head_bias=True, embedding_norm=True), "seq512"),
    "vit": (sized("vit", 24, 1024, 16, 4096, **PLAIN, vocab=1000, max_positions=197, head_bias=True, pooled=True,
                  stem=Stem(size=224, patch=16, leading=1)), "seq197"),
    "dit": (sized("dit", 28, 1152, 16, 4608, **PLAIN, norm_vectors="none", vocab=32, max_positions=256, head_bias=True,
                  condition=256, classes=1001, final_norm=False, stem=Stem(size=32, patch=2, channels=4)), "seq256"),
    "t5": (sized("t5", 12, 1024, 16, 2816, **T5, causal=True, tied=True,
                 towers=(sized("encoder", 12, 1024, 16, 2816, **T5),)), "seq256 source512"),
    "whisper": (sized("whisper", 12, 1024, 16, 4096, **WHISPER, vocab=51865, tied=True, causal=True, max_positions=448,
                      towers=(sized("encoder", 12, 1024, 16, 4096, **WHISPER, max_positions=1500, stem=Stem(
                          size=3000, patch=2, channels=80, flat=True, kernel=3)),)), "seq256"),
    "qwen2_5_vl": (text("qwen2_5_vl", QWEN25, qkv_bias=True), "seq2048"),
    "qwen3_vl": (text("qwen3_vl", QWEN3, qk_norm="head"), "seq2048"),
    "gemma3": (text("gemma3", SIGLIP, layers=6, ffn=8192, heads=8, head_size=256, norms_per_layer=4, qk_norm="head",
                    tied=True, activation="geglu", norm_offset=True, windows=(1024,) * 5 + (0,)), "seq2048"),
    "internvl": (text("internvl", INTERN, qkv_bias=True, tied=True), "seq2048"),
}  # fmt: skip
ROWS = [
    row for row in json.loads((HERE / "data" / "h200_kinds.json").read_text(encoding="utf-8"))["rows"]
    if row["id"] in MODELS
]  # fmt: skip


def strategy_of(row: dict[str, Any]) -> str:
    samples = re.search(r"=(\d+)", row["inputs"])[1]  # type: ignore[index]
    return f"dp1 mbs{samples} gbs{samples} {MODELS[row['id']][1]} master=pure runtime=huggingface"


def held(row: dict[str, Any]) -> Held:
    model, cluster = MODELS[row["id"]][0], replace(shardwise.load_cluster("1xh200"), site=load_site("virtual-h200"))
    if count(model).total != row["params"]:
        raise ValueError(f"{row['id']}: {count(model).total:,} parameters described, {row['params']:,} measured")
    found = shardwise.estimate(model, cluster, shardwise.load_strategy(strategy_of(row), cluster))
    group = "used" if row["used"] else "kept out"
    if row["step_ms"] > HOST_BOUND * row["device_ms"]:
        group += ", host-bound"  # the host's numbers were set to InternVL and Qwen3-VL among them, see host.py
    peak = row["peak_allocated"] - row["inputs_bytes"]
    return Held(row["id"], group, found.iteration_seconds, row["step_ms"] / 1e3, found.peak_bytes, peak)


def main(names: list[str]) -> None:
    found = sorted(
        (held(row) for row in ROWS if not names or row["id"] in names), key=lambda one: (one.group, one.name)
    )
    tell(found)


if __name__ == "__main__":
    main(sys.argv[1:])
