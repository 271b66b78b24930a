"""What stands in a layer where attention does not: mixers whose state does not grow with the sequence.

One record holds the sizes of all of them; each kind says here how many parameters it has and in `ops/recurrent.py` what
it computes. A pattern of kinds, cycled over the layers, makes a hybrid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

RecurrentKind = Literal["mamba", "mamba2", "delta", "kda", "lightning", "conv"]
Mixer = Literal["attention", "recurrent", "both", "none"]
Feed = Literal["dense", "experts", "none"]
T = TypeVar("T")


def shortest(items: Sequence[T]) -> tuple[T, ...]:
    """The shortest run that repeats to the whole list."""
    every = (tuple(items[:length]) for length in range(1, len(items) + 1))
    return next(run for run in every if all(item == run[index % len(run)] for index, item in enumerate(items)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """A state space, a delta net, linear attention or a short convolution."""

    kind: RecurrentKind
    """mamba: selective state space; mamba2: its dual form in chunks; delta: gated delta net (Qwen3-Next); kda: the same
    with a decay of every channel (Kimi); lightning: linear attention of fixed decays (MiniMax); conv: a gated short
    convolution (LFM2)."""
    heads: int
    """Heads of values; channels where every channel is its own (mamba, conv)."""
    head_size: int = 1
    """Size of one of them."""
    state: int = 0
    """Size of a head's keys and queries: of the state that every channel has."""
    key_heads: int = 0
    """Heads of keys and queries, or groups that share them (Mamba-2); 0: as many as heads."""
    conv: int = 4
    """Tokens that the short convolution before it sees; 0: none."""
    conv_bias: bool = False
    """That convolution has a bias."""
    rank: int = 0
    """Width of the low-rank projection of time steps (mamba) or of gates (kda)."""
    chunk: int = 64
    """Tokens that are computed together as attention is; only states pass between chunks."""
    bias: bool = False
    """The projections into it and out of it have biases."""
    normed: bool = True
    """A norm follows it before its output projection; of mamba: norms on time steps, keys and queries (Jamba)."""

    @property
    def width(self) -> int:
        """Width of values and of the output."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Width of keys, and of queries."""
        return (self.key_heads or self.heads) * self.state

    @property
    def convolved(self) -> int:
        """Channels that the short convolution passes over."""
        if not self.conv:
            return 0
        return self.width if self.kind in {"mamba", "conv"} else self.width + 2 * self.keys

    @property
    def projected(self) -> int:
        """Columns of the projections of its input: values, keys, queries, gates, steps."""
        width, keys = self.width, self.keys
        return {
            "mamba": 2 * width, "mamba2": 2 * width + 2 * keys + self.heads,
            "delta": 2 * width + 2 * keys + 2 * self.heads, "kda": width + 2 * keys + self.heads + 2 * self.rank,
            "lightning": 2 * width + 2 * keys, "conv": 3 * width,
        }[self.kind]  # fmt: skip

    @property
    def between(self) -> int:
        """Parameters of what stands between its projections, the convolution included."""
        width, heads = self.width, self.heads
        convolution = self.convolved * (self.conv + self.conv_bias)
        own = {
            # steps, keys and queries out of the values, steps widened, decays, a skip
            "mamba": width * (self.rank + 2 * self.state) + self.rank * width + width + width * self.state + width
            + (self.rank + 2 * self.state) * self.normed,
            "mamba2": 3 * heads + width * self.normed,
            "delta": 2 * heads + self.head_size,
            "kda": self.rank * (self.keys + width) + heads + self.keys + self.head_size,
            "lightning": width,
            "conv": 0,
        }[self.kind]  # fmt: skip
        return convolution + own

    def parameters(self, hidden: int) -> int:
        """All of one layer's, its norm on the residual stream not counted."""
        matrices = hidden * (self.projected + self.width)
        return matrices + self.between + ((self.projected + hidden) if self.bias else 0)

    @property
    def products(self) -> float:
        """Multiplications and additions per token, in pairs, of the recurrence in chunks: within a chunk as causal
        attention, and into and out of the state.
        """
        within = (self.chunk / 2) * (self.keys + self.width) if self.kind not in {"mamba", "conv"} else 0.0
        states = 2.0 * self.width * self.state
        # delta rules solve a triangular system of every chunk beside it, for keys and for values
        solved = self.chunk * (self.keys + self.width) if self.kind in {"delta", "kda"} else 0.0
        return within + states + solved


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse:
    """Attention to the keys that an indexer chooses (DeepSeek-V3.2)."""

    heads: int
    """Query heads of the indexer; one key serves all of them."""
    head_size: int
    """Size of its heads."""
    top_k: int
    """Keys that each token attends to."""
    trained: bool = False
    """The indexer learns, from the attention that it chooses for; else its choice carries no gradient."""

    def parameters(self, hidden: int, rank: int) -> int:
        """Queries out of the compressed ones, keys with a norm, and the heads' weights."""
        return (
            (rank or hidden) * self.heads * self.head_size
            + hidden * (self.head_size + self.heads)
            + (2 * self.head_size)
        )
