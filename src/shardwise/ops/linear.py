"""Operators that several kinds of layer share: linear layers and the adapters on them, norms, residual additions."""

from __future__ import annotations

from typing import Literal, NamedTuple

from shardwise.inputs.assumed import ASSUMED
from shardwise.inputs.formats import Format
from shardwise.ops.op import Comm, Op
from shardwise.ops.shard import Shard

# Weighted traffic of norms, bytes per element, forward and backward: what a streaming kernel would move in the time
# that these take (H200 probe: fused 4 bytes at 3.9 TB/s; native 4 at 2.7 and 6 at 1.55, layer norm 4 at 2.0 and 6 at
# 1.45; eager 36 at 2.6 and 92 at 3.0 over 8 and 16 kernels; streaming 4.2).
NORM_BYTES = {"fused": (4.5, 9.0), "native": (6.2, 16.0), "layer": (8.3, 17.0), "eager": (57.0, 128.0)}
NORM_KERNELS = {"fused": (1.0, 2.0), "native": (1.0, 2.0), "layer": (1.0, 2.0), "eager": (8.0, 16.0)}
# With an fp32 stream the eager chain skips two casts (H200 probe: 47 and 125 bytes for 59 and 132).
AUTOCAST_NORM = 0.9
# Copies to 16 bit, and gradients back to fp32 at half the speed, weighted bytes per element (H200 probe: 5.9 and 11.8).
CAST, CAST_BACK = 6.0, 12.0
# Capping scores or logits: two scalings and a hyperbolic tangent, whose result is kept; the bytes that they move.
CAP_TRAFFIC = (12.0, 14.0)

# Operators whose products stay in 16 bit when the rest runs in fewer.
OUTPUT = "output layer"
WIDE = frozenset({"router", OUTPUT, "embedding", "mtp projection"})
# Linear layers whose input a norm has just written.
NORMED = frozenset({"qkv", "up"})


def norm_kind(shard: Shard) -> str:
    """Which row of NORM_BYTES applies."""
    kind = shard.runtime.kernels.norm
    if kind != "fused" and shard.model.norm == "layernorm":
        return "layer"
    return kind


def eager_kept(shard: Shard) -> float:
    """Bytes an element that a chained norm keeps: an fp32 copy, or the fp32 input itself under autocast, and the scaled
    one, which is in fp32 under autocast and where weights count from one (Gemma's).
    """
    return 8.0 if shard.autocast or shard.model.norm_offset else 6.0


def caps(shard: Shard, most: float) -> bool:
    """Whether the runtime holds scores or logits within `most`; others train without."""
    return most > 0 and "score_cap" in shard.runtime.kernels.stores_scores


def norm(shard: Shard, name: str, module: str, width: float | None = None) -> Op:
    """A norm over the residual stream (or `width` elements per token), with its kept input."""
    model = shard.model
    elements = shard.tokens * (width or model.hidden) / (shard.tp if shard.sp else 1)
    kind = norm_kind(shard)
    stream = shard.stream * elements
    if kind == "eager":
        kept, extra_f, extra_b = eager_kept(shard) * elements, 6.0 * elements, 10.0 * elements
    else:
        statistics = 8.0 * elements / (width or model.hidden)
        kept, extra_f, extra_b = stream + statistics, stream, 2 * stream
    # the eager chain runs in fp32 whatever the stream is
    scale = elements * (AUTOCAST_NORM if shard.autocast else 1.0) if kind == "eager" else elements * shard.stream / 2
    return Op(
        name,
        module,
        "memory",
        (),
        NORM_BYTES[kind][0] * scale,
        NORM_BYTES[kind][1] * scale,
        *NORM_KERNELS[kind],
        kept,
        extra_f,
        extra_b,
        (width or model.hidden) * model.norm_rows,
    )


def residual_add(shard: Shard, name: str, module: str) -> Op:
    """Adding a branch to the residual stream, with dropout where there is any."""
    stream, kernels = shard.residual, shard.runtime.kernels
    mask = shard.model.dropout > 0
    elements = stream / shard.stream
    # the gradient that passes through is added to the branch's own; runtimes of fused kernels were fitted on whole
    # runs, which hold that addition already
    added = 0.0 if shard.runtime.kernels.norm == "fused" else 3 * stream
    stem = shard.model.stem
    turned = kernels.norm == "eager" and stem is not None and stem.frames == 1 and not stem.leading
    return Op(
        name,
        module,
        "memory",
        bytes_f=(TURNED_ADD if turned else 3) * stream + (ASSUMED.dropout_mask * elements if mask else 0),
        bytes_b=(2 * stream + elements if mask else 0.0) + added,
        kernels_f=2.0 if mask and shard.runtime.kernels.activation == "eager" else 1.0,
        kernels_b=(1.0 if mask else 0.0) + (1.0 if added else 0.0),
        # a compiler keeps the branch's output rather than the sum that the next norm reads
        kept=(elements if mask else 0.0) + (stream if kernels.compiled and kernels.compiled_branches else 0.0),
        extra_f=2 * stream,
        extra_b=2 * stream,
    )


# A sample's gate times a stream, and its gradient, a sum over tokens in two steps; an addition whose stream lies with
# its channels first, as convolutions leave it (all over the bytes of the stream: weights of traced kernels).
GATED, GATED_BACK, TWO_STEPS, TURNED_ADD = 6.0, 10.6, 34e6, 13.5


def scaled(shard: Shard, module: str) -> list[Op]:
    """A block's output times a vector (InternViT), or times a sample's gate, before it is added."""
    model, size = shard.model, shard.residual
    if not model.layer_scale and not model.condition:
        return []
    params = model.hidden if model.layer_scale else 0.0
    forward, backward = (2 * size, 5 * size) if model.layer_scale else (GATED * size, GATED_BACK * size + TWO_STEPS)
    return [Op("scale", module, "memory", (), forward, backward, 1.0, 3.0, size, size, 2 * size, params)]


class Linear(NamedTuple):
    """A linear layer on one rank: its widths are those after tensor parallel has cut."""

    name: str
    module: str
    inputs: float
    outputs: float
    split: Literal["column", "row", "none"]
    """column: its input is gathered; row: its output is reduced."""
    kept: float = 0.0
    """Bytes that it keeps of its input."""
    live: float = 0.0
    """Gradient of the residual stream that is live beside it in backward."""
    bias: bool = False
    projections: int = 1
    """Matrices that plain runtimes hold apart: each casts the input and gives it a gradient."""

    @property
    def weights(self) -> float:
        return self.inputs * self.outputs


def linear(shard: Shard, layer: Linear) -> Op:
    """A linear layer on all of the rank's tokens."""
    rows, inputs, outputs, weights = shard.tokens, layer.inputs, layer.outputs, layer.weights
    column = layer.split == "column"
    grad_out, grad_in = shard.element * rows * outputs, shard.element * rows * inputs
    gathered = grad_in if column else grad_out
    parallel = shard.tp > 1 and layer.split != "none"
    # a row layer's incoming gradient is the gathered one and grad_out already counts it; a column layer's outgoing
    # gradient is full-size and then scattered into a sharded copy
    scatter = gathered / shard.tp if parallel and shard.sp and column else 0.0
    added = 3.0 * (layer.projections - 1) * grad_in if shard.runtime.kernels.activation == "eager" else 0.0
    copied = weights + layer.projections * rows * inputs if shard.autocast else 0.0
    casts = 2.0 if shard.autocast else 0.0
    local = shard.tp if parallel and shard.sp and narrow_of(shard, layer.name, gathered=True) else 1
    made = quantised(
        shard, layer.name, rows * inputs / (local if column else 1), rows * outputs / (1 if column else local),
        weights, layer.projections,
    )  # fmt: skip
    return Op(
        layer.name,
        layer.module,
        "gemm",
        (rows, outputs, inputs),
        bytes_f=CAST * copied + made.bytes_f,
        bytes_b=added + CAST_BACK * copied + made.bytes_b,
        kernels_f=1.0 + casts + made.kernels,
        kernels_b=2.0 + casts + made.kernels,
        kept=_kept(shard, layer),
        extra_f=grad_out + (gathered if parallel and not column else 0.0),
        extra_b=layer.live + grad_out + grad_in + scatter + weights * shard.grad_temporary,
        params=weights + (outputs if layer.bias else 0),
        comms=_linear_comms(shard, layer, gathered) if parallel else (),
    )


CAST_STEPS = 12.0
"""Kernels of an input's and a weight's casts in steps: each finds the largest value, scales, clamps and rounds."""


class Quantised(NamedTuple):
    """What making the operands of a product moves beside it, in each pass."""

    bytes_f: float = 0.0
    bytes_b: float = 0.0
    kernels: float = 0.0


def narrow_of(shard: Shard, name: str, *, gathered: bool = False) -> Format | None:
    """The format below 16 bit of an operator's product; `gathered`: only where operands are gathered in it."""
    wide = name in WIDE and not (name == OUTPUT and shard.runtime.kernels.fp8_output)
    narrow = None if wide else shard.narrow
    return narrow if narrow and (narrow.gathered or not gathered) else None


def quantised(
    shard: Shard, name: str, inputs: float, gradients: float, weights: float = 0.0, projections: int = 1
) -> Quantised:
    """Making `inputs` elements of the input, and in backward `gradients` elements of the output's gradient."""
    narrow = narrow_of(shard, name)
    if narrow is None:
        return Quantised()
    apart = name == OUTPUT or not shard.runtime.kernels.compiled
    if shard.runtime.kernels.fp8_steps and apart:
        own = shard.runtime.kernels.fp8_steps * (projections * inputs + weights)
        back = 2.0 * shard.runtime.kernels.fp8_steps * gradients
        return Quantised(own, own + back, CAST_STEPS * projections)
    # a compiler lets whatever makes an operand find its largest value, as a norm does
    compiled = shard.runtime.kernels.compiled
    forward = narrow.traffic(turned=shard.turned, normed=compiled or name in NORMED)
    backward = narrow.traffic(turned=shard.turned, normed=compiled)
    return Quantised(forward * inputs, backward * gradients, narrow.kernels)


def kept_operand(shard: Shard, name: str, kept: float) -> float:
    """Bytes of a kept input as its product's format has it: the one copy that the weight's gradient needs."""
    narrow = narrow_of(shard, name)
    return kept * narrow.size / shard.element if narrow and shard.runtime.kernels.fp8_inputs else kept


def _kept(shard: Shard, layer: Linear) -> float:
    """Its input, as the runtime keeps it; under autocast the copies in 16 bit of the weights and of a whole input."""
    kernels, column, kept = shard.runtime.kernels, layer.split == "column", layer.kept
    if shard.lora and _target(layer.name, layer.module) not in shard.lora_targets:
        return 0.0  # frozen, and without an adapter that would want its input
    if kernels.gathered_input_kept and shard.sp and column:
        kept *= shard.tp
    if layer.name == "output" and shard.narrow and kernels.fp8_inputs and not shard.fp8_attention:
        kept = shard.element * shard.tokens * layer.inputs  # attention keeps its output in 16 bit beside it
    kept = kept_operand(shard, layer.name, kept)
    if not shard.autocast:
        return kept
    copies = layer.projections * (shard.element * shard.tokens * layer.inputs) if column else kept
    return copies + 2.0 * layer.weights


def _linear_comms(shard: Shard, layer: Linear, gathered: float) -> tuple[Comm, ...]:
    """Operands below 16 bit are gathered as such: of an input one copy for each pass, of a gradient both at once."""
    if not shard.sp:
        return (Comm("all-reduce", "tp", gathered, "I" if layer.split == "column" else "F"),)
    narrow = narrow_of(shard, layer.name, gathered=True)
    one = gathered * narrow.size / shard.element if narrow else gathered
    if layer.split == "row":
        both = one * (2 if narrow and narrow.sided else 1)
        return (Comm("reduce-scatter", "tp", gathered, "F"), Comm("all-gather", "tp", both, "I"))
    return (
        Comm("all-gather", "tp", one, "F"),
        Comm("reduce-scatter", "tp", gathered, "I"),
        Comm("all-gather", "tp", one, "W"),
    )


_TARGETS = {"qkv": "qkv", "q": "qkv", "q up": "qkv", "kv up": "qkv", "output": "out"}


def target_of(op: Op) -> str:
    """The word of `Lora.targets` that an operator answers to; empty: it never carries an adapter."""
    return _target(op.name, op.module) if op.kind in {"gemm", "grouped"} else ""


def _target(name: str, module: str) -> str:
    if name in {"router", "output layer", "mtp projection"}:
        return ""
    return _TARGETS.get(name, "mlp" if module == "mlp" else "")


def adapter_params(op: Op, shard: Shard) -> float:
    """Parameters of an operator's adapter on this rank."""
    if not shard.lora or target_of(op) not in shard.lora_targets:
        return 0.0
    groups = op.shape[3] if op.kind == "grouped" else 1.0
    return groups * shard.lora * (op.shape[1] + op.shape[2])


def trained_params(ops: tuple[Op, ...] | list[Op], shard: Shard) -> float:
    """Parameters that train: all, or the adapters of a frozen model."""
    if not shard.lora:
        return sum(op.params for op in ops if not op.frozen)
    return sum(adapter_params(op, shard) for op in ops)
