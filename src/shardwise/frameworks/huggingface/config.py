"""A model of ours as a Hugging Face `config.json`: the inverse of the reader, and held to it.

An architecture is the groups of keys that its class in transformers reads. A config is written for one after the other,
the plainest first, and read back: the first that comes back as the same model is the answer. So what an architecture
cannot say is told apart by the reader, and the two cannot drift.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from shardwise.errors import Fault, InfeasibleError, InputError
from shardwise.frameworks.huggingface.read import cycle, read_config
from shardwise.inputs.model import Model, Moe

Keys = dict[str, Any]
Group = Callable[[Model], Keys]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A config.json and what it leaves out."""

    architecture: str
    """Its model_type."""
    keys: Keys
    """What the file holds."""
    unsaid: tuple[Fault, ...]
    """What of the model transformers does not train as planned, though its file can say it."""


def write_config(model: Model) -> Config:
    """The config of a model; InfeasibleError where no architecture of transformers is this model."""
    wanted = _as_read(model)
    nearest: tuple[int, str] = (1000, "")
    for kind, groups in _WRITTEN.items():
        keys: Keys = {"model_type": kind, "_name_or_path": model.name, "use_cache": False, **_NO_TOKENS}
        try:
            for group in groups:
                keys |= group(wanted)
            found = read_config(keys, name=model.name).model
        except InputError:
            continue
        found = replace(found, **{name: getattr(wanted, name) for name in _KERNELS})
        if found == wanted:
            return Config(architecture=kind, keys=keys, unsaid=_unsaid(kind, model))
        differing = _differences(wanted, found)
        nearest = min(nearest, (len(differing), f"{kind}, which has {', '.join(differing)}"))
    raise InfeasibleError(
        f"no architecture of transformers that is known here is {model.name}: the nearest is {nearest[1]}; change the "
        "model, or export to megatron"
    )


_NO_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
"""Tokens of a tokenizer; an architecture's own may lie beyond a small vocabulary."""
_KERNELS = ("fused_qkv", "gelu_steps")
"""How transformers computes a model, which is no fact of the model itself."""


def _as_read(model: Model) -> Model:
    """Without what the data does to the router, which no file sets; windows as the layers that are there have them."""
    windows = cycle([model.window_of(layer) for layer in range(model.layers)])
    moe = replace(model.moe, loads=(), imbalance=1.0) if model.moe else None
    scalar = 0 if model.query_scalar == model.head_size else model.query_scalar
    near = model.window_rotary_base if windows else 0.0
    return replace(model, moe=moe, windows=windows, query_scalar=scalar, window_rotary_base=near)


def _differences(wanted: Model, found: Model) -> list[str]:
    told = []
    for one in fields(Model):
        ours, theirs = getattr(wanted, one.name), getattr(found, one.name)
        if isinstance(ours, Moe) and isinstance(theirs, Moe):
            inner = [inner.name for inner in fields(Moe)]
            told += [
                f"{one.name}.{name} {getattr(theirs, name)} for {getattr(ours, name)}"
                for name in inner
                if getattr(ours, name) != getattr(theirs, name)
            ]
        elif ours != theirs:
            told.append(f"{one.name} {_short(theirs)} for {_short(ours)}")
    return told


def _short(value: object) -> str:
    return type(value).__name__ if hasattr(value, "__slots__") else str(value)


def _unsaid(kind: str, model: Model) -> tuple[Fault, ...]:
    found = []
    moe = model.moe
    if moe and moe.balance_loss and kind not in _BALANCED:
        text = f"{moe.balance_loss:g}: transformers' {kind} has no auxiliary loss; the router trains without"
        found.append(Fault("model.moe.balance_loss", text))
    if moe and moe.balance_bias:
        text = f"transformers' {kind} does not move the bias of its router; it stays as it is made"
        found.append(Fault("model.moe.balance_bias", text))
    return tuple(found)


_BALANCED = frozenset({"mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"})
"""Architectures whose loss has the balance loss in it, where `output_router_logits` is on."""


# --- groups of keys ----------------------------------------------------------------------------------------------


def _sizes(model: Model) -> Keys:
    return {
        "hidden_size": model.hidden, "num_hidden_layers": model.layers, "num_attention_heads": model.heads,
        "vocab_size": model.vocab, "tie_word_embeddings": model.tied,
    }  # fmt: skip


def _grouped(model: Model) -> Keys:
    return {"num_key_value_heads": model.kv_heads, "head_dim": model.head_size}


def _kv(model: Model) -> Keys:
    """Of an architecture whose heads share the width: another size of head is told when it is read back."""
    return {"num_key_value_heads": model.kv_heads}


_ACTS = {
    "swiglu": "silu",
    "geglu": "gelu_pytorch_tanh",
    "gelu": "gelu_pytorch_tanh",
    "relu": "relu",
    "squared-relu": "relu2",
}


def _gated(model: Model) -> Keys:
    if not model.gated:
        raise InputError("the feed-forward block of this architecture has a gate")
    return {"intermediate_size": model.ffn, "hidden_act": _ACTS[model.activation]}


def _ungated(model: Model) -> Keys:
    if model.gated:
        raise InputError("the feed-forward block of this architecture has no gate")
    return {"intermediate_size": model.ffn, "hidden_act": _ACTS[model.activation]}


def _gemma(model: Model) -> Keys:
    return {**_gated(model), "hidden_activation": _ACTS[model.activation]}


def _rms(model: Model) -> Keys:
    return {"rms_norm_eps": model.norm_eps}


def _layernorm(model: Model) -> Keys:
    return {"layer_norm_eps": model.norm_eps}


def _rotary(model: Model) -> Keys:
    """Transformers 5 keeps all of it in `rope_parameters`."""
    return {"rope_parameters": _rope(model), "max_position_embeddings": _longest(model)}


def _partial(model: Model) -> Keys:
    return {
        "rope_parameters": {**_rope(model), "partial_rotary_factor": model.rotary_share},
        "partial_rotary_factor": model.rotary_share,
        "max_position_embeddings": _longest(model),
    }


def _two_ropes(model: Model) -> Keys:
    """Gemma 3 turns the layers with a window by a base of its own."""
    base = model.window_rotary_base
    local = {"rope_type": "default", "rope_theta": base} if base else _rope(model)
    return _rotary(model) | {"rope_parameters": {"full_attention": _rope(model), "sliding_attention": local}}


def _capped(model: Model) -> Keys:
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


def _rope(model: Model) -> Keys:
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


def _longest(model: Model) -> int:
    scaling = model.rope_scaling
    if scaling is None or not scaling.original:
        return LONGEST
    return scaling.original if scaling.kind == "dynamic" else int(scaling.original * scaling.factor)


def _biases(model: Model) -> Keys:
    return {"attention_bias": model.qkv_bias}


def _mlp_bias(model: Model) -> Keys:
    return {"mlp_bias": model.mlp_bias}


def _kinds(model: Model) -> Keys:
    """The window of every layer; transformers knows one width."""
    if not any(model.windows):
        return {"sliding_window": None}
    layers = [model.window_of(layer) for layer in range(model.layers)]
    kinds = ["sliding_attention" if window else "full_attention" for window in layers]
    return {"sliding_window": max(layers), "layer_types": kinds, "use_sliding_window": True}


def _window(model: Model) -> Keys:
    """One window for all layers, or none."""
    return {"sliding_window": model.windows[0] if model.windows else None}


def _no_dropout(_model: Model) -> Keys:
    return {"attention_dropout": 0.0}


def _routed(names: dict[str, str]) -> Group:
    """The experts by an architecture's own names for them."""

    def group(model: Model) -> Keys:
        if model.moe is None:
            raise InputError("this architecture has experts")
        return {theirs: getattr(model.moe, ours) for ours, theirs in names.items()}

    return group


def _balance(model: Model) -> Keys:
    loss = model.moe.balance_loss if model.moe else 0.0
    return {"router_aux_loss_coef": loss, "output_router_logits": loss > 0}


def _shared_count(model: Model) -> Keys:
    moe = model.moe
    if moe is None or not moe.shared_ffn:
        raise InputError("this architecture has a shared expert")
    return {"n_shared_experts": moe.shared_ffn // moe.expert_ffn}


def _leading(model: Model) -> Keys:
    moe = model.moe
    return {"first_k_dense_replace": moe.first_dense if moe else model.layers}


def _sparse(model: Model) -> Keys:
    """Qwen counts the step from the first layer, whether that is dense or not; we from the last dense one."""
    moe = model.moe
    if moe is None or (moe.first_dense % moe.every and moe.every > 1):
        return {}
    return {"decoder_sparse_step": moe.every, "mlp_only_layers": list(range(moe.first_dense))}


def _groups(model: Model) -> Keys:
    moe = model.moe
    if moe is None:
        return {}
    return {"n_group": moe.groups, "topk_group": moe.top_groups}


def _choice(model: Model) -> Keys:
    """DeepSeek-V2's ways to choose experts."""
    grouped = model.moe is not None and model.moe.groups > 1
    return {"topk_method": "group_limited_greedy" if grouped else "greedy"}


def _latent(model: Model) -> Keys:
    mla = model.mla
    if mla is None:
        raise InputError("the attention of this architecture is latent")
    return {
        "kv_lora_rank": mla.kv_rank, "q_lora_rank": mla.q_rank or None, "qk_nope_head_dim": mla.nope_size,
        "qk_rope_head_dim": mla.rope_size, "v_head_dim": mla.value_size, "num_key_value_heads": model.kv_heads,
    }  # fmt: skip


def _gpt2(model: Model) -> Keys:
    return {
        "n_embd": model.hidden, "n_layer": model.layers, "n_head": model.heads, "n_inner": model.ffn,
        "vocab_size": model.vocab, "n_positions": model.max_positions, "tie_word_embeddings": model.tied,
        "layer_norm_epsilon": model.norm_eps,
        "activation_function": "relu" if model.activation == "relu" else "gelu_new",
        **dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), model.dropout),
    }  # fmt: skip


def _opt(model: Model) -> Keys:
    return {
        "ffn_dim": model.ffn, "activation_function": _ACTS[model.activation], "enable_bias": model.qkv_bias,
        "max_position_embeddings": max(model.max_positions - 2, 0), "dropout": model.dropout,
        "attention_dropout": model.dropout, "word_embed_proj_dim": model.embedding_size or model.hidden,
        "do_layer_norm_before": True,
    }  # fmt: skip


def _neox(model: Model) -> Keys:
    return {
        "intermediate_size": model.ffn,
        "hidden_act": "gelu_fast" if model.activation == "gelu" else _ACTS[model.activation],
        "use_parallel_residual": model.parallel_residual, "attention_bias": model.qkv_bias,
        "rope_parameters": {**_rope(model), "partial_rotary_factor": model.rotary_share},
        "rotary_pct": model.rotary_share,
        "max_position_embeddings": _longest(model), "attention_dropout": model.dropout, "hidden_dropout": model.dropout,
    }  # fmt: skip


def _bloom(model: Model) -> Keys:
    return {
        "hidden_size": model.hidden, "n_layer": model.layers, "n_head": model.heads, "vocab_size": model.vocab,
        "tie_word_embeddings": model.tied, "layer_norm_epsilon": model.norm_eps, "hidden_dropout": model.dropout,
        "attention_dropout": model.dropout,
    }  # fmt: skip


def _falcon(model: Model) -> Keys:
    if model.norms_per_layer > 2:
        raise InputError("this architecture has one norm a layer or two")
    newer = 1 < model.kv_heads < model.heads
    return {
        "multi_query": model.kv_heads == 1, "new_decoder_architecture": newer, "bias": model.qkv_bias,
        "parallel_attn": model.parallel_residual, "alibi": model.position == "alibi", "ffn_hidden_size": model.ffn,
        "layer_norm_epsilon": model.norm_eps, "activation": "gelu",
        **({"num_kv_heads": model.kv_heads, "num_ln_in_parallel_attn": model.norms_per_layer} if newer else {}),
    }  # fmt: skip


def _mpt(model: Model) -> Keys:
    return {
        "d_model": model.hidden, "n_layers": model.layers, "n_heads": model.heads, "vocab_size": model.vocab,
        "expansion_ratio": model.ffn // model.hidden, "no_bias": not model.qkv_bias,
        "layer_norm_epsilon": model.norm_eps,
        "attn_config": {"alibi": model.position == "alibi"}, "tie_word_embeddings": model.tied,
        "resid_pdrop": model.dropout,
    }  # fmt: skip


def _phi(model: Model) -> Keys:
    return {"resid_pdrop": model.dropout, "attention_dropout": model.dropout}


def _starcoder(model: Model) -> Keys:
    return {
        "use_bias": model.qkv_bias, "norm_epsilon": model.norm_eps, "residual_dropout": model.dropout,
        "attention_dropout": model.dropout,
    }  # fmt: skip


def _nemotron(model: Model) -> Keys:
    return {"attention_bias": model.qkv_bias, "mlp_bias": model.mlp_bias, "norm_eps": model.norm_eps}


def _qk(model: Model) -> Keys:
    return {"use_qk_norm": model.qk_norm == "head"}


_LLAMA = (_sizes, _grouped, _gated, _rms, _rotary, _biases, _no_dropout)
_QWEN = (_sizes, _grouped, _gated, _rms, _rotary, _no_dropout)
_EXPERTS = {
    "experts": "num_experts", "top_k": "num_experts_per_tok", "expert_ffn": "moe_intermediate_size",
    "normalised": "norm_topk_prob",
}  # fmt: skip
_DEEP = {
    "experts": "n_routed_experts", "top_k": "num_experts_per_tok", "expert_ffn": "moe_intermediate_size",
    "normalised": "norm_topk_prob", "scale": "routed_scaling_factor",
}  # fmt: skip
_MIXTRAL = {"experts": "num_local_experts", "top_k": "num_experts_per_tok"}

_LATENT = (
    _sizes, _latent, _gated, _rms, _rotary, _biases, _no_dropout, _routed({**_DEEP, "balance_loss": "aux_loss_alpha"}),
)  # fmt: skip

_WRITTEN: dict[str, tuple[Group, ...]] = {
    "llama": (*_LLAMA, _mlp_bias),
    "mistral": (*_QWEN, _window),
    "qwen2": (*_QWEN, _kinds),
    "qwen3": (*_LLAMA, _kinds),
    "mixtral": (*_QWEN, _routed(_MIXTRAL), _balance, _window),
    "qwen2_moe": (
        *_QWEN, _routed({**_EXPERTS, "shared_ffn": "shared_expert_intermediate_size"}), _sparse, _balance, _kinds,
    ),
    "qwen3_moe": (*_LLAMA, _routed(_EXPERTS), _sparse, _balance, _window),
    "deepseek_v2": (*_LATENT, _shared_count, _leading, _groups, _choice),
    "deepseek_v3": (*_LATENT, _shared_count, _leading, _groups),
    "glm4_moe": (
        _sizes, _grouped, _gated, _rms, _partial, _biases, _no_dropout, _routed(_DEEP), _shared_count, _leading,
        _groups, _qk,
    ),
    "dots1": (
        *_LLAMA, _routed(_DEEP), _shared_count, _leading, _groups, _kinds,
    ),
    "gpt_oss": (*_LLAMA, _routed(_MIXTRAL), _balance, _kinds),
    "gemma": (_sizes, _grouped, _gemma, _rms, _rotary, _biases, _no_dropout),
    "gemma2": (_sizes, _grouped, _gemma, _rms, _rotary, _biases, _no_dropout, _kinds, _capped),
    "gemma3_text": (_sizes, _grouped, _gemma, _rms, _two_ropes, _biases, _no_dropout, _kinds, _capped),
    "olmo2": (_sizes, _kv, _gated, _rms, _rotary, _biases, _no_dropout),
    "glm": (_sizes, _grouped, _gated, _rms, _partial, _biases, _no_dropout),
    "glm4": (_sizes, _grouped, _gated, _rms, _partial, _biases, _no_dropout),
    "arcee": (_sizes, _grouped, _ungated, _rms, _rotary, _biases, _no_dropout, _mlp_bias),
    "nemotron": (_sizes, _grouped, _ungated, _partial, _no_dropout, _nemotron),
    "starcoder2": (_sizes, _kv, _ungated, _rotary, _starcoder, _window),
    "phi": (_sizes, _kv, _ungated, _layernorm, _partial, _phi),
    "gpt_neox": (_sizes, _layernorm, _neox),
    "gpt2": (_gpt2,),
    "opt": (_sizes, _opt),
    "bloom": (_bloom,),
    "falcon": (_sizes, _falcon, _rotary),
    "mpt": (_mpt,),
}  # fmt: skip
"""Architecture -> the keys that its class in transformers 5 reads; the plainest first."""
