"""Modules as one rank of tensor parallel has them, by hand: `test_traced_tensor.py` holds cut ones to them."""

import torch.nn.functional as fn
from torch import nn
from traced_models import DitBlock, Llama, LlamaBlock

KV, FFN, VOCABULARY = 4, 1536, 32000


def _plain(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class RankBlock(LlamaBlock):
    def __init__(self, hidden, heads, kv, ffn, ranks):
        super().__init__(hidden, heads, kv, ffn)
        self.heads, self.kv = heads // ranks, kv // ranks
        self.q, self.o = _plain(hidden, hidden // ranks), _plain(hidden // ranks, hidden)
        self.k, self.v = (_plain(hidden, self.kv * self.size) for _ in range(2))
        self.gate, self.up, self.down = (
            _plain(hidden, ffn // ranks), _plain(hidden, ffn // ranks), _plain(ffn // ranks, hidden),
        )  # fmt: skip


class RankLlama(Llama):
    def __init__(self, ranks, tied=False):
        super().__init__(2, 512, 8, KV, FFN, VOCABULARY // ranks, tied)
        self.layers = nn.ModuleList(RankBlock(512, 8, KV, FFN, ranks) for _ in range(2))


class Gpt(nn.Module):
    """Queries, keys and values at once, with biases and layer norms, and scores that are stored."""

    def __init__(self, ranks=1, order="first", layers=2, width=256, heads=8):
        super().__init__()
        self.embed, self.places = nn.Embedding(16384 // ranks, width), nn.Embedding(512, width)
        self.layers = nn.ModuleList(GptBlock(width, heads, ranks, order) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16384 // ranks, bias=False)

    def forward(self, ids):
        x = self.embed(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return fn.cross_entropy(logits.float().flatten(0, 1), ids.flatten())


class GptBlock(nn.Module):
    def __init__(self, width, heads, ranks, order):
        super().__init__()
        self.size, self.heads, self.order = width // heads, heads // ranks, order
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width // ranks), nn.Linear(width // ranks, width)
        self.up, self.down = nn.Linear(width, 4 * width // ranks), nn.Linear(4 * width // ranks, width)

    def forward(self, x):
        b, s, _ = x.shape
        y = self.qkv(self.norm1(x))
        if self.order == "first":
            q, k, v = y.chunk(3, -1)
            q, k, v = (one.view(b, s, self.heads, self.size).transpose(1, 2) for one in (q, k, v))
        elif self.order == "middle":
            q, k, v = y.view(b, s, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = y.view(b, s, self.heads, 3, self.size).permute(3, 0, 2, 1, 4)
        scores = (q @ k.transpose(-1, -2) / self.size**0.5).float().softmax(-1).to(v.dtype)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(b, s, -1))
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


def llama1():
    return RankLlama(1)


def llama2():
    return RankLlama(2)


def llama4():
    return RankLlama(4)


def tied1():
    return RankLlama(1, tied=True)


def tied2():
    return RankLlama(2, tied=True)


def first1():
    return Gpt(1, "first")


def first2():
    return Gpt(2, "first")


def middle1():
    return Gpt(1, "middle")


def middle2():
    return Gpt(2, "middle")


def last1():
    return Gpt(1, "last")


def last2():
    return Gpt(2, "last")


class WholeNorm(DitBlock):
    """A norm over all queries, as OLMo 2 has it: every rank would need those of the others."""

    def __init__(self):
        super().__init__(256, 4)
        self.own = nn.LayerNorm(256)

    def forward(self, x, _):
        b, s, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (one.reshape(b, s, self.heads, -1).transpose(1, 2) for one in (self.own(q), k, v))
        x = x + self.proj(fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, w))
        return x + self.mlp(self.norm2(x))


class Stack(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        self.layers = nn.ModuleList(blocks)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, None)
        return x.float().square().mean()


def whole_norm():
    return Stack(WholeNorm(), WholeNorm())


class Sorted(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x, _):
        return x + self.down(self.up(x).sort(-1).values)


def sorting():
    return Stack(Sorted(), Sorted())


class Twice(nn.Module):
    """One matrix as a column and as a row."""

    def __init__(self):
        super().__init__()
        self.both = nn.Parameter(nn.Linear(64, 64).weight)
        self.inner = nn.Linear(64, 64)

    def forward(self, x, _):
        return x + fn.linear(self.inner(fn.linear(x, self.both)).relu(), self.both)


def twice():
    return Stack(Twice(), Twice())
