"""The kinds of layer a model has, and the operators of each."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from shardwise.inputs.mixers import Feed, Mixer
from shardwise.inputs.model import Model
from shardwise.ops.attention import attention
from shardwise.ops.linear import Linear, linear, norm
from shardwise.ops.mla import latent_attention
from shardwise.ops.mlp import mlp
from shardwise.ops.moe import moe_block
from shardwise.ops.op import Op
from shardwise.ops.recurrent import recurrent
from shardwise.ops.shard import Shard
from shardwise.ops.traced import traced_kind, traced_ops


class LayerKind(NamedTuple):
    """Layers of one kind cost the same."""

    mixer: Mixer = "attention"
    feed: Feed = "dense"
    window: int = 0
    mtp: bool = False
    traced: str = ""
    """Name of the kind of block, of a traced module."""

    @property
    def moe(self) -> bool:
        return self.feed == "experts"

    @property
    def name(self) -> str:
        if self.traced:
            return self.traced
        text = f"{_MIXED[self.mixer]}{_FED[self.feed]}layer"
        if self.window:
            text += f" (window {self.window})"
        return f"mtp {text}" if self.mtp else text


_MIXED = {"attention": "", "recurrent": "recurrent ", "both": "side-by-side ", "none": "feed-forward "}
_FED = {"dense": "", "experts": "moe ", "none": "lone "}


@lru_cache(maxsize=256)
def layer_kinds(model: Model) -> tuple[LayerKind, ...]:
    """Kind of every layer in model order, multi-token-prediction layers last."""
    if model.traced:
        return tuple(LayerKind(traced=model.traced.kinds[kind].name) for kind in model.traced.order)
    kinds = [_kind_of(model, index) for index in range(model.layers)]
    last = model.layers - 1
    kinds += [LayerKind(feed=model.feed_of(last), mtp=True)] * model.mtp
    return tuple(kinds)


def _kind_of(model: Model, index: int) -> LayerKind:
    mixer = model.mixer_of(index)
    return LayerKind(mixer, model.feed_of(index), model.window_of(index) if mixer in {"attention", "both"} else 0)


def layer_ops(shard: Shard, kind: LayerKind) -> list[Op]:
    """The operators of one layer in forward order."""
    if kind.traced:
        return traced_ops(shard, traced_kind(shard.model, kind.traced))
    ops = [*mixer_ops(shard, kind.mixer, kind.window), *feed_forward_ops(shard, kind.feed)]
    return [*mtp_ops(shard), *ops] if kind.mtp else ops


def mixer_ops(shard: Shard, mixer: Mixer, window: int) -> list[Op]:
    """The block that mixes tokens; experts and their ranks mean nothing to it."""
    if mixer == "none":
        return []
    if mixer == "recurrent":
        return recurrent(shard)
    ops = latent_attention(shard, window) if shard.model.mla else attention(shard, window)
    if mixer == "both":  # one norm before and one addition behind serve both
        return [*ops[:-1], *recurrent(shard)[1:]]
    # one addition serves both branches of a parallel residual
    return ops[:-1] if shard.model.parallel_residual else ops


def feed_forward_ops(shard: Shard, feed: Feed) -> list[Op]:
    """Its other block: of a sequence and of context parallel it knows the rank's tokens alone."""
    return moe_block(shard) if feed == "experts" else mlp(shard) if feed == "dense" else []


def mtp_ops(shard: Shard) -> list[Op]:
    """Norms of the hidden state and of the next token's embedding, and the projection of both to one."""
    hidden = shard.model.hidden
    layer = Linear("mtp projection", "mtp", 2 * hidden, hidden / shard.tp, "column", 2 * shard.hidden, shard.residual)
    norms = [norm(shard, "mtp hidden norm", "mtp"), norm(shard, "mtp embedding norm", "mtp")]
    return [*norms, linear(shard, layer)]
