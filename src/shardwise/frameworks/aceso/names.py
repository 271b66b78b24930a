"""Facts of the operators that Aceso's sets hold, by exact name, and of its port to Ascend.

Source of the forms and of the sharing: Aceso's operator table (microsoft/SuperScaler, branch Aceso,
search/model_ops_info.py and aceso_cost_model.py), facts only. Weights of GPT and T5 are fp16, those of Wide-ResNet fp32
(its `memory_ratio`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from shardwise.per_op.profiles.facts import WHOLE, OperatorFacts, facts_of
from shardwise.per_op.profiles.table import Profile

_HEADS, _SPLIT, _SCORES = ("d11",) * 2, ("1dt",) * 2, ("dt1",) * 2
_COLUMN, _ROW = ("1d1", "1dt"), ("1dt", "1d1")


def _facts(kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], **more: object) -> OperatorFacts:
    return OperatorFacts(kind=kind, inputs=inputs, outputs=outputs, **more)  # type: ignore[arg-type]


_LAYER = {
    "1st-layernorm": _facts("norm", WHOLE, WHOLE, starts_layer=True),
    "2nd-layernorm": _facts("norm", WHOLE, WHOLE),
    "attention-qkv": _facts("matrix", _COLUMN, _ROW),
    "attention-score": _facts("attention", _SPLIT, _SCORES),
    "attention-softmax": _facts("attention", _SCORES, _SCORES, keeps=0.0),
    "attention-dropout": _facts("attention", _SCORES, _SCORES, keeps=1.5),
    "attention-context": _facts("attention", _SCORES, _SPLIT),
    "attention-dense": _facts("matrix", _ROW, _COLUMN),
    "post-attention-dropout": _facts("pointwise", WHOLE, WHOLE),
    "MLP-GEMM-1": _facts("matrix", _COLUMN, _ROW),
    "MLP-gelu": _facts("pointwise", _SPLIT, _SPLIT),
    "MLP-GEMM-2": _facts("matrix", _ROW, _COLUMN),
    "post-MLP-dropout": _facts("pointwise", WHOLE, WHOLE),
}
"""A transformer layer: GPT's, and both of T5's."""
_ENDS = {
    "encoder-embedding": _facts("embedding", (), WHOLE, recompute=False),
    "decoder-embedding": _facts("embedding", WHOLE, WHOLE, recompute=False),
    "enc-final-layernorm": _facts("norm", WHOLE, WHOLE),
    "dec-final-layernorm": _facts("norm", WHOLE, _HEADS),
    "final-layernorm": _facts("norm", WHOLE, _HEADS),
    "gpt-post-process": _facts("head", _HEADS, (), recompute=False),
    "t5-post-process": _facts("head", _HEADS, (), recompute=False),
}
"""What stands before, between and after the layers of GPT and T5."""
_CROSS = {
    f"dec-{name}-{which}": facts
    for name, facts in _LAYER.items()
    if "attention" in name  # the table's own names: T5's decoder has each twice
    for which in (1, 2)
}
_DECODER = {
    **{f"dec-{name}": facts for name, facts in _LAYER.items() if "attention" not in name},
    **_CROSS,
    "dec-3rd-layernorm": _LAYER["2nd-layernorm"],
}
_TRANSFORMER = {**{f"enc-{name}": facts for name, facts in _LAYER.items()}, **_ENDS, **_DECODER}
_FUSED = {
    "dec-embedding": _facts("embedding", (), WHOLE, recompute=False),
    "dec-self-attention": _facts("attention", WHOLE, WHOLE, starts_layer=True),
    "dec-mlp": _facts("matrix", WHOLE, WHOLE),
    "dec-post-process": _facts("head", WHOLE, (), recompute=False),
}
"""The four fused operators of the Ascend port."""


def _image(kind: str, **more: object) -> OperatorFacts:
    return _facts(kind, _HEADS, _HEADS, dtype="fp32", **more)


_STEM = {
    "conv1": _image("convolution", recompute=False),
    "bn1": _image("norm", keeps=0.0),
    "relu1": _image("pointwise"),
    "maxpool": _image("pool"),
    "avgpool": _image("pool"),
    "fc": _image("head"),
}
"""Before and after the blocks of Wide-ResNet."""
_BLOCK = {
    "conv1": _image("convolution", starts_layer=True),
    "bn1": _image("norm"),
    "conv2": _image("convolution"),
    "bn2": _image("norm"),
    "conv3": _image("convolution"),
    "bn3": _image("norm", keeps=0.0),
    "downsample": _image("convolution", keeps=0.0),
    "relu": _image("pointwise"),
}
_FIRST = "block-0-0-downsample"
"""The only one of its kind whose activations Aceso counts."""
_IN_BLOCK = re.compile(r"block-(?P<group>\d{1,3})-(?P<block>\d{1,3})-(?P<part>[a-z]+\d?)")


def resnet_facts(name: str) -> OperatorFacts | None:
    """Of an operator of Wide-ResNet."""
    found = _IN_BLOCK.fullmatch(name)
    if found is None:
        return _STEM.get(name)
    facts = _BLOCK.get(found["part"])
    return replace(facts, keeps=1.0) if facts and name == _FIRST else facts


def blocks_of(profile: Profile) -> list[int]:
    """Blocks in each group of a Wide-ResNet (Aceso's `num_layers`)."""
    found: dict[int, set[int]] = {}
    for match in filter(None, map(_IN_BLOCK.fullmatch, profile.ops)):
        found.setdefault(int(match["group"]), set()).add(int(match["block"]))
    return [len(found[group]) for group in sorted(found)]


def lists_all(ops: tuple[str, ...]) -> bool:
    """Whether the rows are a whole Wide-ResNet, whose profile lists every operator."""
    return bool(ops) and all(resnet_facts(name) is not None for name in ops)


def reshards(profile: Profile) -> bool:
    """Aceso turns resharding off for T5."""
    return "t5-post-process" not in profile.ops


@lru_cache(maxsize=8)  # every evaluation of a plan asks
def compatible_facts(profile: Profile) -> tuple[OperatorFacts, ...]:
    """What Aceso's tables say. They do not know the fused operators of its port: those neither share, reshard nor end
    a recomputed run there. Nor do they know T5's decoder beyond its ends.
    """
    return facts_of(profile, _compatible)


def _compatible(name: str) -> OperatorFacts | None:
    if name in _FUSED:
        return OperatorFacts(kind=_FUSED[name].kind)
    if name in _DECODER:
        return OperatorFacts(kind=_DECODER[name].kind)
    return _TRANSFORMER.get(name) or resnet_facts(name)


def full_facts(profile: Profile) -> tuple[OperatorFacts, ...]:
    """What is known in all."""
    return facts_of(profile, _full)


def _full(name: str) -> OperatorFacts | None:
    return _FUSED.get(name) or _TRANSFORMER.get(name) or resnet_facts(name)
