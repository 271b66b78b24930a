"""Attention of a decoder's layer to the output of an encoder, on one rank."""

from __future__ import annotations

from shardwise.ops.attention import FLASH_KERNELS, kv_width, query_width, turned_heads, unfused_core
from shardwise.ops.linear import Linear, linear, norm, residual_add
from shardwise.ops.op import Op
from shardwise.ops.shard import Shard


def cross_attention(shard: Shard, *, shared: bool) -> list[Op]:
    """With its norm and its residual addition. `shared`: another layer keeps the encoder's output, which all read."""
    model = shard.model
    source = next(one for one in shard.towers if one.model.projector is None)
    query, kv = query_width(shard), kv_width(shard)
    asked = Linear("cross query", "attention", model.hidden, query, "column", shard.hidden, shard.residual)
    told = Linear("cross keys", "attention", source.model.hidden, 2 * kv, "column", 0.0 if shared else source.hidden)
    out = Linear("cross output", "attention", query, model.hidden, "row", 0.0, shard.residual if shard.sp else 0.0)
    keys = linear(source, told._replace(bias=model.qkv_bias, projections=2))
    if model.qkv_bias and not model.key_bias:
        keys = keys._replace(params=keys.params - kv)
    if shared:  # the gradient of the encoder's output adds up over the layers
        keys = keys._replace(bytes_b=keys.bytes_b + 3 * source.hidden, kernels_b=keys.kernels_b + 1)
    return [
        norm(shard, "cross norm", "attention-norm"), linear(shard, asked._replace(bias=model.qkv_bias)), keys,
        _core(shard, source), *_turned(shard, source), linear(shard, out._replace(bias=model.out_bias)),
        residual_add(shard, "residual", "attention"),
    ]  # fmt: skip


def _core(shard: Shard, source: Shard) -> Op:
    """Every query meets every key of the encoder."""
    model = shard.model
    heads, query = model.heads / shard.tp, shard.element * shard.tokens * query_width(shard)
    kv = source.element * source.tokens * kv_width(shard)
    shape = (
        shard.samples * heads, shard.whole_seq, source.whole_seq, model.head_size, model.head_size, 1.0,
        model.kv_heads / model.heads,
    )  # fmt: skip
    if not shard.flash:
        return unfused_core(shard, heads, query, kv, shape, (), source)._replace(name="cross attention")
    kept = 2 * query + 2 * kv
    return Op(
        "cross attention", "core-attention", "attention", shape, kernels_f=FLASH_KERNELS[0], kernels_b=FLASH_KERNELS[1],
        kept=kept + 4 * heads * shard.tokens, stays=kept, extra_f=query, extra_b=shard.residual + 2 * query + 2 * kv,
    )  # fmt: skip


def _turned(shard: Shard, source: Shard) -> list[Op]:
    """Copies that put heads first, of keys and values of the encoder's tokens."""
    if not shard.model.heads_first or shard.runtime.kernels.activation != "eager":
        return []
    keys = turned_heads(source, 0.0, 2 * kv_width(shard))
    return [keys, turned_heads(shard, query_width(shard), 2 * query_width(shard))]


def received(shard: Shard) -> Op:
    """The encoder's output, kept for all layers of a stage that another stage hands it to, and its gradient."""
    source = next(one for one in shard.towers if one.model.projector is None)
    return Op("encoder output", "embedding", "memory", kernels_f=0.0, kernels_b=0.0, kept=2 * source.hidden)
