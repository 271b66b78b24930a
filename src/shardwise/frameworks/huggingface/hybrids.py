"""Architectures whose layers are not all attention with a feed-forward block: what a config.json says of each.

A reader takes the keys and our fields so far and returns the fields that make the pattern. Published files and
transformers 5 spell some patterns differently; both are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.frameworks.huggingface.keys import Keys
from shardwise.inputs.mixers import Feed, Mixer, Recurrent, RecurrentKind, Sparse, shortest
from shardwise.inputs.model import Moe

Fields = dict[str, Any]

_MIXERS: dict[str, Mixer] = {
    "attention": "attention", "full_attention": "attention", "sliding_attention": "attention", "*": "attention",
    "mamba": "recurrent", "mamba2": "recurrent", "linear_attention": "recurrent", "conv": "recurrent", "m": "recurrent",
    "moe": "none", "mlp": "none", "e": "none", "-": "none",
}  # fmt: skip
_ALONE: dict[Any, Feed] = {"moe": "experts", "e": "experts", "mlp": "dense", "-": "dense"}
_MTP_SIGNS = "/"
"""What follows it in Nemotron's pattern are layers of multi-token prediction."""


def mixers_of(words: Sequence[Any], key: str, layers: int) -> tuple[Mixer, ...]:
    """What mixes tokens in every layer, by the words of a file."""
    if len(words) != layers:
        raise InputError(Fault(key, f"names {len(words)} layers, the model has {layers}; make them equal"))
    strange = sorted({str(word) for word in words if str(word).lower() not in _MIXERS})
    if strange:
        raise InputError(Fault(key, f"{', '.join(strange)[:80]} cannot be counted yet"))
    return shortest([_MIXERS[str(word).lower()] for word in words])


def _need(keys: Keys, *names: str) -> int:
    value = keys.whole(*names)
    if not value:
        raise InputError(Fault(names[0], "is missing; the recurrent layers need it"))
    return value


def _mamba(keys: Keys, hidden: int, kind: RecurrentKind, *, normed: bool) -> Recurrent:
    """Mamba's sizes by any of their names."""
    state = _need(keys, "mamba_d_state", "state_size", "ssm_state_size", "d_state")
    conv = keys.whole("mamba_d_conv", "conv_kernel", "d_conv") or 4
    biased = keys.switch("mamba_conv_bias", "use_conv_bias", "conv_bias")
    bias = keys.switch("mamba_proj_bias", "use_bias", "projectors_bias")
    width = keys.whole("mamba_d_ssm", "mamba_intermediate_size", "d_inner")
    expand = keys.whole("mamba_expand", "expand") or 2
    more: dict[str, Any] = {"conv": conv, "conv_bias": biased is not False, "bias": bool(bias), "normed": normed}
    if kind == "mamba":
        rank = keys.whole("mamba_dt_rank", "time_step_rank", "dt_rank") or -(-hidden // 16)
        return Recurrent(kind=kind, heads=width or expand * hidden, state=state, rank=rank, **more)
    heads = _need(keys, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
    size = keys.whole("mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim")
    groups = keys.whole("mamba_n_groups", "n_groups", "mamba_ngroups") or 1
    chunk = keys.whole("mamba_chunk_size", "chunk_size") or 256
    size = size or (width or expand * hidden) // heads
    return Recurrent(
        kind=kind, heads=heads, head_size=size, state=state, key_heads=0 if groups == heads else groups, chunk=chunk,
        **more,
    )  # fmt: skip


def _delta(keys: Keys, _fields: Fields) -> Recurrent:
    heads, keyed = _need(keys, "linear_num_value_heads"), _need(keys, "linear_num_key_heads")
    return Recurrent(
        kind="delta", heads=heads, head_size=_need(keys, "linear_value_head_dim"),
        state=_need(keys, "linear_key_head_dim"), key_heads=0 if keyed == heads else keyed,
        conv=keys.whole("linear_conv_kernel_dim") or 4,
    )  # fmt: skip


def _layer_types(keys: Keys, layers: int, step: int = 0) -> tuple[Mixer, ...]:
    """A list of words, or every `step`-th layer with full attention."""
    words = keys.items("layer_types")
    if words:
        return mixers_of(words, "layer_types", layers)
    every: list[Mixer] = ["recurrent"] * (step - 1)
    return (*every, "attention") if step > 1 else ()


def _qwen_next(keys: Keys, fields: Fields) -> Fields:
    step = keys.whole("full_attention_interval") or 4
    keys.passed("attn_output_gate", "mamba_ssm_dtype", "output_gate_type")
    moe = fields["moe"]
    return {
        "recurrent": _delta(keys, fields), "mixers": _layer_types(keys, fields["layers"], step),
        "attention_gate": True, "windows": (), "moe": moe and replace(moe, shared_gate=moe.shared_ffn > 0),
    }  # fmt: skip


def _olmo_hybrid(keys: Keys, fields: Fields) -> Fields:
    return {
        "recurrent": _delta(keys, fields),
        "mixers": _layer_types(keys, fields["layers"], 4),
        "windows": (),
        "qk_norm": "full",
    }


def _nemotron_h(keys: Keys, fields: Fields) -> Fields:
    """Every block is a layer; a text of signs, or a list of words."""
    signs = str(keys.get("hybrid_override_pattern") or "").partition(_MTP_SIGNS)[0]
    words: list[Any] = list(signs) if signs else keys.items("layers_block_type")
    key = "hybrid_override_pattern" if signs else "layers_block_type"
    if not words:
        raise InputError(Fault(key, "is missing; it says what every layer is"))
    mixers = mixers_of(words, key, len(words))
    feeds: list[Feed] = [_ALONE.get(str(word).lower(), "none") for word in words]
    moe: Moe | None = fields["moe"] if "experts" in feeds else None
    shared = keys.whole("moe_shared_expert_intermediate_size")
    if keys.whole("moe_latent_size"):
        raise InputError(Fault("moe_latent_size", "experts behind a narrower projection cannot be counted yet"))
    return {
        "layers": len(words), "mixers": mixers, "feeds": shortest(feeds), "windows": (), "position": "none",
        "recurrent": _mamba(keys, fields["hidden"], "mamba2", normed=True),
        "moe": moe and replace(moe, first_dense=0, every=1, shared_ffn=shared or moe.shared_ffn, score="sigmoid"),
    }  # fmt: skip


def _bamba(keys: Keys, fields: Fields) -> Fields:
    chosen = keys.items("attn_layer_indices")
    words = ["attention" if index in chosen else "mamba" for index in range(fields["layers"])]
    mixers = mixers_of(words, "attn_layer_indices", fields["layers"])
    return {"recurrent": _mamba(keys, fields["hidden"], "mamba2", normed=True), "mixers": mixers, "windows": ()}


def _granite_hybrid(keys: Keys, fields: Fields) -> Fields:
    """Its dense part is called shared, and stands beside the experts where there are any."""
    words = keys.items("layer_types") or keys.items("layers_block_type")
    shared = _need(keys, "shared_intermediate_size")
    moe: Moe | None = fields["moe"]
    mixers = mixers_of(words, "layer_types", fields["layers"])
    named = keys.get("position_embedding_type")
    found: Fields = {
        "mixers": mixers, "windows": (), "ffn": shared, "position": "rope" if named == "rope" else "none",
        "moe": moe and replace(moe, shared_ffn=shared),
    }  # fmt: skip
    if "recurrent" in mixers:
        found["recurrent"] = _mamba(keys, fields["hidden"], "mamba2", normed=True)
    return found


def _falcon_h1(keys: Keys, fields: Fields) -> Fields:
    normed = bool(keys.switch("mamba_rms_norm"))
    keys.passed("mamba_norm_before_gate", "mamba_use_mlp")
    return {"recurrent": _mamba(keys, fields["hidden"], "mamba2", normed=normed), "mixers": ("both",), "windows": ()}


def _jamba(keys: Keys, fields: Fields) -> Fields:
    period, offset = _need(keys, "attn_layer_period"), keys.whole("attn_layer_offset") or 0
    mixers: list[Mixer] = ["attention" if at % period == offset else "recurrent" for at in range(fields["layers"])]
    step, first = keys.whole("expert_layer_period") or 1, keys.whole("expert_layer_offset") or 0
    feeds: list[Feed] = ["experts" if at % step == first else "dense" for at in range(fields["layers"])]
    keys.passed("mamba_inner_layernorms")
    moe: Moe | None = fields["moe"]
    return {
        "recurrent": _mamba(keys, fields["hidden"], "mamba", normed=True), "mixers": shortest(mixers), "windows": (),
        "feeds": shortest(feeds) if moe else (), "position": "none", "moe": moe,
    }  # fmt: skip


def _only(kind: RecurrentKind, *, normed: bool) -> Callable[[Keys, Fields], Fields]:
    """Nothing but a mixer in every layer, with one norm."""

    def read(keys: Keys, fields: Fields) -> Fields:
        mixer = _mamba(keys, fields["hidden"], kind, normed=normed)
        return {
            "recurrent": mixer, "mixers": ("recurrent",), "feeds": ("none",), "windows": (), "position": "none",
            "heads": mixer.heads, "kv_heads": mixer.heads, "head_size": mixer.head_size, "ffn": 0,
        }  # fmt: skip

    return read


def _kimi(keys: Keys, fields: Fields) -> Fields:
    """Moonshot's own file counts layers from 1 and keeps the sizes in a table."""
    table = keys.data.get("linear_attn_config")
    own = Keys(table) if isinstance(table, dict) else keys
    layers = fields["layers"]
    if own is not keys:
        keys.read.add("linear_attn_config")
        full = own.items("full_attn_layers")
        mixers = shortest(["attention" if index + 1 in full else "recurrent" for index in range(layers)])
    else:
        mixers = tuple(_layer_types(keys, layers))
    size = _need(own, "head_dim", "linear_head_dim") if own is not keys else _need(keys, "linear_head_dim")
    heads = _need(own, "num_heads") if own is not keys else _need(keys, "linear_num_heads")
    conv = own.whole("short_conv_kernel_size", "linear_conv_kernel_dim") or 4
    recurrent = Recurrent(kind="kda", heads=heads, head_size=size, state=size, rank=size, conv=conv)
    return {"recurrent": recurrent, "mixers": mixers, "windows": (), "position": "none"}


def _minimax(keys: Keys, fields: Fields) -> Fields:
    """MiniMax's own file says 1 for softmax and 0 for lightning attention."""
    signs = keys.items("attn_type_list")
    mixers = (
        shortest(["attention" if sign else "recurrent" for sign in signs])
        if signs
        else _layer_types(keys, fields["layers"], 8)
    )
    heads, size = fields["heads"], fields["head_size"]
    chunk = keys.whole("block_size") or 256
    recurrent = Recurrent(kind="lightning", heads=heads, head_size=size, state=size, conv=0, chunk=chunk)
    return {"recurrent": recurrent, "mixers": mixers, "windows": ()}


def _lfm(keys: Keys, fields: Fields) -> Fields:
    """LFM2 rounds its feed-forward width as Llama's first files did."""
    full = keys.items("full_attn_idxs")
    words = keys.items("layer_types") or ["attention" if at in full else "conv" for at in range(fields["layers"])]
    ffn, hidden = fields["ffn"], fields["hidden"]
    if keys.switch("block_auto_adjust_ff_dim"):
        of = keys.whole("block_multiple_of") or 256
        factor = keys.number("block_ffn_dim_multiplier", row="Model.rotary_share") or 1.0
        ffn = -(-int(factor * int(2 * ffn / 3)) // of) * of
    mixers = mixers_of(words, "layer_types", fields["layers"])
    biased = bool(keys.switch("conv_bias"))
    conv = Recurrent(kind="conv", heads=hidden, conv=keys.whole("conv_L_cache") or 3, conv_bias=biased, bias=biased)
    used = {"recurrent": conv} if "recurrent" in mixers else {}
    keys.passed("block_dim", "block_ff_dim", "block_norm_eps", "block_use_swiglu", "use_pos_enc", "conv_dim")
    return {**used, "mixers": mixers if used else (), "windows": (), "ffn": ffn, "qk_norm": "head"}


def _sparse(keys: Keys, _fields: Fields) -> Fields:
    heads = _need(keys, "index_n_heads")
    sparse = Sparse(heads=heads, head_size=_need(keys, "index_head_dim"), top_k=_need(keys, "index_topk"))
    keys.passed("layer_types")
    return {"sparse": sparse, "windows": ()}


HYBRIDS: dict[str, Callable[[Keys, Fields], Fields]] = {
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _qwen_next),
    "olmo_hybrid": _olmo_hybrid,
    "nemotron_h": _nemotron_h,
    "bamba": _bamba,
    "granitemoehybrid": _granite_hybrid,
    "falcon_h1": _falcon_h1,
    "jamba": _jamba,
    "mamba": _only("mamba", normed=False),
    "falcon_mamba": _only("mamba", normed=False),
    "mamba2": _only("mamba2", normed=True),
    "kimi_linear": _kimi,
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), _minimax),
    **dict.fromkeys(("lfm2", "lfm2_moe"), _lfm),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _sparse),
}
"""By model_type; whatever else has such layers is refused."""
HEADLESS = frozenset({"mamba", "mamba2", "falcon_mamba"})
"""Architectures without attention, whose files have no heads of it."""
LISTED = frozenset({"nemotron_h"})
"""Architectures whose list of blocks says how many there are."""
