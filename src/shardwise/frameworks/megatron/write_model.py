"""A model as Megatron-LM's flags; what they have no word for is told."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.frameworks.target import ExportDraft
from shardwise.inputs.model import Mla, Model, Moe

Flag = tuple[str, str | int | float | None]
"""A flag without its dashes and its value; none: a switch."""

_POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}


def model_losses(draft: ExportDraft) -> None:
    """What of the model the flags cannot say: they then describe another model, so it must be told."""
    model = draft.model
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
    }
    for name, wrong in strange.items():
        if wrong:
            draft.lose(
                f"model.{name}",
                f"{getattr(model, name)} is not in Megatron-LM's flags; use the model flags of your own code for it",
            )

    if model.activation == "geglu":
        text = "geglu: --quick-geglu is written, which has the same matrices and a faster form of gelu"
        draft.lose("model.activation", text)


def model_flags(model: Model, seq: int) -> Iterator[Flag]:
    yield from (("num-layers", model.layers), ("hidden-size", model.hidden), ("num-attention-heads", model.heads))
    if model.ffn:
        yield "ffn-hidden-size", model.ffn
    if model.mla:
        yield from _mla(model.mla)
    else:
        yield from _heads(model)
    yield from (("vocab-size", model.vocab), ("max-position-embeddings", max(seq, model.max_positions)))
    yield "position-embedding-type", _POSITIONS.get(model.position, "none")
    if model.position == "rope":
        yield "rotary-base", round(model.rotary_base)
    yield "normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"
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
    if moe.first_dense or moe.every > 1:
        yield "moe-layer-freq", rhythm(model)
    if moe.capacity is not None:
        yield from (("moe-expert-capacity-factor", moe.capacity), ("moe-pad-expert-input-to-capacity", None))
    if moe.groups > 1:
        yield from (("moe-router-num-groups", moe.groups), ("moe-router-group-topk", moe.top_groups))
    yield "moe-grouped-gemm", None


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
