"""How many parameters a model has, block by block."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from shardwise.inputs.mixers import Feed, Mixer
from shardwise.inputs.model import GATED, Model
from shardwise.inputs.traced import Traced

_FEEDS: tuple[Feed, ...] = ("dense", "experts", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameter counts of a model by block; a block the model lacks counts 0."""

    embedding: int
    """Token embedding, with its projections to and from hidden where its width differs."""
    position: int
    """Learned position table."""
    embedding_norm: int
    """Norm after the embedding."""
    attention: int
    """Attention of one layer: projections, biases, norms on queries and keys, sinks, its gate and its indexer."""
    recurrent: int
    """What stands in its place in layers without attention."""
    norms: int
    """All norms of one layer on the residual stream; half of them where it has one block of the two."""
    mlp: int
    """Feed-forward block of one dense layer."""
    router: int
    """Router of one mixture-of-experts layer."""
    expert: int
    """One routed expert."""
    shared: int
    """Shared expert of one layer, its gate included."""
    final_norm: int
    """Norm before the output layer."""
    head: int
    """Output layer; only its bias where the weights are the embedding's."""
    mtp_extra: int
    """What one multi-token-prediction layer has beside its transformer layer: projection and norms."""
    mixed: tuple[tuple[Mixer, Feed, int], ...]
    """How many layers have which two blocks, multi-token-prediction layers not counted."""
    ahead: tuple[Feed, ...]
    """Feed-forward blocks of the multi-token-prediction layers, which have attention."""
    experts: int
    """Routed experts per layer."""
    top_k: int
    """Experts that each token visits."""
    blocks: int = 0
    """All blocks of a traced module."""
    towers: int = 0
    """All towers, with what hands their output on."""

    def layer(self, mixer: Mixer, feed: Feed, *, active: bool = False) -> int:
        """One layer of these blocks; `active`: with only the experts that one token visits."""
        visited = self.top_k if active else self.experts
        mixes = {"attention": self.attention, "recurrent": self.recurrent, "none": 0,
                 "both": self.attention + self.recurrent}[mixer]  # fmt: skip
        feeds = {"dense": self.mlp, "experts": self.router + self.shared + visited * self.expert, "none": 0}[feed]
        return mixes + feeds + (self.norms // 2 if "none" in {mixer, feed} else self.norms)

    def of_feed(self, feed: Feed, *, active: bool = False) -> int:
        """All layers with such a feed-forward block, multi-token prediction not counted."""
        return sum(count * self.layer(mixer, own, active=active) for mixer, own, count in self.mixed if own == feed)

    @property
    def layers(self) -> int:
        """All layers, multi-token prediction not counted."""
        return self.blocks + sum(map(self.of_feed, _FEEDS))

    @property
    def mtp(self) -> int:
        """All multi-token-prediction layers; embedding and output layer are the model's own."""
        return sum(self.layer("attention", feed) + self.mtp_extra for feed in self.ahead)

    @property
    def ends(self) -> int:
        """Everything outside the layers."""
        return self.embedding + self.position + self.embedding_norm + self.final_norm + self.head

    @property
    def main(self) -> int:
        """The model without multi-token prediction: the figure that papers print."""
        return self.ends + self.layers + self.towers

    @property
    def total(self) -> int:
        """Everything that is trained."""
        return self.main + self.mtp

    @property
    def active(self) -> int:
        """What one token passes through, embeddings included, multi-token prediction not."""
        return self.ends + self.blocks + self.towers + sum(self.of_feed(feed, active=True) for feed in _FEEDS)


def count(model: Model) -> Parameters:
    """Count the parameters of a model, with its vocabulary unpadded."""
    if model.traced:
        return _traced(model.traced)
    moe = model.moe
    blocks = Counter((model.mixer_of(index), model.feed_of(index)) for index in range(model.layers))
    width = model.embedding_size or model.hidden
    norm = _norm(model, model.hidden)
    scales = 2 * model.hidden if model.layer_scale else 0
    modulated = 6 * model.hidden * (model.hidden + 1) if model.condition else 0
    return Parameters(
        embedding=_embedding(model, width),
        position=_positions(model),
        embedding_norm=norm if model.embedding_norm else 0,
        attention=_attention(model),
        recurrent=model.recurrent.parameters(model.hidden) if model.recurrent else 0,
        norms=model.norms_per_layer * norm + scales + modulated + (_cross(model) + norm if model.crosses else 0),
        mlp=_feed_forward(model, model.ffn, bias=model.mlp_bias),
        router=moe.experts * (model.hidden + moe.router_bias) if moe else 0,
        expert=_feed_forward(model, moe.expert_ffn, bias=moe.expert_bias) if moe else 0,
        shared=_shared(model),
        final_norm=norm if model.final_norm else 0,
        head=_head(model, width),
        mtp_extra=2 * model.hidden * model.hidden + 3 * norm if model.mtp else 0,
        mixed=tuple((mixer, feed, number) for (mixer, feed), number in blocks.items()),
        ahead=tuple(model.feed_of(model.layers + place) for place in range(model.mtp)),
        experts=moe.experts if moe else 0,
        top_k=moe.top_k if moe else 0,
        towers=sum(_tower(model, tower) for tower in model.towers),
    )


def _positions(model: Model) -> int:
    """A row for each, or a number for every head."""
    return model.max_positions * (model.hidden if model.tabled else model.heads if model.position == "relative" else 0)


def _embedding(model: Model, width: int) -> int:
    """A table of tokens, or what makes tokens of pictures; what a diffusion transformer is conditioned on."""
    if model.stem is None:
        table = model.vocab * width + (2 * width * model.hidden if width != model.hidden else 0)
        return table + model.token_types * model.hidden
    steps = model.condition and model.hidden * (model.condition + 1 + model.hidden + 1)
    return model.stem.parameters(model.hidden) + steps + model.classes * model.hidden


def _head(model: Model, width: int) -> int:
    weights = 0 if model.tied else model.vocab * width
    dense = model.hidden * (model.hidden + 1) if model.head_dense else 0
    modulated = 2 * model.hidden * (model.hidden + 1) if model.condition and model.final_norm else 0
    return weights + dense + modulated + (model.vocab if model.head_bias else 0)


def _tower(model: Model, tower: Model) -> int:
    """All of a tower but an output layer, which it has none of; a text encoder's table is the model's own."""
    own = count(tower)
    shared = own.embedding if tower.stem is None else 0
    projector = tower.projector.parameters(tower.hidden, model.hidden, tower.norm_rows) if tower.projector else 0
    return own.main - own.head - shared + projector


def _cross(model: Model) -> int:
    """Attention of one layer to a tower's output."""
    source = next(tower for tower in model.towers if tower.projector is None)
    query, key = model.heads * model.head_size, model.kv_heads * model.head_size
    biases = (query + key * (1 + model.key_bias) if model.qkv_bias else 0) + (model.hidden if model.out_bias else 0)
    return 2 * model.hidden * query + 2 * source.hidden * key + biases


def _traced(traced: Traced) -> Parameters:
    """Of a traced module its ends are known, and what stands between them."""
    names = (
        "position", "embedding_norm", "attention", "recurrent", "norms", "mlp", "router", "expert", "shared",
        "final_norm", "mtp_extra", "experts", "top_k",
    )  # fmt: skip
    first, last = traced.first.params + traced.idle, traced.last.params
    none = dict.fromkeys(names, 0)
    return Parameters(embedding=first, head=last, mixed=(), ahead=(), blocks=traced.params - first - last, **none)


def _norm(model: Model, width: int) -> int:
    return width * model.norm_rows


def _feed_forward(model: Model, inner: int, *, bias: bool) -> int:
    into = 2 if model.activation in GATED else 1
    return (into + 1) * model.hidden * inner + (into * inner + model.hidden if bias else 0)


def _shared(model: Model) -> int:
    moe = model.moe
    if moe is None or not moe.shared_ffn:
        return 0
    return _feed_forward(model, moe.shared_ffn, bias=moe.expert_bias) + (model.hidden if moe.shared_gate else 0)


def _attention(model: Model) -> int:
    more = model.heads if model.sinks else 0
    if model.sparse:
        more += model.sparse.parameters(model.hidden, model.mla.q_rank if model.mla else 0)
    return (_latent_attention(model) if model.mla else _plain_attention(model)) + more


def _plain_attention(model: Model) -> int:
    query, key = model.heads * model.head_size, model.kv_heads * model.head_size
    weights = model.hidden * ((3 if model.attention_gate else 2) * query + 2 * key)
    biases = query + key * (1 + model.key_bias) if model.qkv_bias else 0
    biases += model.hidden if model.out_bias else 0
    normed = {"none": 0, "head": 2 * model.head_size, "full": query + key}[model.qk_norm]
    return weights + biases + normed


def _latent_attention(model: Model) -> int:
    """Multi-head latent attention, DeepSeek-V2 (arXiv 2405.04434), equations 9 to 19."""
    mla = model.mla
    if mla is None:
        return 0
    query = model.heads * (mla.nope_size + mla.rope_size)
    through_rank = model.hidden * mla.q_rank + mla.q_rank + mla.q_rank * query
    queries = through_rank if mla.q_rank else model.hidden * query
    down = model.hidden * (mla.kv_rank + mla.rope_size) + mla.kv_rank
    up = mla.kv_rank * model.heads * (mla.nope_size + mla.value_size)
    out = model.heads * mla.value_size * model.hidden
    biases = (mla.q_rank + mla.kv_rank + mla.rope_size if model.qkv_bias else 0) + (
        model.hidden if model.out_bias else 0
    )
    return queries + down + up + out + biases
