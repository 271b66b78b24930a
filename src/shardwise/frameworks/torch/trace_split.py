"""Tensor parallel over a traced module: which products are columns and rows, and what lies between them.

A linear layer whose input every rank has whole may become a column: its result is cut, and so is all that follows from
it operator by operator, until a linear layer sums over what is cut: a row, whose partial sums are added up over the
ranks. Where an operator cannot do with a part (a norm over what is cut, a sort, a product over both), the columns that
led there stay whole, and the walk begins again. The weights of a fused column (queries, keys and values at once) may be
put in any order: every way of splitting its result is tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import NamedTuple

from shardwise.frameworks.torch.trace_moves import ALIKE, JOINS, CutDim, Node, Value, moved
from shardwise.frameworks.torch.trace_ops import ATTENTIONS, PRODUCTS

RANKS = 4
"""Of tensor parallel, with which a second trace is made; numbers of other tp lie on a line through both."""
ALIAS = "detach"
"""Torch calls it or not, as references to a tensor are held: it is no step of a walk."""
VOCABULARY = 8192
"""Rows from which a table of embeddings is cut, as its output layer is."""
NARROW = 16
"""Columns below which a product stays whole: routers, gates of one number."""
FEW = 4
"""Sizes below which a dimension tells queries, keys and values apart."""
MOST_WALKS = 400
FEWEST = 2
"""Ranks that must be able to share a model."""


class CallCut(NamedTuple):
    """What is cut at one operator: dimensions of its tensors, -1 for whole ones."""

    ins: tuple[int, ...] = ()
    outs: tuple[int, ...] = ()
    sums: bool = False
    """Its result is added up over the ranks."""
    sums_back: tuple[int, ...] = ()
    """Inputs whose gradients are."""
    rows: bool = False
    """Three numbers of every row are."""


@dataclass(slots=True)
class TensorCuts:
    """What tensor parallel does to a pass."""

    calls: list[CallCut] = field(default_factory=list)
    weights: frozenset[str] = frozenset()
    """Parameters that are cut."""
    ways: int = 1
    """What tp must divide."""
    whole: str = ""
    """The first operator that left a product whole; empty: none did."""


class _NeedsWhole(Exception):  # noqa: N818 - a turn of the walk, no error
    def __init__(self, node: Node, origins: Iterable[int], why: str = "") -> None:
        self.node, self.origins, self.why = node, frozenset(origins), why


def cuts_of(nodes: Sequence[Node], loss: Value) -> TensorCuts:
    """Columns and rows of a pass, by trying: what leads to an operator that needs the whole stays whole."""
    barred: dict[str, str] = {}
    choices: dict[str, int] = {}
    for _ in range(MOST_WALKS):
        walk = _PairWalk(barred, choices)
        try:
            for node in nodes:
                walk.step(node)
            walk.end(nodes[-1], loss)
        except _NeedsWhole as stop:
            names = sorted({walk.names[origin] for origin in stop.origins})
            told = stop.why or f"{stop.node.owner or 'the module'}: {stop.node.name} needs the whole"
            if not names:
                return TensorCuts(whole=told)
            if not _next_choice(choices, names, walk.asked):
                barred |= {name: barred.get(name, told) for name in names}
            continue
        whole = next((why for why in barred.values()), "")
        if walk.ways() < FEWEST:
            return TensorCuts(whole=whole or "no linear layer was found that another one follows")
        return TensorCuts(walk.calls, frozenset(walk.cut), walk.ways(), whole)
    return TensorCuts(whole="its operators lead no way from columns to rows")


def _next_choice(choices: dict[str, int], names: Sequence[str], asked: dict[str, int]) -> bool:
    """Counts on through all choices of these columns; False: all were tried."""
    for name in names:
        if choices.get(name, 0) + 1 < asked.get(name, 1):
            choices[name] = choices.get(name, 0) + 1
            return True
        choices[name] = 0
    return False


def _pattern(owner: str) -> str:
    """A module's path without the numbers of blocks: what stops one of them stops all."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", owner)


class _PairWalk:
    """One try."""

    def __init__(self, barred: dict[str, str], choices: dict[str, int]) -> None:
        self.barred, self.choices = barred, choices
        self.calls: list[CallCut] = []
        self.names: list[str] = []
        self.asked: dict[str, int] = {}
        self.parts: dict[int, CutDim] = {}
        self.cut: dict[str, tuple[int, int]] = {}
        self.uncut: set[str] = set()
        self._sizes: list[tuple[int, frozenset[int]]] = []
        self._padded: set[int] = set()
        self._summed: set[tuple[int, str]] = set()
        self._back: list[int] = []
        self._weights: dict[str, set[int]] = {}
        self._flags: tuple[bool, bool] = (False, False)

    def ways(self) -> int:
        """What all cut sizes are multiples of; vocabularies are padded."""
        return gcd(*(size for size, origins in self._sizes if not origins & self._padded))

    def end(self, node: Node, loss: Value) -> None:
        if loss.number in self.parts:
            raise _NeedsWhole(node, self.parts[loss.number].origins, "the loss would be cut")
        both = sorted(self.uncut & set(self.cut))
        if both:
            raise _NeedsWhole(node, self._weights[both[0]], f"{both[0]} is read whole elsewhere")

    def part(self, value: Value) -> CutDim | None:
        if value.weight:
            return self._of_weight(value)
        return self.parts.get(value.number)

    def _of_weight(self, value: Value) -> CutDim | None:
        step = self.cut.get(value.weight)
        if step is None:
            return None
        for dim, (size, stride) in enumerate(zip(value.shape, value.stride, strict=True)):
            if (stride, size) == step:
                return CutDim(dim, 1, frozenset())
        return None

    def step(self, node: Node) -> None:
        self._back, self._flags = [], (False, False)
        outs = self._backward(node) if node.back else self._forward(node)
        for value, part in zip(node.outs, outs, strict=True):
            if part is not None and not value.weight:
                self.parts[value.number] = part
            elif part is None:
                self.parts.pop(value.number, None)
        dims = tuple(part.dim if (part := self.part(value)) else -1 for value in node.ins)
        made = tuple(-1 if part is None else part.dim for part in outs)
        self.calls.append(CallCut(dims, made, self._flags[0], tuple(self._back), self._flags[1]))

    def _forward(self, node: Node) -> list[CutDim | None]:
        none: list[CutDim | None] = [None] * len(node.outs)
        if node.name in PRODUCTS:
            return self._product(node)
        if node.name == "embedding":
            return self._embedding(node)
        known = [(value, part) for value in node.ins if not value.weight and (part := self.part(value))]
        if not known:
            if node.outs and not node.outs[0].weight:
                self.uncut |= {value.weight for value in node.ins if value.weight}
            return none
        return self._between(node, known)

    def _between(self, node: Node, known: list[tuple[Value, CutDim]]) -> list[CutDim | None]:
        origins = frozenset().union(*(part.origins for _, part in known))
        if node.name in ATTENTIONS:
            return self._attention(node, origins)
        if node.name == "_log_softmax" and known[0][1].dim == node.args[1] % len(known[0][0].shape):
            self._flags = False, True
            self._padded |= origins
            return [known[0][1]]
        if node.name == "nll_loss_forward" and known[0][1].dim == len(known[0][0].shape) - 1:
            if not origins <= self._padded:
                raise _NeedsWhole(node, origins)
            return [None] * len(node.outs)
        found = moved(node, known[0][1], self._choose) if known[0][0] is node.ins[0] else None
        if found is None and (node.pointwise or node.name in ALIKE):
            return [self._joined(node, out, origins) for out in node.outs]
        if found is None and node.name in JOINS:
            return [self._catenated(node, origins)]
        if found is None:
            raise _NeedsWhole(node, origins)
        self.uncut |= {value.weight for value in node.ins if value.weight and self.part(value) is None}
        return found

    def _choose(self, part: CutDim, sizes: list[int]) -> int:
        """Which of the dimensions that an open one becomes is cut."""
        few = len(sizes) > 2  # three dimensions of queries, keys and values at once: heads are the second
        order = sorted(range(len(sizes)), key=lambda place: (few and sizes[place] < FEW, place))
        name = self.names[min(part.origins)] if part.origins else ""
        self.asked[name] = max(self.asked.get(name, 1), len(order))
        place = order[min(self.choices.get(name, 0), len(order) - 1)]
        self._sizes.append((sizes[place], part.origins))
        return place

    def _joined(self, node: Node, out: Value, origins: frozenset[int]) -> CutDim:
        """Operands beside each other: all cut alike, or whole and cut on the way."""
        places = {}
        for value in node.ins:
            part = None if value.weight else self.part(value)
            if part:
                places[part.dim + len(out.shape) - len(value.shape), part.outer] = part
        open_dims, fixed = {dim for dim, _ in places}, {outer for _, outer in places if outer}
        if len(open_dims) > 1 or len(fixed) > 1:
            raise _NeedsWhole(node, origins)
        dim, outer = next(iter(open_dims)), next(iter(fixed), 0)
        for place, value in enumerate(node.ins):
            at = dim - len(out.shape) + len(value.shape)
            full = at >= 0 and value.shape[at] == out.shape[dim] > 1
            if value.weight or value.number not in self.parts:
                self._beside(node, place, value, at if full else -1, origins)
        return CutDim(dim, outer, origins)

    def _beside(self, node: Node, place: int, value: Value, dim: int, origins: frozenset[int]) -> None:
        """A whole operand beside cut ones: a parameter is cut with them, of others the gradient is added up."""
        if value.weight and dim >= 0:
            self._cut_weight(node, value, dim, origins)
        elif value.weight:
            self.uncut.add(value.weight)
        elif value.trains:
            self._sum_back(node, place)

    def _sum_back(self, node: Node, place: int) -> None:
        value = node.ins[place]
        key = value.storage, node.owner.rpartition(".")[0]
        if value.trains and key not in self._summed:
            self._summed.add(key)
            self._back.append(place)

    def _cut_weight(self, node: Node, value: Value, dim: int, origins: frozenset[int]) -> None:
        step = value.stride[dim], value.shape[dim]
        if self.cut.setdefault(value.weight, step) != step or step[0] not in value.steps:
            raise _NeedsWhole(node, origins | self._weights.get(value.weight, set()))
        self._weights.setdefault(value.weight, set()).update(origins)

    def _catenated(self, node: Node, origins: frozenset[int]) -> CutDim:
        out, dim = node.outs[0], int(node.args[1]) if len(node.args) > 1 else 0
        dim %= len(out.shape)
        parts = [self.parts.get(value.number) for value in node.ins]
        found = next(part for part in parts if part)
        shift = node.name == "stack" and dim <= found.dim
        if any(part and (part.dim, part.outer) != (found.dim, found.outer) for part in parts):
            raise _NeedsWhole(node, origins)
        if node.name == "cat" and found.dim == dim:
            if None in parts:
                raise _NeedsWhole(node, origins)
            return CutDim(dim, 0, origins)
        for place, part in enumerate(parts):
            if part is None:
                self._beside(node, place, node.ins[place], -1, origins)
        return CutDim(found.dim + shift, found.outer, origins)

    def _attention(self, node: Node, origins: frozenset[int]) -> list[CutDim | None]:
        query, *others = node.ins
        heads = query.shape[1]
        for place, value in enumerate(node.ins):
            part = self.part(value)
            if part and part.dim != 1:
                raise _NeedsWhole(node, origins)
            if part is None and (place == 0 or (place < 3 and value.shape[1] > 1)):
                raise _NeedsWhole(node, origins)
            if part is None:
                self._beside(node, place, value, -1, origins)
        del others
        return [CutDim(1, 1, origins) if len(out.shape) > 2 and out.shape[1] == heads else None for out in node.outs]

    def _embedding(self, node: Node) -> list[CutDim | None]:
        table = node.ins[0]
        name = f"{_pattern(node.owner)} (table)"
        if not table.weight or table.shape[0] < VOCABULARY or name in self.barred:
            self.uncut |= {table.weight} - {""}
            return [None]
        self.names.append(name)
        origin = frozenset({len(self.names) - 1})
        self._cut_weight(node, table, 0, origin)
        self._flags = True, False
        return [None]

    def _product(self, node: Node) -> list[CutDim | None]:
        first = 1 if node.name in {"addmm", "baddbmm", "addmv"} else 0
        if len(node.ins) < first + 2:
            return [None] * len(node.outs)
        left, right = node.ins[first : first + 2]
        one, other = self.part(left), None if right.weight else self.part(right)
        if node.name in {"mv", "addmv", "dot"}:
            if one or other:
                raise _NeedsWhole(node, _origins(one, other))
            self.uncut |= {value.weight for value in node.ins if value.weight}
            return [None]
        if right.weight and not left.weight:
            return [self._linear(node, first, one)]
        if left.weight or right.weight:
            self.uncut |= {left.weight, right.weight} - {""}
        return [self._plain(node, first, one, other)]

    def _linear(self, node: Node, first: int, part: CutDim | None) -> CutDim | None:
        """A product with a parameter."""
        left, right = node.ins[first : first + 2]
        out, name = node.outs[0], _pattern(node.owner)
        if part is None:
            if name in self.barred or right.shape[-1] < NARROW:
                self._whole(node)
                return None
            self.names.append(name)
            origin = frozenset({len(self.names) - 1})
            self._cut_weight(node, right, len(right.shape) - 1, origin)
            self._sizes.append((right.shape[-1], origin))
            self._sum_back(node, first)
            if first and node.ins[0].weight:
                self._cut_weight(node, node.ins[0], len(node.ins[0].shape) - 1, origin)
            return CutDim(len(out.shape) - 1, 0, origin)
        if part.dim == len(left.shape) - 1:
            self._cut_weight(node, right, len(right.shape) - 2, part.origins)
            self._flags = True, False
            self._sizes.append((left.shape[-1], part.origins))
            if first and node.ins[0].weight:
                self.uncut.add(node.ins[0].weight)
            return None
        if len(left.shape) > 2 and part.dim == 0:
            raise _NeedsWhole(node, part.origins)
        self._whole(node)
        return CutDim(len(out.shape) - 2, part.outer, part.origins)

    def _whole(self, node: Node) -> None:
        self.uncut |= {value.weight for value in node.ins if value.weight}

    def _plain(self, node: Node, first: int, one: CutDim | None, other: CutDim | None) -> CutDim | None:
        """A product of two results."""
        if one is None and other is None:
            return None
        left, right = node.ins[first : first + 2]
        origins, rank = _origins(one, other), len(node.outs[0].shape)
        inner = (one and one.dim == len(left.shape) - 1) or (other and other.dim == len(right.shape) - 2)
        batch = rank > 2 and {part.dim for part in (one, other) if part} == {0}
        if (batch and not (one and other)) or (not batch and (inner or (one and other))):
            raise _NeedsWhole(node, origins)
        for place, part in ((first, one), (first + 1, other)):
            if part is None:
                self._sum_back(node, place)
        if batch:
            return CutDim(0, (one or other).outer, origins)  # type: ignore[union-attr]
        return CutDim(rank - 2, one.outer, origins) if one else CutDim(rank - 1, other.outer, origins)  # type: ignore[union-attr]

    def _backward(self, node: Node) -> list[CutDim | None]:
        """Gradients are cut as what they belong to; sums over what is cut were said forward."""
        if node.name == "embedding_dense_backward":
            tables = [step for step in self.cut.values() if step == (node.outs[0].stride[0], node.outs[0].shape[0])]
            return [CutDim(0, 1, frozenset()) if tables else None]
        known = [(value, part) for value in node.ins if (part := self.part(value))]
        if not known:
            return [None] * len(node.outs)
        if node.name in PRODUCTS:
            return [self._gradient(node)]
        found = moved(node, known[0][1], lambda *_: 0) if known[0][0] is node.ins[0] else None
        return found or [_alike(out, known) for out in node.outs]

    def _gradient(self, node: Node) -> CutDim | None:
        first = 1 if node.name in {"addmm", "baddbmm"} else 0
        left, right = node.ins[first : first + 2]
        one, other, rank = self.part(left), self.part(right), len(node.outs[0].shape)
        if rank > 2 and any(part and part.dim == 0 for part in (one, other)):
            return CutDim(0, 1, frozenset())
        if one and one.dim == len(left.shape) - 2:
            return CutDim(rank - 2, 1, frozenset())
        if other and other.dim == len(right.shape) - 1:
            return CutDim(rank - 1, 1, frozenset())
        return None


def _origins(*parts: CutDim | None) -> frozenset[int]:
    return frozenset().union(*(part.origins for part in parts if part))


def _alike(out: Value, known: list[tuple[Value, CutDim]]) -> CutDim | None:
    """A gradient of the same form as something that is cut; else of what all sizes but broadcast ones agree with."""
    for value, part in known:
        if value.shape == out.shape:
            return part
    for value, part in known:
        shift = len(out.shape) - len(value.shape)
        if shift >= 0 and out.shape[part.dim + shift] == value.shape[part.dim]:
            return CutDim(part.dim + shift, part.outer, part.origins)
    return None
