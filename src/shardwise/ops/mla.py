"""Multi-head latent attention (DeepSeek-V2, section 2.1) on one rank. The down-projections are replicated over tp."""

from __future__ import annotations

from shardwise.inputs.assumed import ASSUMED
from shardwise.inputs.model import Mla
from shardwise.ops.attention import FLASH_KERNELS, context_shape, exchanged, masked, unfused_core
from shardwise.ops.indexer import chosen_keys, indexer
from shardwise.ops.linear import Linear, linear, norm, residual_add
from shardwise.ops.op import Op
from shardwise.ops.shard import Shard

# Plain kernels around latent attention, weighted bytes per element of queries and keys: complex rotation of the rotary
# parts, concatenation, strided values (transformers 5.17 on an H200: 0.29 ms for 50 million elements; streaming 0.05).
EAGER_ROPE_BYTES = (22.0, 28.0)


def latent_attention(shard: Shard, window: int) -> list[Op]:
    """The latent attention block with its norms and its residual addition."""
    mla = shard.model.mla
    if mla is None:
        message = "latent attention needs a model with mla"
        raise TypeError(message)
    ops = [norm(shard, "norm", "attention-norm"), *_queries(shard, mla), *_keys_values(shard, mla)]
    ops.append(_rope(shard, mla))
    width = shard.model.heads / shard.tp * (mla.nope_size + mla.rope_size + mla.value_size)
    ops += exchanged(shard, width, width)
    if shard.model.sparse:
        ops += indexer(shard, shard.model.sparse, mla.q_rank)
    ops += [_core(shard, mla, window), _output(shard, mla)]
    ops.append(residual_add(shard, "residual", "attention"))
    return ops


def _queries(shard: Shard, mla: Mla) -> list[Op]:
    width = shard.model.heads / shard.tp * (mla.nope_size + mla.rope_size)
    hidden, kept, live = shard.model.hidden, shard.hidden, shard.residual
    if not mla.q_rank:
        return [linear(shard, Linear("q", "attention", hidden, width, "column", kept, live, projections=2))]
    return [
        linear(shard, Linear("q down", "attention", hidden, mla.q_rank, "none", kept, live, projections=2)),
        norm(shard, "q norm", "mla-up", mla.q_rank),
        linear(shard, Linear("q up", "mla-up", mla.q_rank, width, "column", _small(shard, mla.q_rank), live)),
    ]


def _keys_values(shard: Shard, mla: Mla) -> list[Op]:
    width = shard.model.heads / shard.tp * (mla.nope_size + mla.value_size)
    latent, live = mla.kv_rank + mla.rope_size, shard.residual
    return [
        linear(shard, Linear("kv down", "attention", shard.model.hidden, latent, "none", live=live)),
        norm(shard, "kv norm", "mla-up", mla.kv_rank),
        linear(shard, Linear("kv up", "mla-up", mla.kv_rank, width, "column", _small(shard, mla.kv_rank), live)),
    ]


def _small(shard: Shard, width: float) -> float:
    return shard.element * shard.tokens * width / (shard.tp if shard.sp else 1)


def _rope(shard: Shard, mla: Mla) -> Op:
    """Rotation of the rotary parts, and the concatenation of full queries and keys for all heads."""
    heads = shard.model.heads / shard.tp
    elements = shard.tokens * heads * 2 * (mla.nope_size + mla.rope_size)
    size = shard.element * elements
    plain = shard.runtime.kernels.rope != "fused"
    kernels = ASSUMED.launches["latent rope" if plain else "fused latent rope"]
    return Op(
        "rope and concatenation",
        "mla-up",
        "memory",
        bytes_f=EAGER_ROPE_BYTES[0] * elements if plain else 2.0 * size,
        bytes_b=EAGER_ROPE_BYTES[1] * elements if plain else 2.0 * size,
        kernels_f=kernels[0],
        kernels_b=kernels[1],
        extra_f=2 * size,
        extra_b=shard.residual + 2 * size,
    )


def _core(shard: Shard, mla: Mla, window: int) -> Op:
    heads = shard.model.heads / shard.tp
    size_qk = mla.nope_size + mla.rope_size
    per_head = shard.element * shard.tokens * heads
    query, value = per_head * size_qk, per_head * mla.value_size
    chosen = chosen_keys(shard)
    # keys that differ from token to token are read compressed, and so are values: all heads share them
    size_v = mla.kv_rank if chosen else mla.value_size
    shape, comms = context_shape(
        shard, heads, 1.0, mla.kv_rank + mla.rope_size if chosen else size_qk, size_v, chosen or window
    )
    # values are a view of the up-projection's output, which holds the positionless keys as well
    held = value + (per_head * mla.nope_size if shard.runtime.kernels.rope != "fused" else 0.0)
    if not shard.flash:
        return unfused_core(shard, heads, query, query, shape, comms)
    return Op(
        "attention",
        "core-attention",
        "attention",
        shape,
        kernels_f=FLASH_KERNELS[0],
        kernels_b=FLASH_KERNELS[1],
        kept=2 * query + held + value + 4 * heads * shard.tokens,
        stays=2 * query + held + value,
        own=value + 4 * heads * shard.tokens,
        extra_f=value,
        extra_b=shard.residual + value + 2 * query + value,
        comms=comms,
        masked=masked(shard, chosen or window),
    )


def _output(shard: Shard, mla: Mla) -> Op:
    inputs, live = shard.model.heads / shard.tp * mla.value_size, shard.residual if shard.sp else 0.0
    return linear(shard, Linear("output", "attention", inputs, shard.model.hidden, "row", live=live))
