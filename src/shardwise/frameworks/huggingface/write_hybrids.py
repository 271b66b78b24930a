"""Groups of keys of architectures whose layers are not all alike: the inverse of `hybrids.py`, and held to it."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.errors import InputError
from shardwise.frameworks.huggingface.groups import (
    Group,
    Keys,
    attention_bias,
    balance_keys,
    expert_groups,
    gated,
    grouped,
    kv_only,
    latent_keys,
    leading_dense,
    mlp_bias,
    no_dropout,
    partial_rotary,
    rms,
    rotary_keys,
    routed,
    shared_count,
    sizes,
    sparse_step,
    ungated,
)
from shardwise.inputs.mixers import Recurrent
from shardwise.inputs.model import Model, Moe


def _mixer(model: Model, *kinds: str) -> Recurrent:
    if model.recurrent is None or model.recurrent.kind not in kinds:
        raise InputError(f"this architecture has {' or '.join(kinds)} layers")
    return model.recurrent


def _moe(model: Model) -> Moe:
    if model.moe is None:
        raise InputError("this architecture has experts")
    return model.moe


def _layer_types(model: Model) -> Keys:
    words = {"attention": "full_attention", "recurrent": "linear_attention"}
    if not set(model.mixers) <= words.keys():
        raise InputError("every layer of this architecture has attention or a recurrence")
    return {"layer_types": [words[model.mixer_of(index)] for index in range(model.layers)]}


def _delta(model: Model) -> Keys:
    own = _mixer(model, "delta")
    return {
        "linear_num_value_heads": own.heads, "linear_num_key_heads": own.key_heads or own.heads,
        "linear_value_head_dim": own.head_size, "linear_key_head_dim": own.state, "linear_conv_kernel_dim": own.conv,
    }  # fmt: skip


def _mamba2(model: Model, prefix: str = "mamba_") -> Keys:
    own = _mixer(model, "mamba2")
    return {
        f"{prefix}n_heads": own.heads, f"{prefix}d_head": own.head_size, f"{prefix}d_state": own.state,
        f"{prefix}n_groups": own.key_heads or own.heads, f"{prefix}d_conv": own.conv,
        f"{prefix}conv_bias": own.conv_bias, f"{prefix}proj_bias": own.bias, f"{prefix}chunk_size": own.chunk,
        f"{prefix}expand": _expand(own, model),
    }  # fmt: skip


def _expand(own: Recurrent, model: Model) -> int:
    """Width over hidden; where it is no whole number the heads say it."""
    return own.width // model.hidden if own.width % model.hidden == 0 else 2


def _nemotron_h(model: Model) -> Keys:
    own = _mixer(model, "mamba2")
    blocks = {
        ("recurrent", "none"): "linear_attention", ("attention", "none"): "full_attention", ("none", "dense"): "mlp",
        ("none", "experts"): "moe",
    }  # fmt: skip
    of = [(model.mixer_of(index), model.feed_of(index)) for index in range(model.layers)]
    if not set(of) <= blocks.keys():
        raise InputError("every layer of this architecture is a single block")
    found: Keys = {
        "layers_block_type": [blocks[one] for one in of], "mamba_num_heads": own.heads,
        "mamba_head_dim": own.head_size, "ssm_state_size": own.state, "n_groups": own.key_heads or own.heads,
        "conv_kernel": own.conv, "use_conv_bias": own.conv_bias, "mamba_proj_bias": own.bias, "chunk_size": own.chunk,
        "expand": _expand(own, model), "layer_norm_epsilon": model.norm_eps, "attention_bias": model.qkv_bias,
        "mlp_bias": model.mlp_bias, "mlp_hidden_act": "relu2", "max_position_embeddings": 8192,
    }  # fmt: skip
    moe = model.moe
    if moe:
        found |= {
            "n_routed_experts": moe.experts, "num_experts_per_tok": moe.top_k, "moe_intermediate_size": moe.expert_ffn,
            "moe_shared_expert_intermediate_size": moe.shared_ffn, "n_shared_experts": 1, "n_group": moe.groups,
            "topk_group": moe.top_groups, "norm_topk_prob": moe.normalised, "routed_scaling_factor": moe.scale,
            "router_aux_loss_coef": moe.balance_loss,
        }  # fmt: skip
    return found


def _kimi(model: Model) -> Keys:
    own, moe = _mixer(model, "kda"), _moe(model)
    return {
        "linear_num_heads": own.heads, "linear_head_dim": own.head_size, "linear_conv_kernel_dim": own.conv,
        "num_experts": moe.experts, "num_experts_per_token": moe.top_k, "moe_intermediate_size": moe.expert_ffn,
        "num_shared_experts": moe.shared_ffn // moe.expert_ffn, "moe_renormalize": moe.normalised,
        "routed_scaling_factor": moe.scale, "num_expert_group": moe.groups, "topk_group": moe.top_groups,
        "n_group": moe.groups,
    }  # fmt: skip


def _feed_words(model: Model) -> Keys:
    return {"mlp_layer_types": ["sparse" if model.is_moe_layer(at) else "dense" for at in range(model.layers)]}


def _jamba(model: Model) -> Keys:
    own, moe = _mixer(model, "mamba"), _moe(model)
    attention, experts = list(model.mixers), list(model.feeds) or ["experts"]
    if attention.count("attention") != 1 or experts.count("experts") != 1:
        raise InputError("one layer of a period has attention in this architecture, and one of another has experts")
    return {
        "attn_layer_period": len(attention), "attn_layer_offset": attention.index("attention"),
        "expert_layer_period": len(experts), "expert_layer_offset": experts.index("experts"),
        "mamba_d_state": own.state, "mamba_d_conv": own.conv, "mamba_expand": _expand(own, model),
        "mamba_dt_rank": own.rank, "mamba_conv_bias": own.conv_bias, "mamba_proj_bias": own.bias,
        "num_experts": moe.experts, "num_experts_per_tok": moe.top_k, "use_mamba_kernels": False,
    }  # fmt: skip


def _minimax(model: Model) -> Keys:
    return {"block_size": _mixer(model, "lightning").chunk}


def _granite(model: Model) -> Keys:
    moe = model.moe
    return {
        "intermediate_size": moe.expert_ffn if moe else model.ffn, "hidden_act": "silu",
        "shared_intermediate_size": moe.shared_ffn if moe else model.ffn,
        "num_local_experts": moe.experts if moe else 0, "num_experts_per_tok": moe.top_k if moe else 0,
        "position_embedding_type": "rope" if model.position == "rope" else "nope",
    }  # fmt: skip


def _alone(kind: str) -> Group:
    def group(model: Model) -> Keys:
        own = _mixer(model, kind)
        found: Keys = {
            "hidden_size": model.hidden, "num_hidden_layers": model.layers, "vocab_size": model.vocab,
            "tie_word_embeddings": model.tied, "state_size": own.state, "conv_kernel": own.conv,
            "expand": own.width // model.hidden, "use_conv_bias": own.conv_bias, "use_bias": own.bias,
            "layer_norm_epsilon": model.norm_eps,
        }  # fmt: skip
        if kind == "mamba":
            return found | {"time_step_rank": own.rank}
        groups = own.key_heads or own.heads
        return found | {"num_heads": own.heads, "head_dim": own.head_size, "n_groups": groups, "chunk_size": own.chunk}

    return group


def _of_experts(names: dict[str, str]) -> Group:
    """Experts whose width is the file's only one."""

    def group(model: Model) -> Keys:
        moe = _moe(model)
        return {"intermediate_size": moe.expert_ffn, "hidden_act": "silu"} | {
            theirs: getattr(moe, ours) for ours, theirs in names.items()
        }

    return group


def _indexer(model: Model) -> Keys:
    own = model.sparse
    if own is None:
        raise InputError("the attention of this architecture is sparse")
    return {"index_n_heads": own.heads, "index_head_dim": own.head_size, "index_topk": own.top_k}


def _llama4(model: Model) -> Keys:
    moe = _moe(model)
    if not model.chunked:
        raise InputError("the windows of this architecture are chunks")
    windows: Sequence[int] = [model.window_of(index) for index in range(model.layers)]
    kinds = ["chunked_attention" if window else "full_attention" for window in windows]
    return {
        "attention_chunk_size": max(windows), "layer_types": kinds, "intermediate_size_mlp": model.ffn,
        "interleave_moe_layer_step": moe.every,
    }  # fmt: skip


_FEW = {"experts": "num_local_experts", "top_k": "num_experts_per_tok"}
_NAMED = {
    "experts": "num_experts", "top_k": "num_experts_per_tok", "expert_ffn": "moe_intermediate_size",
    "normalised": "norm_topk_prob", "shared_ffn": "shared_expert_intermediate_size",
}  # fmt: skip
_DEEP = {
    "experts": "n_routed_experts", "top_k": "num_experts_per_tok", "expert_ffn": "moe_intermediate_size",
    "normalised": "norm_topk_prob", "scale": "routed_scaling_factor", "balance_loss": "aux_loss_alpha",
}  # fmt: skip
_CHOSEN = (
    sizes, latent_keys, gated, rms, rotary_keys, attention_bias, no_dropout, routed(_DEEP), shared_count,
    leading_dense, _feed_words, expert_groups, _indexer,
)  # fmt: skip

HYBRIDS_WRITTEN: dict[str, tuple[Group, ...]] = {
    "qwen3_next": (
        sizes, grouped, gated, rms, partial_rotary, attention_bias, no_dropout, routed(_NAMED), sparse_step,
        balance_keys, _layer_types, _delta,
    ),
    "nemotron_h": (sizes, grouped, ungated, _nemotron_h),
    "kimi_linear": (sizes, latent_keys, gated, rms, no_dropout, _layer_types, _feed_words, _kimi),
    "jamba": (sizes, kv_only, gated, rms, balance_keys, no_dropout, _jamba),
    "minimax": (
        sizes, grouped, rms, partial_rotary, no_dropout, balance_keys, _of_experts(_FEW), _layer_types, _minimax,
    ),
    "minimax_m2": (sizes, grouped, rms, partial_rotary, no_dropout, balance_keys, _of_experts(_FEW)),
    "granitemoehybrid": (
        sizes, kv_only, rms, attention_bias, no_dropout, balance_keys, _granite, _layer_types, _mamba2,
    ),
    "mamba": (_alone("mamba"),),
    "mamba2": (_alone("mamba2"),),
    "deepseek_v32": _CHOSEN,
    "glm_moe_dsa": _CHOSEN,
    "llama4_text": (
        sizes, grouped, rms, rotary_keys, attention_bias, no_dropout, balance_keys, mlp_bias, _of_experts(_FEW),
        _llama4,
    ),
}  # fmt: skip
