"""What Aceso's tables know about an operator by its name, and what is known beyond them.

Source of the forms and of the sharing: Aceso's operator table (microsoft/SuperScaler, branch Aceso,
search/model_ops_info.py and aceso_cost_model.py), facts only.
"""

from __future__ import annotations

from shardwise.per_op.rules import WHOLE, Rule

_HEADS, _SPLIT, _SCORES = ("d11",) * 2, ("1dt",) * 2, ("dt1",) * 2
_COLUMN, _ROW = ("1d1", "1dt"), ("1dt", "1d1")

_GPT = {
    "encoder-embedding": Rule((), WHOLE, recompute=False),
    "enc-1st-layernorm": Rule(WHOLE, WHOLE, starts_layer=True),
    "enc-2nd-layernorm": Rule(WHOLE, WHOLE),
    "enc-attention-qkv": Rule(_COLUMN, _ROW),
    "enc-attention-score": Rule(_SPLIT, _SCORES),
    "enc-attention-softmax": Rule(_SCORES, _SCORES, share=0.0),
    "enc-attention-dropout": Rule(_SCORES, _SCORES, share=1.5),
    "enc-attention-context": Rule(_SCORES, _SPLIT),
    "enc-attention-dense": Rule(_ROW, _COLUMN),
    "enc-post-attention-dropout": Rule(WHOLE, WHOLE),
    "enc-MLP-GEMM-1": Rule(_COLUMN, _ROW),
    "enc-MLP-gelu": Rule(_SPLIT, _SPLIT),
    "enc-MLP-GEMM-2": Rule(_ROW, _COLUMN),
    "enc-post-MLP-dropout": Rule(WHOLE, WHOLE),
    "final-layernorm": Rule(WHOLE, _HEADS),
    "gpt-post-process": Rule(_HEADS, (), recompute=False),
}
_T5 = {
    "decoder-embedding": Rule(recompute=False),
    "t5-post-process": Rule(recompute=False),
}
# The four fused operators of the Ascend port: Aceso's tables do not know them, so that they neither share, reshard nor
# end a recomputed run there; the full flavour knows them.
_FUSED = {
    "dec-embedding": Rule((), WHOLE, recompute=False),
    "dec-self-attention": Rule(WHOLE, WHOLE, starts_layer=True),
    "dec-mlp": Rule(WHOLE, WHOLE),
    "dec-post-process": Rule(WHOLE, (), recompute=False),
}


def compatible_rule(name: str) -> Rule:
    """What Aceso's tables say."""
    if name in _GPT or name in _T5:
        return _GPT.get(name) or _T5[name]
    shared = name == "bn1" or "-bn3" in name or ("-downsample" in name and "0-0" not in name)
    resnet = any(part in name for part in ("conv", "downsample", "bn", "relu", "pool", "fc"))
    forms = _HEADS if resnet else ()
    return Rule(forms, forms, 0.0 if shared else 1.0, starts_layer="-conv1" in name, recompute=name != "conv1")


def full_rule(name: str) -> Rule:
    """What is known in all: Aceso's tables, its ports, our own names."""
    if name in _FUSED:
        return _FUSED[name]
    if "/" in name:  # made by our own analytic model: part/module.operator, the first of a layer after `start:`
        ends = name.startswith(("embedding/", "head/"))
        return Rule(WHOLE, WHOLE, starts_layer=name.startswith("start:"), recompute=not ends)
    rule = compatible_rule(name)
    # an operator that no table knows takes and gives whole tensors: a change of layout is not free
    return rule if rule.inputs or rule.outputs or not rule.recompute else rule._replace(inputs=WHOLE, outputs=WHOLE)
