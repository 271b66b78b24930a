"""What torch's own operators cost: the kind, shape and traffic of one aten operator from the tensors it meets.

Traffic is counted from the tensors themselves and weighted as everywhere (`ops/op.py`): a kernel at half of streaming
speed counts twice. Weights are those of single operators of torch 2.11 in training steps of nine models on one H200
(`benchmarks/data/h200_kinds.json` names them, `benchmarks/kinds.py` prints how the others come out). Kernels whose
operands lie alike in memory stream. All others work out for every element where its operands are, and what limits them
is elements a second, whatever their size: 3.5e11, and under half of that where neighbours in the result lie apart in an
operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from shardwise.inputs.traced import TracedKind
from shardwise.ops.attention import FLASH_KERNELS
from shardwise.ops.embedding import SCATTER, SORT, ZEROS

# Weighted bytes an element of a kernel that works out places, of one whose neighbours lie apart in an operand, and of
# one that reads several formats.
INDEXED, APART, MIXED = 12.0, 27.0, 14.0
# Copies to a wider format, over what they move.
WIDENED = 2.0
# Sums over the last dimension, over what they move; rows under 170 elements leave threads idle. Sums over others, and
# those that leave few columns.
SUMMED, SHORT_ROW = 1.3, 170.0
ACROSS, FEW_COLUMNS, COLUMNS = 1.6, 5.0, 256
# What a sum over others takes besides: it is done in two steps.
TWO_STEPS = 34e6
OWN = {
    "_log_softmax": 1.7, "_log_softmax_backward_data": 1.45, "_softmax": 2.0, "_softmax_backward_data": 1.95,
    "cumsum": 1.45, "flip": 1.5, "linalg_solve_triangular": 10.0, "gelu": 1.4, "gelu_backward": 1.25,
    "max_pool2d_with_indices": 3.9, "max_pool2d_with_indices_backward": 7.2, "cat": 1.5,
}  # fmt: skip
"""Kernels that read a row more than once, follow each other's results or leave threads idle."""
# Batch norms an element, forward and backward: one block of threads a channel, so few channels and small pictures leave
# the GPU idle.
BATCH_NORM, CHANNELS, PICTURE = (24.0, 27.0), (180.0, 290.0), 64
# Layer norms an element, and a row of them (with the probe's: rows of 1024 and 2048).
LAYER_NORM, LAYER_NORM_ROW = (6.3, 11.5), (4.5e3, 16.6e3)
# Of backward without weights, whose gradient is a sum over rows.
UNWEIGHTED = 0.6
# A chosen element, and a row of the search for the largest ones.
TOP_K, TOP_K_ROW = 120.0, 14e3
SORTED = 250e6
# Values that are added where indices say: indices are sorted, and rows added one by one.
PUT, PUT_FIXED = 6.0, 75e6
# Convolutions: cuDNN has pictures with channels last, and turns what lies otherwise; 1 x 1 without a step are plain
# products where pictures are a multiple of eight. Depthwise ones an element, forward and backward.
TURNED, STRAIGHT, DEPTHWISE = 5.0, 0.9, (44.0, 64.0)
LAUNCHES = {
    "embedding_dense_backward": 6.0, "native_layer_norm_backward": 2.0, "index_put_": 3.0, "sort": 4.0, "topk": 2.0,
    "native_batch_norm": 2.0, "native_batch_norm_backward": 2.0, "native_group_norm": 2.0,
    "native_group_norm_backward": 3.0, "cumsum": 2.0,
}  # fmt: skip
"""Kernels of operators that launch several."""
CALLED = {"silent": (0.25, 0.25), "convolution": (2.3, 2.6)}
"""What a call takes of the host over one that launches a kernel, forward and backward: views take 4 to 6 us in forward
where a sum takes 11, and a convolution turns what it is given (`benchmarks/data/h200_host.json`)."""
SILENT = frozenset({
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "lift_fresh", "detach",
    "detach_", "set_", "resize_", "device", "alias", "_local_scalar_dense",
})  # fmt: skip
"""Operators that launch nothing though they seem to make or change a tensor."""
MADE = frozenset({"nll_loss_backward", "slice_backward", "select_backward", "embedding_backward"})
"""They write zeros, and little on them."""
WRITTEN = frozenset({"zero_", "fill_", "copy_"})
"""What they are called on is written and not read."""
LOOKED_UP = frozenset({"embedding", "index", "gather", "index_select", "nll_loss_forward"})
"""They read as much as they write of their first tensor."""
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "mv", "addmv", "dot"})
ATTENTIONS = frozenset({
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
})  # fmt: skip
THIN = 16
"""Depth below which a product streams, and channels of a group below which a convolution does: a depthwise one is no
matrix product."""

Sizes = tuple[int, ...]


class Seen(NamedTuple):
    """A tensor as an operator meets it."""

    shape: Sizes
    stride: Sizes
    size: int
    """Bytes of an element."""
    contiguous: bool

    @property
    def elements(self) -> int:
        """Those that are there: a dimension that is spread out is read once."""
        return prod(size for size, step in zip(self.shape, self.stride, strict=True) if step)

    @property
    def places(self) -> int:
        """Elements, however often one is there."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.size


class Cost(NamedTuple):
    """What one call of an operator costs."""

    kind: TracedKind
    shape: tuple[float, ...] = ()
    """As an operator of ours has it; empty for memory-bound ones."""
    bytes: float = 0.0
    """Weighted traffic: of a product what it takes beside it."""
    kernels: float = 0.0
    moved: float = 0.0
    """Bytes of a product's operands and result."""
    single: bool = False
    """A product of 32-bit numbers."""
    masked: bool = False
    """Attention reads a mask."""


def cost_of(
    name: str, inputs: Sequence[Seen], outputs: Sequence[Seen], *, flag: bool = False, groups: int = 1,
    unit: bool = False,
) -> Cost:  # fmt: skip
    """`flag`: attention is causal; of a convolution, `groups` and `unit`, whether its steps are single ones."""
    if name in ATTENTIONS:
        return Cost("attention", _attention(inputs, causal=flag), 0.0, FLASH_KERNELS[0], masked=len(inputs) > 3)
    if name.startswith("_scaled_dot_product") and name.endswith("backward"):
        return Cost("attention", (), 0.0, FLASH_KERNELS[1])
    if "convolution" in name:
        return _convolution(name, inputs, outputs, groups, unit=unit)
    if name in PRODUCTS:
        shape, moved = _product(name, inputs, outputs), float(sum(one.bytes for one in (*inputs, *outputs)))
        if shape[2] < THIN:
            return Cost("memory", (), moved, 1.0)
        kind: TracedKind = "grouped" if len(shape) == 4 else "gemm"
        return Cost(kind, shape, 0.0, 1.0, moved, single=outputs[0].size == 4)
    return Cost("memory", (), traffic(name, inputs, outputs), LAUNCHES.get(name, 1.0))


def called(name: str, *, launches: bool, back: bool) -> float:
    """A call's weight for the host."""
    if not launches:
        return CALLED["silent"][back]
    return CALLED["convolution"][back] if "convolution" in name else 1.0


def traffic(name: str, inputs: Sequence[Seen], outputs: Sequence[Seen]) -> float:
    """Weighted bytes of a memory-bound operator."""
    if name in RULES:
        return RULES[name](inputs, outputs)
    if name in MADE:
        return float(sum(one.bytes for one in outputs))
    read = [one for one in (inputs[1:] if name in WRITTEN else inputs) if one.places > 1]
    if name in LOOKED_UP:
        return float(2 * sum(one.bytes for one in outputs) + sum(one.bytes for one in inputs[1:]))
    counted = float(sum(one.bytes for one in (*read, *outputs)))
    if not outputs or not read:
        return counted
    widest = max(read, key=lambda one: one.places)
    if outputs[0].places <= widest.places / 2 and name not in OWN:
        return counted * _reduced(widest, outputs[0]) + TWO_STEPS * (not _along(widest, outputs[0]))
    return _elementwise(name, read, outputs[0], counted * OWN.get(name, 1.0))


def _elementwise(name: str, read: Sequence[Seen], made: Seen, counted: float) -> float:
    sizes = {one.size for one in (*read, made)} - {1}
    alike = all(one.shape == made.shape and one.stride == made.stride for one in read)
    if alike or all(one.shape == made.shape and one.contiguous for one in (*read, made)):
        if len(sizes) < 2 or made.size == 1:
            return counted
        if name in {"_to_copy", "copy_"}:
            return counted * (WIDENED if made.size > read[0].size else 1.0)
        return max(counted, MIXED * made.places)
    place = max(APART if _apart(one, made) else INDEXED for one in (*read, made))
    return max(counted, (place + (MIXED - INDEXED) * (len(sizes) > 1)) * made.places)


def _apart(operand: Seen, made: Seen) -> bool:
    """Neighbours in the result are not neighbours in the operand."""
    wide = [place for place, size in enumerate(made.shape) if size > 1]
    if not wide:
        return False
    inner = min(wide, key=lambda place: (made.stride[place], -place)) - (len(made.shape) - len(operand.shape))
    return inner >= 0 and operand.shape[inner] > 1 and operand.stride[inner] not in (0, 1)


def _along(summed: Seen, made: Seen) -> bool:
    """The dimension in which neighbours lie is summed over."""
    inner = [place for place, step in enumerate(summed.stride) if step == 1 and summed.shape[place] > 1]
    if not inner:
        return False
    if len(made.shape) == len(summed.shape):
        return made.shape[inner[-1]] == 1
    return made.shape[-1:] != summed.shape[-1:] or len(made.shape) == 0


def _reduced(summed: Seen, made: Seen) -> float:
    if _along(summed, made):
        return SUMMED * max(1.0, SHORT_ROW / (summed.places / max(made.places, 1)))
    return FEW_COLUMNS if made.places <= COLUMNS else ACROSS


def _convolution(
    name: str, inputs: Sequence[Seen], outputs: Sequence[Seen], groups: int, *, unit: bool
) -> Cost:  # fmt: skip
    back = name.endswith("backward")
    given, weight = (inputs[1], inputs[2]) if back else (inputs[0], inputs[1])
    result = inputs[0] if back else outputs[0]
    kernels = 2.0 if back else 1.0
    if groups > 1 and min(weight.shape[0] // groups, weight.shape[1]) < THIN:
        return Cost("memory", (), DEPTHWISE[back] * result.places, kernels)
    straight = unit and prod(weight.shape[2:]) == 1 and prod(result.shape[2:]) % 8 == 0
    beside = (STRAIGHT if straight else TURNED) * (given.bytes + result.bytes) * kernels
    rows = result.shape[0] * prod(result.shape[2:]) * groups
    shape = () if back else (float(rows), weight.shape[0] / groups, float(prod(weight.shape[1:])))
    return Cost(
        "gemm", shape, beside, kernels, float(given.bytes + weight.bytes + result.bytes), single=result.size == 4
    )


def _batch_norm(inputs: Sequence[Seen], outputs: Sequence[Seen], *, back: bool) -> float:
    shape = outputs[0].shape
    idle = max(1.0, CHANNELS[back] / shape[1]) * (3.0 if not back and prod(shape[2:]) < PICTURE else 1.0)
    return BATCH_NORM[back] * idle * inputs[0].places


def _layer_norm(inputs: Sequence[Seen], outputs: Sequence[Seen], *, back: bool) -> float:
    width, places = outputs[0].shape[-1], inputs[0].places
    weighted = any(one.places == width for one in inputs) or not back
    own = LAYER_NORM[back] * places + LAYER_NORM_ROW[back] * places / width
    return own * inputs[0].size / 2 * (1.0 if weighted else UNWEIGHTED)


def _top_k(inputs: Sequence[Seen], outputs: Sequence[Seen]) -> float:
    del outputs
    return TOP_K * inputs[0].places + TOP_K_ROW * inputs[0].places / max(1, inputs[0].shape[-1])


def _put(inputs: Sequence[Seen], outputs: Sequence[Seen]) -> float:
    del outputs
    return PUT * inputs[-1].bytes + PUT_FIXED


Rule = Callable[[Sequence[Seen], Sequence[Seen]], float]
RULES: dict[str, Rule] = {
    "embedding_dense_backward": lambda read, made: SCATTER * read[0].bytes + ZEROS * made[0].bytes + SORT,
    "native_batch_norm": lambda read, made: _batch_norm(read, made, back=False),
    "native_batch_norm_backward": lambda read, made: _batch_norm(read, made, back=True),
    "native_layer_norm": lambda read, made: _layer_norm(read, made, back=False),
    "native_layer_norm_backward": lambda read, made: _layer_norm(read, made, back=True),
    "topk": _top_k,
    "sort": lambda read, made: SORTED + sum(one.bytes for one in (*read, *made)),
    "index_put_": _put,
    "_unsafe_index_put": _put,
    "index_put": _put,
}
"""Operators that are not told by what they read and write alone."""


def _product(name: str, inputs: Sequence[Seen], outputs: Sequence[Seen]) -> tuple[float, ...]:
    """Rows, columns and depth (and groups); batched products as one with all rows."""
    result = outputs[0].shape
    if name == "_grouped_mm":
        left, right = inputs[0].shape, inputs[1].shape
        if len(right) == 3:
            return float(prod(result[:-1])), float(result[-1]), float(left[-1]), float(right[0])
    tensors = inputs[1:] if name in {"addmm", "baddbmm", "addmv"} else inputs
    depth = tensors[0].shape[-1]
    columns = result[-1] if name not in {"mv", "addmv", "dot"} else 1
    return float(max(1, prod(result) // max(1, columns))), float(columns), float(depth)


def _attention(inputs: Sequence[Seen], *, causal: bool) -> tuple[float, ...]:
    query, key, value = (one.shape for one in inputs[:3])
    heads, kv = query[1], key[1]
    rows, area = query[0] * heads, 0.5 if causal else 1.0
    return float(rows), float(query[2]), float(key[2]), float(query[3]), float(value[3]), area, kv / heads
