"""What is trained: the shape of a transformer, of its towers where it has any, and nothing about how it is split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardwise.inputs.mixers import Feed, Mixer, Recurrent, Sparse
from shardwise.inputs.serialise import later
from shardwise.inputs.towers import Projector, Stem
from shardwise.inputs.traced import Traced

Activation = Literal["swiglu", "geglu", "gelu", "relu", "squared-relu"]
Norm = Literal["rmsnorm", "layernorm"]
Position = Literal["rope", "learned", "alibi", "relative", "learned+rope", "none"]
QkNorm = Literal["none", "head", "full"]
Scaling = Literal["linear", "dynamic", "yarn", "llama3"]
Score = Literal["softmax", "sigmoid"]

GATED = frozenset({"swiglu", "geglu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary positions are stretched to sequences longer than those of the first training."""

    kind: Scaling
    """linear: all angles; dynamic: the base grows with the sequence; yarn, llama3: slow angles alone, each its way."""
    factor: float
    """How many times longer."""
    original: int = 0
    """Longest sequence of the first training; linear does without."""
    low: float = 1.0
    """llama3: angles that turn less often than this within `original` are stretched in full."""
    high: float = 4.0
    """llama3: angles that turn more often than this are left alone."""
    beta_fast: float = 32.0
    """yarn: angles that turn more often than this within `original` are left alone."""
    beta_slow: float = 1.0
    """yarn: angles that turn less often than this are stretched in full."""
    mscale: float = 1.0
    """yarn: growth of the attention scores with ln(factor), over a tenth."""
    mscale_all: float = 0.0
    """yarn: the same on all dimensions of a head, which DeepSeek puts into the scale of the scores; 0: not."""
    truncate: bool = True
    """yarn: the two borders are rounded to whole dimensions; gpt-oss does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2): queries, keys and values pass through low-rank projections."""

    kv_rank: int
    """Width of the compressed keys and values."""
    nope_size: int
    """Size of the part of each query and key head that carries no position."""
    rope_size: int
    """Size of the rotary part of each head; the key's is shared by all heads."""
    value_size: int
    """Size of each value head."""
    q_rank: int = 0
    """Width of the compressed queries; 0: queries are projected directly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Mixture of experts in place of the feed-forward block."""

    experts: int
    """Routed experts per layer."""
    top_k: int
    """Experts that each token visits."""
    expert_ffn: int
    """Inner width of one routed expert."""
    shared_ffn: int = 0
    """Inner width of the shared expert (all shared experts together); 0: none."""
    first_dense: int = 0
    """Leading layers with an ordinary feed-forward block."""
    every: int = 1
    """Of the layers after the leading dense ones, every n-th is a mixture-of-experts layer."""
    capacity: float | None = None
    """Capacity factor: each expert takes this times its even share, padded; none: dropless."""
    imbalance: float = 1.0
    """Tokens of the busiest rank over the mean; 1: even routing."""
    loads: tuple[float, ...] = ()
    """What share of the tokens each expert gets, in any unit, as a router's statistics say; empty: all alike. Experts
    stand on their ranks in this order, and the busiest rank is what `imbalance` times the mean would be."""
    groups: int = 1
    """Equal groups that the experts stand in, for routing that is limited to some of them (DeepSeek's n_group)."""
    top_groups: int = 1
    """Groups that the experts of one token may come from (DeepSeek's topk_group)."""
    router_bias: bool = False
    """The router has a bias."""
    expert_bias: bool = False
    """The experts' linear layers have biases."""
    shared_gate: bool = False
    """A learned gate scales the shared expert's output (Qwen2-MoE)."""
    score: Score = later("softmax")
    """What makes the router's numbers into weights."""
    normalised: bool = later(True)
    """The weights of the experts that a token visits add up to one."""
    scale: float = later(1.0)
    """What the weights are multiplied by (DeepSeek's routed_scaling_factor)."""
    balance_loss: float = later(0.0)
    """Coefficient of the auxiliary loss that evens the experts' load; 0: none."""
    balance_bias: bool = later(False)
    """A bias per expert, moved by its load and no gradient, evens it (DeepSeek-V3)."""

    def busiest(self, ep: int) -> float:
        """Tokens of the busiest of `ep` ranks over the mean."""
        if not self.loads or ep == 1:
            return self.imbalance if ep > 1 else 1.0
        each = len(self.loads) // ep
        ranks = [sum(self.loads[rank * each : (rank + 1) * each]) for rank in range(ep)]
        return max(ranks) * ep / sum(ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A language model, or any other model of layers that mix tokens and compute on each; of towers, the last part."""

    name: str
    """What it is called in reports."""
    layers: int
    """Transformer layers, multi-token-prediction layers not counted."""
    hidden: int
    """Width of the residual stream."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads; equal to heads: multi-head, 1: multi-query, between: grouped."""
    head_size: int
    """Size of one head; need not be hidden / heads."""
    ffn: int
    """Inner width of the feed-forward block of dense layers."""
    vocab: int = later(0)
    """Vocabulary, before any padding; classes, or numbers of a patch, that are predicted. A tower of pictures has
    none."""
    activation: Activation = "swiglu"
    """swiglu and geglu have a gate, so three matrices; the others two."""
    gelu_steps: bool = later(False)
    """gelu is approximated by tanh in steps of its own (GPT-2's gelu_new): eager runtimes run and keep every one."""
    norm: Norm = "rmsnorm"
    """rmsnorm has one vector of weights, layernorm two."""
    position: Position = "rope"
    """learned: a table of `max_positions` rows beside the embedding, learned+rope: and rotary ones; relative: a table
    of `max_positions` distances for every head, added to scores (T5)."""
    rotary_base: float = 10_000.0
    """Base of rotary position angles (theta). No shape or time depends on it; exports must say it."""
    rotary_share: float = later(1.0)
    """Share of each head that rotary positions turn (GPT-NeoX 0.25, GLM 0.5); of MLA's rotary part always all."""
    rope_scaling: RopeScaling | None = None
    """How rotary positions are stretched; none: they are not."""
    window_rotary_base: float = later(0.0)
    """Base of the layers with a window, whose positions are not stretched (Gemma 3); 0: they turn as the others."""
    norm_eps: float = later(1e-5)
    """What norms add to the variance."""
    norm_vectors: Literal["usual", "one", "none"] = later("usual")
    """Weights of norms: one vector of layernorm too (Cohere), or none at all (OLMo's first)."""
    norm_offset: bool = later(False)
    """Norms multiply by one more than their weights (Gemma)."""
    embedding_scaled: bool = later(False)
    """Embeddings are multiplied by the root of hidden (Gemma)."""
    query_scalar: int = later(0)
    """Attention scores are divided by its root (Gemma's query_pre_attn_scalar); 0: by that of head_size."""
    score_cap: float = later(0.0)
    """Attention scores are held within this by tanh (Gemma 2); 0: they are not."""
    logit_cap: float = later(0.0)
    """So are the output layer's logits; 0: they are not."""
    max_positions: int = 0
    """Rows of a learned position table."""
    tied: bool = False
    """The output layer shares the embedding's weights."""
    fused_qkv: bool = later(False)
    """Queries, keys and values are one matrix (GPT-NeoX, Phi-3): eager runtimes keep all of its output for values."""
    qkv_bias: bool = False
    """The query, key and value projections have biases."""
    out_bias: bool = False
    """The attention output projection has a bias."""
    mlp_bias: bool = False
    """The feed-forward matrices have biases."""
    head_bias: bool = False
    """The output layer has a bias."""
    qk_norm: QkNorm = "none"
    """Norm on queries and keys: per head (Qwen3) or over all heads (OLMo 2)."""
    norms_per_layer: int = 2
    """2: before attention and before the feed-forward block; 4: also after each (Gemma 2); 1: one for both."""
    parallel_residual: bool = False
    """Attention and feed-forward block read the same input and are added together (GPT-NeoX, Falcon, Phi)."""
    embedding_norm: bool = False
    """A norm follows the embedding (Bloom)."""
    embedding_size: int = 0
    """Width of the embedding table where it differs from hidden, with a projection each way (OPT-350M)."""
    sinks: bool = False
    """A learned attention sink per head (gpt-oss)."""
    windows: tuple[int, ...] = ()
    """Sliding windows, cycled over the layers; 0: full attention. Empty: full attention everywhere."""
    mla: Mla | None = None
    """Multi-head latent attention in place of ordinary attention."""
    moe: Moe | None = None
    """Mixture of experts in place of the feed-forward block."""
    recurrent: Recurrent | None = None
    """What mixes tokens in layers that have no attention."""
    mixers: tuple[Mixer, ...] = later(())
    """What mixes tokens, cycled over the layers: attention, recurrent, both side by side, or none (a layer that is a
    feed-forward block alone). Empty: attention everywhere."""
    feeds: tuple[Feed, ...] = later(())
    """Feed-forward blocks, cycled over the layers: dense, experts, or none (a layer that only mixes). Empty: as `moe`
    says."""
    sparse: Sparse | None = None
    """Attention goes to keys that an indexer chooses."""
    chunked: bool = later(False)
    """A window is a chunk of the sequence whose tokens see each other and none outside (Llama 4)."""
    attention_gate: bool = later(False)
    """A gate as wide as the queries scales attention's output (Qwen3-Next)."""
    mtp: int = 0
    """Multi-token-prediction layers after the last layer, each a transformer layer with a projection and norms."""
    dropout: float = 0.0
    """Probability of dropout on attention and residuals."""
    causal: bool = later(True)
    """A token sees none behind it; else all of its sample."""
    key_bias: bool = later(True)
    """Keys have a bias where queries and values do (Whisper's have none)."""
    heads_first: bool = later(False)
    """Queries, keys and values are copied so that heads come first, and attention's output back (BART, Whisper in
    transformers): eager runtimes take the time and keep both outputs."""
    layer_scale: bool = later(False)
    """Both blocks of a layer are scaled by a vector before they are added (InternViT)."""
    token_types: int = later(0)
    """Rows of a second table that is added to embeddings (BERT)."""
    final_norm: bool = later(True)
    """A norm stands before the output layer."""
    head_dense: bool = later(False)
    """A linear layer with an activation stands before that norm (BERT)."""
    pooled: bool = later(False)
    """The output layer reads one token of a sample (ViT)."""
    condition: int = later(0)
    """Width of a time step's waves: a sample's time step and class scale and shift both blocks of every layer (DiT)."""
    classes: int = later(0)
    """Rows of the table of that class."""
    stem: Stem | None = later(None)
    """What makes tokens of pictures or recordings; none: a table of tokens."""
    projector: Projector | None = later(None)
    """Of a tower: what makes its output into tokens of the model; none: every layer of the model attends to it."""
    towers: tuple[Model, ...] = later(())
    """Models whose layers run before this one's, each a table of the same fields: encoders of pictures, recordings or
    text."""
    traced: Traced | None = None
    """Blocks of a module that torch followed, in place of all that the other fields say of layers."""

    @property
    def gated(self) -> bool:
        return self.activation in GATED

    @property
    def turned(self) -> bool:
        """Whether positions turn queries and keys."""
        return self.position in {"rope", "learned+rope"}

    @property
    def tabled(self) -> bool:
        """Whether positions are a table of vectors."""
        return self.position in {"learned", "learned+rope"}

    @property
    def depth(self) -> int:
        """Layers that a pipeline is cut into: those of all towers, and its own."""
        return sum(tower.layers for tower in self.towers) + self.layers

    @property
    def crosses(self) -> bool:
        """Whether its layers attend to the output of a tower."""
        return any(tower.projector is None for tower in self.towers)

    @property
    def beyond(self) -> tuple[str, ...]:
        """What it has beside layers of attention and a feed-forward block, in words: many programs know only those."""
        mixer = self.recurrent.kind if self.recurrent else "recurrent"
        found = {
            f"{mixer} layers": self.recurrent is not None,
            "layers of a single block": "none" in {*self.mixers, *self.feeds},
            "a pattern of feed-forward blocks": len(set(self.feeds)) > 1,
            "sparse attention": self.sparse is not None,
            "a gate on attention's output": self.attention_gate,
            "chunked attention": self.chunked,
            "blocks of a traced module": self.traced is not None,
            "norms with other weights": self.norm_vectors != "usual",
            "towers": bool(self.towers),
            "tokens that see all others": not self.causal,
            "inputs that are no tokens of text": self.stem is not None,
            "an output layer of its own kind": self.pooled or self.head_dense or not self.final_norm,
            "relative positions": self.position == "relative",
            "conditioned layers": self.condition > 0,
        }
        return tuple(name for name, there in found.items() if there)

    @property
    def norm_rows(self) -> int:
        """Vectors of weights that a norm has."""
        usual = 2 if self.norm == "layernorm" else 1
        return {"usual": usual, "one": 1, "none": 0}[self.norm_vectors]

    def is_moe_layer(self, index: int) -> bool:
        """Whether layer `index` (from 0) has experts; multi-token-prediction layers count on after the last."""
        moe = self.moe
        if self.feeds:
            return moe is not None and self.feeds[index % len(self.feeds)] == "experts"
        return moe is not None and index >= moe.first_dense and (index - moe.first_dense) % moe.every == moe.every - 1

    def mixer_of(self, index: int) -> Mixer:
        """What mixes tokens in layer `index`."""
        return self.mixers[index % len(self.mixers)] if self.mixers else "attention"

    def feed_of(self, index: int) -> Feed:
        """The feed-forward block of layer `index`."""
        if self.is_moe_layer(index):
            return "experts"
        return "none" if self.feeds and self.feeds[index % len(self.feeds)] == "none" else "dense"

    def window_of(self, index: int) -> int:
        """Sliding window of layer `index`, 0 for full attention."""
        return self.windows[index % len(self.windows)] if self.windows else 0
