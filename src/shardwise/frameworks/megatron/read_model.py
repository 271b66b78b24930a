"""The model that Megatron-LM's flags describe."""

from __future__ import annotations

import ast
import re
from typing import Any

from shardwise.errors import Fault
from shardwise.frameworks.imported import ImportDraft
from shardwise.frameworks.megatron.hybrid import HYBRID_FLAGS, read_hybrid
from shardwise.frameworks.megatron.names import MEGATRON_SWITCHES
from shardwise.frameworks.megatron.read_facts import FACT_FLAGS, FACT_SWITCHES, number, rope_scaling, router
from shardwise.frameworks.shell import Flags
from shardwise.inputs.model import Activation, Mla, Model, Moe, Position

MODEL_FLAGS = frozenset(
    {
        "num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "group-query-attention",
        "num-query-groups", "kv-channels", "vocab-size", "padded-vocab-size", "max-position-embeddings",
        "position-embedding-type", "use-rotary-position-embeddings", "swiglu", "quick-geglu", "squared-relu",
        "normalization", "untie-embeddings-and-output-weights", "disable-bias-linear", "add-qkv-bias", "qk-layernorm",
        "num-experts", "moe-router-topk", "moe-ffn-hidden-size", "moe-shared-expert-intermediate-size",
        "moe-layer-freq",
        "moe-expert-capacity-factor", "moe-router-num-groups", "moe-router-group-topk", "multi-latent-attention",
        "q-lora-rank", "kv-lora-rank", "qk-head-dim",
        "qk-pos-emb-head-dim", "v-head-dim", "mtp-num-layers", "attention-dropout", "hidden-dropout", "tokenizer-type",
        "moe-shared-expert-gate", "softmax-type", "rotary-base", "window-size", "window-attn-skip-freq",
    }
    | FACT_FLAGS
    | FACT_SWITCHES
    | HYBRID_FLAGS
)  # fmt: skip
_MODEL_SWITCHES = FACT_SWITCHES | frozenset({
    "group-query-attention", "use-rotary-position-embeddings", "swiglu", "quick-geglu", "squared-relu",
    "disable-bias-linear", "untie-embeddings-and-output-weights", "add-qkv-bias", "qk-layernorm",
    "multi-latent-attention", "moe-shared-expert-gate", "attention-output-gate",
})  # fmt: skip
SWITCHES = (
    MEGATRON_SWITCHES.keys()
    | _MODEL_SWITCHES
    | {
        "recompute-activations", "use-distributed-optimizer", "use-megatron-fsdp", "use-torch-fsdp2",
        "enable-zero-bubble", "zero-bubble-v-schedule", "use-flash-attn", "overlap-grad-reduce",
        "overlap-param-gather", "tp-comm-overlap", "overlap-p2p-communication-warmup-flush", "use-mcore-models",
        "moe-grouped-gemm", "moe-permute-fusion", "cross-entropy-loss-fusion", "overlap-moe-expert-parallel-comm",
        "no-check-for-nan-in-loss-and-grad", "manual-gc", "use-precision-aware-optimizer",
        "distribute-saved-activations", "enable-cuda-graph", "external-cuda-graph",
        "moe-enable-deepep",
        "reuse-grad-buf-for-mxfp8-param-ag",
    }
)  # fmt: skip
"""Flags that take no value."""
_ROWS = {
    "num-layers": "Model.layers", "hidden-size": "Model.hidden", "num-attention-heads": "Model.heads",
    "num-query-groups": "Model.kv_heads", "kv-channels": "Model.head_size", "ffn-hidden-size": "Model.hidden",
    "vocab-size": "Model.vocab", "padded-vocab-size": "Model.vocab", "max-position-embeddings": "Model.max_positions",
    "mtp-num-layers": "Model.mtp", "num-experts": "Moe.experts", "moe-router-topk": "Moe.top_k",
    "moe-router-num-groups": "Moe.groups", "moe-router-group-topk": "Moe.top_groups",
    "moe-ffn-hidden-size": "Moe.expert_ffn", "moe-shared-expert-intermediate-size": "Moe.shared_ffn",
    "kv-lora-rank": "Mla.kv_rank", "qk-head-dim": "Mla.nope_size", "qk-pos-emb-head-dim": "Mla.rope_size",
    "v-head-dim": "Mla.value_size", "q-lora-rank": "Mla.q_rank",
}  # fmt: skip
_POSITIONS: dict[str, Position] = {
    "learned_absolute": "learned", "rope": "rope", "yarn": "rope", "mrope": "rope", "none": "none",
}  # fmt: skip
_LONGEST = 10_000


def read_model(draft: ImportDraft, found: Flags) -> Model | None:
    """The model, or None where its three essential flags are not there."""
    if not {"num-layers", "hidden-size", "num-attention-heads"} <= found.keys():
        draft.assumed.append("no model: --num-layers, --hidden-size and --num-attention-heads are not all given")
        return None

    def whole(flag: str, default: int) -> int:
        number = draft.whole(f"--{flag}", found[flag], row=_ROWS[flag]) if flag in found else None
        return default if number is None else number

    hidden, heads = whole("hidden-size", 1), whole("num-attention-heads", 1)
    gated = "swiglu" in found
    bias = "disable-bias-linear" not in found
    rotary = "use-rotary-position-embeddings" in found
    given = found.get("position-embedding-type", "rope" if rotary else "learned_absolute")
    position = _POSITIONS[draft.word("--position-embedding-type", given, _POSITIONS)]
    norm = draft.word("--normalization", found.get("normalization", "LayerNorm"), ("LayerNorm", "RMSNorm"))
    softmax = draft.word("--softmax-type", found.get("softmax-type", "vanilla"), ("vanilla", "off-by-one", "learnable"))
    latent = "multi-latent-attention" in found
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
        norm="rmsnorm" if norm == "RMSNorm" else "layernorm",
        position=position,
        rotary_base=number(draft, found, "rotary-base", "10000", "Model.rotary_base") or 1.0,
        rotary_share=number(draft, found, "rotary-percent", "1", "Model.rotary_share") or 1.0,
        rope_scaling=rope_scaling(draft, found, latent=latent) if position == "rope" else None,
        norm_eps=number(draft, found, "norm-epsilon", "1e-5", "Model.norm_eps") or 1e-5,
        max_positions=whole("max-position-embeddings", 0) if position == "learned" else 0,
        tied="untie-embeddings-and-output-weights" not in found,
        qkv_bias=bias or "add-qkv-bias" in found,
        out_bias=bias,
        mlp_bias=bias,
        qk_norm="head" if "qk-layernorm" in found and not latent else "none",
        mla=_mla(whole) if latent else None,
        moe=_moe(draft, found, whole, bias=bias) if whole("num-experts", 0) > 1 else None,
        mtp=whole("mtp-num-layers", 0),
        dropout=max(number(draft, found, flag, "0.1", "Model.dropout") or 0.0 for flag in _DROPOUTS),
        sinks=softmax == "learnable",
        windows=_windows(draft, found),
    )
    model = read_hybrid(draft, found, model)
    draft.understood.append(f"model flags -> {model.layers} layers of width {model.hidden}, {model.heads} heads")
    return model


def _activation(found: Flags) -> Activation:
    named: dict[str, Activation] = {"swiglu": "swiglu", "quick-geglu": "geglu", "squared-relu": "squared-relu"}
    return next((ours for flag, ours in named.items() if flag in found), "gelu")


def _vocab(draft: ImportDraft, found: Flags) -> int:
    for flag in ("padded-vocab-size", "vocab-size"):
        if flag in found:
            return draft.whole(f"--{flag}", found[flag], row=_ROWS[flag]) or 1
    draft.assumed.append("vocabulary 50257 (GPT-2's): --vocab-size is not given")
    return 50257


_DROPOUTS = ("attention-dropout", "hidden-dropout")


def _mla(whole: Any) -> Mla:  # noqa: ANN401 - the reader of numbers above
    # The defaults are Megatron's own.
    return Mla(
        kv_rank=whole("kv-lora-rank", 512),
        nope_size=whole("qk-head-dim", 128),
        rope_size=whole("qk-pos-emb-head-dim", 64),
        value_size=whole("v-head-dim", 128),
        q_rank=whole("q-lora-rank", 0),
    )


def _moe(draft: ImportDraft, found: Flags, whole: Any, *, bias: bool) -> Moe:  # noqa: ANN401
    frequency = found.get("moe-layer-freq") or "1"
    rhythm = _rhythm(frequency)
    if rhythm is None:
        message = f"{frequency} is not understood; write a step such as 2, or a list such as ([0]*3+[1]*58)"
        draft.faults.append(Fault("--moe-layer-freq", message))
    leading, step = rhythm or (0, 1)
    top_k = whole("moe-router-topk", 2)
    return Moe(
        experts=whole("num-experts", 1),
        top_k=top_k,
        expert_ffn=whole("moe-ffn-hidden-size", whole("ffn-hidden-size", 4 * whole("hidden-size", 1))),
        shared_ffn=whole("moe-shared-expert-intermediate-size", 0),
        first_dense=leading,
        every=step,
        capacity=number(draft, found, "moe-expert-capacity-factor", None, "Moe.capacity"),
        expert_bias=bias,
        shared_gate="moe-shared-expert-gate" in found,
        groups=whole("moe-router-num-groups", 1),
        top_groups=whole("moe-router-group-topk", 1),
        **router(draft, found, top_k),
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


def _windows(draft: ImportDraft, found: Flags) -> tuple[int, ...]:
    """Sliding windows: a size to the left, and after how many layers one has full attention."""
    if "window-size" not in found:
        return ()
    size = re.fullmatch(r"\(?\s*([0-9]{1,9})\s*(,\s*-?[0-9]{1,9}\s*)?\)?", found["window-size"] or "")
    if size is None:
        draft.faults.append(Fault("--window-size", f"{found['window-size']!r} is no window; write for example (127,0)"))
        return ()
    window = int(size[1]) + 1
    if "window-attn-skip-freq" not in found:
        return (window,)
    every = draft.whole("--window-attn-skip-freq", found["window-attn-skip-freq"], row="Moe.every")
    return (*[window] * ((every or 1) - 1), 0)
