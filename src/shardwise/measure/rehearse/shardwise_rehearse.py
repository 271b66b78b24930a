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
from collections.abc import Callable, Iterator, Mapping
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
        if any(hasattr(one, "__tensor_flatten__") for one in types):  # a wrapper comes back with the tensors in it
            return NotImplemented
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

    def resized(self, storage: Any) -> None:  # noqa: ANN401
        """A storage has another size now: parameters that are gathered and let go."""
        size = -(-storage.nbytes() // BLOCK) * BLOCK
        self.live += size - self.sizes[storage._cdata]
        self.sizes[storage._cdata] = size
        self.peak = max(self.peak, self.live)

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


class Parts(torch.autograd.Function):
    """Attention of [batch, heads, tokens, size] in parts, as ranks of context parallel or pieces of a sequence do it.

    Our queries meet our keys under the causal mask; then all of them, or their later half (early and late chunks are
    paired so that all ranks have as much to do), meet the keys of others, which are copies of ours. Only the joined
    output and its log-sum are kept. `sink`: a learned score per head that takes part in the softmax.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, how: dict[str, Any]) -> Tensor:  # noqa: ANN401
        ctx.how = how
        out, logs, *ctx.rest = part(q, k, v, how["window"], causal=True)
        ctx.others = []
        for half, times in how["others"]:
            start = q.shape[2] // 2 if half else 0
            keys, values = (x.repeat(1, 1, times, 1) if times > 1 else x for x in (k, v))
            more_out, more_logs, *rest = part(q[:, :, start:].contiguous(), keys, values, 0, causal=False)
            ctx.others.append((start, times, rest))
            joined = merged if META else fused(merged)
            out[:, :, start:], logs[:, :, start:] = joined(
                out[:, :, start:], logs[:, :, start:], more_out, more_logs.view_as(logs[:, :, start:])
            )
        if sink is not None:
            total = torch.logaddexp(logs, sink.float().view(1, -1, 1))
            out, logs = out * (logs - total).exp().unsqueeze(-1).to(out.dtype), total
        ctx.save_for_backward(q, k, v, out, logs, *([sink] if sink is not None else []))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        q, k, v, out, logs, *sinks = ctx.saved_tensors
        grad_q, grad_k, grad_v = part_back(grad, q, k, v, out, logs, ctx.rest, ctx.how["window"], causal=True)
        for start, times, rest in ctx.others:
            keys, values = (x.repeat(1, 1, times, 1) if times > 1 else x for x in (k, v))
            late, late_q, late_out, late_logs = (x[:, :, start:].contiguous() for x in (grad, q, out, logs))
            found = part_back(late, late_q, keys, values, late_out, late_logs, rest, 0, causal=False)
            grad_q[:, :, start:] += found[0]
            for total, new in zip((grad_k, grad_v), found[1:], strict=True):
                total.add_(new.unflatten(2, (times, -1)).sum(2) if times > 1 else new)
        if not sinks:
            return grad_q, grad_k, grad_v, None, None
        delta = (grad * out).float().sum(-1)
        weight = (sinks[0].float().view(1, -1, 1) - logs.view_as(delta)).exp()
        return grad_q, grad_k, grad_v, -(weight * delta).sum((0, 2)).to(sinks[0].dtype), None


def merged(one: Tensor, one_logs: Tensor, two: Tensor, two_logs: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.logaddexp(one_logs, two_logs)
    first, second = ((logs - total).exp().unsqueeze(-1) for logs in (one_logs, two_logs))
    return (one * first + two * second).to(one.dtype), total


def part(q: Tensor, k: Tensor, v: Tensor, window: int, *, causal: bool) -> tuple[Any, ...]:
    """Output, log-sum, and what else its backward wants."""
    aten = torch.ops.aten
    if META and q.shape[3] == v.shape[3] == k.shape[3]:  # by its name, so that selective checkpointing knows it
        return tuple(aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[:2])
    if META:
        out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
        return out, q.new_empty(q.shape[:3], dtype=FP32)
    if q.is_cpu:
        return tuple(aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal))
    if not window and has_cudnn(q.shape[1], *k.shape[1:4:2], v.shape[3]):
        found = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False)
        return found[0], found[1].view(q.shape[:3]), found[1].shape[3:], *found[6:8], *found[2:6]
    rows = [x.transpose(1, 2) for x in (q, k, v)]
    out, logs, seed, unused, _ = aten._flash_attention_forward(
        *rows, None, None, q.shape[2], k.shape[2], 0.0, causal, False, **_sides(window)
    )
    return out.transpose(1, 2), logs, None, seed, unused


def part_back(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logs: Tensor, rest: list[Any], window: int,
    *, causal: bool,
) -> list[Tensor]:  # fmt: skip
    if META:
        return [torch.empty_like(one) for one in (q, k, v)]
    aten = torch.ops.aten
    if q.is_cpu:
        back = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return list(back(grad, q, k, v, out, logs, 0.0, causal))
    tail, seed, unused, *cudnn = rest
    if cudnn:
        back = aten._scaled_dot_product_cudnn_attention_backward
        logs = logs.reshape(*logs.shape, *tail)
        return list(back(grad, q, k, v, out, logs, seed, unused, None, *cudnn, 0.0, causal))
    rows = [x.transpose(1, 2) for x in (grad, q, k, v, out)]
    found = aten._flash_attention_backward(
        *rows, logs.contiguous(), None, None, q.shape[2], k.shape[2], 0.0, causal, seed, unused, **_sides(window)
    )
    return [one.transpose(1, 2) for one in found]


def _sides(window: int) -> dict[str, int]:
    return {"window_size_left": window - 1, "window_size_right": 0} if window else {}


@functools.cache
def has_cudnn(heads: int, kv_heads: int, size: int, value_size: int) -> bool:
    """Whether cuDNN, the fastest, has such heads in both passes; else FlashAttention 2 does it."""
    sizes = ((heads, size), (kv_heads, size), (kv_heads, value_size))
    q, k, v = (torch.randn(1, count, 256, width, dtype=BF16, device="cuda") for count, width in sizes)
    aten = torch.ops.aten
    try:
        found = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True, False)
        back = aten._scaled_dot_product_cudnn_attention_backward
        back(found[0], q, k, v, *found[:2], *found[6:8], None, *found[2:6], 0.0, True)
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


PLAIN_ATTENTION: dict[str, Any] = {"window": 0, "others": (), "gathered": 0, "stored": False, "dropout": 0.0}


def attend(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None = None, how: dict[str, Any] = PLAIN_ATTENTION
) -> Tensor:
    """Causal attention of [batch, heads, tokens, size]."""
    if how["stored"]:
        return stored(q, k, v, how["dropout"])
    if META or how["window"] or how["others"] or sink is not None:
        return Parts.apply(q, k, v, sink, how)
    gqa = q.shape[1] != k.shape[1]
    return fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa, dropout_p=how["dropout"])


def stored(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Attention whose scores are stored; heads that share keys stand in a row."""
    batch, heads, tokens, size = q.shape
    rows = q.reshape(batch, k.shape[1], -1, size)
    scores = (rows @ k.transpose(2, 3)).mul_(size**-0.5).view(batch, heads, tokens, -1)
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu_(1)
    shares = fn.dropout(scores.masked_fill_(hidden, -torch.inf).softmax(dim=-1), dropout)
    return (shares.view(*rows.shape[:3], -1) @ v).view(batch, heads, tokens, -1)


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
        ctx.save_for_backward(x, ends)
        ctx.home, ctx.weight = home, weight  # a parameter lasts, and its states hang on it
        return grouped(x, weight.transpose(1, 2), ends, (x.shape[0], weight.shape[1]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (x, ends), weight = ctx.saved_tensors, ctx.weight
        grad_x = grouped(grad, weight, ends, x.shape)

        def weights() -> Tensor:
            return grouped(grad.t(), x, ends, weight.shape)

        if ctx.home is None:
            return grad_x, weights(), None, None
        ctx.home.later(weight, lambda: weight.states.receive(weights()))  # type: ignore[attr-defined]
        return grad_x, None, None, None


def grouped(a: Tensor, b: Tensor, ends: Tensor, shape: Any) -> Tensor:  # noqa: ANN401
    if META:
        return a.new_empty(*shape)
    return torch._grouped_mm(a, b, offs=ends)


@functools.cache
def fused(work: Callable[..., Any], *, dynamic: bool = False) -> Callable[..., Any]:
    """One kernel out of a chain of plain ones, as Megatron's jit fuser makes it; without a GPU the chain itself.
    `dynamic`: one for all shapes, where there are many.
    """
    return torch.compile(work, dynamic=dynamic) if torch.cuda.is_available() else work


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


# --- what the layers of a rank share -----------------------------------------------------------------------------


class Home:
    """What the layers of a rank share: its place, its buffers, the weight gradients that wait, and what is faked."""

    def __init__(self, spec: dict[str, Any], counter: Counter | None = None) -> None:
        s, kernels, self.spec = spec["strategy"], spec["kernels"], spec
        self.tp, self.sp, self.fused = s["tp"], s["sp"], kernels["weight_grad_fusion"]
        self.cp, self.cp_kind, self.pieces = s["cp"], s["cp_kind"], s["pieces"]
        self.keep_buffer = spec["memory"]["gather_buffer"]
        self.whole_kept = kernels["gathered_input_kept"]
        self.narrow, self.narrow_kept = s["dtype"] == "fp8", kernels["fp8_inputs"]
        self.narrow_weights = self.narrow and kernels["fp8_copies"] > 0 and s["zero"] < 3
        self.early_stop = spec["states"]["lazy"]
        self.counter = counter
        self.piece = 0
        self.buffer: Tensor | None = None
        self.waiting: list[Callable[[], None]] | None = None
        self.sent: list[Tensor] = []
        self.faked: dict[tuple[Any, ...], int] = {}
        self.dropped: dict[int, tuple[Any, int]] = {}

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
        if self.buffer is None or self.buffer.numel() < size or self.buffer.dtype != like.dtype:
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

    def later(self, weight: Tensor, add: Callable[[], None]) -> None:
        """Make a weight's gradient: now, or when W comes."""
        if not weight.requires_grad:
            return
        if self.waiting is None:
            add()
        else:
            self.waiting.append(add)

    def again(self, work: Callable[..., Any], *inputs: Any) -> Any:  # noqa: ANN401
        """Keep the inputs only; backward does the work again. Torch's own way stops once it has all that it needs."""
        return checkpoint(work, *inputs, use_reentrant=not self.early_stop)

    def dropping(self) -> Any:  # noqa: ANN401
        """Within this nobody keeps what `Once` has made."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, made_again)

    def _pack(self, x: Tensor) -> Any:  # noqa: ANN401
        known = self.dropped.get(x.untyped_storage()._cdata)
        return x if known is None else (*known, x.shape, x.stride(), x.storage_offset())

    def settle(self, module: nn.Module) -> None:
        """First values and states of a module that has just been made: a model that fits only in shares is never there
        whole.
        """
        for name, parameter in module.named_parameters():
            if hasattr(parameter, "states"):
                continue
            parameter.requires_grad_(not self.spec["strategy"]["lora"] or "lora" in name)
            if not META and parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            parameter.states = ParameterStates(parameter, self.spec, self)  # type: ignore[attr-defined]
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(accumulate)
            if parameter.states.comes:  # type: ignore[attr-defined]
                parameter.states.release()  # type: ignore[attr-defined]

    def resize(self, x: Tensor, size: int) -> None:
        storage = x.untyped_storage()
        storage.resize_(size)
        if self.counter:
            self.counter.resized(storage)


class Once(torch.autograd.Function):
    """Work whose inputs alone are kept: its results are made again when backward first asks for one of them."""

    @staticmethod
    def forward(ctx: Any, work: Callable[..., Any], home: Home, *inputs: Tensor) -> Any:  # noqa: ANN401
        ctx.save_for_backward(*inputs)
        ctx.work, ctx.outs = work, None
        outs = work(*inputs)
        for index, out in enumerate([outs] if isinstance(outs, Tensor) else outs):
            storage = out.untyped_storage()
            home.dropped[storage._cdata] = ctx, index
            weakref.finalize(storage, home.dropped.pop, storage._cdata, None)
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        replay(ctx)
        inputs, outs, ctx.inputs, ctx.outs = ctx.inputs, ctx.outs, None, None
        used = [(out, grad) for out, grad in zip(outs, grads, strict=True) if grad is not None]
        torch.autograd.backward([out for out, _ in used], [grad for _, grad in used])
        return None, None, *(one.grad for one in inputs)


def replay(ctx: Any) -> list[Tensor]:  # noqa: ANN401
    if ctx.outs is None:
        needed = ctx.needs_input_grad[2:]
        ctx.inputs = [one.detach().requires_grad_(need) for one, need in zip(ctx.saved_tensors, needed, strict=True)]
        with torch.enable_grad():
            outs = ctx.work(*ctx.inputs)
        ctx.outs = [outs] if isinstance(outs, Tensor) else list(outs)
    return ctx.outs


def made_again(packed: Any) -> Tensor:  # noqa: ANN401
    if isinstance(packed, Tensor):
        return packed
    ctx, index, shape, stride, offset = packed
    return replay(ctx)[index].detach().as_strided(shape, stride, offset)


# --- states: gradients, masters and moments of this rank's share ----------------------------------------------------


class ParameterStates:
    """One parameter's gradient, fp32 copy and moments, as ZeRO spreads them over `spread` ranks."""

    def __init__(self, parameter: Tensor, spec: dict[str, Any], home: Home) -> None:
        s, self.kind, self.home, self.parameter = spec["strategy"], spec["states"], home, parameter
        self.zero = s["zero"]
        spread = s["expert_shards"] if getattr(parameter, "expert", False) else s["shards"]
        self.spread, self.count = spread, -(-parameter.numel() // spread)
        self.shares_gradient = self.zero >= 2 and not self.kind["whole_gradients"]
        self.comes = self.zero == 3 and (spread > 1 or self.kind["wide"])
        """The parameter is whole only while its layer is at work."""
        flat = parameter.detach().flatten()[: self.count]
        wide = self.kind["master"] and parameter.requires_grad
        self.master = flat.float() if wide or (self.comes and self.kind["wide"]) else flat
        self.master = self.master.clone() if self.comes and self.master is flat else self.master
        self.small = flat.clone() if self.comes and wide else None
        self.total: Tensor | None = None
        self.pending: list[Tensor] = []
        if not self.kind["lazy"] and parameter.requires_grad:
            self.begin()

    def begin(self) -> Tensor:
        if self.total is None:
            size = self.count if self.shares_gradient else self.parameter.numel()
            dtype = FP32 if self.kind["gradient"] == FP32.itemsize else BF16
            self.total = torch.zeros(size, dtype=dtype, device=self.parameter.device)
        return self.total

    def receive(self, grad: Tensor) -> None:
        """A micro batch's whole gradient; under ZeRO 3 it waits for the others of its layer."""
        if self.comes:
            self.pending.append(grad)
        elif not self.shares_gradient:
            if self.total is None and grad.dtype == self.parameter.dtype and self.kind["gradient"] == grad.itemsize:
                self.total = grad.flatten()  # the first one becomes the sum
            else:
                self.begin().add_(grad.flatten())
        else:
            self.begin().add_(self.own(grad))

    def own(self, grad: Tensor) -> Tensor:
        """Our part of the sum over ranks."""
        part = grad.flatten()[: self.count].to(FP32 if self.kind["gradient"] == FP32.itemsize else BF16)
        self.home.count("scatter", part)
        return part

    def scatter(self, wide: list[Tensor]) -> None:
        """Gradients of a layer are brought to fp32 (kept in `wide` until all are), and our part is added."""
        for grad in self.pending:
            if not self.shares_gradient:  # reduced once an iteration, and whole until then
                self.begin().add_(grad.flatten())
                continue
            self.home.count("widen", grad)
            whole = grad.flatten().to(FP32 if self.kind["reduced"] == FP32.itemsize else BF16)
            wide.append(whole)
            self.begin().add_(whole[: self.count])
        self.pending.clear()

    def gather(self) -> None:
        """Parts of all ranks, which are copies of ours."""
        p, size = self.parameter.data, self.parameter.numel()
        self.home.resize(p, size * p.itemsize)
        if META:
            return
        own = self.master if self.small is None else self.small
        rows, left = divmod(size, self.count)
        flat = p.view(-1)
        flat[: rows * self.count].view(rows, -1).copy_(own.expand(rows, -1))
        if left:
            flat[rows * self.count :].copy_(own[:left])
        self.home.count(f"spread {rows}", own)

    def release(self) -> None:
        self.home.resize(self.parameter.data, 0)

    def renew(self) -> None:
        """New weights out of the masters."""
        if self.comes:
            if self.small is not None:
                self.small.copy_(self.master)
        elif self.master.dtype != self.parameter.dtype or self.master.data_ptr() != self.parameter.data_ptr():
            self.parameter.data.view(-1)[: self.count].copy_(self.master)


def accumulate(parameter: Tensor) -> None:
    """Of gradients that autograd makes."""
    if parameter.grad is not None:
        grad, parameter.grad = parameter.grad, None
        parameter.states.receive(grad)  # type: ignore[attr-defined]


class Unit:
    """The parameters of a layer (or of both ends) that are gathered together under ZeRO 3."""

    def __init__(self, states: list[ParameterStates]) -> None:
        self.states = [one for one in states if one.comes]
        self.there = False
        self.next: Unit | None = None
        self.before: Unit | None = None

    def gather(self) -> None:
        if not self.there:
            self.there = True
            for one in self.states:
                one.gather()

    def release(self) -> None:
        if self.there:
            self.there = False
            for one in self.states:
                one.release()

    def finish(self, home: Home) -> None:
        """Gradients go; what is sent of them stays until the next layer's are, as if it were still on its way."""
        home.sent = []
        for one in self.states:
            one.scatter(home.sent)


class Enter(torch.autograd.Function):
    """Before a layer: its parameters come, and the next layer's with them; in backward its gradients go."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, unit: Unit, home: Home) -> Tensor:  # noqa: ANN401
        ctx.unit, ctx.home = unit, home
        for one in (unit, unit.next):
            if one:
                one.gather()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        ctx.unit.release()
        if ctx.home.waiting is None:
            ctx.unit.finish(ctx.home)
        else:
            ctx.home.waiting.append(functools.partial(ctx.unit.finish, ctx.home))
        return grad, None, None


class Exit(torch.autograd.Function):
    """After a layer: its parameters go; in backward they come back, and the layer's before it with them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, unit: Unit) -> Tensor:  # noqa: ANN401
        ctx.unit = unit
        if unit.next:  # the last one would come back at once
            unit.release()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        for one in (ctx.unit, ctx.unit.before):
            if one:
                one.gather()
        return grad, None


def through(x: Tensor, layers: Any, hows: list[dict[str, Any]], home: Home, *rest: Any) -> Tensor:  # noqa: ANN401
    """Layers in a row, each as its recompute says; `group` layers that are recomputed together share one input."""
    index = 0
    while index < len(layers):
        how = hows[index]
        end = index + 1
        while end < len(layers) and end - index < how["group"] and hows[end]["recompute"] == "full":
            end += 1
        members = list(layers[index:end])
        unit = getattr(members[0], "unit", None)
        if unit and end - index == 1:
            x = Exit.apply(run_layers(Enter.apply(x, unit, home), members, how, home, *rest), unit)
        else:
            x = run_layers(x, members, how, home, *rest)
        index = end
    return x


def run_layers(x: Tensor, members: list[Any], how: dict[str, Any], home: Home, *rest: Any) -> Tensor:  # noqa: ANN401
    def work(x: Tensor, *rest: Any) -> Tensor:  # noqa: ANN401
        for one in members:
            unit = getattr(one, "unit", None) if len(members) > 1 else None
            x = one(Enter.apply(x, unit, home) if unit else x, *rest)
            x = Exit.apply(x, unit) if unit else x
        return x

    if how["recompute"] == "full":
        return home.again(work, x, *rest)
    if "ops" in how["recompute"]:
        return checkpoint(work, x, *rest, use_reentrant=False, context_fn=every_second)
    return work(x, *rest)


def every_second() -> Any:  # noqa: ANN401
    """Torchtitan's selective checkpointing: attention's output and every second product's stay."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    counts: dict[bool, int] = {}
    aten = torch.ops.aten
    attentions = {
        aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_cudnn_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
    }  # fmt: skip

    def policy(ctx: Any, func: Any, *_: Any, **__: Any) -> CheckpointPolicy:  # noqa: ANN401
        if func in {aten.mm.default, aten._grouped_mm.default}:
            counts[ctx.is_recompute] = counts.get(ctx.is_recompute, 0) + 1
            kept = counts[ctx.is_recompute] % 2 == 1
        else:
            kept = func in attentions
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


# --- layers of one GPU, as plain as Hugging Face's ----------------------------------------------------------------


class Line(nn.Module):
    """A linear layer; fp32 weights are cast where they are used, as autocast does."""

    def __init__(
        self, home: Home, inputs: int, outputs: int, *, bias: bool = False, wide: bool = False, lora: int = 0
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.weight.keep_narrow = home.narrow_weights and not wide  # type: ignore[attr-defined]
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.home, self.narrow = home, home.narrow and not wide
        self.lora = nn.ModuleList((Line(home, inputs, lora), Line(home, lora, outputs))) if lora else None

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dtype == FP32:
            bias = None if self.bias is None else self.bias.to(BF16)
            return fn.linear(x.to(BF16), self.weight.to(BF16), bias)
        if self.narrow:
            out = ShardedProduct.apply(x, self.weight, "none", self.home, True)
            return out if self.bias is None else out + self.bias
        out = fn.linear(x, self.weight, self.bias)
        return out if self.lora is None else out + self.lora[1](self.lora[0](x))


class PlainAttention(nn.Module):
    def __init__(self, spec: dict[str, Any], home: Home, layer: dict[str, Any]) -> None:
        super().__init__()
        m, kernel = spec["model"], spec["kernels"]["norm"]
        self.size, self.rope = m["head_size"], m["position"] == "rope"
        self.mixed = m["fused_qkv"] or (m["qkv_bias"] and not self.rope)
        query, kv, lora = m["heads"] * self.size, m["kv_heads"] * self.size, adapter(spec, "qkv")
        if self.mixed:
            self.qkv = Line(home, m["hidden"], query + 2 * kv, bias=m["qkv_bias"], lora=lora)
            self.widths = (query, kv, kv)
        else:
            self.q, self.k, self.v = (
                Line(home, m["hidden"], width, bias=m["qkv_bias"], lora=lora) for width in (query, kv, kv)
            )
        self.out = Line(home, query, m["hidden"], bias=m["out_bias"], lora=adapter(spec, "out"))
        self.norms = m["qk_norm"]
        if self.norms != "none":
            sizes = (self.size,) * 2 if self.norms == "head" else (query, kv)
            self.q_norm, self.k_norm = (Norm(size, m["norm"], kernel) for size in sizes)
        self.sink = nn.Parameter(torch.zeros(m["heads"])) if m["sinks"] else None
        self.how = attention_of(spec, layer)

    def forward(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        shape = (*x.shape[:2], -1, self.size)
        if self.mixed:
            q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(self.widths, dim=2))
        else:
            q, k, v = self.q(x), self.k(x), self.v(x).view(shape).transpose(1, 2)
            if self.norms == "full":
                q, k = self.q_norm(q), self.k_norm(k)
            q, k = q.view(shape), k.view(shape)
            if self.norms == "head":
                q, k = self.q_norm(q), self.k_norm(k)
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        if self.rope:
            q, k = turn(q, *tables[:2]), turn(k, *tables[:2])
        mixed = attend(q.to(v.dtype), k.to(v.dtype), v, self.sink, self.how)
        return self.out(mixed.transpose(1, 2).contiguous().flatten(2))


class PlainLatent(nn.Module):
    """Multi-head latent attention with rotary parts as complex numbers."""

    def __init__(self, spec: dict[str, Any], home: Home, layer: dict[str, Any]) -> None:
        super().__init__()
        m, kernel, lora = spec["model"], spec["kernels"]["norm"], adapter(spec, "qkv")
        a = self.a = m["mla"]
        self.heads, width, self.how = (
            m["heads"],
            m["heads"] * (a["nope_size"] + a["rope_size"]),
            attention_of(spec, layer),
        )
        if a["q_rank"]:
            self.q_down, self.q_norm = Line(home, m["hidden"], a["q_rank"]), Norm(a["q_rank"], m["norm"], kernel)
        self.q = Line(home, a["q_rank"] or m["hidden"], width, lora=lora)
        self.kv_down = Line(home, m["hidden"], a["kv_rank"] + a["rope_size"])
        self.kv_norm = Norm(a["kv_rank"], m["norm"], kernel)
        self.kv_up = Line(home, a["kv_rank"], self.heads * (a["nope_size"] + a["value_size"]), lora=lora)
        self.out = Line(home, self.heads * a["value_size"], m["hidden"], lora=adapter(spec, "out"))

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
        return self.out(attend(query, key, v, None, self.how).transpose(1, 2).reshape(*x.shape[:2], -1))


class PlainMlp(nn.Module):
    def __init__(self, spec: dict[str, Any], home: Home, ffn: int) -> None:
        super().__init__()
        m, lora = spec["model"], adapter(spec, "mlp")
        self.kind, self.composed = m["activation"], m["gelu_steps"] and spec["kernels"]["gelu_kept"] > 1
        self.counted = META and spec["strategy"]["compile"]
        if m["gated"]:
            self.gate = Line(home, m["hidden"], ffn, bias=m["mlp_bias"], lora=lora)
        sizes = ((m["hidden"], ffn), (ffn, m["hidden"]))
        self.up, self.down = (Line(home, *size, bias=m["mlp_bias"], lora=lora) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        # a replay that stops early leaves what stands in variables of its frames alive: there is none
        return self.down(self._inner(x))

    def _inner(self, x: Tensor) -> Tensor:
        if self.kind == "swiglu":
            return MetaGated.apply(self.gate(x), self.up(x)) if self.counted else fn.silu(self.gate(x)) * self.up(x)
        if self.kind == "geglu":
            return fn.gelu(self.gate(x), approximate="tanh") * self.up(x)
        return gelu_eager(self.up(x)) if self.kind == "gelu" and self.composed else active(self.up(x), self.kind)


class MetaGated(torch.autograd.Function):
    """A gated activation that a compiler has made one kernel, without data."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        gate, up = ctx.saved_tensors
        del grad
        return torch.empty_like(gate), torch.empty_like(up)


class PlainMoe(nn.Module):
    """Router, experts by grouped products, weights applied to their outputs."""

    def __init__(self, spec: dict[str, Any], home: Home) -> None:
        super().__init__()
        m = spec["model"]
        moe = m["moe"]
        self.k, self.experts = moe["top_k"], moe["experts"]
        self.wide = m["mla"] is not None  # DeepSeek's router works in fp32 to the end
        gate = 2 if m["gated"] else 1
        self.router = Line(home, m["hidden"], self.experts, wide=True)
        self.up = nn.Parameter(torch.empty(self.experts, gate * moe["expert_ffn"], m["hidden"]))
        self.down = nn.Parameter(torch.empty(self.experts, m["hidden"], moe["expert_ffn"]))
        self.shared = PlainMlp(spec, home, moe["shared_ffn"]) if moe["shared_ffn"] else None
        for parameter in (self.up, self.down):
            parameter.expert = True  # type: ignore[attr-defined]

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


def plain_layer(spec: dict[str, Any], home: Home, layer: dict[str, Any]) -> RankLayer:
    m = spec["model"]
    attention = (PlainLatent if m["mla"] else PlainAttention)(spec, home, layer)
    return RankLayer(
        spec, home, layer, attention, PlainMoe(spec, home) if layer["moe"] else PlainMlp(spec, home, m["ffn"])
    )


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
    """A tensor parallel linear layer that keeps its sharded input and gathers it again in backward.

    `narrow`: the product runs in 8 bit; operands are cast where they are local, and gathered so. What backward needs
    is kept turned, since 8-bit operands are multiplied along their rows only.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, split: str, home: Home, narrow: bool) -> Tensor:  # noqa: ANN401
        ctx.split, ctx.home, ctx.narrow, ctx.weight = split, home, narrow, weight
        column = split == "column"
        if not narrow:
            whole = home.gathered(x) if column else x
            ctx.whole = column and home.whole_kept
            kept = whole if ctx.whole else x
            ctx.save_for_backward(kept if weight.requires_grad else None)
            out = whole @ weight.t()
        else:
            small, ctx.scale = cast(x)
            whole = home.gathered(small, passing=False) if column else small
            forth, _, scale = narrow_weight(weight)
            out = product8(whole.flatten(0, -2), forth.t(), ctx.scale, scale).view(*whole.shape[:-1], -1)
            kept = (small if home.narrow_kept else x) if weight.requires_grad else None
            ctx.save_for_backward(kept)
        return home.scattered(out) if split == "row" else out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (x,), weight = ctx.saved_tensors, ctx.weight
        home, split, narrow, scale = ctx.home, ctx.split, ctx.narrow, getattr(ctx, "scale", None)
        if narrow:
            grad, grad_scale = cast(grad, torch.float8_e5m2)
        if split == "row":
            grad = home.gathered(grad, passing=False)
        flat = grad.flatten(0, -2)
        if narrow:
            _, back, weight_scale = narrow_weight(weight)
            grad_x = product8(flat, back.t(), grad_scale, weight_scale).view(*grad.shape[:-1], -1)
        else:
            grad_x = grad @ weight
        if split == "column":
            grad_x = home.scattered(grad_x)
        gathers = split == "column" and not getattr(ctx, "whole", False)

        def whole() -> Tensor:
            return (home.gathered(x) if gathers else x).flatten(0, -2)

        def add() -> None:
            states = weight.states  # type: ignore[attr-defined]
            direct = home.fused and not narrow and not states.shares_gradient and not states.comes and not flat.is_cpu
            if narrow:
                right, one = cast(x) if scale is None or x.dtype == BF16 else (x, scale)
                right = (home.gathered(right, passing=False) if gathers else right).flatten(0, -2)
                left, right = flipped(flat), flipped(right)
                states.receive(product8(left, right.t(), grad_scale, one).view_as(weight))
            elif not direct:
                states.receive(flat.t() @ whole())
            elif META:
                whole()
            else:
                total = states.total.view_as(weight)
                torch.addmm(total, flat.t(), whole(), out_dtype=FP32, out=total)

        home.later(weight, add)
        return grad_x, None, None, None, None


def cast(x: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[Tensor, Tensor]:
    """A tensor in 8 bit, and what brings it back to scale: its largest value is found first."""
    if META:
        return torch.empty_like(x, dtype=dtype), x.new_empty((), dtype=FP32)
    flat, scale = fused(scaled, dynamic=True)(x.reshape(-1), dtype)
    return flat.view(x.shape), scale


def scaled(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    most = torch.finfo(dtype).max
    scale = x.abs().amax().float().clamp(min=1e-12) / most
    return (x.float() / scale).clamp(-most, most).to(dtype), scale


def flipped(x: Tensor) -> Tensor:
    """A turned copy; as bytes, which every device can copy."""
    turned_bytes = x.view(torch.uint8)
    return (turned_over if META else fused(turned_over, dynamic=True))(turned_bytes).view(x.dtype)


def turned_over(x: Tensor) -> Tensor:
    return x.t().contiguous()


def product8(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    if META:
        return a.new_empty(a.shape[0], b.shape[1], dtype=BF16)
    return torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=BF16, use_fast_accum=True)


def narrow_weight(weight: Any) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401
    """A weight in 8 bit, and turned; made once an iteration where the framework keeps them."""
    known = getattr(weight, "narrowed", None)
    if known is not None:
        return known
    forth, scale = cast(weight.detach())
    found = forth, flipped(forth), scale
    if weight.keep_narrow:
        weight.narrowed = found
    return found


class Sharded(nn.Module):
    """`wide`: it stays in 16 bit when others run in 8. An adapter's product is added to a frozen one's."""

    def __init__(
        self,
        home: Home,
        inputs: int,
        outputs: int,
        split: str,
        *,
        bias: bool = False,
        wide: bool = False,
        lora: int = 0,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.weight.keep_narrow = home.narrow_weights and not wide  # type: ignore[attr-defined]
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.home, self.split, self.narrow = home, split, home.narrow and not wide
        self.lora = None
        if lora:
            down = Sharded(home, inputs, lora, "column" if split == "column" else "none", wide=True)
            up = Sharded(home, lora, outputs, "row" if split == "row" else "none", wide=True)
            self.lora = nn.ModuleList((down, up))

    def forward(self, x: Tensor, *, add_bias: bool = True) -> Tensor:
        out: Tensor = ShardedProduct.apply(x, self.weight, self.split, self.home, self.narrow)
        if self.lora is not None:
            out = out + self.lora[1](self.lora[0](x))
        return out + self.bias if add_bias and self.bias is not None else out


class ShardedAttention(nn.Module):
    """[tokens, batch, hidden] with the rank's heads."""

    def __init__(self, spec: dict[str, Any], home: Home, layer: dict[str, Any]) -> None:
        super().__init__()
        m, tp, kernel = spec["model"], home.tp, spec["kernels"]["norm"]
        self.size, self.rope = m["head_size"], m["position"] == "rope"
        self.heads, self.groups = m["heads"] // tp, max(1, m["kv_heads"] // tp)
        width = (self.heads + 2 * self.groups) * self.size
        self.qkv = Sharded(home, m["hidden"], width, "column", bias=m["qkv_bias"], lora=adapter(spec, "qkv"))
        inner = self.heads * self.size
        self.out = Sharded(home, inner, m["hidden"], "row", bias=m["out_bias"], lora=adapter(spec, "out"))
        self.norms = m["qk_norm"]
        if self.norms != "none":
            sizes = (self.size,) * 2 if self.norms == "head" else (inner, self.groups * self.size)
            self.q_norm, self.k_norm = (Norm(size, m["norm"], kernel) for size in sizes)
        self.sink = nn.Parameter(torch.zeros(self.heads)) if m["sinks"] else None
        self.again, self.home, self.how = "core-attention" in parts_again(layer), home, attention_of(spec, layer)
        self.separate = spec["kernels"]["qkv"] == "separate" and not m["fused_qkv"]

    def forward(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        mixed = self.qkv(x)
        each = self.heads // self.groups
        parts = mixed.view(*mixed.shape[:2], self.groups, (each + 2) * self.size)
        q, k, v = parts.split((each * self.size, self.size, self.size), dim=3)
        q = q.reshape(*q.shape[:2], -1, self.size)
        if self.separate:  # else the view of the values holds the whole projection
            k, v = k.contiguous(), v.contiguous()
        if self.norms == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        elif self.norms == "full":
            q, k = (
                norm(part.flatten(2)).view(part.shape) for norm, part in ((self.q_norm, q), (self.k_norm, k))
            )  # fmt: skip
        if self.rope:
            q, k = turn(q, *tables), turn(k, *tables)
        return self.out(attended(q, k, v, self.sink, self.home, self.how, again=self.again))


def adapter(spec: dict[str, Any], target: str) -> int:
    """Rank of the adapters on such layers."""
    lora = spec["strategy"]["lora"]
    return int(lora["rank"]) if lora and target in lora["targets"] else 0


def attention_of(spec: dict[str, Any], layer: dict[str, Any]) -> dict[str, Any]:
    """How a layer attends: its window, and the keys of others beside our own."""
    s, m = spec["strategy"], spec["model"]
    others: list[tuple[bool, int]] = []
    if s["cp"] > 1 and s["cp_kind"] == "ring":
        others = [(True, 1)] * (s["cp"] - 1)
    elif s["cp"] > 1 and s["cp_kind"] == "all-gather":
        others = [(True, s["cp"] - 1)]
    return {"window": layer["window"], "others": others, "stored": not s["flash"], "dropout": m["dropout"]}


def attended(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, home: Home, how: dict[str, Any], *, again: bool
) -> Tensor:
    """Attention of the rank's tokens. Context parallel by all-to-all trades tokens for heads before it and back after
    it; a ring or gathered keys keep the rank's own keys and values.
    """
    if home.pieces > 1 and home.piece:  # a later piece of a sequence looks back at all earlier ones
        how = {**how, "others": [(False, home.piece)]}
    exchange = home.cp > 1 and home.cp_kind == "all-to-all"
    if exchange:
        q, k, v = (Turn.apply(part, home.cp, home, False) for part in (q, k, v))
        sink = sink[: q.shape[2]] if sink is not None else None
    work = functools.partial(core, how=how)
    mixed = home.again(work, q, k, v, sink) if again else work(q, k, v, sink)
    if exchange:
        mixed = Turn.apply(mixed.view(*mixed.shape[:2], q.shape[2], -1), home.cp, home, True)
    return mixed.flatten(2)


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


def core(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, how: dict[str, Any]) -> Tensor:
    """Attention of [tokens, batch, heads, size]."""
    q, k, v = (part.permute(1, 2, 0, 3) for part in (q, k, v))
    return attend(q, k, v, sink, how).permute(2, 0, 1, 3).flatten(2)


class ShardedLatent(nn.Module):
    """Latent attention with the rank's heads; down-projections work on the rank's own tokens and are replicated."""

    def __init__(self, spec: dict[str, Any], home: Home, layer: dict[str, Any]) -> None:
        super().__init__()
        m, a, kernel = spec["model"], spec["model"]["mla"], spec["kernels"]["norm"]
        self.a, self.home, self.how = a, home, attention_of(spec, layer)
        self.again, self.up_again = (part in parts_again(layer) for part in ("core-attention", "mla-up"))
        self.heads, lora = m["heads"] // home.tp, adapter(spec, "qkv")
        if a["q_rank"]:
            self.q_down = Sharded(home, m["hidden"], a["q_rank"], "none")
            self.q_norm = Norm(a["q_rank"], m["norm"], kernel)
        width = self.heads * (a["nope_size"] + a["rope_size"])
        self.q = Sharded(home, a["q_rank"] or m["hidden"], width, "column", lora=lora)
        self.kv_down = Sharded(home, m["hidden"], a["kv_rank"] + a["rope_size"], "none")
        self.kv_norm = Norm(a["kv_rank"], m["norm"], kernel)
        self.kv_up = Sharded(home, a["kv_rank"], self.heads * (a["nope_size"] + a["value_size"]), "column", lora=lora)
        self.out = Sharded(home, self.heads * a["value_size"], m["hidden"], "row", lora=adapter(spec, "out"))

    def forward(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        a = self.a
        down = self.q_down(x) if a["q_rank"] else x
        latent, k_rope = self.kv_down(x).split((a["kv_rank"], a["rope_size"]), dim=-1)
        parts = (down, latent, k_rope.contiguous(), *tables)
        q, k, v = Once.apply(self._up, self.home, *parts) if self.up_again else self._up(*parts)
        return self.out(attended(q, k, v, None, self.home, self.how, again=self.again))

    def _up(self, down: Tensor, latent: Tensor, k_rope: Tensor, *tables: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = self.a
        q = self.q(self.q_norm(down) if a["q_rank"] else down)
        q_nope, q_rope = q.view(*q.shape[:2], self.heads, -1).split((a["nope_size"], a["rope_size"]), dim=-1)
        up = self.kv_up(self.kv_norm(latent))
        k_nope, v = up.view(*up.shape[:2], self.heads, -1).split((a["nope_size"], a["value_size"]), dim=-1)
        k_rope = Gather.apply(k_rope, self.home).unsqueeze(2)
        q_rope, k_rope = turn(q_rope, *tables), turn(k_rope, *tables)
        query = torch.cat((q_nope, q_rope), dim=-1)
        key = torch.cat((k_nope, k_rope.expand(*k_nope.shape[:-1], -1)), dim=-1)
        return query, key, v


class ShardedMlp(nn.Module):
    def __init__(self, spec: dict[str, Any], home: Home, ffn: int, recompute: Any) -> None:  # noqa: ANN401
        super().__init__()
        m, lora = spec["model"], adapter(spec, "mlp")
        self.kind, self.home, inner = m["activation"], home, ffn // home.tp
        self.eager = spec["kernels"]["activation"] == "eager"
        self.act_again, self.all_again = "activation" in recompute, "ffn" in recompute
        gate = 2 if m["gated"] else 1
        self.up = Sharded(home, m["hidden"], gate * inner, "column", bias=m["mlp_bias"], lora=lora)
        self.down = Sharded(home, inner, m["hidden"], "row", bias=m["mlp_bias"], lora=lora)

    def forward(self, x: Tensor) -> Tensor:
        return self.home.again(self._all, x) if self.all_again else self._all(x)

    def _all(self, x: Tensor) -> Tensor:
        inner = self.up(x, add_bias=self.kind != "gelu" or self.eager)
        return self.down(Once.apply(self._act, self.home, inner) if self.act_again else self._act(inner))

    def _act(self, inner: Tensor) -> Tensor:
        if self.kind == "swiglu" and not self.eager:
            return GatedFused.apply(inner)
        if self.kind == "gelu" and self.up.bias is not None and not self.eager:
            return GeluFused.apply(inner, self.up.bias)
        return active(inner, self.kind) if self.eager else self.home.again(active, inner, self.kind)


def active(x: Tensor, kind: str) -> Tensor:
    """Any activation in plain kernels."""
    if kind in {"swiglu", "geglu"}:
        gate, up = x.chunk(2, dim=-1)
        return (fn.silu(gate) if kind == "swiglu" else fn.gelu(gate, approximate="tanh")) * up
    if kind == "gelu":
        return fn.gelu(x, approximate="tanh")
    return fn.relu(x) if kind == "relu" else fn.relu(x).square()


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

    def __init__(self, spec: dict[str, Any], home: Home, recompute: Any) -> None:  # noqa: ANN401
        super().__init__()
        m, moe, s = spec["model"], spec["model"]["moe"], spec["strategy"]
        self.home, self.k, self.experts, self.kind = home, moe["top_k"], moe["experts"], m["activation"]
        self.kept, self.eager = spec["kernels"]["expert_output_kept"], spec["kernels"]["activation"] == "eager"
        self.act_again, self.all_again = "moe-act" in recompute, "ffn" in recompute
        self.ep, self.etp, self.local = s["ep"], s["etp"], moe["experts"] // s["ep"]
        inner, gate = moe["expert_ffn"] // s["etp"], 2 if m["gated"] else 1
        self.router = nn.Parameter(torch.empty(self.experts, m["hidden"]))
        self.router_bias = nn.Parameter(torch.zeros(self.experts)) if moe["router_bias"] else None
        self.up = nn.Parameter(torch.empty(self.local, gate * inner, m["hidden"]))
        self.down = nn.Parameter(torch.empty(self.local, m["hidden"], inner))
        self.biases = nn.ParameterList(
            nn.Parameter(torch.zeros(self.local, width)) for width in (gate * inner, m["hidden"]) if moe["expert_bias"]
        )
        shared = {"activation"} if self.act_again else set()
        self.shared = ShardedMlp(spec, home, moe["shared_ffn"], shared) if moe["shared_ffn"] else None
        self.gate = nn.Parameter(torch.empty(1, m["hidden"])) if moe["shared_gate"] else None
        for parameter in (self.up, self.down, *self.biases):
            parameter.expert = True  # type: ignore[attr-defined]

    def forward(self, hidden: Tensor) -> Tensor:
        x = hidden.flatten(0, -2)
        logits = fn.linear(x, self.router, self.router_bias).float()
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
            mine = mine[here]
        parts = picked, factors, self._ends(mine), mine
        out = self.home.again(self._experts, *parts) if self.all_again else self._experts(*parts)
        if self.ep * self.etp > 1:
            out = Permute.apply(out, there, here, 1)
        if self.etp > 1:
            out = Together.apply(out, self.etp, self.home, True)
        if self.ep > 1:
            out = Exchange.apply(out, self.home)
        out = Permute.apply(out, back, order, 1).view(x.shape[0], self.k, -1)
        out = (out * weights.unsqueeze(-1) if self.kept else out).sum(dim=1).view(hidden.shape)
        if self.shared is None:
            return out
        beside = self.shared(hidden)
        return out + (beside if self.gate is None else beside * fn.linear(hidden, self.gate).sigmoid())

    def _experts(self, picked: Tensor, factors: Tensor, ends: Tensor, mine: Tensor) -> Tensor:
        inner = Grouped.apply(picked, self.up, ends, self.home)
        if self.biases:
            inner = inner + self.biases[0][mine]
        inner = Once.apply(self._act, self.home, inner, factors) if self.act_again else self._act(inner, factors)
        out = Grouped.apply(inner, self.down, ends, self.home)
        return out + self.biases[1][mine] if self.biases else out

    def _act(self, inner: Tensor, factors: Tensor) -> Tensor:
        if self.kind != "swiglu" or self.eager:
            inner = active(inner, self.kind) if self.eager else self.home.again(active, inner, self.kind)
            return inner if self.kept else inner * factors
        return GatedFused.apply(inner) if self.kept else WeightedFused.apply(inner, factors)

    def _ends(self, mine: Tensor) -> Tensor:
        """Where each of our experts' tokens end: as unevenly spread as our own tokens are over all."""
        if META:
            return torch.empty(self.local, dtype=torch.int32, device=mine.device)
        counts = torch.histc(mine.float(), bins=self.local, min=0, max=self.local - 1)
        return counts.cumsum(0).to(torch.int32)


class RankLayer(nn.Module):
    """Norms, attention, the feed-forward block and their residual additions, whatever stands inside."""

    def __init__(
        self, spec: dict[str, Any], home: Home, layer: dict[str, Any], attention: nn.Module, mlp: nn.Module
    ) -> None:
        super().__init__()
        m, self.home = spec["model"], home
        self.again = parts_again(layer)
        self.attention, self.mlp = attention, mlp
        self.parallel, self.dropout, norms = m["parallel_residual"], m["dropout"], m["norms_per_layer"]

        def norm(there: bool) -> Norm | None:
            return Norm(m["hidden"], m["norm"], spec["kernels"]["norm"]) if there else None

        self.norm1, self.norm2 = norm(norms > 0 or not self.parallel), norm(norms > 1 or layer["moe"])
        self.post1, self.post2 = norm(norms > 3), norm(norms > 3 and not layer["moe"])
        self.routed = layer["moe"]

    def forward(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        drops = DROPPED & self.again
        with self.home.dropping() if drops and torch.is_grad_enabled() else contextlib.nullcontext():
            if self.parallel:
                return x + self._dropped(self._both(x, tables))
            x = x + self._dropped(self._attention(self._normed(self.norm1, x, "attention-norm"), tables))
            return x + self._dropped(self._mlp(x))

    # nothing stands in a variable longer than it is needed: what is live is what a framework's layer has
    def _attention(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        out = self._block(self.attention, "attention", x, tables)
        return out if self.post1 is None else self.post1(out)

    def _mlp(self, x: Tensor) -> Tensor:
        # where tokens went must not depend on a second computation: a router's input stays
        out = self._block(self.mlp, "mlp", self._normed(self.norm2, x, "" if self.routed else "mlp-norm"))
        return out if self.post2 is None else self.post2(out)

    def _both(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        first = self._normed(self.norm1, x, "attention-norm")
        attention = self._attention(first, tables)
        return attention + (self._block(self.mlp, "mlp", first) if self.norm2 is None else self._mlp(x))

    def _normed(self, norm: Norm | None, x: Tensor, module: str) -> Tensor:
        if norm is None:
            return x
        return Once.apply(norm, self.home, x) if module in self.again else norm(x)

    def _block(self, block: nn.Module, module: str, *inputs: Any) -> Tensor:  # noqa: ANN401
        return self.home.again(block, *inputs) if module in self.again else block(*inputs)

    def _dropped(self, branch: Tensor) -> Tensor:
        return fn.dropout(branch, self.dropout) if self.dropout else branch


def parts_again(layer: dict[str, Any]) -> frozenset[str]:
    """The parts that a layer makes again by itself; a layer that is made again whole has none."""
    return frozenset() if layer["recompute"] == "full" else frozenset(layer["recompute"])


DROPPED = {"attention-norm", "mlp-norm", "activation", "moe-act", "mla-up"}
"""Modules whose results are not kept either."""


def sharded_layer(spec: dict[str, Any], home: Home, layer: dict[str, Any]) -> RankLayer:
    m, again = spec["model"], parts_again(layer)
    attention = (ShardedLatent if m["mla"] else ShardedAttention)(spec, home, layer)
    mlp = ShardedMoe(spec, home, again) if layer["moe"] else ShardedMlp(spec, home, m["ffn"], again)
    return RankLayer(spec, home, layer, attention, mlp)


class Ahead(nn.Module):
    """A layer that predicts a token further ahead: hidden state and that token's embedding, projected, then a layer."""

    def __init__(self, spec: dict[str, Any], home: Home, layer: dict[str, Any]) -> None:
        super().__init__()
        m, kernel = spec["model"], spec["kernels"]["norm"]
        self.norm1, self.norm2 = (Norm(m["hidden"], m["norm"], kernel) for _ in range(2))
        # column parallel with its output gathered
        self.project = Sharded(home, 2 * m["hidden"], m["hidden"] // home.tp, "column", wide=True)
        self.layer, self.home = sharded_layer(spec, home, layer), home

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


class RankChunk(nn.Module):
    """Layers that a rank runs in one go, with the ends of the model where they lie here.

    Sharded: [tokens / tp, batch, hidden] in and out; plain: [batch, tokens, hidden].
    """

    def __init__(self, spec: dict[str, Any], home: Home, chunk: dict[str, Any]) -> None:
        super().__init__()
        m, kernel = spec["model"], spec["kernels"]["norm"]
        self.spec, self.home, self.chunk, self.plain = spec, home, chunk, spec["style"] == "plain"
        vocab = self.vocab = m["vocab"] if self.plain else m["padded_vocab"]
        if chunk["embedding"]:
            self.embedding = nn.Embedding(vocab, m["hidden"])
            if m["position"] == "learned":
                self.positions = nn.Embedding(m["max_positions"], m["hidden"])
            if m["embedding_norm"]:
                self.embedding_norm = Norm(m["hidden"], m["norm"], kernel)
        make = plain_layer if self.plain else sharded_layer
        self.layers = self._settled(make(spec, home, layer) for layer in chunk["layers"])
        self.ahead = self._settled(Ahead(spec, home, layer) for layer in chunk["ahead"])
        if chunk["head"]:
            self.norm = Norm(m["hidden"], m["norm"], kernel)
            if self.plain:
                self.head: nn.Module = Line(home, m["hidden"], vocab, bias=m["head_bias"], wide=True)
            else:
                self.head = Sharded(home, m["hidden"], vocab, "column", bias=m["head_bias"], wide=True)
            if m["tied"] and chunk["embedding"]:
                self.head.weight = self.embedding.weight
        home.settle(self)
        if spec["strategy"]["compile"] and not META:
            for layer, how in zip(self.layers, chunk["layers"], strict=True):
                if "ops" not in how["recompute"]:
                    layer.compile(dynamic=False)

    def _settled(self, layers: Iterator[nn.Module]) -> nn.ModuleList:
        found = nn.ModuleList()
        for layer in layers:
            self.home.settle(layer)
            found.append(layer)
        return found

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        m = self.spec["model"]
        if self.chunk["embedding"]:
            x = self.embedding(x % self.vocab)
            if m["position"] == "learned":
                places = self.positions(torch.arange(x.shape[1 if self.plain else 0], device=x.device))
                x = x + (places if self.plain else places.unsqueeze(1))
            x = self.embedding_norm(x) if m["embedding_norm"] else x
            x = x if self.plain else Scatter.apply(x, self.home)
            if not x.requires_grad:  # a frozen table: recomputed layers still need a gradient to begin with
                x.requires_grad_()
        tables = (plain_tables if self.plain else sharded_tables)(self.spec, x)
        x = through(x, self.layers, self.chunk["layers"], self.home, tables)
        if not self.chunk["head"]:
            return x
        total = self.loss(x, labels)
        for layer, how in zip(self.ahead, self.chunk["ahead"], strict=True):
            x = through(x, [layer], [how], self.home, tables)
            total = total + 0.1 * self.loss(x, labels)
        return total

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        logits, labels = self.head(self.norm(x)), labels % self.vocab
        kind = self.spec["kernels"]["loss"]
        if kind == "in-place":
            return InPlaceLoss.apply(logits, labels).mean()
        if kind == "fp32":
            return library_loss(logits, labels)
        return CompiledLoss.apply(logits, kind) if META else fused(library_loss)(logits, labels)


def library_loss(logits: Tensor, labels: Tensor) -> Tensor:
    wide = logits.float()
    return fn.cross_entropy(wide.view(-1, wide.shape[-1]), labels.reshape(-1))


class CompiledLoss(torch.autograd.Function):
    """What a compiled loss keeps and makes, without data: 16-bit logits, and their gradient in 16 bit or fp32 first."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, kind: str) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(logits)
        ctx.wide = kind == "compiled-fp32"
        return logits.new_empty(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        (logits,) = ctx.saved_tensors
        beside = logits.new_empty(logits.shape, dtype=FP32) if ctx.wide else grad
        del beside
        return torch.empty_like(logits), None


def sharded_tables(spec: dict[str, Any], x: Tensor) -> tuple[Tensor, ...]:
    if spec["model"]["position"] != "rope":
        return ()
    m, s = spec["model"], spec["strategy"]
    size = m["mla"]["rope_size"] if m["mla"] else m["head_size"]
    angles = torch.rand(s["seq"] // s["cp"] // s["pieces"], 1, 1, size, device=x.device)
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

    told: Mapping[str, Any] = {}

    @staticmethod
    def around(spec: dict[str, Any], device: str) -> contextlib.AbstractContextManager[None]:
        """What a framework needs around it."""
        del spec, device
        return contextlib.nullcontext()

    def __init__(self, spec: dict[str, Any], device: str, counter: Counter | None = None) -> None:
        self.spec, self.device, self.home = spec, device, Home(spec, counter)
        self.plain = spec["style"] == "plain"
        s = spec["strategy"]
        dtype = FP32 if s["master"] == "autocast" else BF16
        torch.set_default_dtype(dtype)
        with torch.device(device):
            self.chunks = [RankChunk(spec, self.home, chunk) for chunk in spec["chunks"]]
        torch.set_default_dtype(FP32)
        self.parameters = list({id(p): p for chunk in self.chunks for p in chunk.parameters()}.values())
        self.trained = [p.states for p in self.parameters if p.requires_grad]  # type: ignore[attr-defined]
        self.roots = [self._units(chunk) for chunk in self.chunks]
        self.optimizer = self._optimizer()
        self.live: dict[tuple[int, int], tuple[Tensor, Any, list[Tensor]]] = {}
        self.waiting: dict[tuple[int, int], list[Callable[[], None]]] = {}

    def _units(self, chunk: RankChunk) -> Unit:
        """A unit for every layer, and one of both ends, which stays while a micro batch is at work."""
        layers, owned, last = [*chunk.layers, *chunk.ahead], set(), None
        for layer in layers:
            unit = Unit([p.states for p in layer.parameters()])  # type: ignore[attr-defined]
            owned |= set(map(id, layer.parameters()))
            layer.unit = unit if unit.states else None  # type: ignore[assignment]
            unit.before, last = last, unit
            if unit.before:
                unit.before.next = unit
        return Unit([p.states for p in chunk.parameters() if id(p) not in owned])  # type: ignore[attr-defined]

    def _optimizer(self) -> Any:  # noqa: ANN401
        masters = [one.master for one in self.trained]
        if META:
            copies = 1 if self.spec["strategy"]["optimizer"] == "sgd" else 2
            self.moments = [torch.empty_like(master) for master in masters for _ in range(copies)]
            return None
        fused = self.spec["kernels"]["fused_optimizer"]
        if self.spec["strategy"]["optimizer"] == "sgd":
            return torch.optim.SGD(masters, lr=1e-4, momentum=0.9, fused=fused, foreach=None if fused else True)
        return torch.optim.AdamW(masters, lr=1e-4, fused=fused, foreach=None if fused else True)

    def step(self) -> None:
        for one in self.trained:
            if one.total is not None:
                one.master.grad = one.total[: one.count].to(one.master.dtype)
        if META:
            # what the step itself takes: foreach's temporaries are one copy of the shard
            if not self.spec["kernels"]["fused_optimizer"]:
                del_me = [torch.empty_like(one.master) for one in self.trained]
                del del_me
        else:
            grads = [one.master.grad for one in self.trained]
            if not self.spec["states"]["lazy"]:
                norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
                torch._foreach_mul_(grads, 1.0 / (norm + 1e-6).clamp(min=1.0))
            self.optimizer.step()
        with torch.no_grad():
            for one in self.trained:
                one.renew()
                one.master.grad = None
                one.parameter.narrowed = None  # type: ignore[attr-defined]
                if self.spec["states"]["lazy"]:
                    one.total = None
                elif one.total is not None:
                    one.total.zero_()
            for parameter in self.parameters:
                if self.home.narrow_weights and getattr(parameter, "keep_narrow", False):
                    narrow_weight(parameter)

    def tokens(self) -> Tensor:
        s, m = self.spec["strategy"], self.spec["model"]
        seq = s["seq"] // s["cp"] // s["pieces"]
        shape = (s["micro_batch"], seq) if self.plain else (seq, s["micro_batch"])
        return torch.randint(0, m["vocab"], shape, device=self.device)

    def hidden(self) -> Tensor:
        s, width = self.spec["strategy"], self.spec["model"]["hidden"]
        rows = s["seq"] // s["cp"] // s["pieces"] // (s["tp"] if s["sp"] else 1)
        shape = (s["micro_batch"], rows, width) if self.plain else (rows, s["micro_batch"], width)
        return torch.randn(*shape, dtype=FP32 if s["master"] == "autocast" else BF16, device=self.device)

    def forward(self, chunk: int, microbatch: int) -> None:
        how = self.spec["chunks"][chunk]
        self.home.piece = microbatch % self.spec["strategy"]["pieces"]
        self.roots[chunk].gather()
        x = self.tokens() if how["embedding"] else self.hidden().requires_grad_()
        labels = x if how["embedding"] and self.plain else self.tokens() if how["head"] else x
        mail: list[Tensor] = []
        out = self.chunks[chunk](x, labels)
        self.live[chunk, microbatch] = (x, out if how["head"] else Leave.apply(out, mail), mail)

    def backward(self, chunk: int, microbatch: int, *, split: bool) -> None:
        x, out, mail = self.live.pop((chunk, microbatch))
        self.home.piece = microbatch % self.spec["strategy"]["pieces"]
        self.roots[chunk].gather()
        if not self.spec["chunks"][chunk]["head"]:
            mail.append(self.hidden())
        self.home.waiting = [] if split else None
        out.backward()
        if split:
            self.waiting[chunk, microbatch] = self.home.waiting or []
        else:
            self._leave(chunk)
        self.home.waiting = None
        del x, out

    def _leave(self, chunk: int) -> None:
        self.roots[chunk].finish(self.home)
        self.roots[chunk].release()
        self.home.sent = []

    def weights(self, chunk: int, microbatch: int) -> None:
        with torch.no_grad():
            for add in self.waiting.pop((chunk, microbatch)):
                add()
            self._leave(chunk)

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
            "widen": functools.partial(x.to, FP32),
        }
        if kind.startswith("repeat"):
            work[kind] = functools.partial(more, x, int(kind.split()[1]), home)
        if kind.startswith("spread"):
            work[kind] = functools.partial(torch.Tensor.repeat, x, int(kind.split()[1]))
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


RANKS: dict[str, Any] = {}
"""Styles that a framework's own modules build -> what stands in for `Rank` then."""


def rehearse(
    spec: dict[str, Any], device: str, repeats: int, kernels: int, keep: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Run the rank: a first iteration to warm up, then `repeats` that count; `keep` gets what is known after each."""
    global META  # noqa: PLW0603 - one switch for the whole program, set once
    META = device == "meta"
    torch._dynamo.config.recompile_limit = 64  # type: ignore[attr-defined]
    counter = Counter() if META else None
    make = RANKS.get(spec["style"], Rank)
    with make.around(spec, device), counter or contextlib.nullcontext():
        meter = Meter(counter, int(spec["memory"]["workspace"]) if META else 0)
        rank = make(spec, device, counter)
        result = {**identity(spec, device), **rank.told, "parameters": sum(p.numel() for p in rank.parameters)}
        times: dict[str, list[float]] = {}
        clock, whole = Clock(), Clock()
        for iteration in range(2 if META else 1 + repeats):
            result["memory"] = iterated(rank, meter, clock, whole, later=iteration > 0)
            for name, values in {**clock.read(), **whole.read()}.items():
                if iteration:
                    times.setdefault(name, []).append(sum(values) if name in {"passes", "optimizer"} else mean(values))
            if not META and iteration == 0:
                result["faked_seconds"] = faked_seconds(rank, 1)
            if times:
                result["seconds"] = {name: statistics.median(values) for name, values in times.items()}
                result["spread"] = {name: spread(values) for name, values in times.items()}
            if times and keep:
                keep(result)
        if kernels and not META:
            result["kernels"] = profiled(rank, kernels)
    return result


def iterated(rank: Any, meter: Meter, clock: Clock, whole: Clock, *, later: bool) -> dict[str, int]:  # noqa: ANN401
    """One iteration, and its memory."""
    memory: dict[str, int] = {}
    meter.reset()
    memory["static"] = meter.now()

    def after_first() -> None:
        if later:
            memory["after_forward"] = meter.now()

    with whole.over("passes"):
        rank.passes(clock, after_first)
    memory["peak_forward_backward"] = meter.peak()
    meter.reset()
    with whole.over("optimizer"):
        rank.step()
    memory["peak_optimizer"] = meter.peak()
    memory["peak"] = max(memory["peak_forward_backward"], memory["peak_optimizer"])
    return memory


def mean(values: list[float]) -> float:
    """One number for a kind of action: the first of an iteration waits for nothing and is like the others."""
    return statistics.fmean(values)


def spread(values: list[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values) if values else 0.0


def identity(spec: dict[str, Any], device: str) -> dict[str, Any]:
    named: dict[str, Any] = {name: spec[name] for name in ("rank", "name", "plan", "with") if name in spec}
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


def unfit(spec: dict[str, Any], device: str, out: str | None) -> str:
    """Why it cannot be run here; empty: it can."""
    if device == "cuda" and spec["counted_only"]:
        return f"{spec['counted_only']}; run it with --device meta"
    if device == "cuda" and not torch.cuda.is_available():
        return "torch finds no CUDA GPU here; --device meta counts the memory without one"
    if device == "meta" and spec.get("run_only"):
        return f"{spec['run_only']}; run it on a GPU"
    if out and not Path(out).resolve().parent.is_dir():
        return f"--out {out}: its folder does not exist; make it first"
    return ""


def write(result: dict[str, Any], out: str | None) -> None:
    text = json.dumps(result, indent=1) + "\n"
    if out:
        part = Path(out + ".part")
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    else:
        sys.stdout.write(text)


def main() -> int:
    options = parsed()
    spec = json.loads(Path(options.spec).read_text(encoding="utf-8")) if options.spec else SPEC
    if not spec:
        sys.stderr.write("error: no rank is written into this file; make one with `shardwise rehearse PLAN --rank N`\n")
        return 2
    device = options.device or ("cuda" if torch.cuda.is_available() and not spec["counted_only"] else "meta")
    fault = unfit(spec, device, options.out)
    if fault:
        sys.stderr.write(f"error: {fault}\n")
        return 2
    began, keep = time.monotonic(), functools.partial(write, out=options.out) if options.out else None
    try:
        result = rehearse(spec, device, max(1, options.repeats), options.kernels, keep)
    except torch.OutOfMemoryError as error:
        result = {**identity(spec, device), "error": f"out of memory: {str(error).splitlines()[0]}"}
    except ImportError as error:
        sys.stderr.write(f"error: {error}; install what is missing here, or rehearse without --with\n")
        return 2
    result["run_seconds"] = round(time.monotonic() - began, 2)
    write(result, options.out)
    return 1 if "error" in result else 0


if __name__ == "__main__":
    sys.exit(main())
