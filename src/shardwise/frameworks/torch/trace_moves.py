"""Where the cut dimension of a tensor goes when an operator turns, splits, joins or sums over its dimensions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of a pass."""

    number: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage: int
    weight: str
    """The parameter that it is, or a view of."""
    steps: tuple[int, ...]
    """That parameter's strides."""
    trains: bool


class Node(NamedTuple):
    """One operator."""

    name: str
    owner: str
    back: bool
    pointwise: bool
    args: tuple[Any, ...]
    ins: tuple[Value, ...]
    outs: tuple[Value, ...]


class CutDim(NamedTuple):
    """How a tensor is cut: along a dimension, of which whole runs lie before the cut."""

    dim: int
    outer: int
    """Whole runs of that dimension; 0: a fused column's, whose order is still open."""
    origins: frozenset[int]
    """The columns that it comes from."""


Choose = Callable[[CutDim, list[int]], int]
"""Which of several sizes an open dimension is cut along."""
Found = list[CutDim | None] | None
ALIKE = frozenset({
    "native_dropout", "bernoulli", "bernoulli_", "uniform_", "normal_", "zero_", "fill_", "copy_", "zeros_like",
    "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "clone", "_to_copy", "detach", "alias",
    "lift_fresh", "contiguous", "where", "masked_fill", "dropout",
})  # fmt: skip
"""Operators whose result has the form of what they are given, beside those that torch itself calls pointwise."""
JOINS = frozenset({"cat", "stack"})


def moved(node: Node, part: CutDim, choose: Choose) -> Found:
    """How the results are cut; None: the operator is none of these, or needs the whole dimension."""
    rule = MOVES.get(node.name)
    return rule(node, part, choose) if rule else None


def _same(node: Node, part: CutDim, choose: Choose) -> Found:
    del choose
    return [part for _ in node.outs]


def _reshaped(node: Node, part: CutDim, choose: Choose) -> Found:
    """The cut begins after so many elements; the first dimension that goes beyond them holds it."""
    before, after = node.ins[0].shape, node.outs[0].shape
    lead = prod(before[: part.dim])
    end = lead * before[part.dim]
    if part.outer:
        fixed = _after(after, lead * part.outer, part)
        if fixed:
            choose(part, [after[fixed.dim] // fixed.outer])
        return [fixed] if fixed else None
    first = _after(after, lead, part)
    if first is None:
        return None
    found = [(first, after[first.dim] // max(1, first.outer))]
    found += [
        (CutDim(dim, 1, part.origins), size)
        for dim, size in enumerate(after)
        if size > 1 and lead < prod(after[:dim]) < end
    ]
    if len(found) == 1:
        stays = first.outer == 1 and after[first.dim] == before[part.dim]
        return [first._replace(outer=0) if stays else first]
    return [found[choose(part, [size for _, size in found])][0]]


def _after(shape: tuple[int, ...], lead: int, part: CutDim) -> CutDim | None:
    done = 1
    for dim, size in enumerate(shape):
        if done * size > lead:
            return CutDim(dim, lead // done, part.origins) if lead % done == 0 else None
        done *= size
    return None


def _turned(node: Node, part: CutDim, choose: Choose) -> Found:
    del choose
    rank = len(node.ins[0].shape)
    if node.name == "t":
        order = list(range(rank))[::-1]
    elif node.name == "permute":
        order = [dim % rank for dim in node.args[1]]
    else:
        order = list(range(rank))
        one, other = (dim % rank for dim in node.args[1:3])
        order[one], order[other] = order[other], order[one]
    return [part._replace(dim=order.index(part.dim))]


def _widened(node: Node, part: CutDim, choose: Choose) -> Found:
    del choose
    return [part._replace(dim=part.dim + len(node.outs[0].shape) - len(node.ins[0].shape))]


def _one_more(node: Node, part: CutDim, choose: Choose) -> Found:
    del choose
    at = node.args[1] % len(node.outs[0].shape)
    return [part._replace(dim=part.dim + (at <= part.dim))]


def _sliced(node: Node, part: CutDim, choose: Choose) -> Found:
    """A piece of an open dimension is cut itself: a fused column is one in all of its pieces."""
    del choose
    dim = (node.args[1] if len(node.args) > 1 else 0) % len(node.ins[0].shape)
    whole = node.outs[0].shape == node.ins[0].shape
    return [part for _ in node.outs] if dim != part.dim or part.outer == 0 or whole else None


def _pieces(node: Node, part: CutDim, choose: Choose) -> Found:
    del choose
    dim = (node.args[2] if len(node.args) > 2 else 0) % len(node.ins[0].shape)
    return [part for _ in node.outs] if dim != part.dim or part.outer == 0 else None


def _taken(node: Node, part: CutDim, choose: Choose) -> Found:
    del choose
    dim = (node.args[1] if len(node.args) > 1 else 0) % len(node.ins[0].shape)
    return None if dim == part.dim else [part._replace(dim=part.dim - (dim < part.dim)) for _ in node.outs]


def _put_back(node: Node, part: CutDim, choose: Choose) -> Found:
    """The gradient of a choice."""
    del choose
    if node.name == "slice_backward":
        return [part]
    dim = node.args[2] % len(node.outs[0].shape)
    return [part._replace(dim=part.dim + (dim <= part.dim))]


def _row_by_row(node: Node, part: CutDim, choose: Choose) -> Found:
    """Along one dimension, which must be whole; results have the same form."""
    del choose
    dim = (node.args[1] if len(node.args) > 1 and isinstance(node.args[1], int) else -1) % len(node.ins[0].shape)
    return None if dim == part.dim else [part for _ in node.outs]


def _reduced(node: Node, part: CutDim, choose: Choose) -> Found:
    del choose
    rank = len(node.ins[0].shape)
    dims = node.args[1] if len(node.args) > 1 else None
    if node.name == "linalg_vector_norm":
        dims = node.args[2] if len(node.args) > 2 else None
    dims = [dims] if isinstance(dims, int) else dims
    if not dims or any(not isinstance(dim, int) for dim in dims):
        return None
    summed = {dim % rank for dim in dims}
    if part.dim in summed:
        return None
    found = part
    if len(node.outs[0].shape) < rank:
        found = part._replace(dim=part.dim - sum(dim < part.dim for dim in summed))
    return [found for _ in node.outs]


def _normed(node: Node, part: CutDim, choose: Choose) -> Found:
    del choose
    inner = len(node.ins[0].shape) - len(node.args[1])
    return None if part.dim >= inner else [part for _ in node.outs]


def _lower(node: Node, part: CutDim, choose: Choose) -> Found:
    del choose
    return None if part.dim >= len(node.ins[0].shape) - 2 else [part]


def _padded(node: Node, part: CutDim, choose: Choose) -> Found:
    del choose
    whole = node.ins[0].shape[part.dim] == node.outs[0].shape[part.dim]
    return [part] if whole else None


MOVES: dict[str, Callable[[Node, CutDim, Choose], Found]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze", "flatten"), _reshaped),
    **dict.fromkeys(("t", "permute", "transpose"), _turned),
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _pieces),
    **dict.fromkeys(("select", "unbind"), _taken),
    **dict.fromkeys(("slice_backward", "select_backward"), _put_back),
    **dict.fromkeys(("_softmax", "_safe_softmax", "_log_softmax", "cumsum", "flip"), _row_by_row),
    **dict.fromkeys(
        ("sum", "mean", "amax", "amin", "max", "min", "logsumexp", "var", "var_mean", "std", "any", "all", "argmax",
         "linalg_vector_norm", "prod"), _reduced,
    ),
    **dict.fromkeys(("tril", "triu"), _lower),
    "expand": _widened, "unsqueeze": _one_more, "slice": _sliced, "native_layer_norm": _normed,
    "constant_pad_nd": _padded, "rsqrt": _same,
}  # fmt: skip
