"""A model as Megatron-LM's flags; what they have no word for is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.frameworks.megatron.hybrid import hybrid_losses, signs
from shardwise.frameworks.megatron.read_facts import LLAMA3_ORIGINAL, YARN_ORIGINAL
from shardwise.frameworks.nearest import gemmas
from shardwise.frameworks.target import ExportDraft
from shardwise.inputs.model import Mla, Model, Moe, RopeScaling

Flag = tuple[str, str | int | float | None]
"""A flag without its dashes and its value; none: a switch."""

_POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
_LLAMA3 = RopeScaling(kind="llama3", factor=8.0, original=LLAMA3_ORIGINAL)
_YARN = RopeScaling(kind="yarn", factor=1.0, original=YARN_ORIGINAL)
"""What is built into Megatron-LM where no flag says another."""
BRIDGE = "megatron-bridge"
"""The target whose fields say more than Megatron-LM's flags."""
_LLAMA3_ONLY = "0.18"
"""The version whose program hands no other stretch to ordinary attention."""


def model_losses(draft: ExportDraft) -> None:
    """What of the model the flags cannot say: they then describe another model, so it must be told."""
    model, bridge = draft.model, draft.target.name == BRIDGE
    strange = {
        "activation": model.activation == "relu",
        "position": model.position == "alibi",
        "head_bias": model.head_bias,
        "norms_per_layer": model.norms_per_layer != 2,
        "parallel_residual": model.parallel_residual,
        "embedding_norm": model.embedding_norm,
        "embedding_size": model.embedding_size not in {0, model.hidden},
        "qk_norm": model.qk_norm == "full",
        "windows": _windows(model) is None,
        "out_bias": model.out_bias != model.mlp_bias or (model.out_bias and not model.qkv_bias),
        "rotary_base": model.rotary_base != round(model.rotary_base),
        "rotary_share": model.rotary_share < 1 and model.rope_scaling is not None and model.rope_scaling.kind == "yarn",
        **dict.fromkeys(gemmas(model), True),
        "max_positions": bridge and model.position == "learned" and model.max_positions != draft.strategy.seq,
    }
    for name, wrong in strange.items():
        if wrong:
            draft.lose(
                f"model.{name}",
                f"{getattr(model, name)} is no setting of {draft.target.title}; use the model of your own code for it",
            )

    if model.activation == "geglu" and not bridge:
        text = "geglu: --quick-geglu is written, which has the same matrices and a faster form of gelu"
        draft.lose("model.activation", text)
    for path, text in (*_scaling_losses(draft), *_router_losses(model), *hybrid_losses(model)):
        draft.lose(f"model.{path}", text)


def _scaling_losses(draft: ExportDraft) -> Iterator[tuple[str, str]]:
    model, version, bridge = draft.model, draft.version, draft.target.name == BRIDGE
    scaling, at = model.rope_scaling, "rope_scaling"
    if scaling is None:
        return
    if not _stretched(model, version):
        where = "latent attention" if model.mla else f"Megatron-LM {version}"
        yield at, f"{scaling.kind} by {scaling.factor:g} has no flags for {where}; plain rotary positions are written"
    elif scaling.kind == "llama3" and scaling != (replace(_LLAMA3, factor=scaling.factor) if bridge else _LLAMA3):
        told = (
            f"factor {scaling.factor:g}, from {scaling.original} positions, borders {scaling.low:g}, {scaling.high:g}"
        )
        built = "Megatron-LM reads --rope-scaling-factor nowhere and trains with 8, from 8192, 1 and 4"
        yield at, f"{told}: {built}; frequencies differ, sizes and times do not"
    elif scaling.kind == "yarn" and model.mla and _borders(scaling) != _borders(scaling if bridge else _YARN):
        yield (
            at,
            f"latent attention has no flags for yarn's borders {_borders(scaling)}; {_borders(_YARN)} are built in",
        )


def _borders(scaling: RopeScaling) -> tuple[int, float, float, bool]:
    return scaling.original, scaling.beta_fast, scaling.beta_slow, scaling.truncate


def _stretched(model: Model, version: str) -> bool:
    """Whether flags say how the positions are stretched."""
    scaling = model.rope_scaling
    if scaling is None or model.position != "rope":
        return False
    if model.mla:
        return scaling.kind == "yarn"
    if scaling.kind == "llama3" or version == _LLAMA3_ONLY:
        return scaling.kind == "llama3"
    return scaling.kind == "yarn" or (scaling.kind == "linear" and scaling.factor == round(scaling.factor))


def _router_losses(model: Model) -> Iterator[tuple[str, str]]:
    moe = model.moe
    if moe is None:
        return
    alone = moe.top_k == 1
    if moe.score == "sigmoid" and moe.normalised == alone:
        yield "moe.normalised", f"{moe.normalised}: Megatron-LM's sigmoid weights add up to one unless there is but one"
    if moe.score == "softmax" and alone and moe.normalised:
        yield "moe.normalised", "True: one weight of a softmax would always be 1; its share of all experts is written"
    if moe.balance_bias and moe.score != "sigmoid":
        yield "moe.balance_bias", "Megatron-LM has it for sigmoid scores alone; none is written"
    if moe.router_bias:
        yield "moe.router_bias", "a bias of the router is no setting; none is written"
    if moe.expert_bias != model.mlp_bias:
        yield (
            "moe.expert_bias",
            f"{moe.expert_bias}: experts have biases where the other matrices have ({model.mlp_bias})",
        )


def model_flags(model: Model, seq: int, version: str, multiple: int) -> Iterator[Flag]:
    """`multiple`: what the vocabulary is padded to, times the tensor degree."""
    layers = len(signs(model, 0, model.layers)) if model.recurrent else model.layers
    yield from (("num-layers", layers), ("hidden-size", model.hidden), ("num-attention-heads", model.heads))
    if model.ffn:
        yield "ffn-hidden-size", model.ffn
    if model.mla:
        yield from _mla(model.mla)
    else:
        yield from _heads(model)
    yield from (("vocab-size", model.vocab), ("make-vocab-size-divisible-by", multiple))
    yield "max-position-embeddings", max(seq, model.max_positions)
    yield from _positions(model, version)
    yield "normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"
    yield "norm-epsilon", model.norm_eps
    yield from (("attention-dropout", model.dropout), ("hidden-dropout", model.dropout))
    yield from ((name, None) for name, on in _switches(model).items() if on)
    window = _windows(model)
    if window and window[0]:
        yield "window-size", f"{window[0] - 1},0"
        if window[1]:
            yield "window-attn-skip-freq", window[1]
    if model.moe:
        yield from _moe(model, model.moe)
    if model.mtp:
        yield "mtp-num-layers", model.mtp
    if model.sinks:
        yield "softmax-type", "learnable"


def _positions(model: Model, version: str) -> Iterator[Flag]:
    scaling = model.rope_scaling if _stretched(model, version) else None
    yarn = scaling is not None and scaling.kind == "yarn"
    yield "position-embedding-type", "yarn" if yarn and not model.mla else _POSITIONS.get(model.position, "none")
    if model.position != "rope":
        return
    yield "rotary-base", round(model.rotary_base)
    if model.rotary_share < 1:
        yield "rotary-percent", model.rotary_share
    if scaling is None:
        return
    if scaling.kind == "linear":
        yield "rotary-seq-len-interpolation-factor", round(scaling.factor)
    elif scaling.kind == "llama3":
        yield from (("use-rope-scaling", None), ("rope-scaling-factor", scaling.factor))
    else:
        yield from _yarn(scaling, latent=model.mla is not None)


def _yarn(scaling: RopeScaling, *, latent: bool) -> Iterator[Flag]:
    yield from (("rotary-scaling-factor", scaling.factor), ("mscale", scaling.mscale))
    yield "mscale-all-dim", scaling.mscale_all
    if not latent:
        yield "yarn-original-max-position-embeddings", scaling.original
        yield from (("yarn-beta-fast", scaling.beta_fast), ("yarn-beta-slow", scaling.beta_slow))
        if not scaling.truncate:
            yield "no-yarn-correction-range-round-to-int", None


def _switches(model: Model) -> dict[str, bool]:
    return {
        "swiglu": model.activation == "swiglu",
        "quick-geglu": model.activation == "geglu",
        "squared-relu": model.activation == "squared-relu",
        "untie-embeddings-and-output-weights": not model.tied,
        "disable-bias-linear": not model.mlp_bias,
        "add-qkv-bias": model.qkv_bias and not model.mlp_bias,
        "qk-layernorm": model.qk_norm != "none" or model.mla is not None,
    }


def _heads(model: Model) -> Iterator[Flag]:
    if model.kv_heads != model.heads:
        yield from (("group-query-attention", None), ("num-query-groups", model.kv_heads))
    if model.head_size * model.heads != model.hidden:
        yield "kv-channels", model.head_size


def _mla(mla: Mla) -> Iterator[Flag]:
    yield "multi-latent-attention", None
    if mla.q_rank:
        yield "q-lora-rank", mla.q_rank
    yield from (("kv-lora-rank", mla.kv_rank), ("qk-head-dim", mla.nope_size))
    yield from (("qk-pos-emb-head-dim", mla.rope_size), ("v-head-dim", mla.value_size))


def _moe(model: Model, moe: Moe) -> Iterator[Flag]:
    yield from (("num-experts", moe.experts), ("moe-router-topk", moe.top_k), ("moe-ffn-hidden-size", moe.expert_ffn))
    if moe.shared_ffn:
        yield "moe-shared-expert-intermediate-size", moe.shared_ffn
    if moe.shared_gate:
        yield "moe-shared-expert-gate", None
    if (moe.first_dense or moe.every > 1) and not model.recurrent:
        yield "moe-layer-freq", rhythm(model)
    if moe.capacity is not None:
        yield from (("moe-expert-capacity-factor", moe.capacity), ("moe-pad-expert-input-to-capacity", None))
    if moe.groups > 1:
        yield from (("moe-router-num-groups", moe.groups), ("moe-router-group-topk", moe.top_groups))
    yield from _router(moe)


def _router(moe: Moe) -> Iterator[Flag]:
    yield "moe-router-score-function", moe.score
    if moe.score == "softmax" and (not moe.normalised or moe.top_k == 1):
        yield "moe-router-pre-softmax", None
    if moe.scale != 1:
        yield "moe-router-topk-scaling-factor", moe.scale
    yield "moe-router-load-balancing-type", "aux_loss" if moe.balance_loss else "none"
    if moe.balance_loss:
        yield "moe-aux-loss-coeff", moe.balance_loss
    if moe.balance_bias and moe.score == "sigmoid":
        yield "moe-router-enable-expert-bias", None


def rhythm(model: Model) -> str:
    """Which layers have experts, as the list that Megatron evaluates: ([0]*3+[1]*58)."""
    runs: list[list[int]] = []
    for index in range(model.layers):
        kind = int(model.is_moe_layer(index))
        if runs and runs[-1][0] == kind:
            runs[-1][1] += 1
        else:
            runs.append([kind, 1])
    return "(" + "+".join(f"[{kind}]*{times}" for kind, times in runs) + ")"


def _windows(model: Model) -> tuple[int, int] | None:
    """A window and after how many layers one has full attention (0: none has); None: another pattern."""
    windows = model.windows
    if not windows or not any(windows):
        return 0, 0
    if len(set(windows)) == 1:
        return windows[0], 0
    *front, last = windows
    return (front[0], len(windows)) if last == 0 and len(set(front)) == 1 and front[0] else None
