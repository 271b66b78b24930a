"""A module as somebody has it: the example of `any-module.md`."""

import torch
from torch import Tensor, nn
from torch.nn import functional as fn


class Block(nn.Module):
    """Attention and a wide layer, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        samples, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(samples, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(samples, tokens, width))
        return x + self.wide(self.norm2(x))


class Decoder(nn.Module):
    """It gives its loss."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return fn.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def build() -> nn.Module:
    """What `shardwise models --trace my_model.py:build` calls."""
    torch.manual_seed(0)
    return Decoder(layers=32, width=4096, heads=32, vocabulary=50_000)
