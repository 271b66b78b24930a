"""SimuMax's recompute switches and ours."""

from __future__ import annotations

from typing import Any

from shardwise.inputs.foreign import Foreign
from shardwise.inputs.recompute import MODULES, Recompute

_WHOLE = {"attn_only": ("attention",), "mlp_only": ("mlp-norm", "ffn"), "sdp_only": ("core-attention",)}
_SWITCHES = {
    "attn_recompute": "attention",
    "mla_rms_recompute": "attention-norm",
    "mlp_recompute": "ffn",
    "mlp_rms_recompute": "mlp-norm",
}
_MEGATRON = {
    "layernorm": ("attention-norm", "mlp-norm"),
    "mla_up_proj": ("mla-up",),
    "moe_act": ("moe-act",),
    "mlp": ("mlp",),
    "moe": ("mlp",),
    "core_attn": ("core-attention",),
}


def read_recompute(keys: Foreign) -> Recompute:
    """What is recomputed, and in how many leading layers of each stage."""
    granularities = ("full_block", *_WHOLE, "selective_recompute")
    granularity = (
        keys.text("recompute_granularity", "", choices=granularities) if keys.has("recompute_granularity") else ""
    )
    count = keys.whole("recompute_layer_num", 0, row="Recompute.layers")
    modules = _switched(keys)
    if keys.switch("megatron_recompute", default=False):
        return _recompute(False, _megatron(keys), ())
    if not keys.switch("enable_recompute", default=True) or not granularity or not count:
        return Recompute()
    if granularity == "selective_recompute" and not modules:
        keys.fault(
            "recompute_granularity",
            f"selective_recompute needs at least one of {', '.join(_SWITCHES)} to be true, or nothing is recomputed",
        )
    full = granularity == "full_block"
    return _recompute(full, () if full else _WHOLE.get(granularity, modules), (count,))


def _recompute(full: bool, modules: tuple[str, ...], layers: tuple[int, ...]) -> Recompute:
    ordered = tuple(sorted(set(modules), key=MODULES.index))
    return Recompute(full=full, modules=ordered, layers=layers) if full or ordered else Recompute()


def _switched(keys: Foreign) -> tuple[str, ...]:
    on = {name: keys.switch(name, default=False) for name in _SWITCHES}
    for norm, block in (("mla_rms_recompute", "attn_recompute"), ("mlp_rms_recompute", "mlp_recompute")):
        if on[norm] and not on[block]:
            keys.fault(norm, f"is true without {block}; set {block} to true as well, or this to false")
    return tuple(_SWITCHES[name] for name, value in on.items() if value)


def _megatron(keys: Foreign) -> tuple[str, ...]:
    names = keys.data.get("megatron_recompute_modules") or []
    keys.read.add("megatron_recompute_modules")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        keys.fault("megatron_recompute_modules", f"must be a list of {', '.join(_MEGATRON)}")
        return ()
    for name in names:
        if name not in _MEGATRON:
            keys.fault("megatron_recompute_modules", f"{name!r} is none of {', '.join(_MEGATRON)}")
    return tuple(module for name in names for module in _MEGATRON.get(name, ()))


def write_recompute(recompute: Recompute) -> dict[str, Any]:
    """SimuMax's switches; one number of layers for all stages is all that it can say."""
    if not recompute.active:
        return {"enable_recompute": False}
    # 1,000 layers: more than any stage holds, so all of them.
    found: dict[str, Any] = {"enable_recompute": True, "recompute_layer_num": max(recompute.layers, default=1000)}
    if recompute.full:
        return {**found, "recompute_granularity": "full_block"}
    whole = next((name for name, modules in _WHOLE.items() if modules == recompute.modules), "selective_recompute")
    switches = {name: module in recompute.modules for name, module in _SWITCHES.items()}
    return {**found, "recompute_granularity": whole, **(switches if whole == "selective_recompute" else {})}
