"""Groups of keys of a config.json, each as some classes of transformers read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.errors import InputError
from shardwise.inputs.model import Model

Keys = dict[str, Any]
Group = Callable[[Model], Keys]


def sizes(model: Model) -> Keys:
    return {
        "hidden_size": model.hidden, "num_hidden_layers": model.layers, "num_attention_heads": model.heads,
        "vocab_size": model.vocab, "tie_word_embeddings": model.tied,
    }  # fmt: skip


def grouped(model: Model) -> Keys:
    return {"num_key_value_heads": model.kv_heads, "head_dim": model.head_size}


def kv_only(model: Model) -> Keys:
    """Of an architecture whose heads share the width: another size of head is told when it is read back."""
    return {"num_key_value_heads": model.kv_heads}


_ACTS = {
    "swiglu": "silu",
    "geglu": "gelu_pytorch_tanh",
    "gelu": "gelu_pytorch_tanh",
    "relu": "relu",
    "squared-relu": "relu2",
}


def gated(model: Model) -> Keys:
    if not model.gated:
        raise InputError("the feed-forward block of this architecture has a gate")
    return {"intermediate_size": model.ffn, "hidden_act": _ACTS[model.activation]}


def ungated(model: Model) -> Keys:
    if model.gated:
        raise InputError("the feed-forward block of this architecture has no gate")
    return {"intermediate_size": model.ffn, "hidden_act": _ACTS[model.activation]}


def gemma_gated(model: Model) -> Keys:
    return {**gated(model), "hidden_activation": _ACTS[model.activation]}


def rms(model: Model) -> Keys:
    return {"rms_norm_eps": model.norm_eps}


def layernorm(model: Model) -> Keys:
    return {"layer_norm_eps": model.norm_eps}


def rotary_keys(model: Model) -> Keys:
    """Transformers 5 keeps all of it in `rope_parameters`."""
    return {"rope_parameters": rope_keys(model), "max_position_embeddings": longest(model)}


def partial_rotary(model: Model) -> Keys:
    return {
        "rope_parameters": {**rope_keys(model), "partial_rotary_factor": model.rotary_share},
        "partial_rotary_factor": model.rotary_share,
        "max_position_embeddings": longest(model),
    }


def two_ropes(model: Model) -> Keys:
    """Gemma 3 turns the layers with a window by a base of its own."""
    base = model.window_rotary_base
    local = {"rope_type": "default", "rope_theta": base} if base else rope_keys(model)
    return rotary_keys(model) | {"rope_parameters": {"full_attention": rope_keys(model), "sliding_attention": local}}


def capped(model: Model) -> Keys:
    return {
        "query_pre_attn_scalar": model.query_scalar or model.head_size,
        "attn_logit_softcapping": model.score_cap or None, "final_logit_softcapping": model.logit_cap or None,
    }  # fmt: skip


_SCALED = {
    "linear": {},
    "dynamic": {},
    "yarn": {
        "beta_fast": "beta_fast", "beta_slow": "beta_slow", "mscale": "mscale", "mscale_all_dim": "mscale_all",
        "truncate": "truncate",
    },
    "llama3": {"low_freq_factor": "low", "high_freq_factor": "high"},
}  # fmt: skip


def rope_keys(model: Model) -> Keys:
    scaling = model.rope_scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": model.rotary_base}
    own = {theirs: getattr(scaling, ours) for theirs, ours in _SCALED[scaling.kind].items()}
    if scaling.kind == "yarn" and not scaling.mscale_all:  # transformers takes the pair or neither
        own = {name: value for name, value in own.items() if not name.startswith("mscale")}
    original = {} if scaling.kind in {"linear", "dynamic"} else {"original_max_position_embeddings": scaling.original}
    return {
        "rope_type": scaling.kind, "rope_theta": model.rotary_base, "factor": scaling.factor, **original, **own,
    }  # fmt: skip


LONGEST = 131_072
"""Positions of a rotary model: no table depends on it."""


def longest(model: Model) -> int:
    scaling = model.rope_scaling
    if scaling is None or not scaling.original:
        return LONGEST
    return scaling.original if scaling.kind == "dynamic" else int(scaling.original * scaling.factor)


def attention_bias(model: Model) -> Keys:
    return {"attention_bias": model.qkv_bias}


def mlp_bias(model: Model) -> Keys:
    return {"mlp_bias": model.mlp_bias}


def layer_windows(model: Model) -> Keys:
    """The window of every layer; transformers knows one width."""
    if not any(model.windows):
        return {"sliding_window": None}
    layers = [model.window_of(layer) for layer in range(model.layers)]
    kinds = ["sliding_attention" if window else "full_attention" for window in layers]
    return {"sliding_window": max(layers), "layer_types": kinds, "use_sliding_window": True}


def one_window(model: Model) -> Keys:
    """One window for all layers, or none."""
    return {"sliding_window": model.windows[0] if model.windows else None}


def no_dropout(_model: Model) -> Keys:
    return {"attention_dropout": 0.0}


def routed(names: dict[str, str]) -> Group:
    """The experts by an architecture's own names for them."""

    def group(model: Model) -> Keys:
        if model.moe is None:
            raise InputError("this architecture has experts")
        return {theirs: getattr(model.moe, ours) for ours, theirs in names.items()}

    return group


def balance_keys(model: Model) -> Keys:
    loss = model.moe.balance_loss if model.moe else 0.0
    return {"router_aux_loss_coef": loss, "output_router_logits": loss > 0}


def shared_count(model: Model) -> Keys:
    moe = model.moe
    if moe is None or not moe.shared_ffn:
        raise InputError("this architecture has a shared expert")
    return {"n_shared_experts": moe.shared_ffn // moe.expert_ffn}


def leading_dense(model: Model) -> Keys:
    moe = model.moe
    return {"first_k_dense_replace": moe.first_dense if moe else model.layers}


def sparse_step(model: Model) -> Keys:
    """Qwen counts the step from the first layer, whether that is dense or not; we from the last dense one."""
    moe = model.moe
    if moe is None or (moe.first_dense % moe.every and moe.every > 1):
        return {}
    return {"decoder_sparse_step": moe.every, "mlp_only_layers": list(range(moe.first_dense))}


def expert_groups(model: Model) -> Keys:
    moe = model.moe
    if moe is None:
        return {}
    return {"n_group": moe.groups, "topk_group": moe.top_groups}


def choice_keys(model: Model) -> Keys:
    """DeepSeek-V2's ways to choose experts."""
    grouped = model.moe is not None and model.moe.groups > 1
    return {"topk_method": "group_limited_greedy" if grouped else "greedy"}


def latent_keys(model: Model) -> Keys:
    mla = model.mla
    if mla is None:
        raise InputError("the attention of this architecture is latent")
    return {
        "kv_lora_rank": mla.kv_rank, "q_lora_rank": mla.q_rank or None, "qk_nope_head_dim": mla.nope_size,
        "qk_rope_head_dim": mla.rope_size, "v_head_dim": mla.value_size, "num_key_value_heads": model.kv_heads,
    }  # fmt: skip


def gpt2_keys(model: Model) -> Keys:
    return {
        "n_embd": model.hidden, "n_layer": model.layers, "n_head": model.heads, "n_inner": model.ffn,
        "vocab_size": model.vocab, "n_positions": model.max_positions, "tie_word_embeddings": model.tied,
        "layer_norm_epsilon": model.norm_eps,
        "activation_function": "relu" if model.activation == "relu" else "gelu_new",
        **dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), model.dropout),
    }  # fmt: skip


def opt_keys(model: Model) -> Keys:
    return {
        "ffn_dim": model.ffn, "activation_function": _ACTS[model.activation], "enable_bias": model.qkv_bias,
        "max_position_embeddings": max(model.max_positions - 2, 0), "dropout": model.dropout,
        "attention_dropout": model.dropout, "word_embed_proj_dim": model.embedding_size or model.hidden,
        "do_layer_norm_before": True,
    }  # fmt: skip


def neox_keys(model: Model) -> Keys:
    return {
        "intermediate_size": model.ffn,
        "hidden_act": "gelu_fast" if model.activation == "gelu" else _ACTS[model.activation],
        "use_parallel_residual": model.parallel_residual, "attention_bias": model.qkv_bias,
        "rope_parameters": {**rope_keys(model), "partial_rotary_factor": model.rotary_share},
        "rotary_pct": model.rotary_share,
        "max_position_embeddings": longest(model), "attention_dropout": model.dropout, "hidden_dropout": model.dropout,
    }  # fmt: skip


def bloom_keys(model: Model) -> Keys:
    return {
        "hidden_size": model.hidden, "n_layer": model.layers, "n_head": model.heads, "vocab_size": model.vocab,
        "tie_word_embeddings": model.tied, "layer_norm_epsilon": model.norm_eps, "hidden_dropout": model.dropout,
        "attention_dropout": model.dropout,
    }  # fmt: skip


def falcon_keys(model: Model) -> Keys:
    if model.norms_per_layer > 2:
        raise InputError("this architecture has one norm a layer or two")
    newer = 1 < model.kv_heads < model.heads
    return {
        "multi_query": model.kv_heads == 1, "new_decoder_architecture": newer, "bias": model.qkv_bias,
        "parallel_attn": model.parallel_residual, "alibi": model.position == "alibi", "ffn_hidden_size": model.ffn,
        "layer_norm_epsilon": model.norm_eps, "activation": "gelu",
        **({"num_kv_heads": model.kv_heads, "num_ln_in_parallel_attn": model.norms_per_layer} if newer else {}),
    }  # fmt: skip


def mpt_keys(model: Model) -> Keys:
    return {
        "d_model": model.hidden, "n_layers": model.layers, "n_heads": model.heads, "vocab_size": model.vocab,
        "expansion_ratio": model.ffn // model.hidden, "no_bias": not model.qkv_bias,
        "layer_norm_epsilon": model.norm_eps,
        "attn_config": {"alibi": model.position == "alibi"}, "tie_word_embeddings": model.tied,
        "resid_pdrop": model.dropout,
    }  # fmt: skip


def phi_keys(model: Model) -> Keys:
    return {"resid_pdrop": model.dropout, "attention_dropout": model.dropout}


def starcoder_keys(model: Model) -> Keys:
    return {
        "use_bias": model.qkv_bias, "norm_epsilon": model.norm_eps, "residual_dropout": model.dropout,
        "attention_dropout": model.dropout,
    }  # fmt: skip


def nemotron_keys(model: Model) -> Keys:
    return {"attention_bias": model.qkv_bias, "mlp_bias": model.mlp_bias, "norm_eps": model.norm_eps}


def qk_switch(model: Model) -> Keys:
    return {"use_qk_norm": model.qk_norm == "head"}
