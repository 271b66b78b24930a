"""A model of ours as a Hugging Face `config.json`: the inverse of the reader, and held to it.

An architecture is the groups of keys that its class in transformers reads. A config is written for one after the other,
the plainest first, and read back: the first that comes back as the same model is the answer. So what an architecture
cannot say is told apart by the reader, and the two cannot drift.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from shardwise.errors import Fault, InfeasibleError, InputError
from shardwise.frameworks.huggingface.groups import (
    Group,
    Keys,
    attention_bias,
    balance_keys,
    bloom_keys,
    capped,
    choice_keys,
    expert_groups,
    falcon_keys,
    gated,
    gemma_gated,
    gpt2_keys,
    grouped,
    kv_only,
    latent_keys,
    layer_windows,
    layernorm,
    leading_dense,
    mlp_bias,
    mpt_keys,
    nemotron_keys,
    neox_keys,
    no_dropout,
    one_window,
    opt_keys,
    partial_rotary,
    phi_keys,
    qk_switch,
    rms,
    rotary_keys,
    routed,
    shared_count,
    sizes,
    sparse_step,
    starcoder_keys,
    two_ropes,
    ungated,
)  # fmt: skip
from shardwise.frameworks.huggingface.read import cycle, read_config
from shardwise.frameworks.huggingface.write_hybrids import HYBRIDS_WRITTEN
from shardwise.inputs.model import Model, Moe


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
    if model.towers or model.stem or not model.causal:
        raise InfeasibleError(
            f"no architecture of transformers that is known here is {model.name}: the files of encoders and of models "
            "with towers are read and not written; start from the model's own config.json, and take the strategy"
        )
    wanted = _as_read(model)
    nearest: tuple[int, str] = (1000, "")
    for kind, groups in {**_WRITTEN, **HYBRIDS_WRITTEN}.items():
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


_BALANCED = frozenset(
    {"mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "qwen3_next", "jamba", "minimax", "minimax_m2", "granitemoehybrid"}
)
"""Architectures whose loss has the balance loss in it, where `output_router_logits` is on."""


_LLAMA = (sizes, grouped, gated, rms, rotary_keys, attention_bias, no_dropout)
_QWEN = (sizes, grouped, gated, rms, rotary_keys, no_dropout)
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
    sizes, latent_keys, gated, rms, rotary_keys, attention_bias, no_dropout,
    routed({**_DEEP, "balance_loss": "aux_loss_alpha"}),
)  # fmt: skip

_WRITTEN: dict[str, tuple[Group, ...]] = {
    "llama": (*_LLAMA, mlp_bias),
    "mistral": (*_QWEN, one_window),
    "qwen2": (*_QWEN, layer_windows),
    "qwen3": (*_LLAMA, layer_windows),
    "mixtral": (*_QWEN, routed(_MIXTRAL), balance_keys, one_window),
    "qwen2_moe": (
        *_QWEN, routed({**_EXPERTS, "shared_ffn": "shared_expert_intermediate_size"}), sparse_step, balance_keys,
        layer_windows,
    ),
    "qwen3_moe": (*_LLAMA, routed(_EXPERTS), sparse_step, balance_keys, one_window),
    "deepseek_v2": (*_LATENT, shared_count, leading_dense, expert_groups, choice_keys),
    "deepseek_v3": (*_LATENT, shared_count, leading_dense, expert_groups),
    "glm4_moe": (
        sizes, grouped, gated, rms, partial_rotary, attention_bias, no_dropout, routed(_DEEP), shared_count,
        leading_dense, expert_groups, qk_switch,
    ),
    "dots1": (
        *_LLAMA, routed(_DEEP), shared_count, leading_dense, expert_groups, layer_windows,
    ),
    "gpt_oss": (*_LLAMA, routed(_MIXTRAL), balance_keys, layer_windows),
    "gemma": (sizes, grouped, gemma_gated, rms, rotary_keys, attention_bias, no_dropout),
    "gemma2": (sizes, grouped, gemma_gated, rms, rotary_keys, attention_bias, no_dropout, layer_windows, capped),
    "gemma3_text": (sizes, grouped, gemma_gated, rms, two_ropes, attention_bias, no_dropout, layer_windows, capped),
    "olmo2": (sizes, kv_only, gated, rms, rotary_keys, attention_bias, no_dropout),
    "glm": (sizes, grouped, gated, rms, partial_rotary, attention_bias, no_dropout),
    "glm4": (sizes, grouped, gated, rms, partial_rotary, attention_bias, no_dropout),
    "arcee": (sizes, grouped, ungated, rms, rotary_keys, attention_bias, no_dropout, mlp_bias),
    "nemotron": (sizes, grouped, ungated, partial_rotary, no_dropout, nemotron_keys),
    "starcoder2": (sizes, kv_only, ungated, rotary_keys, starcoder_keys, one_window),
    "phi": (sizes, kv_only, ungated, layernorm, partial_rotary, phi_keys),
    "gpt_neox": (sizes, layernorm, neox_keys),
    "gpt2": (gpt2_keys,),
    "opt": (sizes, opt_keys),
    "bloom": (bloom_keys,),
    "falcon": (sizes, falcon_keys, rotary_keys),
    "mpt": (mpt_keys,),
}  # fmt: skip
"""Architecture -> the keys that its class in transformers 5 reads; the plainest first."""
