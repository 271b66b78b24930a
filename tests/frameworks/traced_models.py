"""Modules of many families as their users would write them; `test_traced.py` traces this file and others."""

import math

import torch
import torch.nn.functional as fn
from torch import nn
from torch.utils.checkpoint import checkpoint


class Rms(nn.Module):
    """In steps, as transformers has it."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


def turned(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, hidden, heads, kv, ffn):
        super().__init__()
        self.heads, self.kv, self.size = heads, kv, hidden // heads
        self.norm1, self.norm2 = Rms(hidden), Rms(hidden)
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.k = nn.Linear(hidden, kv * self.size, bias=False)
        self.v = nn.Linear(hidden, kv * self.size, bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)
        self.gate, self.up = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        y = self.norm1(x)
        q, k, v = (
            one(y).view(b, s, n, self.size).transpose(1, 2)
            for one, n in ((self.q, self.heads), (self.k, self.kv), (self.v, self.kv))
        )
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, -1))
        y = self.norm2(x)
        return x + self.down(fn.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, layers, hidden=4096, heads=32, kv=8, ffn=14336, vocab=128256, tied=False):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(LlamaBlock(hidden, heads, kv, ffn) for _ in range(layers))
        self.norm, self.head = Rms(hidden), nn.Linear(hidden, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.size = hidden // heads

    def forward(self, ids, labels=None):
        x = self.embed(ids)
        angles = torch.arange(ids.shape[1])[:, None] / 1e4 ** (torch.arange(0, self.size, 2) / self.size)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.head(self.norm(x))
        return logits if labels is None else fn.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def llama():
    """Three layers of Llama-3-8B."""
    return Llama(3)


def small_llama():
    return Llama(2, 512, 8, 2, 1408, 32000)


def tied_llama():
    return Llama(2, 512, 8, 2, 1408, 32000, tied=True)


class DitBlock(nn.Module):
    """A diffusion transformer's block: a condition scales, shifts and gates what it does (adaLN-Zero)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        b, s, w = x.shape
        shift, scale, gate, shift2, scale2, gate2 = (one[:, None] for one in self.condition(c).chunk(6, -1))
        y = self.norm1(x) * (1 + scale) + shift
        q, k, v = self.qkv(y).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, w)
        x = x + gate * self.proj(y)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Dit(nn.Module):
    def __init__(self, layers=28, width=1152, heads=16):
        super().__init__()
        self.patch = nn.Conv2d(4, width, 2, 2)
        self.position = nn.Parameter(torch.zeros(1, 256, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(1001, width)
        self.blocks = nn.ModuleList(DitBlock(width, heads) for _ in range(layers))
        self.last = nn.Linear(width, 32)

    def forward(self, x, t, label):
        c = self.time(t) + self.label(label)
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x, c)
        return self.last(x).float().square().mean()


def dit():
    return Dit(3)


class Res(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
        self.conv1, self.conv2 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x):
        y = self.conv1(fn.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(fn.silu(self.norm2(y)))


class Level(nn.Module):
    def __init__(self, inputs, outputs, turn):
        super().__init__()
        self.res = nn.ModuleList([Res(inputs, outputs), Res(outputs, outputs)])
        self.turn = turn(outputs)

    def forward(self, x):
        for one in self.res:
            x = one(x)
        return self.turn(x), x


def shrink(width):
    return nn.Conv2d(width, width, 3, 2, 1)


def grow(width):
    return nn.ConvTranspose2d(width, width, 2, 2)


class Unet(nn.Module):
    """Levels that differ, and what the way down made is read on the way up."""

    def __init__(self, widths=(64, 128)):
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1)
        before = (widths[0], *widths[:-1])
        self.down = nn.ModuleList(Level(i, o, shrink) for i, o in zip(before, widths, strict=True))
        back = widths[::-1]
        after = (back[0], *back[:-1])
        self.up = nn.ModuleList(Level(i, o, grow) for i, o in zip(after, back, strict=True))
        self.head = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x):
        x, skips = self.stem(x), []
        for level in self.down:
            x, skip = level(x)
            skips.append(skip)
        for level in self.up:
            x = level(x)[0] + skips.pop()
        return self.head(x).float().square().mean()


def unet():
    return Unet()


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, step):
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, step, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        same = step == 1 and inputs == outputs
        self.skip = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, step, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x):
        y = fn.relu(self.bn1(self.conv1(x)))
        y = fn.relu(self.bn2(self.conv2(y)))
        return fn.relu(self.bn3(self.conv3(y)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, counts=(3, 4, 6, 3)):
        super().__init__()
        self.conv, self.bn, self.pool = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.MaxPool2d(3, 2, 1)
        inputs, self.stages = 64, nn.ModuleList()
        for stage, count in enumerate(counts):
            width, blocks = 64 * 2**stage, []
            for index in range(count):
                blocks.append(Bottleneck(inputs, width, 2 if stage and not index else 1))
                inputs = 4 * width
            self.stages.append(nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, 1000)

    def forward(self, x, label):
        x = self.pool(fn.relu(self.bn(self.conv(x))))
        for stage in self.stages:
            x = stage(x)
        return fn.cross_entropy(self.fc(x.mean((2, 3))).float(), label)


def resnet50():
    return ResNet()


class Mamba2Block(nn.Module):
    """State space duality in chunks, in plain torch (Dao and Gu 2024, listing 1)."""

    def __init__(self, width, state=64, head=64, chunk=64):
        super().__init__()
        self.inner, self.state, self.head, self.chunk = 2 * width, state, head, chunk
        self.heads = self.inner // head
        self.norm, self.gated = nn.RMSNorm(width), nn.RMSNorm(self.inner)
        self.into = nn.Linear(width, 2 * self.inner + 2 * state + self.heads, bias=False)
        mixed = self.inner + 2 * state
        self.conv = nn.Conv1d(mixed, mixed, 4, padding=3, groups=mixed)
        self.dt, self.a = nn.Parameter(torch.zeros(self.heads)), nn.Parameter(torch.zeros(self.heads))
        self.d, self.out = nn.Parameter(torch.ones(self.heads)), nn.Linear(self.inner, width, bias=False)

    def forward(self, x):
        b, s, _ = x.shape
        z, mixed, dt = self.into(self.norm(x)).split([self.inner, self.inner + 2 * self.state, self.heads], -1)
        mixed = fn.silu(self.conv(mixed.transpose(1, 2))[..., :s].transpose(1, 2))
        y, left, right = mixed.split([self.inner, self.state, self.state], -1)
        dt = fn.softplus(dt + self.dt)
        y = y.view(b, s, self.heads, self.head)
        decay = -self.a.exp() * dt
        out = self.scan(y * dt[..., None], decay, left, right) + y * self.d[:, None]
        return x + self.out(self.gated(out.reshape(b, s, -1) * fn.silu(z)))

    def scan(self, y, decay, left, right):
        b, s, h, p = y.shape
        n = s // self.chunk
        y, left, right = (
            y.view(b, n, self.chunk, h, p),
            left.view(b, n, self.chunk, -1),
            right.view(b, n, self.chunk, -1),
        )
        sums = decay.view(b, n, self.chunk, h).permute(0, 3, 1, 2).cumsum(-1)
        inside = (sums[..., :, None] - sums[..., None, :]).tril().exp()
        near = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", right, left, inside, y)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", left, (sums[..., -1:] - sums).exp(), y)
        carry, before = torch.zeros_like(states[:, 0]), []
        for index in range(n):
            before.append(carry)
            carry = carry * sums[:, :, index, -1].exp()[..., None, None] + states[:, index]
        far = torch.einsum("bcln,bchpn,bhcl->bclhp", right, torch.stack(before, 1), sums.exp())
        return (near + far).reshape(b, s, h, p)


class Mamba2(nn.Module):
    def __init__(self, layers=2, width=256, vocab=1000):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Mamba2Block(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return fn.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), ids.flatten())


def mamba2():
    return Mamba2()


class Toy(nn.Module):
    """What somebody tries first: no list of blocks, a shared layer, a parameter that nothing reads."""

    def __init__(self):
        super().__init__()
        self.one = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        self.two = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
        self.idle = nn.Parameter(torch.zeros(7))

    def forward(self, x):
        return self.two(self.one(self.one(x) + math.pi)).square().mean()


def toy():
    return Toy()


def broken():
    raise ValueError("the weights are on another disk")


def not_a_module():
    return 3


class Choosing(nn.Module):
    """What it does depends on what it gets."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        return y.sum() if y.sum() > 0 else y.mean()


def choosing():
    return Choosing()


class Selecting(Choosing):
    def forward(self, x):
        return self.layer(x)[x > 0].sum()


def selecting():
    return Selecting()


class Saving(Choosing):
    """Recomputes by itself."""

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False).sum()


def saving():
    return Saving()


class Unsure(Choosing):
    def forward(self, x):
        for _ in range(x.shape[0]):
            x = self.layer(x)
        return x.sum()


def unsure():
    return Unsure()
