"""Multi-head, grouped and multi-query attention on one rank."""

from __future__ import annotations

from shardwise.inputs.assumed import ASSUMED
from shardwise.ops.documents import keys_met
from shardwise.ops.linear import (
    CAP_TRAFFIC,
    NORM_BYTES,
    NORM_KERNELS,
    Linear,
    caps,
    eager_kept,
    linear,
    norm,
    norm_kind,
    residual_add,
    scaled,
)  # fmt: skip
from shardwise.ops.op import Comm, Op
from shardwise.ops.shard import Shard

# Eager rotary embedding, weighted bytes per element of queries and keys (H200 probe: 20 bytes at 1.55 TB/s over 5
# kernels, backward 28 at 1.85 over 7; streaming 4.2).
EAGER_ROPE_BYTES = (53.0, 62.0)
EAGER_ROPE_KERNELS = (10.0, 14.0)
# Norms over one head, over those over the hidden state (H200 probe with heads of 128: eager 1.1 and 1.25, native 3.4
# and 2.0: short rows leave a block of threads idle).
HEAD_NORM = {"eager": (1.0, 1.2), "native": (3.4, 2.0)}
# Bytes an element that a chained norm of queries and keys keeps: its fp32 input and result, and their rotated copies
# in fp32 and 16 bit (torchtitan 0.2.2 on one H200: 7 to 8 more than a fused one).
CHAINED_KEPT = 9.5
# FlashAttention's kernels: one forward; backward prepares, computes and converts the gradient of queries.
FLASH_KERNELS = (1.0, 3.0)
# The same of a window of an encoder's that runs by itself, with its pieces of queries, keys and values: the profiler
# counts 2.2 and 4.2 more of Qwen2.5-VL for every window of a picture.
WINDOW_KERNELS = (2.0, 4.0)
# Compiled with an explicit mask, keys and values are spread to all heads and their gradients summed (H200, tinyllama).
SPREAD_ROPE_BYTES = (27.0, 36.0)

# A copy that puts heads before tokens, over what it copies (weights of traced kernels).
TURNED_HEADS = 6.0
# Scores in 32 bit with a bias that learns, a score: weighted bytes on top of others' (T5 with 48 samples on an H200).
BIASED_SCORES = (34.0, 42.0)

# Copies of what an all-to-all of context parallel moves: one before it and two behind (Transformer Engine's
# `flash_attn_a2a_communicate`: heads gathered; the ranks' parts put in a row; chunks put in order).
EXCHANGE_COPIES = 3
# What a step of the ring adds, bytes an element of queries and outputs, and of keys and values: halves are copied, the
# step's output is weighed and added, in backward the gradients of queries, keys and values are (its class
# `AttnFuncWithCPAndKVP2P`; half of the steps have half of the queries, the others half of the keys). And its kernels,
# sends among them.
RING_STEP = ((2.75, 1.0), (3.75, 4.5))
RING_KERNELS = (5.0, 11.0)
# The same once where keys and values are gathered: their chunks are put in order, and their gradients added up.
GATHERED = ((0.0, 4.0), (0.0, 10.0))
GATHERED_KERNELS = (5.0, 8.0)


def attention(shard: Shard, window: int) -> list[Op]:
    """The attention block with its norm and its residual addition."""
    model = shard.model
    ops = (
        [norm(shard, "norm", "attention-norm")] if not (model.parallel_residual and model.norms_per_layer == 0) else []
    )
    ops.append(_qkv(shard))
    if model.qk_norm != "none":
        ops.append(_qk_norm(shard))
    if model.turned:
        ops.append(_rope(shard))
    ops += exchanged(shard, 2 * query_width(shard), 2 * kv_width(shard))
    ops.append(_core(shard, window))
    if model.attention_gate:
        ops.append(_gate(shard))
    if model.heads_first and shard.runtime.kernels.activation == "eager":
        ops.append(turned_heads(shard, query_width(shard), 2 * query_width(shard) + 2 * kv_width(shard)))
    ops.append(_output(shard))
    if model.norms_per_layer >= 4:
        ops.append(norm(shard, "post norm", "attention-norm"))
    return [*ops, *scaled(shard, "attention"), residual_add(shard, "residual", "attention")]


def turned_heads(shard: Shard, kept: float, copied: float) -> Op:
    """Copies between tokens and heads; attention's output stays twice. Widths."""
    size = shard.element * shard.tokens * copied
    stays = shard.element * shard.tokens * kept
    moved = TURNED_HEADS * size
    return Op("heads first", "attention", "memory", (), moved, moved, 4.0, 4.0, stays, size, size + shard.residual)


def kv_width(shard: Shard) -> float:
    """Width of keys (and of values) on this rank; kv heads are replicated where tp exceeds them."""
    model = shard.model
    return max(model.kv_heads / shard.tp, 1.0) * model.head_size


def query_width(shard: Shard) -> float:
    return shard.model.heads * shard.model.head_size / shard.tp


def _qkv(shard: Shard) -> Op:
    model = shard.model
    outputs = (2 if model.attention_gate else 1) * query_width(shard) + 2 * kv_width(shard)
    layer = Linear("qkv", "attention", model.hidden, outputs, "column", shard.hidden, shard.residual)
    made = linear(shard, layer._replace(bias=model.qkv_bias, projections=3))
    unbiased = kv_width(shard) if model.qkv_bias and not model.key_bias else 0.0
    return made._replace(params=made.params - unbiased) if unbiased else made


def _qk_norm(shard: Shard) -> Op:
    elements = shard.tokens * (query_width(shard) + kv_width(shard))
    size = shard.element * elements
    chained = shard.casts_alone and not shard.runtime.kernels.compiled
    eager = chained or shard.runtime.kernels.norm == "eager"
    model, kind = shard.model, "eager" if chained else norm_kind(shard)
    slow = HEAD_NORM.get(kind, ASSUMED.head_norm)
    kernels = NORM_KERNELS["eager" if eager else "fused"]  # of queries, and of keys
    params = 2 * model.head_size if model.qk_norm == "head" else query_width(shard) + kv_width(shard)
    return Op(
        "qk norm",
        "attention",
        "memory",
        bytes_f=NORM_BYTES[kind][0] * elements * slow[0],
        bytes_b=NORM_BYTES[kind][1] * elements * slow[1],
        kernels_f=2 * kernels[0],
        kernels_b=2 * kernels[1],
        kept=(CHAINED_KEPT if chained else eager_kept(shard) if eager else shard.element) * elements,
        extra_f=6.0 * elements if eager else size,
        extra_b=shard.residual + (10.0 if eager else 4.0) * elements,
        params=params,
    )


def _rope(shard: Shard) -> Op:
    elements = shard.tokens * (query_width(shard) + kv_width(shard))
    size = shard.element * elements
    kind = shard.runtime.kernels.rope
    # unfused Megatron computes sines and cosines anew for queries and keys of every layer and keeps all four
    tables = 4 * shard.seq * shard.model.head_size * 2.0 if kind == "unfused" else 0.0
    plain = kind != "fused"
    more = ASSUMED.launches["rotary tables"] if tables else (0.0, 0.0)
    forward, backward = EAGER_ROPE_BYTES if plain else (2 * shard.element, 2 * shard.element)
    kernels = shard.runtime.kernels
    if kernels.compiled and kernels.compiled_full_attention:
        forward, backward = SPREAD_ROPE_BYTES
    return Op(
        "rope",
        "attention",
        "memory",
        bytes_f=forward * elements,
        bytes_b=backward * elements,
        kernels_f=EAGER_ROPE_KERNELS[0] + more[0] if plain else 2.0,
        kernels_b=EAGER_ROPE_KERNELS[1] + more[1] if plain else 2.0,
        kept=tables,
        extra_f=2 * size,
        extra_b=shard.residual + 2 * size + shard.element * shard.tokens * kv_width(shard),
    )


def area(queries: float, window: int, *, chunked: bool = False, causal: bool = True) -> float:
    """Share of the square of scores that a causal mask, and a sliding window or chunks, leave to be computed. Without
    that mask a window reaches as far ahead as back.
    """
    if not causal:
        return min(1.0, 2 * area(queries, window, chunked=chunked))
    if not window or window >= queries:
        return 0.5
    if chunked:
        return window / (2 * queries)
    return (window / queries) * (1 - window / (2 * queries))


def kept_qkv(shard: Shard) -> float:
    """Queries, keys and values as attention keeps them, and its output once more where the next layer turns it."""
    query, kv, kernels = query_width(shard), kv_width(shard), shard.runtime.kernels
    turned = kernels.turned_output_kept and shard.samples > 1
    width = query + 2 * kv + (query if turned or exchanges(shard) else 0.0)
    mixed = kernels.qkv == "mixed" or (shard.model.fused_qkv and kernels.rope == "eager")
    if mixed and shard.model.turned:
        width += query + kv  # values are a view that holds the whole projection beside the rotated copies
    return shard.element * shard.tokens * width


def _core(shard: Shard, window: int) -> Op:
    model = shard.model
    heads = model.heads / shard.tp
    query, kv = shard.element * shard.tokens * query_width(shard), shard.element * shard.tokens * kv_width(shard)
    shape, comms = context_shape(shard, heads, model.kv_heads / model.heads, model.head_size, model.head_size, window)
    if not shard.flash:
        return unfused_core(shard, heads, query, kv, shape, comms)
    kept = (kept_qkv(shard) + query) / (2 if shard.fp8_attention else 1)
    kernels = FLASH_KERNELS
    if shard.runtime.kernels.masked_windows and model.chunked and not model.causal:  # one window after the other
        windows = shard.samples * shard.whole_seq / (window or shard.whole_seq)
        kernels = windows * WINDOW_KERNELS[0], windows * WINDOW_KERNELS[1]
    return Op(
        "attention",
        "core-attention",
        "attention",
        shape,
        kernels_f=kernels[0],
        kernels_b=kernels[1],
        kept=kept + 4 * heads * shard.tokens,
        stays=kept,
        extra_f=query + gathered_keys(shard, kv),
        extra_b=shard.residual + query + query + 2 * kv + 2 * gathered_keys(shard, kv),
        params=model.heads / shard.tp if model.sinks else 0.0,
        comms=comms,
        masked=masked(shard, window),
    )


def context_shape(
    shard: Shard, heads: float, kv_share: float, size_qk: float, size_v: float, window: int
) -> tuple[tuple[float, ...], tuple[Comm, ...]]:
    """Shape of the attention kernel, and what context parallel moves for it.

    Ring and all-gather: a rank's queries meet all keys (balanced by pairing early and late chunks, so the share of the
    square stays a half; the ring's of every document, all-gather's of the sequence); all-to-all: whole sequences, heads
    cut by cp.
    """
    rows, cp = shard.samples * heads, shard.cp
    comms: tuple[Comm, ...]
    square = masked(shard, window)
    model = shard.model
    share = 1.0 if square else area(shard.whole_seq, window, chunked=model.chunked, causal=model.causal)
    keys: float = shard.whole_seq
    if shard.documents and not square:  # as one document so long that a token meets as many keys
        share, keys = 0.5, 2 * keys_met(shard.documents, shard.whole_seq, window, chunked=shard.model.chunked)
    if cp == 1:
        return (rows, shard.whole_seq, keys, size_qk, size_v, share, kv_share), ()
    per_token = shard.element * shard.tokens * heads
    keys_values = per_token * kv_share * (size_qk + size_v)
    if shard.cp_kind == "all-to-all":
        # queries, keys, values and outputs go one by one, and so do their gradients
        each = [per_token * part * size for part in (1.0, kv_share) for size in (size_qk, size_v)]
        comms = tuple(Comm("all-to-all", "cp", one, phase) for phase in ("F", "I") for one in each)
        return (rows / cp, shard.whole_seq, keys, size_qk, size_v, share, kv_share), comms
    whole = keys_values * cp
    if shard.cp_kind == "ring":
        # passed on step by step behind the kernel; backward passes keys and values on, and their gradients
        comms = (Comm("ring", "cp", whole, "F"), Comm("ring", "cp", whole, "I"), Comm("ring", "cp", whole, "I"))
    else:
        gathers = Comm("all-gather", "cp", whole, "F"), Comm("all-gather", "cp", whole, "I")
        comms = (*gathers, Comm("reduce-scatter", "cp", whole, "I"))
    return (rows, shard.seq, keys, size_qk, size_v, share, kv_share), comms


def masked(shard: Shard, window: int) -> bool:
    """The runtime computes the whole square under a mask that it reads."""
    kernels = shard.runtime.kernels
    within = kernels.masked_windows and (0 < window < shard.whole_seq or shard.documents is not None)
    added = shard.model.position == "relative"  # a bias of every score is read as a mask is
    return within or added or (kernels.compiled and kernels.compiled_full_attention)


def exchanges(shard: Shard) -> bool:
    """Whether context parallel moves heads by all-to-alls: what attention keeps is not what the next layer reads."""
    return shard.cp > 1 and shard.cp_kind == "all-to-all"


def exchanged(shard: Shard, queries: float, keys: float) -> list[Op]:
    """Kernels that context parallel adds beside attention itself. `queries`, `keys`: width of queries and outputs, and
    of keys and values.

    All-to-all: heads are brought together before each, and behind it two copies put the pairs of chunks that balance
    causal attention in order. Ring: every step's part is merged into what was there.
    """
    if shard.cp == 1:
        return []
    if exchanges(shard):
        moved = 2 * EXCHANGE_COPIES * shard.element * shard.tokens * (queries + keys)
        kernels = 4.0 * EXCHANGE_COPIES
        return [Op("exchange", "attention", "memory", (), moved, moved, kernels, kernels)]
    ring = shard.cp_kind == "ring"
    added, launched = (RING_STEP, RING_KERNELS) if ring else (GATHERED, GATHERED_KERNELS)
    size = shard.element / 2 * shard.tokens * shard.cp
    moved_f, moved_b = (size * (own[0] * queries + own[1] * keys) for own in added)
    times = shard.cp if ring else 1
    return [Op("exchange", "attention", "memory", (), moved_f, moved_b, times * launched[0], times * launched[1])]


def gathered_keys(shard: Shard, kv: float) -> float:
    """Keys and values of the whole sequence, where context parallel gathers them; `kv`: this rank's keys."""
    return 2 * kv * shard.cp if shard.cp > 1 and shard.cp_kind == "all-gather" else 0.0


def unfused_core(
    shard: Shard,
    heads: float,
    query: float,
    kv: float,
    shape: tuple[float, ...],
    comms: tuple[Comm, ...],
    source: Shard | None = None,
) -> Op:
    """Attention that stores its scores (Korthikanti et al. 2022, eq. 1: 5 bytes per score with dropout). `source`: the
    shard whose tokens its keys are; none: its own.
    """
    biased = shard.model.position == "relative"
    kernels = shard.runtime.kernels
    launches = ASSUMED.launches["scores with a bias" if biased else "scores stored"]
    keys, inputs = (source.whole_seq, query + 2 * kv) if source else (shard.whole_seq, kept_qkv(shard))
    scores = shard.samples * heads * shard.seq * keys
    capped = caps(shard, shard.model.score_cap)
    cap_f, cap_b = CAP_TRAFFIC if capped else (0.0, 0.0)
    if biased:
        cap_f, cap_b = cap_f + BIASED_SCORES[0], cap_b + BIASED_SCORES[1]
    kept = scores * (kernels.softmax_bytes + (shard.element if capped else 0.0))
    kept += 2 * (query - kv) if kernels.rope == "eager" else 0.0  # keys and values are spread to all heads
    return Op(
        "attention (scores stored)",
        "core-attention",
        "attention",
        (*shape[:2], keys, *shape[3:5], 1.0, shape[6]),  # the whole square is computed
        bytes_f=scores * (kernels.softmax_traffic[0] + cap_f),
        bytes_b=scores * (kernels.softmax_traffic[1] + cap_b),
        kernels_f=launches[0],
        kernels_b=launches[1],
        kept=inputs + kept + query,
        stays=inputs + query,
        own=kept + query,
        extra_f=2.0 * scores,
        extra_b=shard.residual + 2 * query + 2 * kv + kernels.softmax_work * scores,
        comms=comms,
    )


def _gate(shard: Shard) -> Op:
    """Attention's output times the gate that was projected beside the queries."""
    size = shard.element * shard.tokens * query_width(shard)
    plain = shard.runtime.kernels.activation == "eager"  # the gate's sigmoid is a kernel and a tensor of its own
    return Op(
        "attention gate", "attention", "memory", bytes_f=(5 if plain else 3) * size, bytes_b=(8 if plain else 5) * size,
        kernels_f=2.0 if plain else 1.0, kernels_b=3.0 if plain else 1.0, kept=(2 if plain else 1) * size,
        extra_f=size, extra_b=2 * size + shard.residual,
    )  # fmt: skip


def _output(shard: Shard) -> Op:
    live, gated = shard.residual if shard.sp else 0.0, shard.model.attention_gate
    # attention keeps its output already, but for a gated one
    kept = shard.element * shard.tokens * query_width(shard) if gated else 0.0
    layer = Linear("output", "attention", query_width(shard), shard.model.hidden, "row", kept, live)
    return linear(shard, layer._replace(bias=shard.model.out_bias))
