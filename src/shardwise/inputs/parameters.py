"""How many parameters a model has, block by block."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.inputs.model import GATED, Model


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
    """Attention of one layer: projections, biases, norms on queries and keys, sinks."""
    norms: int
    """All norms of one layer on the residual stream."""
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
    dense_layers: int
    """Layers without experts, multi-token-prediction layers not counted."""
    moe_layers: int
    """Layers with experts, multi-token-prediction layers not counted."""
    mtp_dense: int
    """Multi-token-prediction layers without experts."""
    mtp_moe: int
    """Multi-token-prediction layers with experts."""
    experts: int
    """Routed experts per layer."""
    top_k: int
    """Experts that each token visits."""

    @property
    def dense_layer(self) -> int:
        return self.attention + self.norms + self.mlp

    @property
    def moe_layer(self) -> int:
        return self.attention + self.norms + self.router + self.shared + self.experts * self.expert

    @property
    def active_moe_layer(self) -> int:
        """A mixture-of-experts layer with only the experts that one token visits."""
        return self.attention + self.norms + self.router + self.shared + self.top_k * self.expert

    @property
    def layers(self) -> int:
        """All transformer layers, multi-token prediction not counted."""
        return self.dense_layers * self.dense_layer + self.moe_layers * self.moe_layer

    @property
    def mtp(self) -> int:
        """All multi-token-prediction layers; embedding and output layer are the model's own."""
        layers = self.mtp_dense * self.dense_layer + self.mtp_moe * self.moe_layer
        return layers + (self.mtp_dense + self.mtp_moe) * self.mtp_extra

    @property
    def ends(self) -> int:
        """Everything outside the layers."""
        return self.embedding + self.position + self.embedding_norm + self.final_norm + self.head

    @property
    def main(self) -> int:
        """The model without multi-token prediction: the figure that papers print."""
        return self.ends + self.layers

    @property
    def total(self) -> int:
        """Everything that is trained."""
        return self.main + self.mtp

    @property
    def active(self) -> int:
        """What one token passes through, embeddings included, multi-token prediction not."""
        return self.ends + self.dense_layers * self.dense_layer + self.moe_layers * self.active_moe_layer


def count(model: Model) -> Parameters:
    """Count the parameters of a model, with its vocabulary unpadded."""
    moe = model.moe
    moe_layers, all_moe = _moe_layers(model, model.layers), _moe_layers(model, model.layers + model.mtp)
    width = model.embedding_size or model.hidden
    norm = _norm(model, model.hidden)
    return Parameters(
        embedding=model.vocab * width + (2 * width * model.hidden if width != model.hidden else 0),
        position=model.max_positions * model.hidden if model.position == "learned" else 0,
        embedding_norm=norm if model.embedding_norm else 0,
        attention=_attention(model),
        norms=model.norms_per_layer * norm,
        mlp=_feed_forward(model, model.ffn, bias=model.mlp_bias),
        router=moe.experts * (model.hidden + moe.router_bias) if moe else 0,
        expert=_feed_forward(model, moe.expert_ffn, bias=moe.expert_bias) if moe else 0,
        shared=_shared(model),
        final_norm=norm,
        head=(0 if model.tied else model.vocab * width) + (model.vocab if model.head_bias else 0),
        mtp_extra=2 * model.hidden * model.hidden + 3 * norm if model.mtp else 0,
        dense_layers=model.layers - moe_layers,
        moe_layers=moe_layers,
        mtp_dense=model.mtp - (all_moe - moe_layers),
        mtp_moe=all_moe - moe_layers,
        experts=moe.experts if moe else 0,
        top_k=moe.top_k if moe else 0,
    )


def _moe_layers(model: Model, layers: int) -> int:
    """How many of the first `layers` have experts: `Model.is_moe_layer`, counted."""
    return max(0, layers - model.moe.first_dense) // model.moe.every if model.moe else 0


def _norm(model: Model, width: int) -> int:
    return width * (2 if model.norm == "layernorm" else 1)


def _feed_forward(model: Model, inner: int, *, bias: bool) -> int:
    into = 2 if model.activation in GATED else 1
    return (into + 1) * model.hidden * inner + (into * inner + model.hidden if bias else 0)


def _shared(model: Model) -> int:
    moe = model.moe
    if moe is None or not moe.shared_ffn:
        return 0
    return _feed_forward(model, moe.shared_ffn, bias=moe.expert_bias) + (model.hidden if moe.shared_gate else 0)


def _attention(model: Model) -> int:
    sinks = model.heads if model.sinks else 0
    return (_latent_attention(model) if model.mla else _plain_attention(model)) + sinks


def _plain_attention(model: Model) -> int:
    query, key = model.heads * model.head_size, model.kv_heads * model.head_size
    weights = model.hidden * (2 * query + 2 * key)
    biases = (query + 2 * key if model.qkv_bias else 0) + (model.hidden if model.out_bias else 0)
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
