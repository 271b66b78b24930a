"""The kinds of layer a model has, and the operators of each."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from shardwise.inputs.model import Model
from shardwise.ops.attention import attention
from shardwise.ops.linear import Linear, linear, norm
from shardwise.ops.mla import latent_attention
from shardwise.ops.mlp import mlp
from shardwise.ops.moe import moe_block
from shardwise.ops.op import Op
from shardwise.ops.shard import Shard


class LayerKind(NamedTuple):
    """Layers of one kind cost the same."""

    moe: bool
    window: int
    mtp: bool = False

    @property
    def name(self) -> str:
        text = "moe layer" if self.moe else "layer"
        if self.window:
            text += f" (window {self.window})"
        return f"mtp {text}" if self.mtp else text


@lru_cache(maxsize=256)
def layer_kinds(model: Model) -> tuple[LayerKind, ...]:
    """Kind of every layer in model order, multi-token-prediction layers last."""
    kinds = [LayerKind(model.is_moe_layer(index), model.window_of(index)) for index in range(model.layers)]
    last = model.layers - 1
    kinds += [LayerKind(model.is_moe_layer(last), 0, mtp=True)] * model.mtp
    return tuple(kinds)


def layer_ops(shard: Shard, kind: LayerKind) -> list[Op]:
    """The operators of one layer in forward order."""
    ops = [*attention_ops(shard, kind.window), *feed_forward_ops(shard, moe=kind.moe)]
    return [*mtp_ops(shard), *ops] if kind.mtp else ops


def attention_ops(shard: Shard, window: int) -> list[Op]:
    """Its attention block; experts and their ranks mean nothing to it."""
    ops = latent_attention(shard, window) if shard.model.mla else attention(shard, window)
    # one addition serves both branches of a parallel residual
    return ops[:-1] if shard.model.parallel_residual else ops


def feed_forward_ops(shard: Shard, *, moe: bool) -> list[Op]:
    """Its other block: of a sequence and of context parallel it knows the rank's tokens alone."""
    return moe_block(shard) if moe else mlp(shard)


def mtp_ops(shard: Shard) -> list[Op]:
    """Norms of the hidden state and of the next token's embedding, and the projection of both to one."""
    hidden = shard.model.hidden
    layer = Linear("mtp projection", "mtp", 2 * hidden, hidden / shard.tp, "column", 2 * shard.hidden, shard.residual)
    norms = [norm(shard, "mtp hidden norm", "mtp"), norm(shard, "mtp embedding norm", "mtp")]
    return [*norms, linear(shard, layer)]
