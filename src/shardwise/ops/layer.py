"""The kinds of layer a model has, and the operators of each."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from shardwise.inputs.mixers import Feed, Mixer
from shardwise.inputs.model import Model
from shardwise.ops.attention import attention
from shardwise.ops.cross import cross_attention
from shardwise.ops.embedding import embedding, table_params
from shardwise.ops.linear import Linear, linear, norm
from shardwise.ops.mla import latent_attention
from shardwise.ops.mlp import mlp
from shardwise.ops.moe import moe_block
from shardwise.ops.op import Op
from shardwise.ops.recurrent import recurrent
from shardwise.ops.shard import Shard
from shardwise.ops.tower import closing, modulation, trained
from shardwise.ops.traced import traced_kind, traced_ops


class LayerKind(NamedTuple):
    """Layers of one kind cost the same."""

    mixer: Mixer = "attention"
    feed: Feed = "dense"
    window: int = 0
    mtp: bool = False
    traced: str = ""
    """Name of the kind of block, of a traced module."""
    tower: str = ""
    """The tower that it belongs to; none: it is the model's own."""
    opens: bool = False
    """What makes its tower's or model's tokens stands in it, behind the layers of another tower."""
    closes: bool = False
    """The last of its tower: a norm and the projector stand in it."""
    crosses: bool = False
    """It attends to the output of a tower, too."""

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
        text = f"{self.tower} {text}" if self.tower else text
        text += {(True, False): " with embedding", (False, True): " with projector",
                 (True, True): " with embedding and projector"}.get((self.opens, self.closes), "")  # fmt: skip
        return f"mtp {text}" if self.mtp else text


_MIXED = {"attention": "", "recurrent": "recurrent ", "both": "side-by-side ", "none": "feed-forward "}
_FED = {"dense": "", "experts": "moe ", "none": "lone "}


@lru_cache(maxsize=256)
def layer_kinds(model: Model) -> tuple[LayerKind, ...]:
    """Kind of every layer in model order, multi-token-prediction layers last."""
    if model.traced:
        return tuple(LayerKind(traced=model.traced.kinds[kind].name) for kind in model.traced.order)
    kinds = [kind for place, tower in enumerate(model.towers) for kind in _tower_kinds(tower, opens=place > 0)]
    own = [_kind_of(model, index)._replace(crosses=model.crosses) for index in range(model.layers)]
    kinds += [own[0]._replace(opens=bool(model.towers)), *own[1:]]
    last = model.layers - 1
    kinds += [LayerKind(feed=model.feed_of(last), mtp=True)] * model.mtp
    return tuple(kinds)


def _tower_kinds(tower: Model, *, opens: bool) -> list[LayerKind]:
    kinds = [_kind_of(tower, index)._replace(tower=tower.name) for index in range(tower.layers)]
    kinds[0] = kinds[0]._replace(opens=opens)
    kinds[-1] = kinds[-1]._replace(closes=True)
    return kinds


def _kind_of(model: Model, index: int) -> LayerKind:
    mixer = model.mixer_of(index)
    return LayerKind(mixer, model.feed_of(index), model.window_of(index) if mixer in {"attention", "both"} else 0)


def layer_ops(shard: Shard, kind: LayerKind) -> list[Op]:
    """The operators of one layer in forward order."""
    if kind.traced:
        return traced_ops(shard, traced_kind(shard.model, kind.traced))
    own = shard.of(kind.tower)
    mixing = trained(own, mixer_ops(own, kind.mixer, kind.window))
    feeding = trained(own, feed_forward_ops(own, kind.feed))
    return [*before_ops(shard, kind), *mixing, *between_ops(shard, kind), *feeding, *behind_ops(shard, kind)]


def before_ops(shard: Shard, kind: LayerKind) -> list[Op]:
    """What stands in a layer before its own two blocks."""
    if kind.mtp:
        return mtp_ops(shard)
    own = shard.of(kind.tower)
    made = trained(own, embedding(own)) if kind.opens else []
    if made and own.whole and any(one.model.stem is None for one in shard.towers):
        made = [made[0]._replace(params=made[0].params - table_params(own)), *made[1:]]
    return [*made, *modulation(own, 6)] if own.model.condition else made


def between_ops(shard: Shard, kind: LayerKind) -> list[Op]:
    """What stands between them."""
    return cross_attention(shard, shared=not kind.opens) if kind.crosses else []


def behind_ops(shard: Shard, kind: LayerKind) -> list[Op]:
    """What stands behind them."""
    return closing(shard.of(kind.tower), shard) if kind.closes else []


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
