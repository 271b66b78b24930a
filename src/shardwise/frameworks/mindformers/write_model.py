"""A model in the keys that MindFormers shares with Hugging Face."""

from __future__ import annotations

from typing import Any

from shardwise.frameworks.mindformers.names import MINDFORMERS_TYPES
from shardwise.frameworks.nearest import gemmas
from shardwise.frameworks.target import ExportDraft
from shardwise.inputs.model import Mla, Model, Moe, RopeScaling

Settings = dict[str, Any]
_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "gelu": "gelu", "relu": "relu", "squared-relu": "relu2"}


_ARCHITECTURES = {
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""The models that 2.1 trains in graph mode; PyNative trains the first and the last."""


def model_type(model: Model) -> str:
    """The nearest architecture that MindFormers trains: its Llama is of the old kind, which has no such settings."""
    return "deepseek_v3" if model.mla else "qwen3_moe" if model.moe else "qwen3"


def say_model(draft: ExportDraft) -> None:
    model, name = draft.model, model_type(draft.model)
    draft.by_hand.append(f"model_type and architectures: {name} is written as the nearest to {model.name}")
    if not model.mla and model.qk_norm != "head":
        has = "over all heads at once" if model.qk_norm == "full" else "not"
        draft.lose("model.qk_norm", f"{name} norms queries and keys of each head, {model.name} {has}")
    if draft.version == "2.1-pynative" and name == "qwen3_moe":
        draft.lose("model.moe", "PyNative 2.1 trains Qwen3 and DeepSeek-V3 only, none with experts and plain attention")
    if model.windows or model.parallel_residual or model.position not in {"rope", "none"}:
        draft.lose("model", "windows, parallel residuals and learned positions are not among the keys; use your own")
    for one in gemmas(model):
        draft.lose(f"model.{one}", f"{getattr(model, one)} is not among the keys; use your own model")
    if model.rope_scaling and model.rope_scaling.kind != "yarn":
        text = (
            f"{model.rope_scaling.kind} by {model.rope_scaling.factor:g}: training knows yarn; plain ones are written"
        )
        draft.lose("model.rope_scaling", text)


def model_keys(draft: ExportDraft) -> Settings:
    model, s = draft.model, draft.strategy
    found: Settings = {
        "model_type": model_type(model),
        "architectures": _architecture(draft),
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        "hidden_act": _ACTIVATIONS[model.activation],
        "seq_length": s.seq,
        "max_position_embeddings": max(s.seq, model.max_positions),
        "rope_theta": model.rotary_base,
        "rms_norm_eps": model.norm_eps,
        "tie_word_embeddings": model.tied,
        "attention_bias": model.qkv_bias,
        "use_flash_attention": s.flash,
        "compute_dtype": MINDFORMERS_TYPES[s.dtype],
        "params_dtype": MINDFORMERS_TYPES[s.dtype] if s.master == "pure" else "float32",
    }
    if model.rotary_share < 1:
        found["partial_rotary_factor"] = model.rotary_share
    if model.rope_scaling and model.rope_scaling.kind == "yarn":
        found["rope_scaling"] = _yarn(model.rope_scaling)
    found |= _mla(model.mla) if model.mla else {}
    found |= _moe(model, model.moe) if model.moe else {}
    found |= {"num_nextn_predict_layers": model.mtp} if model.mtp else {}
    return found


def _architecture(draft: ExportDraft) -> str | list[str]:
    name = _ARCHITECTURES[model_type(draft.model)]
    return name if draft.version == "2.1-pynative" else [name]


def _yarn(scaling: RopeScaling) -> Settings:
    return {
        "type": "yarn",
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "mscale": scaling.mscale,
        "mscale_all_dim": scaling.mscale_all,
    }


def _mla(mla: Mla) -> Settings:
    found: Settings = {
        "multi_latent_attention": True,
        "kv_lora_rank": mla.kv_rank,
        "qk_nope_head_dim": mla.nope_size,
        "qk_rope_head_dim": mla.rope_size,
        "v_head_dim": mla.value_size,
    }
    return found | ({"q_lora_rank": mla.q_rank} if mla.q_rank else {})


def _moe(model: Model, moe: Moe) -> Settings:
    found: Settings = {
        "n_routed_experts"
        if model.mla
        else "num_experts": moe.experts,  # both at once are refused, and Qwen has its own
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.expert_ffn,
        "first_k_dense_replace": moe.first_dense,
        "moe_layer_freq": moe.every,
        "scoring_func": moe.score,
        "norm_topk_prob": moe.normalised,
        "routed_scaling_factor": moe.scale,
        "moe_aux_loss_coeff": moe.balance_loss,
        "moe_router_enable_expert_bias": moe.balance_bias,
    }
    if moe.groups > 1:
        found |= {"n_group": moe.groups, "topk_group": moe.top_groups}
    if moe.shared_ffn:
        found["n_shared_experts"] = -(-moe.shared_ffn // moe.expert_ffn)
        found["moe_shared_expert_intermediate_size"] = moe.shared_ffn
    return found
