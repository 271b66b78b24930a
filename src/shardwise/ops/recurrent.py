"""Mixers without attention on one rank: heads (or channels) are cut by tensor parallel, as those of attention are.

Context parallel brings whole sequences together before the recurrence and cuts heads instead, and takes that back
behind it (Megatron's way for Mamba). What a kernel keeps follows the public ones: Mamba-2's keeps its projections alone
and convolves again in backward (mamba_ssm); those of delta rules and linear attention keep what the convolution made
(fla). Where documents are packed, Mamba's forget inside a chunk, and fla's begin a chunk anew with every document.
"""

from __future__ import annotations

from typing import NamedTuple

from shardwise.inputs.mixers import Recurrent
from shardwise.ops.documents import chunked_tokens
from shardwise.ops.linear import Linear, linear, norm, residual_add
from shardwise.ops.op import Comm, Op
from shardwise.ops.shard import Shard

# A selective scan's traffic beside its inputs: weighted bytes per channel, state and token. Every element of the state
# takes an exponential and a few additions on ordinary cores, which are 16 and 128 a cycle on an SM.
SCANNED = (1.6, 4.8)
# Backward of a recurrence in chunks over its forward: states are made again, and every product has two gradients.
BACK = 2.5
# Copies that bringing a sequence's heads together takes on either side, as for attention.
EXCHANGED = 4.0


class ScanKernels(NamedTuple):
    """How a kind's kernels run."""

    keeps: bool
    """What the convolution made stays for backward."""
    forward: float
    """Kernels of the recurrence."""
    backward: float
    state: float = 0.0
    """Bytes a head and token of a chunk that stay: of its triangular system."""
    wide: float = 0.0
    """Bytes a key's channel that stay: decays in fp32."""


# Counted in the public kernels (mamba_ssm, fla), launch by launch; what stays is what they save for backward.
KERNELS = {
    "mamba": ScanKernels(keeps=True, forward=1.0, backward=2.0),
    "mamba2": ScanKernels(keeps=False, forward=5.0, backward=12.0),
    "delta": ScanKernels(keeps=True, forward=9.0, backward=16.0, state=2.0),
    "kda": ScanKernels(keeps=True, forward=10.0, backward=18.0, state=2.0, wide=4.0),
    "lightning": ScanKernels(keeps=True, forward=3.0, backward=6.0),
    "conv": ScanKernels(keeps=True, forward=1.0, backward=1.0),
}


def recurrent(shard: Shard) -> list[Op]:
    """The block with its norm and its residual addition."""
    mixer = shard.model.recurrent
    if mixer is None:
        message = "a recurrent layer needs a model with recurrent"
        raise TypeError(message)
    ops = [norm(shard, "norm", "attention-norm"), _into(shard, mixer)]
    if mixer.conv:
        ops.append(_convolution(shard, mixer))
    if mixer.kind == "mamba":
        ops += _steps(shard, mixer)
    if mixer.kind == "kda":
        ops.append(_gates(shard, mixer))
    if mixer.kind != "conv":
        ops.append(_scan(shard, mixer))
    ops.append(_gated(shard, mixer))
    return [*ops, _out(shard, mixer), residual_add(shard, "residual", "attention")]


def _bytes(shard: Shard, width: float) -> float:
    """Of so many columns on this rank, before tensor parallel cuts them."""
    return shard.element * shard.tokens * width / shard.tp


def _into(shard: Shard, mixer: Recurrent) -> Op:
    layer = Linear(
        "mixer in", "attention", shard.model.hidden, mixer.projected / shard.tp, "column", shard.hidden, shard.residual
    )
    return linear(shard, layer._replace(bias=mixer.bias))


def _convolution(shard: Shard, mixer: Recurrent) -> Op:
    """Depth-wise over a few tokens, with its activation; what it reads stays, gates and steps beside it."""
    size = _bytes(shard, mixer.convolved)
    return Op(
        "short convolution", "attention", "memory", bytes_f=2 * size, bytes_b=4 * size, kernels_f=1.0, kernels_b=2.0,
        kept=_bytes(shard, mixer.projected), extra_f=size, extra_b=2 * size + shard.residual,
        params=mixer.convolved * (mixer.conv + mixer.conv_bias) / shard.tp,
    )  # fmt: skip


def _steps(shard: Shard, mixer: Recurrent) -> list[Op]:
    """Mamba: steps, keys and queries are projected from the convolved values, which tensor parallel adds up."""
    narrow, width = mixer.rank + 2 * mixer.state, mixer.width / shard.tp
    made = linear(shard, Linear("mixer steps", "attention", width, narrow, "none", live=shard.residual))
    if shard.tp > 1:
        summed = shard.element * shard.tokens * narrow
        made = made._replace(comms=tuple(Comm("all-reduce", "tp", summed, phase) for phase in ("F", "I")))
    small = shard.element * shard.tokens * mixer.rank
    widened = Linear("mixer step width", "attention", mixer.rank, width, "none", small, shard.residual)
    return [made, linear(shard, widened)._replace(params=mixer.rank * width + width)]


def _gates(shard: Shard, mixer: Recurrent) -> Op:
    """Kimi's decays and output gate come out of low-rank projections."""
    wide = (mixer.keys + mixer.width) / shard.tp
    small = 2 * shard.element * shard.tokens * mixer.rank
    return linear(shard, Linear("mixer gates", "attention", mixer.rank, wide, "none", small, shard.residual))


def _scan(shard: Shard, mixer: Recurrent) -> Op:
    """The recurrence itself. Its parameters are what no other operator of the block has: decays, steps, skips."""
    facts = KERNELS[mixer.kind]
    inputs, width = _bytes(shard, mixer.width + 2 * mixer.keys), _bytes(shard, mixer.width)
    kept = inputs if facts.keeps else 0.0
    kept += shard.tokens / shard.tp * (facts.state * mixer.heads * mixer.chunk + facts.wide * mixer.keys)
    moved_f, moved_b = 2 * inputs + width, 4 * inputs + 3 * width
    more = chunked_tokens(shard.documents, shard.whole_seq, mixer.chunk) if shard.documents and facts.keeps else 1.0
    work = {"kind": "scan", "shape": (more * shard.tokens, mixer.products / shard.tp, BACK)}
    if mixer.kind == "mamba":
        # values, steps and gates of every channel are read; keys and queries are the same for all
        channels = shard.tokens * mixer.width / shard.tp
        kept = 2 * width + shard.element * shard.tokens * 2 * mixer.state
        moved_f = 4 * width + SCANNED[0] * channels * mixer.state
        moved_b = 8 * width + SCANNED[1] * channels * mixer.state
        work = {"kind": "memory"}
    comms = tuple(
        Comm("all-to-all", "cp", size, phase) for phase in ("F", "I") for size in (inputs, width)
    ) if shard.cp > 1 else ()  # fmt: skip
    copied = EXCHANGED * (inputs + width) if shard.cp > 1 else 0.0
    return Op(
        name="recurrence", module="attention", **work,  # type: ignore[arg-type]
        bytes_f=moved_f + copied, bytes_b=moved_b + copied, kernels_f=facts.forward, kernels_b=facts.backward,
        kept=kept, extra_f=width, extra_b=2 * inputs + width + shard.residual, params=_own(mixer) / shard.tp,
        comms=comms,
    )  # fmt: skip


def _own(mixer: Recurrent) -> float:
    projected = {
        "mamba": mixer.width * (mixer.rank + 2 * mixer.state) + mixer.rank * mixer.width + mixer.width,
        "kda": mixer.rank * (mixer.keys + mixer.width),
    }.get(mixer.kind, 0)
    return mixer.between - mixer.convolved * (mixer.conv + mixer.conv_bias) - projected


def _gated(shard: Shard, mixer: Recurrent) -> Op:
    """The output's norm and gate, in one kernel; its input stays."""
    width = _bytes(shard, mixer.width)
    normed = mixer.normed and mixer.kind not in {"mamba", "conv"}
    return Op(
        "gated norm" if normed else "gate", "attention", "memory", bytes_f=3 * width,
        bytes_b=(6 if normed else 5) * width, kernels_f=1.0, kernels_b=2.0 if normed else 1.0, kept=width,
        extra_f=width, extra_b=2 * width + shard.residual,
    )  # fmt: skip


def _out(shard: Shard, mixer: Recurrent) -> Op:
    live = shard.residual if shard.sp else 0.0
    layer = Linear(
        "mixer out", "attention", mixer.width / shard.tp, shard.model.hidden, "row", _bytes(shard, mixer.width), live
    )
    return linear(shard, layer._replace(bias=mixer.bias))
