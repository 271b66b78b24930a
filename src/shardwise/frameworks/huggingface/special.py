"""Architectures whose config.json needs a sentence of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardwise.frameworks.huggingface.keys import Keys
from shardwise.inputs.model import Moe

Fields = dict[str, Any]


def _opt(keys: Keys, fields: Fields) -> Fields:
    # Positions start at 2; the 350M model has a narrower embedding.
    width = keys.whole("word_embed_proj_dim") or fields["hidden"]
    return {
        "max_positions": fields["max_positions"] + 2,
        "embedding_size": width if width != fields["hidden"] else 0,
    }


def _falcon(keys: Keys, fields: Fields) -> Fields:
    position = "alibi" if keys.switch("alibi") else "rope"
    # The original files of the 40B model say so by n_head_kv alone.
    if keys.switch("new_decoder_architecture") or (keys.get("n_head_kv") and not keys.switch("multi_query")):
        return {"position": position, "norms_per_layer": keys.whole("num_ln_in_parallel_attn") or 2}
    multi_query = keys.switch("multi_query") is not False
    parallel = fields.get("parallel_residual", True)
    return {
        "position": position,
        "kv_heads": 1 if multi_query else fields["heads"],
        "norms_per_layer": 1 if parallel else 2,
    }


def _mpt(keys: Keys, fields: Fields) -> Fields:
    biased = keys.switch("no_bias") is False
    alibi = keys.switch("alibi")
    learned = not alibi and keys.switch("learned_pos_emb") is not False
    return {
        "ffn": (keys.whole("expansion_ratio") or 4) * fields["hidden"],
        "position": "alibi" if alibi else "learned" if learned else "rope",
        "max_positions": (keys.whole("max_seq_len") or 0) if learned else 0,
        "qkv_bias": biased,
        "out_bias": biased,
        "mlp_bias": biased,
    }


def _gpt_bigcode(keys: Keys, fields: Fields) -> Fields:
    return {"kv_heads": 1 if keys.switch("multi_query") is not False else fields["heads"]}


def _gpt_neo(keys: Keys, fields: Fields) -> Fields:
    kinds = keys.items("attention_layers")
    local = keys.whole("window_size") or 256
    keys.get("attention_types")
    return {"windows": tuple(local if kind == "local" else 0 for kind in kinds[:2])} if "local" in kinds else fields


def _qwen(_keys: Keys, fields: Fields) -> Fields:
    # The first Qwen gives the two halves of its gate as one width.
    return {"ffn": fields["ffn"] // 2}


def _chatglm(keys: Keys, fields: Fields) -> Fields:
    grouped = keys.switch("multi_query_attention")
    keys.get("post_layer_norm", "rmsnorm", "original_rope")
    return {"kv_heads": fields["kv_heads"] if grouped else fields["heads"]}


def _dbrx(_keys: Keys, _fields: Fields) -> Fields:
    return {"tied": False}


def _with_biases(keys: Keys, fields: Fields) -> Fields:
    keys.get("experts_per_token")
    return {"moe": replace(_moe(fields), router_bias=True, expert_bias=True)} if fields["moe"] else {}


def _moe(fields: Fields) -> Moe:
    moe: Moe = fields["moe"]
    return moe


def _llama4(keys: Keys, fields: Fields) -> Fields:
    # Dense layers have a width of their own; every expert layer has one shared expert.
    moe_layers = keys.items("moe_layers")
    expert = fields["ffn"]
    if not fields["moe"]:
        return {}
    every = keys.whole("interleave_moe_layer_step") or (2 if moe_layers and len(moe_layers) < fields["layers"] else 1)
    moe = replace(_moe(fields), expert_ffn=expert, shared_ffn=expert, every=every)
    keys.get("no_rope_layers", "use_qk_norm", "attn_scale", "floor_scale", "attn_temperature_tuning")
    # Its norm on queries and keys has no weights.
    chunked = {"chunked": True} if any(fields["windows"]) else {}
    return {"moe": moe, "ffn": keys.whole("intermediate_size_mlp") or expert, "qk_norm": "none", **chunked}


def _cohere(_keys: Keys, fields: Fields) -> Fields:
    return {"qk_norm": "full"} if fields.get("qk_norm") == "head" else {}


def _biogpt(_keys: Keys, fields: Fields) -> Fields:
    return {"max_positions": fields["max_positions"] + 2}


def _hyperclovax(keys: Keys, _fields: Fields) -> Fields:
    return {"norms_per_layer": 4 if keys.switch("use_post_norm") else 2}


SPECIAL: dict[str, Callable[[Keys, Fields], Fields]] = {
    "biogpt": _biogpt,
    "hyperclovax": _hyperclovax,
    "opt": _opt,
    "falcon": _falcon,
    "refinedweb": _falcon,
    "refinedwebmodel": _falcon,
    "mpt": _mpt,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "qwen": _qwen,
    "chatglm": _chatglm,
    "dbrx": _dbrx,
    "gpt_oss": _with_biases,
    "llama4_text": _llama4,
    "cohere": _cohere,
    "cohere2": _cohere,
}
