"""What torch's own operators cost: the kind, shape and traffic of one aten operator from the tensors it meets.

Traffic is counted from the tensors themselves and weighted as everywhere (`ops/op.py`): a kernel at half of streaming
speed counts twice. The weights are those at which the chains of eager kernels that the H200 probe timed (norm, rotary
positions, loss; see `ops/linear.py`, `ops/attention.py`, `ops/embedding.py`) come out as they were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from shardwise.inputs.traced import TracedKind
from shardwise.ops.attention import FLASH_KERNELS
from shardwise.ops.embedding import SCATTER, SORT, ZEROS

# Weighted over counted traffic. Casts to 16 bit, sums and plain elementwise kernels stream; the others do not.
BROADCAST = 2.2
STRIDED = 2.65
REDUCED = 1.15
WIDENED = 2.0
OWN = {
    "native_layer_norm": 2.0, "native_layer_norm_backward": 2.7, "_log_softmax": 1.7,
    "_log_softmax_backward_data": 1.45, "_softmax": 1.7, "_softmax_backward_data": 1.45,
}  # fmt: skip
"""Kernels that read a row more than once, or leave threads idle on short ones."""
LAUNCHES = {
    "embedding_dense_backward": 6.0, "native_layer_norm_backward": 2.0, "index_put_": 3.0, "sort": 4.0, "topk": 2.0,
    "native_batch_norm": 2.0, "native_batch_norm_backward": 2.0, "native_group_norm": 2.0,
    "native_group_norm_backward": 3.0, "cumsum": 2.0,
}  # fmt: skip
"""Kernels of operators that launch several."""
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
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution", "_grouped_mm", "mv", "addmv", "dot"})
PRODUCTS_BACK = PRODUCTS | {"convolution_backward"}
ATTENTIONS = frozenset({
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
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
    def bytes(self) -> int:
        return self.elements * self.size


class Cost(NamedTuple):
    """What one call of an operator costs."""

    kind: TracedKind
    shape: tuple[float, ...] = ()
    """As an operator of ours has it; empty for memory-bound ones."""
    bytes: float = 0.0
    """Weighted traffic; of a product its own."""
    kernels: float = 0.0


def cost_of(
    name: str, inputs: Sequence[Seen], outputs: Sequence[Seen], *, flag: bool = False, groups: int = 1
) -> Cost:  # fmt: skip
    """`flag`: attention is causal; `groups`: of a convolution."""
    if name in ATTENTIONS:
        return Cost("attention", _attention(inputs, causal=flag), 0.0, FLASH_KERNELS[0])
    if name.startswith("_scaled_dot_product") and name.endswith("backward"):
        return Cost("attention", (), 0.0, FLASH_KERNELS[1])
    if name in PRODUCTS_BACK:
        moved = float(sum(one.bytes for one in (*inputs, *outputs)))
        shape = _product(name, inputs, outputs, groups) if name in PRODUCTS else ()
        if shape and (shape[2] < THIN or (name == "convolution" and _thin(inputs, groups))):
            return Cost("memory", (), moved, 1.0)
        kind: TracedKind = "grouped" if len(shape) == 4 else "gemm"
        return Cost(kind, shape, moved, 2.0 if name == "convolution_backward" else 1.0)
    return Cost("memory", (), traffic(name, inputs, outputs), LAUNCHES.get(name, 1.0))


def traffic(name: str, inputs: Sequence[Seen], outputs: Sequence[Seen]) -> float:
    """Weighted bytes of a memory-bound operator."""
    if name == "embedding_dense_backward":
        return SCATTER * inputs[0].bytes + ZEROS * outputs[0].bytes + SORT
    if name in MADE:
        return float(sum(one.bytes for one in outputs))
    read = inputs[1:] if name in WRITTEN else inputs
    if name in LOOKED_UP:
        return float(2 * sum(one.bytes for one in outputs) + sum(one.bytes for one in read[1:]))
    counted = sum(one.bytes for one in (*read, *outputs))
    return counted * _weight(name, read, outputs)


def _weight(name: str, inputs: Sequence[Seen], outputs: Sequence[Seen]) -> float:
    if name in OWN:
        return OWN[name]
    made = max((one.elements for one in outputs), default=0)
    read = [one for one in inputs if one.elements > 1]
    if not read or not made:
        return 1.0
    if made < max(one.elements for one in read) / 2:
        return REDUCED
    if any(not one.contiguous and one.elements >= made / 4 for one in (*read, *outputs)):
        return STRIDED
    if any(one.elements < made for one in read):
        return BROADCAST
    return WIDENED if name == "_to_copy" and outputs[0].size > read[0].size else 1.0


def _thin(inputs: Sequence[Seen], groups: int) -> bool:
    weight = inputs[1].shape
    return groups > 1 and min(weight[0] // groups, weight[1]) < THIN


def _product(name: str, inputs: Sequence[Seen], outputs: Sequence[Seen], groups: int) -> tuple[float, ...]:
    """Rows, columns and depth (and groups); batched products as one with all rows."""
    result = outputs[0].shape
    if name == "convolution":
        weight = inputs[1].shape
        rows = result[0] * prod(result[2:]) * groups
        return float(rows), weight[0] / groups, float(prod(weight[1:]))
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
