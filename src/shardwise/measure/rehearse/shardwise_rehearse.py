"""Run one rank's share of a training plan on one GPU: `python rehearse_pp2.py --out result.json`.

Needs torch and the standard library only, and is one long file on purpose: it is copied alone to GPU nodes with
locked-down images. `shardwise rehearse` writes SPEC into it: the rank's layers, its tensor and expert parallel shard,
its micro batches in the order of its schedule, recompute, the ZeRO shard of its optimizer.

Other ranks are faked. A gathered tensor is filled with copies of the rank's own part, so that products see real
numbers (zeros and unset memory draw less power and run faster); the time of these copies is measured apart and taken
off. `--device meta` runs the same program on tensors without data, on any machine, and counts every byte.
"""
# ruff: noqa: SLF001  (torch._grouped_mm, torch._foreach_norm and a storage's identity have no public name in 2.11)
# torch leaves autograd functions, events, modules and dispatch modes untyped, otherwise in every version:
# mypy: disable-error-code="no-untyped-call, no-any-return, assignment, unused-ignore"

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import statistics
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as fn
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

SCHEMA = "shardwise/rehearsal/1"
SPEC: dict[str, Any] = {}
BF16, FP32 = torch.bfloat16, torch.float32
BLOCK = 512
"""Bytes that the CUDA allocator rounds to."""
META = False


# --- memory without a GPU ---------------------------------------------------------------------------------------


class Counter(TorchDispatchMode):
    """Counts the bytes of every storage from its first use to its end, rounded as the allocator rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.live = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.add(leaf)
        return out

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.sizes:
            size = -(-storage.nbytes() // BLOCK) * BLOCK
            self.sizes[key] = size
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self.drop, key)

    def drop(self, key: int) -> None:
        self.live -= self.sizes.pop(key)


class Meter:
    """Allocated bytes now and at the highest point since the last reset."""

    def __init__(self, counter: Counter | None, workspace: int) -> None:
        self.counter, self.workspace = counter, workspace

    def now(self) -> int:
        if self.counter:
            return self.counter.live + self.workspace
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    def peak(self) -> int:
        if self.counter:
            return self.counter.peak + self.workspace
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    def reset(self) -> None:
        if self.counter:
            self.counter.peak = self.counter.live
        else:
            torch.cuda.reset_peak_memory_stats()


# --- kernels ----------------------------------------------------------------------------------------------------


class MetaAttention(torch.autograd.Function):
    """What fused attention keeps and makes, without data."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, times: int) -> Tensor:  # noqa: ANN401
        whole = [part.new_empty(times * part.numel()) for part in (k, v)]
        ctx.times = times
        del whole
        out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:3], dtype=FP32))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        q, k, v, _, _ = ctx.saved_tensors
        whole = [part.new_empty(2 * ctx.times * part.numel()) for part in (k, v)]
        del grad, whole
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None


def attend(q: Tensor, k: Tensor, v: Tensor, times: int = 0) -> Tensor:
    """Causal attention of [batch, heads, tokens, size]."""
    if META:
        return MetaAttention.apply(q, k, v, times)
    gqa = q.shape[1] != k.shape[1]
    return fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)


class MetaNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=FP32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        x, weight, _ = ctx.saved_tensors
        del grad
        return torch.empty_like(x), torch.empty_like(weight)


class Norm(nn.Module):
    """eager: the chain of kernels that Hugging Face runs; else torch's own kernel."""

    def __init__(self, width: int, kind: str, kernel: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if kind == "layernorm" else None
        self.eager = kernel == "eager"

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is not None:
            return fn.layer_norm(x, self.weight.shape, self.weight, self.bias)
        if not self.eager:
            if META:
                return MetaNorm.apply(x, self.weight)
            return fn.rms_norm(x, self.weight.shape, self.weight, 1e-6)
        wide = x.to(FP32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(variance + 1e-6)
        return self.weight * wide.to(x.dtype)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of plain kernels."""
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + rotated * sin


def turn_complex(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding as complex numbers, as DeepSeek's code writes it."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(3).type_as(x)


class Grouped(torch.autograd.Function):
    """x[rows of expert e] @ weight[e]^T for every expert."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ends: Tensor, home: Any) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight, ends)
        ctx.home = home
        return grouped(x, weight.transpose(1, 2), ends, (x.shape[0], weight.shape[1]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, weight, ends = ctx.saved_tensors
        grad_x = grouped(grad, weight, ends, x.shape)

        def weights() -> Tensor:
            return grouped(grad.t(), x, ends, weight.shape)

        if ctx.home is None:
            return grad_x, weights(), None, None
        ctx.home.later(weight, weights)
        return grad_x, None, None, None


def grouped(a: Tensor, b: Tensor, ends: Tensor, shape: Any) -> Tensor:  # noqa: ANN401
    if META:
        return a.new_empty(*shape)
    return torch._grouped_mm(a, b, offs=ends)


@functools.cache
def fused(work: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """One kernel out of a chain of plain ones, as Megatron's jit fuser makes it."""
    return torch.compile(work, dynamic=False)


def gated(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return fn.silu(gate) * up


def gated_back(grad: Tensor, x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    sigmoid = torch.sigmoid(gate)
    return torch.cat((grad * up * sigmoid * (1 + gate * (1 - sigmoid)), grad * sigmoid * gate), dim=-1)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return fn.gelu(x + bias, approximate="tanh")


def bias_gelu_back(grad: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward(grad, x + bias, approximate="tanh")


class GatedFused(torch.autograd.Function):
    """silu(gate) * up of one tensor's halves; keeps its input only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x)
        return x.new_empty(*x.shape[:-1], x.shape[-1] // 2) if META else fused(gated)(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401
        (x,) = ctx.saved_tensors
        return torch.empty_like(x) if META else fused(gated_back)(grad, x)


def weighted(x: Tensor, weight: Tensor) -> Tensor:
    return gated(x) * weight


def weighted_back(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return gated_back(grad * weight, x)


def weight_back(grad: Tensor, x: Tensor) -> Tensor:
    return (grad * gated(x)).sum(dim=-1, keepdim=True)


class WeightedFused(torch.autograd.Function):
    """silu(gate) * up * the router's weight; keeps its inputs only, so that experts' outputs need not be kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight)
        return x.new_empty(*x.shape[:-1], x.shape[-1] // 2) if META else fused(weighted)(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        if META:
            return torch.empty_like(x), torch.empty_like(weight)
        return fused(weighted_back)(grad, x, weight), fused(weight_back)(grad, x)


class GeluFused(torch.autograd.Function):
    """gelu(x + bias); keeps x and bias only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, bias)
        return torch.empty_like(x) if META else fused(bias_gelu)(x, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        x, bias = ctx.saved_tensors
        out = torch.empty_like(x) if META else fused(bias_gelu_back)(grad, x, bias)
        return out, out.flatten(0, -2).sum(0)


class InPlaceLoss(torch.autograd.Function):
    """Cross entropy over a shard of the vocabulary that works in one fp32 copy of the logits, as Megatron does."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:  # noqa: ANN401
        wide = logits.float()
        wide.sub_(wide.max(dim=-1, keepdim=True)[0])
        picked = wide.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        total = wide.exp_().sum(dim=-1)
        loss = total.log() - picked
        wide.div_(total.unsqueeze(-1))
        ctx.save_for_backward(wide, labels)
        ctx.dtype = logits.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        wide, labels = ctx.saved_tensors
        wide.scatter_add_(-1, labels.unsqueeze(-1), wide.new_full((1,), -1.0).expand(*labels.shape, 1))
        wide.mul_(grad.unsqueeze(-1))
        return wide.to(ctx.dtype), None


def gelu_eager(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


# --- layers of one GPU, as plain as Hugging Face's ----------------------------------------------------------------


class Line(nn.Module):
    """A linear layer; fp32 weights are cast where they are used, as autocast does."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dtype == FP32:
            bias = None if self.bias is None else self.bias.to(BF16)
            return fn.linear(x.to(BF16), self.weight.to(BF16), bias)
        return fn.linear(x, self.weight, self.bias)


class PlainAttention(nn.Module):
    def __init__(self, m: dict[str, Any], kernels: dict[str, Any]) -> None:
        super().__init__()
        self.size, self.rope = m["head_size"], m["position"] == "rope"
        self.mixed = m["qkv_bias"] and not self.rope
        query, kv = m["heads"] * self.size, m["kv_heads"] * self.size
        if self.mixed:
            self.qkv, self.widths = Line(m["hidden"], query + 2 * kv, bias=True), (query, kv, kv)
        else:
            self.q, self.k, self.v = (Line(m["hidden"], width, bias=m["qkv_bias"]) for width in (query, kv, kv))
        self.out = Line(query, m["hidden"], bias=m["out_bias"])
        self.norms = m["qk_norm"] == "head"
        if self.norms:
            self.q_norm, self.k_norm = (Norm(self.size, m["norm"], kernels["norm"]) for _ in range(2))

    def forward(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        shape = (*x.shape[:2], -1, self.size)
        if self.mixed:
            q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(self.widths, dim=2))
        else:
            q, k, v = self.q(x).view(shape), self.k(x).view(shape), self.v(x).view(shape).transpose(1, 2)
            if self.norms:
                q, k = self.q_norm(q), self.k_norm(k)
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        if self.rope:
            q, k = turn(q, *tables[:2]), turn(k, *tables[:2])
        mixed = attend(q.to(v.dtype), k.to(v.dtype), v)
        return self.out(mixed.transpose(1, 2).contiguous().flatten(2))


class PlainLatent(nn.Module):
    """Multi-head latent attention with rotary parts as complex numbers."""

    def __init__(self, m: dict[str, Any], kernels: dict[str, Any]) -> None:
        super().__init__()
        a = self.a = m["mla"]
        self.heads, width = m["heads"], m["heads"] * (a["nope_size"] + a["rope_size"])
        if a["q_rank"]:
            self.q_down, self.q_norm = Line(m["hidden"], a["q_rank"]), Norm(a["q_rank"], m["norm"], kernels["norm"])
        self.q = Line(a["q_rank"] or m["hidden"], width)
        self.kv_down = Line(m["hidden"], a["kv_rank"] + a["rope_size"])
        self.kv_norm = Norm(a["kv_rank"], m["norm"], kernels["norm"])
        self.kv_up = Line(a["kv_rank"], self.heads * (a["nope_size"] + a["value_size"]))
        self.out = Line(self.heads * a["value_size"], m["hidden"])

    def forward(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        a, shape = self.a, (*x.shape[:2], self.heads, -1)
        q = self.q(self.q_norm(self.q_down(x))) if a["q_rank"] else self.q(x)
        q_nope, q_rope = q.view(shape).transpose(1, 2).split((a["nope_size"], a["rope_size"]), dim=-1)
        latent, k_rope = self.kv_down(x).split((a["kv_rank"], a["rope_size"]), dim=-1)
        up = self.kv_up(self.kv_norm(latent)).view(shape).transpose(1, 2)
        k_nope, v = up.split((a["nope_size"], a["value_size"]), dim=-1)
        k_rope = k_rope.view(x.shape[0], 1, x.shape[1], a["rope_size"])
        q_rope, k_rope = turn_complex(q_rope, tables[2]), turn_complex(k_rope, tables[2])
        query = torch.cat((q_nope, q_rope), dim=-1)
        key = torch.cat((k_nope, k_rope.expand(*k_nope.shape[:-1], -1)), dim=-1)
        return self.out(attend(query, key, v).transpose(1, 2).reshape(*x.shape[:2], -1))


class PlainMlp(nn.Module):
    def __init__(self, m: dict[str, Any], ffn: int) -> None:
        super().__init__()
        self.gated = m["gated"]
        if self.gated:
            self.gate = Line(m["hidden"], ffn)
        self.up, self.down = (Line(*size, bias=m["mlp_bias"]) for size in ((m["hidden"], ffn), (ffn, m["hidden"])))

    def forward(self, x: Tensor) -> Tensor:
        inner = fn.silu(self.gate(x)) * self.up(x) if self.gated else gelu_eager(self.up(x))
        return self.down(inner)


class PlainMoe(nn.Module):
    """Router, experts by grouped products, weights applied to their outputs."""

    def __init__(self, m: dict[str, Any]) -> None:
        super().__init__()
        moe = m["moe"]
        self.k, self.experts = moe["top_k"], moe["experts"]
        self.wide = m["mla"] is not None  # DeepSeek's router works in fp32 to the end
        gate = 2 if m["gated"] else 1
        self.router = Line(m["hidden"], self.experts)
        self.up = nn.Parameter(torch.empty(self.experts, gate * moe["expert_ffn"], m["hidden"]))
        self.down = nn.Parameter(torch.empty(self.experts, m["hidden"], moe["expert_ffn"]))
        self.shared = PlainMlp(m, moe["shared_ffn"]) if moe["shared_ffn"] else None

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.wide:
            logits = fn.linear(x.to(FP32), self.router.weight.to(FP32))
            weights, chosen = torch.topk(logits.softmax(dim=-1), self.k, dim=-1, sorted=False)
            return weights * 1.0, chosen
        logits = self.router(x)
        weights, chosen = torch.topk(fn.softmax(logits, dim=-1, dtype=FP32), self.k, dim=-1)
        return (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype), chosen

    def forward(self, hidden: Tensor) -> Tensor:
        x = hidden.flatten(0, -2)
        weights, chosen = self.route(x)
        ids = chosen.reshape(-1)
        token = torch.arange(x.shape[0], device=x.device).unsqueeze(1).expand(-1, self.k).reshape(-1)
        order = torch.argsort(ids)
        back = torch.argsort(order)
        picked = x[token[order]]
        counts = torch.empty(self.experts, device=x.device) if META else torch.histc(
            ids[order].float(), bins=self.experts, min=0, max=self.experts - 1
        )  # fmt: skip
        ends = counts.cumsum(0).to(torch.int32)
        inner = Grouped.apply(picked, self.up, ends, None)
        gate, up = inner.chunk(2, dim=-1)
        out = Grouped.apply(fn.silu(gate) * up, self.down, ends, None)
        out = out * weights.reshape(-1)[order].unsqueeze(-1)
        out = out[back].view(x.shape[0], self.k, -1).sum(dim=1).to(x.dtype)
        if self.shared is not None:
            out = out + self.shared(x)
        return out.view(hidden.shape)


class PlainLayer(nn.Module):
    def __init__(self, spec: dict[str, Any], layer: dict[str, Any]) -> None:
        super().__init__()
        m, kernels = spec["model"], spec["kernels"]
        self.norm1, self.norm2 = (Norm(m["hidden"], m["norm"], kernels["norm"]) for _ in range(2))
        self.attention = PlainLatent(m, kernels) if m["mla"] else PlainAttention(m, kernels)
        self.mlp = PlainMoe(m) if layer["moe"] else PlainMlp(m, m["ffn"])

    def forward(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        x = x + self.attention(self.norm1(x), tables)
        return x + self.mlp(self.norm2(x))


class PlainModel(nn.Module):
    """A whole model on one GPU: [batch, tokens, hidden]."""

    def __init__(self, spec: dict[str, Any], home: Any) -> None:  # noqa: ANN401, ARG002
        super().__init__()
        m, chunk = spec["model"], spec["chunks"][0]
        self.spec = spec
        self.embedding = nn.Embedding(m["vocab"], m["hidden"])
        self.positions = nn.Embedding(m["max_positions"], m["hidden"]) if m["position"] == "learned" else None
        self.layers = nn.ModuleList(PlainLayer(spec, layer) for layer in chunk["layers"])
        self.norm = Norm(m["hidden"], m["norm"], spec["kernels"]["norm"])
        self.head = Line(m["hidden"], m["vocab"])
        if m["tied"]:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(x.shape[1], device=x.device))
        tables = plain_tables(self.spec, x)
        for layer, how in zip(self.layers, self.spec["chunks"][0]["layers"], strict=True):
            x = checkpoint(layer, x, tables, use_reentrant=False) if how["recompute"] == "full" else layer(x, tables)
        logits = self.head(self.norm(x)).float()
        return fn.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def plain_tables(spec: dict[str, Any], x: Tensor) -> tuple[Tensor, ...]:
    m, seq = spec["model"], x.shape[1]
    if m["position"] != "rope":
        return ()
    size = m["mla"]["rope_size"] if m["mla"] else m["head_size"]
    angles = torch.rand(1, seq, size, device=x.device)
    if m["mla"]:
        half = angles[:, :, : size // 2]
        return angles, angles, torch.polar(torch.ones_like(half), half).unsqueeze(1)
    return angles.cos().to(x.dtype).unsqueeze(1), angles.sin().to(x.dtype).unsqueeze(1)


# --- layers of one rank among many, as Megatron's -----------------------------------------------------------------


class Home:
    """What the layers of a rank share: its place, its buffers, the weight gradients that wait, and what is faked."""

    def __init__(self, spec: dict[str, Any]) -> None:
        s = spec["strategy"]
        self.tp, self.sp, self.fused = s["tp"], s["sp"], spec["kernels"]["weight_grad_fusion"]
        self.cp, self.cp_kind = s["cp"], s["cp_kind"]
        self.keep_buffer = spec["memory"]["gather_buffer"]
        self.buffer: Tensor | None = None
        self.waiting: list[Callable[[], None]] | None = None
        self.faked: dict[tuple[Any, ...], int] = {}

    def count(self, kind: str, x: Tensor) -> None:
        key = (kind, tuple(x.shape))
        self.faked[key] = self.faked.get(key, 0) + 1

    def gathered(self, x: Tensor, *, passing: bool = True) -> Tensor:
        """All ranks' parts along the tokens; theirs are copies of ours."""
        if self.tp == 1 or not self.sp:
            return x
        shape = (self.tp * x.shape[0], *x.shape[1:])
        out = self._space(shape, x) if passing and self.keep_buffer else x.new_empty(shape)
        out.view(self.tp, *x.shape).copy_(x.unsqueeze(0).expand(self.tp, *x.shape))
        self.count("gather", x)
        return out

    def _space(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        size = math.prod(shape)
        if self.buffer is None or self.buffer.numel() < size:
            self.buffer = like.new_empty(size)
        return self.buffer[:size].view(shape)

    def scattered(self, x: Tensor) -> Tensor:
        """Our part of a sum over ranks."""
        if self.tp == 1 or not self.sp:
            return x
        out = x.new_empty(x.shape[0] // self.tp, *x.shape[1:])
        out.copy_(x[: out.shape[0]])
        self.count("scatter", out)
        return out

    def later(self, weight: Tensor, make: Callable[[], Tensor]) -> None:
        """Add a weight's gradient to its buffer: now, or when W comes."""

        def add() -> None:
            weight.main_grad.add_(make())  # type: ignore[attr-defined]

        if self.waiting is None:
            add()
        else:
            self.waiting.append(add)


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, home: Home) -> Tensor:  # noqa: ANN401
        ctx.home = home
        return home.gathered(x, passing=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return ctx.home.scattered(grad), None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, home: Home) -> Tensor:  # noqa: ANN401
        ctx.home = home
        return home.scattered(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return ctx.home.gathered(grad, passing=False), None


class Exchange(torch.autograd.Function):
    """All-to-all: as many tokens come as go."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, home: Home) -> Tensor:  # noqa: ANN401
        ctx.home = home
        home.count("exchange", x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        ctx.home.count("exchange", grad)
        return grad.clone(), None


class Together(torch.autograd.Function):
    """Rows of `times` ranks: ours, that many times; or back to ours."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, times: int, home: Home, back: bool) -> Tensor:  # noqa: ANN401
        ctx.times, ctx.home, ctx.back = times, home, back
        return fewer(x, times, home) if back else more(x, times, home)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        work = more if ctx.back else fewer
        return work(grad, ctx.times, ctx.home), None, None, None


def more(x: Tensor, times: int, home: Home) -> Tensor:
    home.count(f"repeat {times}", x)
    return x.repeat(times, *([1] * (x.dim() - 1)))


def fewer(x: Tensor, times: int, home: Home) -> Tensor:
    out = x[: x.shape[0] // times].clone()
    home.count("exchange", out)
    return out


class ShardedProduct(torch.autograd.Function):
    """A tensor parallel linear layer that keeps its sharded input and gathers it again in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, split: str, home: Home) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight)
        ctx.split, ctx.home = split, home
        whole = home.gathered(x) if split == "column" else x
        out = whole @ weight.t()
        return home.scattered(out) if split == "row" else out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        home, split = ctx.home, ctx.split
        if split == "row":
            grad = home.gathered(grad, passing=False)
        grad_x = grad @ weight
        if split == "column":
            grad_x = home.scattered(grad_x)

        def weights() -> Tensor:
            whole = home.gathered(x) if split == "column" else x
            return grad.flatten(0, -2).t() @ whole.flatten(0, -2)

        def add() -> None:
            whole = home.gathered(x) if split == "column" else x
            total = weight.main_grad
            if not META:
                left, right = grad.flatten(0, -2).t(), whole.flatten(0, -2)
                torch.addmm(total, left, right, out_dtype=FP32, out=total)

        if not home.fused:
            home.later(weight, weights)
        elif home.waiting is None:
            add()
        else:
            home.waiting.append(add)
        return grad_x, None, None, None


class Sharded(nn.Module):
    def __init__(self, home: Home, inputs: int, outputs: int, split: str, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.home, self.split = home, split

    def forward(self, x: Tensor, *, add_bias: bool = True) -> Tensor:
        out: Tensor = ShardedProduct.apply(x, self.weight, self.split, self.home)
        return out + self.bias if add_bias and self.bias is not None else out


class ShardedAttention(nn.Module):
    """[tokens, batch, hidden] with the rank's heads."""

    def __init__(self, spec: dict[str, Any], home: Home, recompute: str) -> None:
        super().__init__()
        m, tp = spec["model"], home.tp
        self.size, self.rope = m["head_size"], m["position"] == "rope"
        self.heads, self.groups = m["heads"] // tp, max(1, m["kv_heads"] // tp)
        width = (self.heads + 2 * self.groups) * self.size
        self.qkv = Sharded(home, m["hidden"], width, "column", bias=m["qkv_bias"])
        self.out = Sharded(home, self.heads * self.size, m["hidden"], "row", bias=m["out_bias"])
        self.norms = m["qk_norm"] == "head"
        if self.norms:
            self.q_norm, self.k_norm = (Norm(self.size, m["norm"], spec["kernels"]["norm"]) for _ in range(2))
        self.again, self.home = recompute == "core-attention", home
        self.separate = spec["kernels"]["qkv"] == "separate"

    def forward(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        mixed = self.qkv(x)
        each = self.heads // self.groups
        parts = mixed.view(*mixed.shape[:2], self.groups, (each + 2) * self.size)
        q, k, v = parts.split((each * self.size, self.size, self.size), dim=3)
        q = q.reshape(*q.shape[:2], -1, self.size)
        if self.separate:  # else the view of the values holds the whole projection
            k, v = k.contiguous(), v.contiguous()
        if self.norms:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rope:
            q, k = turn(q, *tables), turn(k, *tables)
        return self.out(attended(q, k, v, self.home, again=self.again))


def attended(q: Tensor, k: Tensor, v: Tensor, home: Home, *, again: bool) -> Tensor:
    """Attention of the rank's tokens. Context parallel by all-to-all trades tokens for heads before it and back after
    it; a ring or gathered keys (counted only) keep the rank's own keys and values.
    """
    if home.cp_kind != "all-to-all":
        return checkpoint(core, q, k, v, use_reentrant=True) if again else core(q, k, v, gathered(home))
    if home.cp > 1:
        q, k, v = (Turn.apply(part, home.cp, home, False) for part in (q, k, v))
    mixed = checkpoint(core, q, k, v, use_reentrant=True) if again else core(q, k, v)
    if home.cp > 1:
        mixed = Turn.apply(mixed.view(*mixed.shape[:2], q.shape[2], -1), home.cp, home, True)
    return mixed.flatten(2)


def gathered(home: Home) -> int:
    """How many times its own keys and values a rank holds while it attends."""
    return home.cp if home.cp_kind == "all-gather" else 0


class Turn(torch.autograd.Function):
    """All-to-all of context parallel: [tokens, batch, heads, size] to [cp tokens, batch, heads / cp, size], or back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cp: int, home: Home, back: bool) -> Tensor:  # noqa: ANN401
        ctx.cp, ctx.home, ctx.back = cp, home, back
        return turned(x, cp, home, back=back)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        return turned(grad, ctx.cp, ctx.home, back=not ctx.back), None, None, None


def turned(x: Tensor, cp: int, home: Home, *, back: bool) -> Tensor:
    tokens, batch, heads, size = x.shape
    shape = (tokens // cp, batch, heads * cp, size) if back else (tokens * cp, batch, heads // cp, size)
    out = x.new_empty(shape)
    out.view(-1).copy_(x.reshape(-1))
    home.count("exchange", x)
    return out


def core(q: Tensor, k: Tensor, v: Tensor, times: int = 0) -> Tensor:
    """Attention of [tokens, batch, heads, size]; `times`: keys and values of so many ranks are there meanwhile."""
    q, k, v = (part.permute(1, 2, 0, 3) for part in (q, k, v))
    return attend(q, k, v, times).permute(2, 0, 1, 3).flatten(2)


class ShardedLatent(nn.Module):
    """Latent attention with the rank's heads; down-projections work on the rank's own tokens and are replicated."""

    def __init__(self, spec: dict[str, Any], home: Home, recompute: str) -> None:
        super().__init__()
        m, a, kernel = spec["model"], spec["model"]["mla"], spec["kernels"]["norm"]
        self.a, self.home, self.again = a, home, recompute == "core-attention"
        self.heads = m["heads"] // home.tp
        if a["q_rank"]:
            self.q_down = Sharded(home, m["hidden"], a["q_rank"], "none")
            self.q_norm = Norm(a["q_rank"], m["norm"], kernel)
        width = self.heads * (a["nope_size"] + a["rope_size"])
        self.q = Sharded(home, a["q_rank"] or m["hidden"], width, "column")
        self.kv_down = Sharded(home, m["hidden"], a["kv_rank"] + a["rope_size"], "none")
        self.kv_norm = Norm(a["kv_rank"], m["norm"], kernel)
        self.kv_up = Sharded(home, a["kv_rank"], self.heads * (a["nope_size"] + a["value_size"]), "column")
        self.out = Sharded(home, self.heads * a["value_size"], m["hidden"], "row")

    def forward(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        a = self.a
        q = self.q(self.q_norm(self.q_down(x))) if a["q_rank"] else self.q(x)
        q_nope, q_rope = q.view(*q.shape[:2], self.heads, -1).split((a["nope_size"], a["rope_size"]), dim=-1)
        latent, k_rope = self.kv_down(x).split((a["kv_rank"], a["rope_size"]), dim=-1)
        up = self.kv_up(self.kv_norm(latent))
        k_nope, v = up.view(*up.shape[:2], self.heads, -1).split((a["nope_size"], a["value_size"]), dim=-1)
        k_rope = Gather.apply(k_rope.contiguous(), self.home).unsqueeze(2)
        q_rope, k_rope = turn(q_rope, *tables), turn(k_rope, *tables)
        query = torch.cat((q_nope, q_rope), dim=-1)
        key = torch.cat((k_nope, k_rope.expand(*k_nope.shape[:-1], -1)), dim=-1)
        return self.out(attended(query, key, v, self.home, again=self.again))


class ShardedMlp(nn.Module):
    def __init__(self, spec: dict[str, Any], home: Home, ffn: int) -> None:
        super().__init__()
        m = spec["model"]
        self.gated, inner = m["gated"], ffn // home.tp
        self.up = Sharded(home, m["hidden"], (2 if self.gated else 1) * inner, "column", bias=m["mlp_bias"])
        self.down = Sharded(home, inner, m["hidden"], "row", bias=m["mlp_bias"])

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up(x, add_bias=False)
        if self.gated:
            inner = GatedFused.apply(inner)
        elif self.up.bias is not None:
            inner = GeluFused.apply(inner, self.up.bias)
        else:
            inner = fn.gelu(inner, approximate="tanh")
        return self.down(inner)


class Permute(torch.autograd.Function):
    """Rows in another order, each of them `copies` times; backward gathers too, where an indexed sum would be slow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, back: Tensor, copies: int) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(back)
        ctx.copies = copies
        return x[order // copies if copies > 1 else order]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (back,) = ctx.saved_tensors
        rows = grad[back]
        if ctx.copies > 1:
            rows = rows.view(-1, ctx.copies, rows.shape[-1]).sum(dim=1)
        return rows, None, None, None


def sorted_by(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The order that sorts, and the one that undoes it."""
    order = torch.argsort(ids)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.shape[0], device=order.device)
    return order, back


class ShardedMoe(nn.Module):
    """Experts of this rank; tokens of others are copies of ours."""

    def __init__(self, spec: dict[str, Any], home: Home) -> None:
        super().__init__()
        m, moe, s = spec["model"], spec["model"]["moe"], spec["strategy"]
        self.home, self.k, self.experts = home, moe["top_k"], moe["experts"]
        self.kept = spec["kernels"]["expert_output_kept"]
        self.ep, self.etp, self.local = s["ep"], s["etp"], moe["experts"] // s["ep"]
        inner = moe["expert_ffn"] // s["etp"]
        self.router = nn.Parameter(torch.empty(self.experts, m["hidden"]))
        self.up = nn.Parameter(torch.empty(self.local, (2 if m["gated"] else 1) * inner, m["hidden"]))
        self.down = nn.Parameter(torch.empty(self.local, m["hidden"], inner))
        self.shared = ShardedMlp(spec, home, moe["shared_ffn"]) if moe["shared_ffn"] else None
        for parameter in (self.up, self.down):
            parameter.expert = True  # type: ignore[attr-defined]

    def forward(self, hidden: Tensor) -> Tensor:
        x = hidden.flatten(0, -2)
        logits = fn.linear(x, self.router).float()
        weights, chosen = torch.topk(logits.softmax(dim=-1), self.k, dim=-1)
        weights = (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype)
        ids = chosen.reshape(-1)
        order, back = sorted_by(ids)
        picked = Permute.apply(x, order, back, self.k)
        factors = Permute.apply(weights.reshape(-1, 1), order, back, 1)
        mine = ids[order] % self.local
        here, there = order, back
        if self.ep > 1:
            picked, factors = (Exchange.apply(part, self.home) for part in (picked, factors))
        if self.etp > 1:
            picked, factors = (Together.apply(part, self.etp, self.home, False) for part in (picked, factors))
            mine = mine.repeat(self.etp)
        if self.ep * self.etp > 1:
            here, there = sorted_by(mine)
            picked, factors = (Permute.apply(part, here, there, 1) for part in (picked, factors))
        ends = self._ends(mine)
        inner = Grouped.apply(picked, self.up, ends, self.home)
        inner = GatedFused.apply(inner) if self.kept else WeightedFused.apply(inner, factors)
        out = Grouped.apply(inner, self.down, ends, self.home)
        if self.ep * self.etp > 1:
            out = Permute.apply(out, there, here, 1)
        if self.etp > 1:
            out = Together.apply(out, self.etp, self.home, True)
        if self.ep > 1:
            out = Exchange.apply(out, self.home)
        out = Permute.apply(out, back, order, 1).view(x.shape[0], self.k, -1)
        out = (out * weights.unsqueeze(-1) if self.kept else out).sum(dim=1).view(hidden.shape)
        return out if self.shared is None else out + self.shared(hidden)

    def _ends(self, mine: Tensor) -> Tensor:
        """Where each of our experts' tokens end: as unevenly spread as our own tokens are over all."""
        if META:
            return torch.empty(self.local, dtype=torch.int32, device=mine.device)
        counts = torch.histc(mine.float(), bins=self.local, min=0, max=self.local - 1)
        return counts.cumsum(0).to(torch.int32)


class ShardedLayer(nn.Module):
    def __init__(self, spec: dict[str, Any], home: Home, layer: dict[str, Any]) -> None:
        super().__init__()
        m, kernel = spec["model"], spec["kernels"]["norm"]
        self.norm1, self.norm2 = (Norm(m["hidden"], m["norm"], kernel) for _ in range(2))
        latent = m["mla"] is not None
        self.attention = (ShardedLatent if latent else ShardedAttention)(spec, home, layer["recompute"])
        self.mlp = ShardedMoe(spec, home) if layer["moe"] else ShardedMlp(spec, home, m["ffn"])

    def forward(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        x = x + self.attention(self.norm1(x), tables)
        return x + self.mlp(self.norm2(x))


class Ahead(nn.Module):
    """A layer that predicts a token further ahead: hidden state and that token's embedding, projected, then a layer."""

    def __init__(self, spec: dict[str, Any], home: Home, layer: dict[str, Any]) -> None:
        super().__init__()
        m, kernel = spec["model"], spec["kernels"]["norm"]
        self.norm1, self.norm2 = (Norm(m["hidden"], m["norm"], kernel) for _ in range(2))
        # column parallel with its output gathered
        self.project = Sharded(home, 2 * m["hidden"], m["hidden"] // home.tp, "column")
        self.layer, self.home = ShardedLayer(spec, home, layer), home

    def forward(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        token = torch.empty_like(x).normal_() if not META else torch.empty_like(x)
        mixed = self.project(torch.cat((self.norm1(x), self.norm2(token)), dim=-1))
        return self.layer(Regroup.apply(mixed, self.home), tables)


class Regroup(torch.autograd.Function):
    """[tokens, batch, hidden / tp] to [tokens / tp, batch, hidden]: gathered over the width, our tokens kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, home: Home) -> Tensor:  # noqa: ANN401
        ctx.home = home
        return regrouped(x, home, back=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return regrouped(grad, ctx.home, back=True), None


def regrouped(x: Tensor, home: Home, *, back: bool) -> Tensor:
    if home.tp == 1:
        return x
    times = home.tp if home.sp else 1
    home.count("exchange", x)
    if back:
        part = x[..., : x.shape[-1] // home.tp]
        return part.repeat(times, 1, 1)
    part = x[: x.shape[0] // times]
    return part.repeat(1, 1, home.tp)


class ShardedChunk(nn.Module):
    """One chunk: [tokens / tp, batch, hidden] in and out, with the ends of the model where they lie here."""

    def __init__(self, spec: dict[str, Any], home: Home, chunk: dict[str, Any]) -> None:
        super().__init__()
        m = spec["model"]
        self.spec, self.home, self.chunk = spec, home, chunk
        vocab = m["padded_vocab"]
        if chunk["embedding"]:
            self.embedding = nn.Embedding(vocab, m["hidden"])
            if m["position"] == "learned":
                self.positions = nn.Embedding(m["max_positions"], m["hidden"])
        self.layers = nn.ModuleList(ShardedLayer(spec, home, layer) for layer in chunk["layers"])
        self.ahead = nn.ModuleList(Ahead(spec, home, layer) for layer in chunk["ahead"])
        if chunk["head"]:
            self.norm = Norm(m["hidden"], m["norm"], spec["kernels"]["norm"])
            self.head = Sharded(home, m["hidden"], vocab, "column")
            if m["tied"] and chunk["embedding"]:
                self.head.weight = self.embedding.weight

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        m = self.spec["model"]
        if self.chunk["embedding"]:
            x = self.embedding(x % m["padded_vocab"])
            if m["position"] == "learned":
                x = x + self.positions(torch.arange(x.shape[0], device=x.device)).unsqueeze(1)
            x = Scatter.apply(x, self.home)
        tables = sharded_tables(self.spec, x)
        for layer, how in zip(self.layers, self.chunk["layers"], strict=True):
            x = checkpoint(layer, x, tables, use_reentrant=True) if how["recompute"] == "full" else layer(x, tables)
        if not self.chunk["head"]:
            return x
        total = self.loss(x, labels)
        for layer, how in zip(self.ahead, self.chunk["ahead"], strict=True):
            x = checkpoint(layer, x, tables, use_reentrant=True) if how["recompute"] == "full" else layer(x, tables)
            total = total + 0.1 * self.loss(x, labels)
        return total

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        found: Tensor = InPlaceLoss.apply(self.head(self.norm(x)), labels % self.spec["model"]["padded_vocab"])
        return found.mean()


def sharded_tables(spec: dict[str, Any], x: Tensor) -> tuple[Tensor, ...]:
    if spec["model"]["position"] != "rope":
        return ()
    m, s = spec["model"], spec["strategy"]
    size = m["mla"]["rope_size"] if m["mla"] else m["head_size"]
    angles = torch.rand(s["seq"] // s["cp"], 1, 1, size, device=x.device)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Leave(torch.autograd.Function):
    """Where a chunk's output leaves for the next rank: it is freed here, and its gradient comes in through `mail`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mail: list[Tensor]) -> Tensor:  # noqa: ANN401
        ctx.mail = mail
        return x.new_zeros(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        del grad
        return ctx.mail.pop(), None


# --- the rank -----------------------------------------------------------------------------------------------------


class Clock:
    """Seconds between marks, by name; on the device's own time line."""

    def __init__(self) -> None:
        self.marks: list[tuple[str, Any, Any]] = []

    @contextlib.contextmanager
    def over(self, name: str) -> Iterator[None]:
        if META:
            yield
            return
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        yield
        end.record()
        self.marks.append((name, start, end))

    def read(self) -> dict[str, list[float]]:
        if META:
            return {}
        torch.cuda.synchronize()
        found: dict[str, list[float]] = {}
        for name, start, end in self.marks:
            found.setdefault(name, []).append(start.elapsed_time(end) * 1e-3)
        self.marks.clear()
        return found


class Rank:
    """The chunks of one rank with their states, and one iteration of its schedule."""

    def __init__(self, spec: dict[str, Any], device: str) -> None:
        self.spec, self.device, self.home = spec, device, Home(spec)
        self.plain = spec["style"] == "plain"
        s = spec["strategy"]
        dtype = FP32 if s["master"] == "autocast" else BF16
        torch.set_default_dtype(dtype)
        with torch.device(device):
            if self.plain:
                self.chunks: list[Any] = [PlainModel(spec, self.home)]
            else:
                self.chunks = [ShardedChunk(spec, self.home, chunk) for chunk in spec["chunks"]]
        torch.set_default_dtype(FP32)
        self.parameters = list({id(p): p for chunk in self.chunks for p in chunk.parameters()}.values())
        if not META:
            for parameter in self.parameters:
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)
        self.optimizer = self._plain_optimizer() if self.plain else self._sharded_optimizer()
        self.live: dict[tuple[int, int], tuple[Tensor, Any, list[Tensor]]] = {}
        self.waiting: dict[tuple[int, int], list[Callable[[], None]]] = {}

    def _plain_optimizer(self) -> Any:  # noqa: ANN401
        if META:
            self.states = [torch.empty_like(p) for p in self.parameters for _ in range(2)]
            return None
        return torch.optim.AdamW(self.parameters, lr=1e-4, fused=True)

    def _sharded_optimizer(self) -> Any:  # noqa: ANN401
        """bf16 weights, one buffer of fp32 gradients, fp32 masters and moments of this rank's ZeRO shard."""
        s = self.spec["strategy"]
        total = sum(p.numel() for p in self.parameters)
        self.buffer = torch.zeros(total, dtype=FP32, device=self.device)
        start, self.pairs = 0, []
        for parameter in self.parameters:
            part = self.buffer[start : start + parameter.numel()]
            start += parameter.numel()
            parameter.main_grad = part.view_as(parameter)  # type: ignore[attr-defined]
            parameter.register_post_accumulate_grad_hook(accumulate)
            spread = s["expert_shards"] if getattr(parameter, "expert", False) else s["shards"]
            count = -(-parameter.numel() // spread)
            master = parameter.detach().flatten()[:count].float()
            master.grad = part[:count]
            self.pairs.append((parameter, master))
        masters = [master for _, master in self.pairs]
        if META:
            self.states = [torch.empty_like(master) for master in masters for _ in range(2)]
            return None
        fused = self.spec["kernels"]["fused_optimizer"]
        return torch.optim.AdamW(masters, lr=1e-4, fused=fused, foreach=None if fused else True)

    def step(self) -> None:
        if self.optimizer is None:
            # what the step itself takes: foreach's temporaries are one fp32 copy of the shard
            if not self.plain and not self.spec["kernels"]["fused_optimizer"]:
                del_me = [torch.empty_like(master) for _, master in self.pairs]
                del del_me
        elif self.plain:
            self.optimizer.step()
        else:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([m.grad for _, m in self.pairs])))
            torch._foreach_mul_([m.grad for _, m in self.pairs], 1.0 / (norm + 1e-6).clamp(min=1.0))
            self.optimizer.step()
            for parameter, master in self.pairs:
                parameter.data.view(-1)[: master.numel()].copy_(master)
            self.buffer.zero_()
        if self.plain:
            for parameter in self.parameters:
                parameter.grad = None

    def tokens(self) -> Tensor:
        s, m = self.spec["strategy"], self.spec["model"]
        seq = s["seq"] // s["cp"]
        shape = (s["micro_batch"], seq) if self.plain else (seq, s["micro_batch"])
        return torch.randint(0, m["vocab"], shape, device=self.device)

    def hidden(self) -> Tensor:
        s = self.spec["strategy"]
        rows = s["seq"] // s["cp"] // (s["tp"] if s["sp"] else 1)
        return torch.randn(rows, s["micro_batch"], self.spec["model"]["hidden"], dtype=BF16, device=self.device)

    def forward(self, chunk: int, microbatch: int) -> None:
        if self.plain:
            tokens = self.tokens()
            self.live[chunk, microbatch] = (tokens, self.chunks[0](tokens, tokens), [])
            return
        how = self.spec["chunks"][chunk]
        x = self.tokens() if how["embedding"] else self.hidden().requires_grad_()
        mail: list[Tensor] = []
        out = self.chunks[chunk](x, self.tokens() if how["head"] else x)
        self.live[chunk, microbatch] = (x, out if how["head"] else Leave.apply(out, mail), mail)

    def backward(self, chunk: int, microbatch: int, *, split: bool) -> None:
        x, out, mail = self.live.pop((chunk, microbatch))
        if not self.plain and not self.spec["chunks"][chunk]["head"]:
            mail.append(self.hidden())
        self.home.waiting = [] if split else None
        out.backward()
        if split:
            self.waiting[chunk, microbatch] = self.home.waiting or []
        self.home.waiting = None
        del x, out

    def weights(self, chunk: int, microbatch: int) -> None:
        with torch.no_grad():
            for add in self.waiting.pop((chunk, microbatch)):
                add()

    def passes(self, clock: Clock, after_first: Callable[[], None]) -> None:
        for index, (chunk, kind, microbatch) in enumerate(self.spec["actions"]):
            with clock.over(f"{chunk}{kind}"):
                if kind == "F":
                    self.forward(chunk, microbatch)
                elif kind == "W":
                    self.weights(chunk, microbatch)
                else:
                    self.backward(chunk, microbatch, split=kind == "I")
            if index == 0:
                after_first()


def accumulate(parameter: Tensor) -> None:
    if parameter.grad is not None:
        parameter.main_grad.add_(parameter.grad)  # type: ignore[attr-defined]
        parameter.grad = None


# --- the run ------------------------------------------------------------------------------------------------------


def faked_seconds(rank: Rank, iterations: int) -> float:
    """What filling in for other ranks took per iteration: the same copies again, by themselves."""
    total = 0.0
    for (kind, shape), count in tuple(rank.home.faked.items()):
        x = torch.randn(shape, dtype=BF16, device=rank.device)
        home = rank.home
        work: dict[str, Callable[[], object]] = {
            "gather": functools.partial(home.gathered, x),
            "scatter": functools.partial(torch.clone, x),
            "exchange": functools.partial(torch.clone, x),
        }
        if kind.startswith("repeat"):
            work[kind] = functools.partial(more, x, int(kind.split()[1]), home)
        for _ in range(3):
            work[kind]()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(10):
            work[kind]()
        end.record()
        torch.cuda.synchronize()
        total += start.elapsed_time(end) * 1e-4 * count / iterations
    return total


def profiled(rank: Rank, count: int) -> list[dict[str, Any]]:
    """The kernels of one iteration, longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        rank.passes(Clock(), lambda: None)
        torch.cuda.synchronize()
    rows = [e for e in profiler.key_averages() if e.self_device_time_total > 0]
    rows.sort(key=lambda e: -e.self_device_time_total)
    return [{"name": e.key[:120], "count": e.count, "seconds": e.self_device_time_total * 1e-6} for e in rows[:count]]


def rehearse(spec: dict[str, Any], device: str, repeats: int, kernels: int) -> dict[str, Any]:
    """Run the rank: a first iteration to warm up, then `repeats` that count."""
    global META  # noqa: PLW0603 - one switch for the whole program, set once
    META = device == "meta"
    counter = Counter() if META else None
    with counter or contextlib.nullcontext():
        meter = Meter(counter, int(spec["memory"]["workspace"]) if META else 0)
        rank = Rank(spec, device)
        memory: dict[str, int] = {}
        times: dict[str, list[float]] = {}
        clock, whole = Clock(), Clock()
        for iteration in range(2 if META else 1 + repeats):
            meter.reset()
            memory["static"] = meter.now()
            first = iteration > 0

            def after_first(keep: bool = first) -> None:
                if keep:
                    memory["after_forward"] = meter.now()

            with whole.over("passes"):
                rank.passes(clock, after_first)
            memory["peak_forward_backward"] = meter.peak()
            meter.reset()
            with whole.over("optimizer"):
                rank.step()
            memory["peak_optimizer"] = meter.peak()
            for name, values in {**clock.read(), **whole.read()}.items():
                if iteration:
                    times.setdefault(name, []).append(sum(values) if name in {"passes", "optimizer"} else mean(values))
        memory["peak"] = max(memory["peak_forward_backward"], memory["peak_optimizer"])
        result = {
            **identity(spec, device), "memory": memory,
            "parameters": sum(p.numel() for p in rank.parameters),
        }  # fmt: skip
        if not META:
            result["seconds"] = {name: statistics.median(values) for name, values in times.items()}
            result["spread"] = {name: spread(values) for name, values in times.items()}
            result["faked_seconds"] = faked_seconds(rank, 1 + repeats)
            if kernels:
                result["kernels"] = profiled(rank, kernels)
    return result


def mean(values: list[float]) -> float:
    """One number for a kind of action: the first of an iteration waits for nothing and is like the others."""
    return statistics.fmean(values)


def spread(values: list[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values) if values else 0.0


def identity(spec: dict[str, Any], device: str) -> dict[str, Any]:
    named: dict[str, Any] = {name: spec[name] for name in ("rank", "name", "plan") if name in spec}
    where = "meta" if device == "meta" else torch.cuda.get_device_name()
    return {"schema": SCHEMA, **named, "device": where, "torch": torch.__version__}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", help="a rank's share as JSON, in place of the one written into this file")
    parser.add_argument("--out", help="file for the result; default: standard output")
    parser.add_argument("--device", choices=("cuda", "meta"), help="default: a GPU if there is one, else meta")
    parser.add_argument("--repeats", type=int, default=3, help="iterations that count")
    parser.add_argument("--kernels", type=int, default=0, help="list so many of the longest kernels")
    return parser.parse_args()


def main() -> int:
    options = parsed()
    spec = json.loads(Path(options.spec).read_text(encoding="utf-8")) if options.spec else SPEC
    if not spec:
        sys.stderr.write("error: no rank is written into this file; make one with `shardwise rehearse PLAN --rank N`\n")
        return 2
    device = options.device or ("cuda" if torch.cuda.is_available() and not spec["counted_only"] else "meta")
    if device == "cuda" and spec["counted_only"]:
        sys.stderr.write(f"error: {spec['counted_only']}; run it with --device meta\n")
        return 2
    if device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("error: torch finds no CUDA GPU here; --device meta counts the memory without one\n")
        return 2
    if options.out and not Path(options.out).resolve().parent.is_dir():
        sys.stderr.write(f"error: --out {options.out}: its folder does not exist; make it first\n")
        return 2
    began = time.monotonic()
    try:
        result = rehearse(spec, device, max(1, options.repeats), options.kernels)
    except torch.OutOfMemoryError as error:
        result = {**identity(spec, device), "error": f"out of memory: {str(error).splitlines()[0]}"}
    result["run_seconds"] = round(time.monotonic() - began, 2)
    text = json.dumps(result, indent=1) + "\n"
    if options.out:
        part = Path(options.out + ".part")
        part.write_text(text, encoding="utf-8")
        part.replace(options.out)
    else:
        sys.stdout.write(text)
    return 1 if "error" in result else 0


if __name__ == "__main__":
    sys.exit(main())
