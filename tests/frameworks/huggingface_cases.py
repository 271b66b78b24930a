"""Typical config.json files with the published number of parameters in billions.

Configs and counts were typed from memory (the counts before ours were computed) and not looked up one by one.
"""

from __future__ import annotations

from typing import Any

CARD = "model card"
WEIGHTS = "weight files, from memory"

_DEEPSEEK_MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


def _yarn(factor: float, **more: Any) -> dict[str, Any]:
    return {
        "type": "yarn", "factor": factor, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
        **more,
    }  # fmt: skip


def _llama(
    kind: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int, **more: Any
) -> dict[str, Any]:
    fine = {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "deepseek", "deepseek_v2", "deepseek_v3", "kimi_k2", "gemma"}
    theta = {
        "mixtral": 1e6,
        "qwen2": 1e6,
        "qwen3_moe": 1e6,
        "qwen3": 1e6,
        "gpt_oss": 1.5e5,
        "llama": 5e5,
        "kimi_k2": 5e4,
    }
    return {
        "architectures": [f"{kind.title()}ForCausalLM"],
        "model_type": kind,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": ffn,
        "max_position_embeddings": 8192,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv,
        "rms_norm_eps": 1e-06 if kind in fine else 1e-05,
        "rope_theta": theta.get(kind, 10_000.0),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.44.0",
        "use_cache": True,
        "vocab_size": vocab,
        **more,
    }


CASES: dict[str, tuple[dict[str, Any], float, str]] = {
    "llama-3-8b": (_llama("llama", 32, 4096, 32, 8, 14336, 128256, attention_bias=False, mlp_bias=False),
    8.030, WEIGHTS),
    "llama-3.2-1b": (
        _llama("llama", 16, 2048, 32, 8, 8192, 128256, head_dim=64, tie_word_embeddings=True),
        1.236,
        WEIGHTS,
    ),
    "mistral-7b": (_llama("mistral", 32, 4096, 32, 8, 14336, 32000, sliding_window=4096), 7.242, WEIGHTS),
    "mistral-nemo": (_llama("mistral", 40, 5120, 32, 8, 14336, 131072, head_dim=128, sliding_window=None),
    12.248, WEIGHTS),
    "mixtral-8x7b": (
        _llama(
            "mixtral", 32, 4096, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2,
            router_aux_loss_coef=0.02, output_router_logits=False, sliding_window=None,
        ),
        46.703,
        WEIGHTS,
    ),
    "qwen2.5-7b": (
        _llama("qwen2", 28, 3584, 28, 4, 18944, 152064, use_sliding_window=False, sliding_window=131072,
        max_window_layers=28),
        7.616,
        WEIGHTS,
    ),
    "qwen2-57b-a14b": (
        _llama(
            "qwen2_moe", 28, 3584, 28, 4, 18944, 151936, num_experts=64, num_experts_per_tok=8,
            moe_intermediate_size=2560, shared_expert_intermediate_size=20480, decoder_sparse_step=1,
            mlp_only_layers=[], norm_topk_prob=False, use_sliding_window=False, sliding_window=65536,
            max_window_layers=28,
        ),
        57.41,
        WEIGHTS,
    ),
    "qwen3-8b": (
        _llama(
            "qwen3", 36, 4096, 32, 8, 12288, 151936, head_dim=128, attention_bias=False, use_sliding_window=False,
            sliding_window=None, max_window_layers=36,
        ),
        8.191,
        WEIGHTS,
    ),
    "qwen3-30b-a3b": (
        _llama(
            "qwen3_moe", 48, 2048, 32, 4, 6144, 151936, head_dim=128, num_experts=128, num_experts_per_tok=8,
            moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True,
            router_aux_loss_coef=0.001,
        ),
        30.532,
        WEIGHTS,
    ),
    "deepseek-moe-16b": (
        _llama(
            "deepseek", 28, 2048, 16, 16, 10944, 102400, n_routed_experts=64, n_shared_experts=2,
            num_experts_per_tok=6,
            moe_intermediate_size=1408, first_k_dense_replace=1, moe_layer_freq=1, scoring_func="softmax",
        ),
        16.376,
        WEIGHTS,
    ),
    "deepseek-v2-lite": (
        _llama(
            "deepseek_v2", 27, 2048, 16, 16, 10944, 102400, **_DEEPSEEK_MLA, q_lora_rank=None, n_routed_experts=64,
            n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1,
            moe_layer_freq=1, topk_method="greedy", routed_scaling_factor=1.0,
        ),
        15.706,
        WEIGHTS,
    ),
    "deepseek-v3": (
        _llama(
            "deepseek_v3", 61, 7168, 128, 128, 18432, 129280, **_DEEPSEEK_MLA, q_lora_rank=1536, n_routed_experts=256,
            n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3,
            moe_layer_freq=1, n_group=8, topk_group=4, num_nextn_predict_layers=1, scoring_func="sigmoid", ep_size=1,
            norm_topk_prob=True, topk_method="noaux_tc", routed_scaling_factor=2.5, aux_loss_alpha=0.0001,
            rope_scaling=_yarn(40, mscale=1.0, mscale_all_dim=1.0),
        ),
        671.03,
        "arXiv 2412.19437 (671B without multi-token prediction)",
    ),
    "kimi-k2": (
        _llama(
            "kimi_k2", 61, 7168, 64, 64, 18432, 163840, **_DEEPSEEK_MLA, q_lora_rank=1536, n_routed_experts=384,
            n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=1,
            moe_layer_freq=1, num_nextn_predict_layers=0, scoring_func="sigmoid", topk_method="noaux_tc",
            norm_topk_prob=True, routed_scaling_factor=2.827,
            rope_scaling={**_yarn(32, mscale=1.0, mscale_all_dim=1.0), "beta_fast": 1.0},
        ),
        1026.4,
        "our own count: published as 1043B, a prediction layer included (see test_catalog)",
    ),
    "gemma-7b": (
        {
            **_llama("gemma", 28, 3072, 16, 16, 24576, 256000, head_dim=256, hidden_act="gelu_pytorch_tanh"),
            "tie_word_embeddings": None,
        },
        8.538,
        WEIGHTS,
    ),
    "gemma-2-9b": (
        {
            key: value
            for key, value in _llama(
                "gemma2", 42, 3584, 16, 8, 14336, 256000, head_dim=256, hidden_activation="gelu_pytorch_tanh",
                sliding_window=4096, attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
                query_pre_attn_scalar=256,
            ).items()
            if key not in {"tie_word_embeddings", "hidden_act"}
        },
        9.242,
        WEIGHTS,
    ),
    "gemma-3-12b": (
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "boi_token_index": 255999,
            "mm_tokens_per_image": 256,
            "text_config": {
                "model_type": "gemma3_text", "hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48,
                "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 262208,
                "sliding_window": 1024, "sliding_window_pattern": 6, "rope_scaling": {"factor": 8.0,
                "rope_type": "linear"},
            },
            "vision_config": {
                "hidden_size": 1152, "num_hidden_layers": 27, "model_type": "siglip_vision_model", "image_size": 896,
                "patch_size": 14, "num_attention_heads": 16, "intermediate_size": 4304, "vision_use_head": False,
            },
        },
        12.187,
        "arXiv 2503.19786, table 1: 417M + 1,012M + 10,759M",
    ),
    "phi-2": (
        {
            "model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 51200, "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "partial_rotary_factor": 0.4,
            "qk_layernorm": False,
            "resid_pdrop": 0.1, "embd_pdrop": 0.0, "attention_dropout": 0.0, "tie_word_embeddings": False,
        },
        2.780,
        WEIGHTS,
    ),
    "phi-3-mini": (_llama("phi3", 32, 3072, 32, 32, 8192, 32064, sliding_window=2047, resid_pdrop=0.0), 3.821,
    WEIGHTS),
    "phi-3.5-moe": (
        _llama(
            "phimoe", 32, 4096, 32, 8, 6400, 32064, num_local_experts=16, num_experts_per_tok=2, attention_bias=True,
            lm_head_bias=True, input_jitter_noise=0.01, router_jitter_noise=0.01,
        ),
        41.87,
        WEIGHTS,
    ),
    "gpt2": (
        {
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
            "n_ctx": 1024,
            "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "n_embd": 768, "n_head": 12, "n_layer": 12,
            "n_positions": 1024, "summary_type": "cls_index", "vocab_size": 50257, "layer_norm_epsilon": 1e-05,
        },
        0.12444,
        WEIGHTS,
    ),
    "gpt-neox-20b": (
        {
            "model_type": "gpt_neox", "hidden_act": "gelu_fast", "hidden_size": 6144, "intermediate_size": 24576,
            "num_attention_heads": 64, "num_hidden_layers": 44, "vocab_size": 50432, "rotary_pct": 0.25,
            "rotary_emb_base": 10000, "use_parallel_residual": True, "tie_word_embeddings": False,
            "max_position_embeddings": 2048,
        },
        20.555,
        "arXiv 2204.06745: 20,554,567,680",
    ),
    "gpt-j-6b": (
        {
            "model_type": "gptj", "activation_function": "gelu_new", "n_embd": 4096, "n_head": 16, "n_layer": 28,
            "n_positions": 2048, "rotary": True, "rotary_dim": 64, "vocab_size": 50400, "tie_word_embeddings": False,
            "n_inner": None,
        },
        6.051,
        "model card: 6,053,381,344",
    ),
    "opt-6.7b": (
        {
            "model_type": "opt", "activation_function": "relu", "hidden_size": 4096, "ffn_dim": 16384,
            "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 50272, "max_position_embeddings": 2048,
            "word_embed_proj_dim": 4096, "do_layer_norm_before": True, "dropout": 0.1, "attention_dropout": 0.0,
        },
        6.658,
        WEIGHTS,
    ),
    "opt-350m": (
        {
            "model_type": "opt", "activation_function": "relu", "hidden_size": 1024, "ffn_dim": 4096,
            "num_hidden_layers": 24, "num_attention_heads": 16, "vocab_size": 50272, "max_position_embeddings": 2048,
            "word_embed_proj_dim": 512, "do_layer_norm_before": False,
        },
        0.3312,
        WEIGHTS,
    ),
    "falcon-7b": (
        {
            "model_type": "falcon", "alibi": False, "bias": False, "hidden_size": 4544, "multi_query": True,
            "new_decoder_architecture": False, "num_attention_heads": 71, "num_hidden_layers": 32,
            "parallel_attn": True,
            "vocab_size": 65024, "hidden_dropout": 0.0, "attention_dropout": 0.0,
        },
        6.922,
        "weight files (7,217,189,760) less the second copy of the tied embedding",
    ),
    "falcon-40b": (
        {
            "model_type": "falcon", "alibi": False, "bias": False, "hidden_size": 8192, "num_attention_heads": 128,
            "new_decoder_architecture": True, "num_hidden_layers": 60, "num_kv_heads": 8, "parallel_attn": True,
            "vocab_size": 65024, "multi_query": True,
        },
        41.30,
        CARD,
    ),
    "bloom-7b1": (
        {
            "model_type": "bloom", "n_embed": 4096, "hidden_size": 4096, "n_layer": 30, "num_attention_heads": 32,
            "vocab_size": 250880, "hidden_dropout": 0.0, "offset_alibi": 100, "pretraining_tp": 4, "seq_length": 2048,
            "apply_residual_connection_post_layernorm": False,
        },
        7.069,
        "model card: 7,069,016,064",
    ),
    "mpt-7b": (
        {
            "model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4,
            "vocab_size": 50432,
            "max_seq_len": 2048, "no_bias": True, "attn_config": {"alibi": True, "attn_impl": "torch",
            "attn_pdrop": 0},
        },
        6.649,
        WEIGHTS,
    ),
    "dbrx": (
        {
            "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352,
            "max_seq_len": 32768, "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500000},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
            "tie_word_embeddings": False,
        },
        131.6,
        WEIGHTS,
    ),
    "glm-4-9b": (
        _llama("glm", 40, 4096, 32, 2, 13696, 151552, head_dim=128, attention_bias=True, partial_rotary_factor=0.5),
        9.400,
        WEIGHTS,
    ),
    "chatglm3-6b": (
        {
            "model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "ffn_hidden_size": 13696,
            "kv_channels": 128,
            "num_attention_heads": 32, "multi_query_attention": True, "multi_query_group_num": 2,
            "add_qkv_bias": True,
            "add_bias_linear": False, "padded_vocab_size": 65024, "seq_length": 8192, "rmsnorm": True,
        },
        6.244,
        WEIGHTS,
    ),
    "glm-4.5-air": (
        _llama(
            "glm4_moe", 46, 4096, 96, 8, 10944, 151552, head_dim=128, attention_bias=True, use_qk_norm=False,
            n_routed_experts=128, n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=1408,
            first_k_dense_replace=1, num_nextn_predict_layers=1, partial_rotary_factor=0.5,
        ),
        106.9,
        "weight files (110.47B) less the multi-token-prediction layer with its own embedding and output copies",
    ),
    "gpt-oss-20b": (
        _llama(
            "gpt_oss", 24, 2880, 64, 8, 2880, 201088, head_dim=64, attention_bias=True, num_local_experts=32,
            num_experts_per_tok=4, experts_per_token=4, sliding_window=128, swiglu_limit=7.0,
            layer_types=["sliding_attention", "full_attention"] * 12, rope_scaling=_yarn(32, truncate=False),
        ),
        20.91,
        "arXiv 2508.10925, table 1: 20.91B",
    ),
    "starcoder2-7b": (
        {
            "model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh", "hidden_size": 4608,
            "intermediate_size": 18432,
            "num_attention_heads": 36, "num_hidden_layers": 32, "num_key_value_heads": 4, "sliding_window": 4096,
            "use_bias": True, "vocab_size": 49152, "norm_epsilon": 1e-05, "residual_dropout": 0.0,
        },
        7.174,
        WEIGHTS,
    ),
    "starcoder-15b": (
        {
            "model_type": "gpt_bigcode", "activation_function": "gelu", "n_embd": 6144, "n_head": 48,
            "n_inner": 24576,
            "n_layer": 40, "n_positions": 8192, "vocab_size": 49152, "multi_query": True,
        },
        15.517,
        WEIGHTS,
    ),
    "stablelm-3b": (
        {
            "model_type": "stablelm", "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 6912,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "vocab_size": 50304,
            "use_qkv_bias": False, "tie_word_embeddings": False, "partial_rotary_factor": 0.25,
        },
        2.795,
        "model card: 2,795,443,200",
    ),
    "olmo-2-7b": (_llama("olmo2", 32, 4096, 32, 32, 11008, 100352, attention_bias=False), 7.299, WEIGHTS),
    "nemotron-4-mini-4b": (
        {
            "model_type": "nemotron", "hidden_act": "relu2", "hidden_size": 3072, "intermediate_size": 9216,
            "head_dim": 128,
            "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 256000,
            "norm_eps": 1e-05, "tie_word_embeddings": False, "partial_rotary_factor": 0.5,
        },
        4.190,
        WEIGHTS,
    ),
    "command-r-35b": (
        {
            "model_type": "cohere", "hidden_act": "silu", "hidden_size": 8192, "intermediate_size": 22528,
            "num_attention_heads": 64, "num_hidden_layers": 40, "num_key_value_heads": 64, "vocab_size": 256000,
            "use_qk_norm": False, "logit_scale": 0.0625, "layer_norm_eps": 1e-05,
        },
        34.98,
        WEIGHTS,
    ),
    "internlm2-7b": (_llama("internlm2", 32, 4096, 32, 8, 14336, 92544, bias=False), 7.738, WEIGHTS),
    "minicpm3-4b": (
        _llama(
            "minicpm3", 62, 2560, 40, 40, 6400, 73448, kv_lora_rank=256, q_lora_rank=768, qk_nope_head_dim=64,
            qk_rope_head_dim=32, v_head_dim=64, tie_word_embeddings=True, scale_emb=12, scale_depth=1.4,
            dim_model_base=256,
        ),
        4.074,
        WEIGHTS,
    ),
    "qwen-7b": (
        {
            "model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128,
            "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 151936, "no_bias": True,
            "tie_word_embeddings": False, "use_dynamic_ntk": True, "seq_length": 8192,
        },
        7.721,
        WEIGHTS,
    ),
    "llama-4-scout": (
        {
            "model_type": "llama4",
            "text_config": {
                **_llama("llama4_text", 48, 5120, 40, 8, 8192, 202048, head_dim=128, use_qk_norm=True),
                "intermediate_size_mlp": 16384, "interleave_moe_layer_step": 1, "num_local_experts": 16,
                "num_experts_per_tok": 1, "attention_chunk_size": 8192, "attention_bias": False,
            },
            "vision_config": {
                "hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34, "num_attention_heads": 16,
                "image_size": 336, "patch_size": 14, "vision_output_dim": 4096, "projector_input_dim": 4096,
                "projector_output_dim": 4096,
            },
        },
        108.64,
        "weight files (108.64B)",
    ),
    "granite-3-8b": (
        _llama(
            "granite", 40, 4096, 32, 8, 12800, 49155, tie_word_embeddings=True, attention_multiplier=0.0078125,
            embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=16.0,
        ),
        8.171,
        WEIGHTS,
    ),
}  # fmt: skip
