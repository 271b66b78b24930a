"""What the architectures of Hugging Face's causal language models imply beyond the keys of their config.json.

A family says which of our fields it fixes, which of its keys switch a field, and how its sliding windows run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One `model_type`."""

    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Our fields that the architecture fixes whatever its file says, or that it takes where the file is silent."""
    switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Our field to the keys of its file that switch it; they go before `fixed`."""
    gated: bool = True
    """The feed-forward block has a gate."""
    ffn_factor: int = 0
    """Inner width over hidden where no key gives it; 0: a key must."""
    window: Literal["all", "alternate", "pattern", "never"] = "all"
    """How a lone `sliding_window` is spread: all layers, every other, by `sliding_window_pattern`, or not at all."""
    router: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a mixture of experts that hold where no key says them."""


_BIASES = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
_LAYERNORM = {"norm": "layernorm"}
_ATTENTION_BIAS = {"qkv_bias": ("attention_bias",), "out_bias": ("attention_bias",), "mlp_bias": ("mlp_bias",)}
_QKV_ONLY = {"qkv_bias": ("attention_bias",), "mlp_bias": ("mlp_bias",)}
_GPT2 = Family(
    fixed={
        **_LAYERNORM,
        **_BIASES,
        "position": "learned",
        "tied": True,
        "activation": "gelu",
        "gelu_steps": True,
    },
    gated=False,
    ffn_factor=4,
)
LLAMA = Family(switches=_ATTENTION_BIAS)
_FINE = {"norm_eps": 1e-6}
_PLAIN_SUM = {"normalised": False}
_BIASED_ROUTER = {"score": "sigmoid", "balance_bias": True}
_QWEN2 = Family(fixed={**_FINE, "qkv_bias": True}, window="never", router=_PLAIN_SUM)
_QWEN3 = Family(fixed={**_FINE, "qk_norm": "head"}, switches=_ATTENTION_BIAS, window="never", router=_PLAIN_SUM)
_QWEN_NEXT = Family(
    fixed={**_FINE, "qk_norm": "head", "norm_offset": True, "rotary_share": 0.25}, switches=_ATTENTION_BIAS,
    window="never", router={"normalised": True},
)  # fmt: skip
_DEEPSEEK = Family(fixed=_FINE, switches=_ATTENTION_BIAS, window="never", router=_PLAIN_SUM)
_DEEPSEEK3 = Family(fixed=_FINE, switches=_ATTENTION_BIAS, window="never", router=_BIASED_ROUTER)
_GEMMA = {**_FINE, "tied": True, "activation": "geglu", "norm_offset": True, "embedding_scaled": True}
_GEMMA2 = {**_GEMMA, "norms_per_layer": 4, "query_scalar": 256}
_GEMMA3 = Family(
    fixed={**_GEMMA2, "qk_norm": "head", "window_rotary_base": 10_000.0}, switches=_ATTENTION_BIAS, window="pattern"
)
_GPTJ = Family(
    fixed={
        **_LAYERNORM,
        "mlp_bias": True,
        "head_bias": True,
        "norms_per_layer": 1,
        "parallel_residual": True,
        "activation": "gelu",
    },
    gated=False,
    ffn_factor=4,
)
_FALCON = Family(
    fixed={
        **_LAYERNORM,
        "tied": True,
        "parallel_residual": True,
        "norms_per_layer": 1,
        "activation": "gelu",
        "fused_qkv": True,
    },
    switches={
        "qkv_bias": ("bias",),
        "out_bias": ("bias",),
        "mlp_bias": ("bias",),
        "parallel_residual": ("parallel_attn",),
    },
    gated=False,
    ffn_factor=4,
)
_GLM = Family(fixed={"rotary_share": 0.5}, switches=_QKV_ONLY, router=_BIASED_ROUTER)
_COHERE = Family(
    fixed={**_LAYERNORM, "norm_vectors": "one", "tied": True, "norms_per_layer": 1, "parallel_residual": True},
    switches=_ATTENTION_BIAS,
)
_INTERNLM = Family(switches={"qkv_bias": ("bias", "qkv_bias"), "out_bias": ("bias", "bias_o_proj")})

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "ministral", "granite", "granitemoe", "deci", "yi"), LLAMA),
    "olmoe": Family(fixed={"qk_norm": "full"}, switches=_ATTENTION_BIAS, router=_PLAIN_SUM),
    "flex_olmo": Family(fixed={"qk_norm": "full"}, switches=_ATTENTION_BIAS, router=_PLAIN_SUM),
    **dict.fromkeys(("exaone4", "exaone_moe"), Family(fixed={"qk_norm": "head"}, router=_BIASED_ROUTER)),
    "mellum": Family(fixed={**_FINE, "qk_norm": "head"}, router=_PLAIN_SUM),
    "jais2": Family(fixed={**_LAYERNORM, **_BIASES, "activation": "squared-relu"}, gated=False),
    "nanochat": Family(fixed={"activation": "squared-relu", "norm_vectors": "none"}, gated=False),
    "biogpt": Family(
        fixed={**_LAYERNORM, **_BIASES, "position": "learned", "tied": True, "activation": "gelu"}, gated=False
    ),
    **dict.fromkeys(
        (
            "aria_text",
            "cwm",
            "emu3",
            "emu3_text_model",
            "ministral3",
            "solar_open",
            "youtu",
            "granitemoeshared",
            "helium",
            "hyperclovax",
        ),
        LLAMA,
    ),
    "vaultgemma": Family(fixed={**_GEMMA, "query_scalar": 256}, switches=_ATTENTION_BIAS, window="alternate"),
    **dict.fromkeys(("smollm3", "exaone", "aquila", "bailing_moe", "minicpm", "minicpm3", "hunyuan"), LLAMA),
    "dots1": Family(switches=_ATTENTION_BIAS, router=_BIASED_ROUTER),
    "llama4_text": Family(switches=_ATTENTION_BIAS, window="never", router={"score": "sigmoid", "normalised": False}),
    "arcee": Family(switches=_ATTENTION_BIAS, gated=False, fixed={"activation": "squared-relu"}),
    "apertus": Family(switches=_ATTENTION_BIAS, gated=False, fixed={"activation": "squared-relu", "qk_norm": "head"}),
    "seed_oss": Family(switches={"qkv_bias": ("attention_bias",), "out_bias": ("attention_out_bias",)}),
    "qwen": Family(fixed={"qkv_bias": True}, window="never"),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text"), _QWEN2),
    **dict.fromkeys(("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text"), _QWEN3),
    **dict.fromkeys(("deepseek", "deepseek_v2"), _DEEPSEEK),
    **dict.fromkeys(("deepseek_v3", "kimi_k2"), _DEEPSEEK3),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "kimi_linear"), _DEEPSEEK3),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _QWEN_NEXT),
    "nemotron_h": Family(
        fixed={"activation": "squared-relu"},
        switches={"qkv_bias": ("attention_bias",), "out_bias": ("attention_bias",), "mlp_bias": ("mlp_bias",)},
        gated=False,
        router=_BIASED_ROUTER,
    ),
    **dict.fromkeys(("bamba", "granitemoehybrid", "falcon_h1", "jamba", "olmo_hybrid", "minimax"), LLAMA),
    **dict.fromkeys(("minimax_text_01", "minimax_m1"), LLAMA),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba"), Family(fixed={"tied": True})),
    **dict.fromkeys(("lfm2", "lfm2_moe"), Family(fixed={"tied": True}, router=_BIASED_ROUTER)),
    "minimax_m2": Family(fixed={**_FINE, "qk_norm": "full"}, router=_BIASED_ROUTER),
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neo": Family(fixed={**_GPT2.fixed, "qkv_bias": False}, gated=False, ffn_factor=4),
    "opt": Family(
        fixed={**_LAYERNORM, **_BIASES, "position": "learned", "tied": True, "activation": "relu"},
        switches={"qkv_bias": ("enable_bias",), "out_bias": ("enable_bias",), "mlp_bias": ("enable_bias",)},
        gated=False,
    ),
    "gpt_neox": Family(
        fixed={**_LAYERNORM, **_BIASES, "parallel_residual": True, "activation": "gelu", "fused_qkv": True},
        switches={
            "qkv_bias": ("attention_bias",),
            "out_bias": ("attention_bias",),
            "parallel_residual": ("use_parallel_residual",),
        },
        gated=False,
    ),
    "gptj": _GPTJ,
    "codegen": _GPTJ,
    "bloom": Family(
        fixed={
            **_LAYERNORM,
            **_BIASES,
            "position": "alibi",
            "tied": True,
            "embedding_norm": True,
            "activation": "gelu",
        },
        gated=False,
        ffn_factor=4,
    ),
    "falcon": _FALCON,
    "refinedweb": _FALCON,
    "refinedwebmodel": _FALCON,
    "mpt": Family(fixed={**_LAYERNORM, "tied": True, "activation": "gelu"}, gated=False, ffn_factor=4),
    "dbrx": Family(fixed=_LAYERNORM),
    "phi": Family(
        fixed={
            **_LAYERNORM,
            **_BIASES,
            "head_bias": True,
            "norms_per_layer": 1,
            "parallel_residual": True,
            "activation": "gelu",
        },
        gated=False,
        ffn_factor=4,
    ),
    "phi3": replace(LLAMA, fixed={**LLAMA.fixed, "fused_qkv": True}),
    "phimoe": Family(
        fixed=_LAYERNORM,
        switches={"qkv_bias": ("attention_bias",), "out_bias": ("attention_bias",), "head_bias": ("lm_head_bias",)},
    ),
    "gemma": Family(fixed=_GEMMA, switches=_ATTENTION_BIAS),
    "gemma2": Family(
        fixed={**_GEMMA2, "score_cap": 50.0, "logit_cap": 30.0}, switches=_ATTENTION_BIAS, window="alternate"
    ),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "stablelm": Family(
        fixed=_LAYERNORM, switches={"qkv_bias": ("use_qkv_bias",), "parallel_residual": ("use_parallel_residual",)}
    ),
    "starcoder2": Family(
        fixed={**_LAYERNORM, **_BIASES, "tied": True, "activation": "gelu"},
        switches={"qkv_bias": ("use_bias",), "out_bias": ("use_bias",), "mlp_bias": ("use_bias",)},
        gated=False,
    ),
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "olmo": Family(fixed={**_LAYERNORM, "norm_vectors": "none"}, switches=_ATTENTION_BIAS),
    "olmo2": Family(fixed={"qk_norm": "full"}, switches=_ATTENTION_BIAS),
    "olmo3": Family(fixed={"qk_norm": "full"}, switches=_ATTENTION_BIAS),
    "nemotron": Family(
        fixed={**_LAYERNORM, "activation": "squared-relu", "rotary_share": 0.5}, switches=_ATTENTION_BIAS, gated=False
    ),
    "glm": _GLM,
    "glm4": Family(fixed={"norms_per_layer": 4, "rotary_share": 0.5}, switches=_QKV_ONLY),
    "glm4_moe": _GLM,
    "chatglm": Family(
        fixed={"rotary_share": 0.5},
        switches={"qkv_bias": ("add_qkv_bias",), "out_bias": ("add_bias_linear",), "mlp_bias": ("add_bias_linear",)},
    ),
    "gpt_oss": Family(fixed={"sinks": True}, switches=_ATTENTION_BIAS),
    "internlm": _INTERNLM,
    "internlm2": _INTERNLM,
    "internlm3": _INTERNLM,
    "baichuan": LLAMA,
    "ernie4_5": Family(switches={"qkv_bias": ("use_bias",), "out_bias": ("use_bias",), "mlp_bias": ("use_bias",)}),
    "ernie4_5_moe": Family(switches={"qkv_bias": ("use_bias",), "out_bias": ("use_bias",), "mlp_bias": ("use_bias",)}),
}

NOT_CAUSAL = frozenset(
    {"albert", "electra", "deberta-v2", "distilbert", "umt5", "mbart", "pegasus", "clip", "siglip", "wav2vec2",
     "longt5", "marian"}
)  # fmt: skip

ALIASES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "multi_query_group_num",
        "kv_n_heads",
        "n_kv_heads",
    ),
    "head_size": ("head_dim", "kv_channels", "attention_head_dim"),
    "ffn": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "max_positions": ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length"),
    "activation": ("hidden_act", "activation_function", "hidden_activation", "mlp_hidden_act"),
    "experts": ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k", "num_experts_per_token", "num_selected_experts"),
    "expert_ffn": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "shared_count": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "shared_ffn": ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    "first_dense": ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"),
    "every": ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", "moe_layer_freq"),
    "mtp": ("num_nextn_predict_layers", "mtp_num_layers", "mtp_depth", "num_mtp_layers"),
    "tied": ("tie_word_embeddings",),
    "norm_eps": (
        "rms_norm_eps",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "layernorm_epsilon",
        "norm_epsilon",
        "norm_eps",
    ),
    "rotary_share": ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction"),
    "scale": ("routed_scaling_factor",),
    "balance_loss": ("router_aux_loss_coef", "aux_loss_alpha", "moe_aux_loss_coeff"),
    "normalised": ("norm_topk_prob", "moe_renormalize"),
    "dropout": ("resid_pdrop", "hidden_dropout", "residual_dropout", "dropout", "attention_dropout", "attn_pdrop"),
}
"""Our concepts to the keys that carry them, the commonest first (counted over 786 published config classes)."""

_WITHOUT_EFFECT = """
time_step_floor time_step_init_scheme time_step_limit time_step_max time_step_min time_step_scale residual_in_fp32
rescale_prenorm_residual use_mambapy use_associative_scan use_mamba_kernels mamba_ssm_cache_dtype mamba_hidden_act
num_logits_to_keep mixer_rms_eps ssm_in_multiplier ssm_out_multiplier ssm_multipliers key_multiplier lm_head_multiplier
mlp_multipliers attention_in_multiplier attention_out_multiplier linear_a_log_max linear_a_log_min linear_dt_max
linear_dt_min linear_dt_init_floor linear_allow_neg_eigval full_attn_alpha_factor full_attn_beta_factor
linear_attn_alpha_factor linear_attn_beta_factor mlp_alpha_factor mlp_beta_factor qk_head_dim rope_interleave
moe_shared_expert_overlap mtp_layers_block_type attn_scale attn_temperature_tuning floor_scale no_rope_layer_interval
no_rope_layers indexer_types num_expert_group
add_cross_attention initializer_factor decoder_start_token_id forced_eos_token_id forced_decoder_ids suppress_tokens
begin_suppress_tokens mask_feature_length mask_feature_min_masks mask_feature_prob mask_time_length mask_time_min_masks
mask_time_prob init_std
attn_impl attn_type no_bias multi_query rmsnorm post_layer_norm qk_ln softmax_scale prefix_lm attn_uses_sequence_id
_attn_implementation _name_or_path _remove_final_layer_norm activation_dropout apply_query_key_layer_scaling
apply_residual_connection_post_layernorm architectures attention_dropout attention_multiplier
attention_softmax_in_fp32 attn_implementation audio_config auto_map bf16 bias_dropout_fusion
boi_token_index bos_token_id cache_implementation chunk_size_feed_forward classifier_dropout clip_qkv cls_token_id
dim_model_base do_layer_norm_before dtype emb_pdrop embd_pdrop embedding_dropout embedding_multiplier eoi_token_index
eos_token_id ep_size experts_per_token fp16 fp32 fp32_residual_connection full_attention_rope
gradient_checkpointing head_dim_scale hidden_size_per_layer_input id2label image_token_id image_token_index
init_device init_std initial_context_length initializer_range input_jitter_noise is_decoder is_encoder_decoder
label2id language layerdrop learned_pos_emb_offset logit_scale logit_softcapping logits_scaling masked_softmax_fusion
max_window_layers mm_tokens_per_image model_max_length model_type mup_denominator n_group no_bias_norm num_labels
offset_alibi onnx_safe original_max_position_embeddings original_rope output_attentions output_hidden_states
output_router_logits pad_token_id prefix pretraining_tp problem_type quantization_config
reorder_and_upcast_attn residual_multiplier return_dict rope_ratio rotary router_jitter_noise
scale_attn_by_inverse_layer_idx scale_attn_weights scale_depth scale_emb scale_embedding sep_token_id seq_aux
seq_length skip_bias_add skip_bias_add_qkv slow_but_exact summary_activation summary_first_dropout
summary_proj_to_labels summary_type summary_use_proj swiglu_limit task_specific_params temperature_tuning
tokenizer_class topk_group torch_dtype transformers_version unk_token unk_token_id use_cache use_dynamic_ntk
use_flash_attn use_logit_softcapping use_logn_attn use_qkv_bias_norm use_sliding_window video_token_id vision_config
vision_end_token_id vision_start_token_id word_embed_proj_dim wordpiece xla_device z_loss_coefficient
"""
IGNORED = frozenset(_WITHOUT_EFFECT.split())
"""Keys that change neither shapes nor time."""

HYBRID = ("mamba", "ssm", "linear_", "state_size", "rwkv", "attn_layer_period", "full_attention_interval",
          "conv_l_cache", "layers_block_type", "hybrid_override_pattern", "block_types", "lightning")  # fmt: skip
"""Starts of keys that belong to layers other than attention with a feed-forward block."""
