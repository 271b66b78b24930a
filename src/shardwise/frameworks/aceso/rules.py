"""What Aceso's tables know about an operator by its name, what is known beyond them, and its look-ups to the digit.

Source of the forms and of the sharing: Aceso's operator table (microsoft/SuperScaler, branch Aceso,
search/model_ops_info.py and aceso_cost_model.py), facts only.
"""

from __future__ import annotations

from math import log2

from shardwise.per_op.profiled import WHOLE, OperatorRule
from shardwise.per_op.profiles.table import MB, Band, CollectiveSamples, Profile

PENALTY = 100.0
"""Seconds that Aceso charges where its table has no entry: as good as never."""


def send_seconds(size: float, band: Band) -> float:
    """One message to the neighbouring stage."""
    return size / _binned(size, band)


def _binned(size: float, band: Band) -> float:
    """The entry one below the right one; below 0.5 MB Python's negative index wraps around, and so do we."""
    if size <= 0:
        return 1e6 * MB  # Aceso divides by 1 MB per us
    index = int(log2(size / MB))
    if index >= 1:
        index -= 1
    last = len(band.rates) - 1
    return band.rates[max(-last - 1, min(index, last))]


def collective_seconds(kind: str, gpus: int, size: float, profile: Profile) -> float:
    """One collective over `gpus` GPUs of one stage; splitting what is there already is free."""
    if kind in {"", "split"} or gpus == 1:
        return 0.0
    found = profile.collectives.get((kind, gpus))
    return PENALTY if found is None else _exact(found, size)


def _exact(found: CollectiveSamples, size: float) -> float:
    known = dict(zip((f"{entry / MB:.0f}" for entry in found.sizes), found.seconds, strict=True))
    for text in (f"{size / MB:.0f}", f"{size / MB - 1:.0f}"):
        if text in known:
            return known[text]
    return PENALTY


_HEADS, _SPLIT, _SCORES = ("d11",) * 2, ("1dt",) * 2, ("dt1",) * 2
_COLUMN, _ROW = ("1d1", "1dt"), ("1dt", "1d1")

_GPT = {
    "encoder-embedding": OperatorRule((), WHOLE, recompute=False),
    "enc-1st-layernorm": OperatorRule(WHOLE, WHOLE, starts_layer=True),
    "enc-2nd-layernorm": OperatorRule(WHOLE, WHOLE),
    "enc-attention-qkv": OperatorRule(_COLUMN, _ROW),
    "enc-attention-score": OperatorRule(_SPLIT, _SCORES),
    "enc-attention-softmax": OperatorRule(_SCORES, _SCORES, share=0.0),
    "enc-attention-dropout": OperatorRule(_SCORES, _SCORES, share=1.5),
    "enc-attention-context": OperatorRule(_SCORES, _SPLIT),
    "enc-attention-dense": OperatorRule(_ROW, _COLUMN),
    "enc-post-attention-dropout": OperatorRule(WHOLE, WHOLE),
    "enc-MLP-GEMM-1": OperatorRule(_COLUMN, _ROW),
    "enc-MLP-gelu": OperatorRule(_SPLIT, _SPLIT),
    "enc-MLP-GEMM-2": OperatorRule(_ROW, _COLUMN),
    "enc-post-MLP-dropout": OperatorRule(WHOLE, WHOLE),
    "final-layernorm": OperatorRule(WHOLE, _HEADS),
    "gpt-post-process": OperatorRule(_HEADS, (), recompute=False),
}
_T5 = {
    "decoder-embedding": OperatorRule(recompute=False),
    "t5-post-process": OperatorRule(recompute=False),
}
# The four fused operators of the Ascend port: Aceso's tables do not know them, so that they neither share, reshard nor
# end a recomputed run there; the full flavour knows them.
_FUSED = {
    "dec-embedding": OperatorRule((), WHOLE, recompute=False),
    "dec-self-attention": OperatorRule(WHOLE, WHOLE, starts_layer=True),
    "dec-mlp": OperatorRule(WHOLE, WHOLE),
    "dec-post-process": OperatorRule(WHOLE, (), recompute=False),
}


def compatible_rule(name: str) -> OperatorRule:
    """What Aceso's tables say."""
    if name in _GPT or name in _T5:
        return _GPT.get(name) or _T5[name]
    shared = name == "bn1" or "-bn3" in name or ("-downsample" in name and "0-0" not in name)
    resnet = any(part in name for part in ("conv", "downsample", "bn", "relu", "pool", "fc"))
    forms = _HEADS if resnet else ()
    return OperatorRule(forms, forms, 0.0 if shared else 1.0, starts_layer="-conv1" in name, recompute=name != "conv1")


def full_rule(name: str) -> OperatorRule:
    """What is known in all: Aceso's tables, its ports, our own names."""
    if name in _FUSED:
        return _FUSED[name]
    if "/" in name:  # made by our own analytic model: part/module.operator, the first of a layer after `start:`
        ends = name.startswith(("embedding/", "head/"))
        return OperatorRule(WHOLE, WHOLE, starts_layer=name.startswith("start:"), recompute=not ends)
    rule = compatible_rule(name)
    # an operator that no table knows takes and gives whole tensors: a change of layout is not free
    return rule if rule.inputs or rule.outputs or not rule.recompute else rule._replace(inputs=WHOLE, outputs=WHOLE)
