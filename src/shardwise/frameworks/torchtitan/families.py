"""Which of torchtitan's model families is exactly the planned model, and with which arguments.

Three families cover what can be said without a lie: llama3, qwen3 (with experts too) and deepseek_v3. Their llama4 and
gpt_oss hold facts that a `Model` has no word for (chunked attention, a clamped activation), so they are never written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from shardwise.errors import Fault
from shardwise.frameworks.nearest import gemmas
from shardwise.inputs.model import Model, Moe

FAMILIES = ("llama3", "qwen3", "deepseek_v3")
BALANCE = 1e-3
"""torchtitan's own step of the bias that evens the experts' load."""


class Flavor(NamedTuple):
    """A model in the words of one family."""

    family: str
    args: dict[str, Any]
    """Arguments of its class; `moe_args` and `rope_scaling_args` are tables of arguments of their own."""
    tied: bool
    """The planned model ties its embeddings, which the module beside the configuration does: no family of 0.2 counts
    its parameters rightly then, and FSDP unties them."""
    biased: bool
    """Queries, keys and values have biases, which the module adds."""


def flavor(model: Model, seq: int) -> Flavor | tuple[Fault, ...]:
    """The family and its arguments, or what none of them has."""
    lacking = {name: tuple(_lacks(model, name, seq)) for name in FAMILIES}
    for name, lacks in lacking.items():
        if not lacks:
            return Flavor(name, _ARGUMENTS[name](model), model.tied, model.qkv_bias)
    shared = [one for one in lacking["llama3"] if all(one in other for other in lacking.values())]
    if shared:
        return tuple(Fault(one.path, f"{one.message}: none of llama3, qwen3 and deepseek_v3 has it") for one in shared)
    nearest = min(lacking.values(), key=len)
    told = "; ".join(f"{name} has no {', no '.join(one.message for one in lacks)}" for name, lacks in lacking.items())
    return (Fault(nearest[0].path, f"none of torchtitan's families is {model.name}: {told}"),)


def _lacks(model: Model, family: str, seq: int) -> Iterator[Fault]:
    yield from _everywhere(model, seq)
    if family != "deepseek_v3":
        yield from _without(model.mla is not None, "mla", "latent attention")
    if family == "llama3":
        yield from _without(model.moe is not None, "moe", "experts")
        yield from _without(model.qk_norm != "none", "qk_norm", "norm on queries and keys")
        split = model.heads * model.head_size != model.hidden
        yield from _without(split, "head_size", f"heads of {model.head_size} in {model.hidden} / {model.heads}")
    elif family == "qwen3":
        yield from _without(model.qk_norm == "full", "qk_norm", "norm over all heads")
        yield from _without(bool(model.moe and (model.moe.first_dense or model.moe.every > 1)), "moe", "dense layers "
                            "beside those with experts")  # fmt: skip
    else:
        yield from _without(model.mla is None, "mla", "ordinary attention")
        yield from _without(model.tied, "tied", "tied embeddings")
        yield from _without(model.qkv_bias, "qkv_bias", "biases of queries, keys and values")
        yield from _without(model.qk_norm != "none", "qk_norm", "norm on queries and keys")
        yield from _without(bool(model.moe and model.moe.every > 1), "moe", "dense layers between those with experts")
    yield from _scaling(model, family)


def _everywhere(model: Model, seq: int) -> Iterator[Fault]:
    """What none of them has."""
    named = {"activation": "swiglu", "norm": "rmsnorm", "position": "rope"}
    for name, theirs in named.items():
        value = getattr(model, name)
        yield from _without(value != theirs, name, f"{value} ({theirs} alone)")
    for name in ("out_bias", "mlp_bias", "head_bias", "embedding_norm", "parallel_residual", "sinks"):
        yield from _without(getattr(model, name), name, name.replace("_", " "))
    yield from _without(model.norms_per_layer != 2, "norms_per_layer", f"{model.norms_per_layer} norms a layer")
    yield from _without(model.embedding_size not in {0, model.hidden}, "embedding_size", "narrower embedding")
    yield from _without(model.rotary_share != 1.0, "rotary_share", f"rotation of {model.rotary_share:g} of a head")
    for name in gemmas(model):
        yield from _without(True, name, name.replace("_", " "))
    near = [size for size in model.windows if 0 < size < seq]
    yield from _without(bool(near), "windows", f"window of {min(near, default=0)} tokens")
    yield from _experts(model.moe)


def _experts(moe: Moe | None) -> Iterator[Fault]:
    if moe is None:
        return
    yield from _without(moe.shared_ffn % moe.expert_ffn != 0, "moe", f"shared expert {moe.shared_ffn} wide beside "
                        f"experts of {moe.expert_ffn}")  # fmt: skip
    yield from _without(moe.shared_gate, "moe", "gate of the shared expert")
    yield from _without(moe.expert_bias, "moe", "biases of experts")
    limited = moe.groups > 1 and not moe.balance_bias  # theirs ranks groups by the two best, as DeepSeek-V3 does
    yield from _without(limited, "moe", "groups of experts that are ranked by their best alone")
    yield from _without(moe.capacity is not None, "moe", "capacity of experts (all tokens are kept)")


def _scaling(model: Model, family: str) -> Iterator[Fault]:
    """llama3 scales its own way, deepseek_v3 by yarn where a sequence is longer than the first ones, qwen3 never."""
    scaling = model.rope_scaling
    if scaling is None:
        return
    known = {"llama3": "llama3", "deepseek_v3": "yarn"}.get(family)
    yield from _without(scaling.kind != known, "rope_scaling", f"rope scaling {scaling.kind}")
    if scaling.kind == "yarn" == known:
        yield from _without(scaling.mscale != scaling.mscale_all, "rope_scaling", "mscale other than mscale_all")
        yield from _without(not scaling.truncate, "rope_scaling", "borders between whole dimensions")


def _without(lacks: bool, field: str, what: str) -> Iterator[Fault]:
    if lacks:
        yield Fault(f"model.{field}", what)


def _llama3(model: Model) -> dict[str, Any]:
    """Their feed-forward width is made of a multiplier and rounded up: to a multiple of itself it comes out exactly."""
    scaling = model.rope_scaling
    stretched = {} if scaling is None else {
        "low_freq_factor": scaling.low, "high_freq_factor": scaling.high,
        "original_max_position_embeddings": scaling.original,
    }  # fmt: skip
    return {
        **_sizes(model),
        "n_kv_heads": model.kv_heads,
        "multiple_of": model.ffn,
        "ffn_dim_multiplier": model.ffn / (8 * model.hidden // 3),
        "rope_scaling_args": {"scaling_factor": scaling.factor if scaling else 1.0, **stretched},
    }


def _qwen3(model: Model) -> dict[str, Any]:
    moe = model.moe
    return {
        **_sizes(model),
        "n_kv_heads": model.kv_heads,
        "head_dim": model.head_size,
        "hidden_dim": model.ffn,
        "qk_norm": model.qk_norm == "head",
        **({"moe_enabled": True, "moe_inter_dim": moe.expert_ffn, "moe_args": _moe(moe)} if moe else {}),
    }


def _deepseek(model: Model) -> dict[str, Any]:
    moe, mla, scaling = model.moe, model.mla, model.rope_scaling
    assert mla is not None  # noqa: S101 - `_lacks` let it pass
    stretched = {"original_seq_len": 2**31} if scaling is None else {
        "original_seq_len": scaling.original, "rope_factor": scaling.factor, "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow, "mscale": scaling.mscale_all,
    }  # fmt: skip
    return {
        **_sizes(model),
        "inter_dim": model.ffn,
        "n_dense_layers": moe.first_dense if moe else model.layers,
        "q_lora_rank": mla.q_rank,
        "kv_lora_rank": mla.kv_rank,
        "qk_nope_head_dim": mla.nope_size,
        "qk_rope_head_dim": mla.rope_size,
        "v_head_dim": mla.value_size,
        **stretched,
        **({"moe_inter_dim": moe.expert_ffn, "moe_args": _moe(moe)} if moe else {}),
    }


def _sizes(model: Model) -> dict[str, Any]:
    return {
        "dim": model.hidden,
        "n_layers": model.layers,
        "n_heads": model.heads,
        "vocab_size": model.vocab,
        "norm_eps": model.norm_eps,
        "rope_theta": model.rotary_base,
    }


def _moe(moe: Moe) -> dict[str, Any]:
    """Weights are laid on after the experts, as in the models that these families were made for."""
    grouped = {"num_expert_groups": moe.groups, "num_limited_groups": moe.top_groups} if moe.groups > 1 else {}
    return {
        "num_experts": moe.experts,
        "num_shared_experts": moe.shared_ffn // moe.expert_ffn,
        "top_k": moe.top_k,
        "score_func": moe.score,
        "route_norm": moe.normalised,
        "route_scale": moe.scale,
        "gate_bias": moe.router_bias,
        "score_before_experts": False,
        **grouped,
        "load_balance_coeff": BALANCE if moe.balance_bias else None,
    }


_ARGUMENTS = {"llama3": _llama3, "qwen3": _qwen3, "deepseek_v3": _deepseek}
