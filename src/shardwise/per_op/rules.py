"""What is known about an operator by its name: how its tensors lie, what it shares, whether it may be recomputed.

A layout form is three letters for the tensor's dimensions: `1` whole, `d` split over dp, `t` split over tp; where no
letter is `t` the tensor is replicated over tp. Source of the forms and of the sharing: Aceso's operator table
(microsoft/SuperScaler, branch Aceso, search/model_ops_info.py and aceso_cost_model.py), facts only.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """One operator's properties."""

    inputs: tuple[str, ...] = ()
    """Layout form of the input, per variant; empty: nothing is known and a change costs nothing."""
    outputs: tuple[str, ...] = ()
    share: float = 1.0
    """Part of its activations that is really kept: tensors shared with a neighbour count there."""
    starts_layer: bool = False
    """Its input is kept whatever is recomputed: runs of recomputed operators end before it."""
    recompute: bool = True
    """May be recomputed."""


_WHOLE, _HEADS, _SPLIT, _SCORES = ("1d1",) * 2, ("d11",) * 2, ("1dt",) * 2, ("dt1",) * 2
_COLUMN, _ROW = ("1d1", "1dt"), ("1dt", "1d1")

_GPT = {
    "encoder-embedding": Rule((), _WHOLE, recompute=False),
    "enc-1st-layernorm": Rule(_WHOLE, _WHOLE, starts_layer=True),
    "enc-2nd-layernorm": Rule(_WHOLE, _WHOLE),
    "enc-attention-qkv": Rule(_COLUMN, _ROW),
    "enc-attention-score": Rule(_SPLIT, _SCORES),
    "enc-attention-softmax": Rule(_SCORES, _SCORES, share=0.0),
    "enc-attention-dropout": Rule(_SCORES, _SCORES, share=1.5),
    "enc-attention-context": Rule(_SCORES, _SPLIT),
    "enc-attention-dense": Rule(_ROW, _COLUMN),
    "enc-post-attention-dropout": Rule(_WHOLE, _WHOLE),
    "enc-MLP-GEMM-1": Rule(_COLUMN, _ROW),
    "enc-MLP-gelu": Rule(_SPLIT, _SPLIT),
    "enc-MLP-GEMM-2": Rule(_ROW, _COLUMN),
    "enc-post-MLP-dropout": Rule(_WHOLE, _WHOLE),
    "final-layernorm": Rule(_WHOLE, _HEADS),
    "gpt-post-process": Rule(_HEADS, (), recompute=False),
}
_T5 = {
    "decoder-embedding": Rule(recompute=False),
    "t5-post-process": Rule(recompute=False),
}
# The four fused operators of the Ascend port: Aceso's tables do not know them, so that they neither share, reshard nor
# end a recomputed run there; the full flavour knows them.
_FUSED = {
    "dec-embedding": Rule((), _WHOLE, recompute=False),
    "dec-self-attention": Rule(_WHOLE, _WHOLE, starts_layer=True),
    "dec-mlp": Rule(_WHOLE, _WHOLE),
    "dec-post-process": Rule(_WHOLE, (), recompute=False),
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
        return Rule(_WHOLE, _WHOLE, starts_layer=name.startswith("start:"), recompute=not ends)
    rule = compatible_rule(name)
    # an operator that no table knows takes and gives whole tensors: a change of layout is not free
    return rule if rule.inputs or rule.outputs or not rule.recompute else rule._replace(inputs=_WHOLE, outputs=_WHOLE)


class Spec(NamedTuple):
    """A form under a tp and a dp: copies, and pieces of each dimension."""

    copies: int
    pieces: tuple[int, ...]


def spec(forms: tuple[str, ...], tp: int, dp: int, variant: int) -> Spec | None:
    if not forms:
        return None
    form = forms[variant if variant < len(forms) else 0]
    pieces = tuple({"1": 1, "d": dp, "t": tp}[letter] for letter in form)
    return Spec(1 if "t" in form else tp, pieces)


class Change(NamedTuple):
    """Collectives that turn one layout into another: forward, backward, and over how many GPUs."""

    forward: str
    backward: str
    gpus: int


NOTHING = Change("", "", 1)


def change(have: Spec | None, want: Spec | None) -> Change | None:
    """How to get from one layout to the next; none: there is no single collective for it."""
    if have is None or want is None or have == want:
        return NOTHING
    more = [w > h for h, w in zip(have.pieces, want.pieces, strict=True)]
    if have.copies > want.copies:
        ratio, rest = divmod(have.copies, want.copies)
        return Change("split", "all_gather", ratio) if any(more) and not rest else None
    for index, (h, w) in enumerate(zip(have.pieces, want.pieces, strict=True)):
        if h <= w:
            continue
        ratio, rest = divmod(h, w)
        if rest:
            return None
        if have.copies < want.copies:
            return Change("all_gather", "split", ratio)
        if any(flag for other, flag in enumerate(more) if other != index):
            return Change("all_to_all", "all_to_all", ratio)
    return None
