"""The model that Megatron-LM's flags describe."""

from __future__ import annotations

import ast
import re
from typing import Any

from shardwise.inputs.frameworks.imported import Draft
from shardwise.inputs.frameworks.shell import Flags
from shardwise.inputs.model import Activation, Mla, Model, Moe

MODEL_FLAGS = frozenset(
    {
        "num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "group-query-attention",
        "num-query-groups", "kv-channels", "vocab-size", "padded-vocab-size", "max-position-embeddings",
        "position-embedding-type", "use-rotary-position-embeddings", "swiglu", "quick-geglu", "squared-relu",
        "normalization", "untie-embeddings-and-output-weights", "disable-bias-linear", "add-qkv-bias", "qk-layernorm",
        "num-experts", "moe-router-topk", "moe-ffn-hidden-size", "moe-shared-expert-intermediate-size",
        "moe-layer-freq",
        "moe-expert-capacity-factor", "multi-latent-attention", "q-lora-rank", "kv-lora-rank", "qk-head-dim",
        "qk-pos-emb-head-dim", "v-head-dim", "mtp-num-layers", "attention-dropout", "hidden-dropout", "tokenizer-type",
        "moe-shared-expert-gate", "softmax-type", "window-size", "window-attn-skip-freq",
    }
)  # fmt: skip
_LONGEST = 10_000


def read_model(draft: Draft, found: Flags) -> Model | None:
    """The model, or None where its three essential flags are not there."""
    if not {"num-layers", "hidden-size", "num-attention-heads"} <= found.keys():
        draft.assumed.append("no model: --num-layers, --hidden-size and --num-attention-heads are not all given")
        return None

    def whole(flag: str, default: int) -> int:
        highest = 10_000 if flag == "num-layers" else 10**12
        return (draft.whole(f"--{flag}", found[flag], highest=highest) if found.get(flag) else None) or default

    hidden, heads = whole("hidden-size", 1), whole("num-attention-heads", 1)
    gated = "swiglu" in found
    bias = "disable-bias-linear" not in found
    rotary = "use-rotary-position-embeddings" in found
    position = found.get("position-embedding-type") or ("rope" if rotary else "learned_absolute")
    groups = whole("num-query-groups", 1) if "group-query-attention" in found else heads
    # Megatron shrinks the inner width for SwiGLU so that three matrices weigh as much as two: 8/3 h, a multiple of 64.
    default_ffn = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    model = Model(
        name="from megatron",
        layers=whole("num-layers", 1),
        hidden=hidden,
        heads=heads,
        kv_heads=groups,
        head_size=whole("kv-channels", max(1, hidden // heads)),
        ffn=whole("ffn-hidden-size", default_ffn),
        vocab=_vocab(draft, found),
        activation=_activation(found),
        norm="rmsnorm" if (found.get("normalization") or "").lower() == "rmsnorm" else "layernorm",
        position="learned" if position == "learned_absolute" else "rope" if position in {"rope", "yarn"} else "none",
        max_positions=whole("max-position-embeddings", 0) if position == "learned_absolute" else 0,
        tied="untie-embeddings-and-output-weights" not in found,
        qkv_bias=bias or "add-qkv-bias" in found,
        out_bias=bias,
        mlp_bias=bias,
        qk_norm="head" if "qk-layernorm" in found and "multi-latent-attention" not in found else "none",
        mla=_mla(whole) if "multi-latent-attention" in found else None,
        moe=_moe(draft, found, whole, bias=bias) if whole("num-experts", 0) > 1 else None,
        mtp=whole("mtp-num-layers", 0),
        dropout=_dropout(found),
        sinks=found.get("softmax-type") == "learnable",
        windows=_windows(found),
    )
    draft.understood.append(f"model flags -> {model.layers} layers of width {model.hidden}, {model.heads} heads")
    return model


def _activation(found: Flags) -> Activation:
    named: dict[str, Activation] = {"swiglu": "swiglu", "quick-geglu": "geglu", "squared-relu": "squared-relu"}
    return next((ours for flag, ours in named.items() if flag in found), "gelu")


def _vocab(draft: Draft, found: Flags) -> int:
    for flag in ("padded-vocab-size", "vocab-size"):
        if found.get(flag):
            return draft.whole(f"--{flag}", found[flag]) or 1
    draft.assumed.append("vocabulary 50257 (GPT-2's): --vocab-size is not given")
    return 50257


def _dropout(found: Flags) -> float:
    values = [found.get("attention-dropout") or "0.1", found.get("hidden-dropout") or "0.1"]
    return max((float(value) for value in values if re.fullmatch(r"\d*\.?\d+", value)), default=0.0)


def _mla(whole: Any) -> Mla:  # noqa: ANN401 - the reader of numbers above
    # The defaults are Megatron's own.
    return Mla(
        kv_rank=whole("kv-lora-rank", 512),
        nope_size=whole("qk-head-dim", 128),
        rope_size=whole("qk-pos-emb-head-dim", 64),
        value_size=whole("v-head-dim", 128),
        q_rank=whole("q-lora-rank", 0),
    )


def _moe(draft: Draft, found: Flags, whole: Any, *, bias: bool) -> Moe:  # noqa: ANN401
    frequency = found.get("moe-layer-freq") or "1"
    rhythm = _rhythm(frequency)
    if rhythm is None:
        draft.assumed.append(f"all layers have experts: --moe-layer-freq {frequency} is not understood")
    leading, step = rhythm or (0, 1)
    capacity = found.get("moe-expert-capacity-factor")
    return Moe(
        experts=whole("num-experts", 1),
        top_k=whole("moe-router-topk", 2),
        expert_ffn=whole("moe-ffn-hidden-size", whole("ffn-hidden-size", 4 * whole("hidden-size", 1))),
        shared_ffn=whole("moe-shared-expert-intermediate-size", 0),
        first_dense=leading,
        every=step,
        capacity=float(capacity) if capacity and re.fullmatch(r"\d*\.?\d+", capacity) else None,
        expert_bias=bias,
        shared_gate="moe-shared-expert-gate" in found,
    )


def _rhythm(text: str) -> tuple[int, int] | None:
    """Leading dense layers and the step, from a number or a list such as ([0]*3+[1]*58); none: neither."""
    if re.fullmatch(r"[1-9][0-9]{0,5}", text):
        return 0, int(text)
    try:
        kinds = _listed(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    experts = [index for index, kind in enumerate(kinds) if kind]
    if not experts:
        return None
    step = experts[1] - experts[0] if len(experts) > 1 else 1
    leading = experts[0] - step + 1
    expected = list(range(experts[0], len(kinds), step))
    return (leading, step) if leading >= 0 and experts == expected else None


def _listed(node: ast.expr) -> list[int]:
    """The value of lists that are added and repeated, without running anything."""
    if isinstance(node, ast.List):
        return [int(ast.literal_eval(item)) for item in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _listed(node.left) + _listed(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant):
        part, times = _listed(node.left), node.right.value
        if isinstance(times, int) and 0 <= times * len(part) <= _LONGEST:
            return part * times
    raise ValueError(ast.unparse(node))


def _windows(found: Flags) -> tuple[int, ...]:
    """Sliding windows: a size to the left, and after how many layers one has full attention."""
    size = re.match(r"\(?\s*(\d{1,9})", found.get("window-size") or "")
    if size is None:
        return ()
    window, text = int(size[1]) + 1, found.get("window-attn-skip-freq") or ""
    if re.fullmatch(r"[1-9][0-9]{0,2}", text):
        return (*[window] * (int(text) - 1), 0)
    return (window,)
