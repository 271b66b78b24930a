"""The model as a chain of operators: rows of the profile in order, with one layer's rows repeated; and its ranges,
equal ones folded, so that 1,000 layers cost what 10 do.

Which rows form the layer is data: the profile says so itself, or its operators have names that are known below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from shardwise.errors import Fault, InputError
from shardwise.per_op.profiles.table import LayerRun, Profile

LAYERS: tuple[tuple[str, str], ...] = (
    ("enc-1st-layernorm", "enc-post-MLP-dropout"),  # Aceso's GPT and T5 encoder
    ("dec-1st-layernorm", "dec-post-MLP-dropout"),  # Aceso's T5 decoder
    ("dec-self-attention", "dec-mlp"),  # four fused operators (Ascend-aceso)
)
"""First and last operator of layers that are known by name."""

MOST_OPS = 100_000
"""Operators of a chain: 7,000 layers of Aceso's GPT."""


class ChainBlock(NamedTuple):
    """Where the chain repeats: `repeats` times `period` operators from `start`."""

    start: int
    period: int
    repeats: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """All operators in model order."""

    rows: tuple[int, ...]
    """Row of the profile, per operator."""
    names: tuple[str, ...]
    """Name, per operator."""
    blocks: tuple[ChainBlock, ...]
    """Where it repeats."""
    layers: int
    """Layers of each block."""

    def fold(self, start: int, end: int) -> tuple[int, int]:
        """The first range with the same operators: equal layers are solved once."""
        for block in self.blocks:
            if start >= block.start and end <= block.end:
                back = (start - block.start) // block.period * block.period
                return start - back, end - back
        return start, end


def chain_of(profile: Profile, layers: int, layer_ops: tuple[str, str] | None = None) -> Chain:
    """Repeat the layer's rows; a profile whose layer is not known is refused with the way out."""
    if profile.whole:
        return Chain(rows=tuple(range(len(profile.ops))), names=profile.ops, blocks=(), layers=1)
    spans = _spans(profile, layer_ops or profile.layer_ops)
    if not spans:
        raise InputError(Fault("--layer-ops", f"cannot tell which operators of {profile.name} form a layer; say the "
                               f"first and the last, such as {profile.ops[1]},{profile.ops[-2]}"))  # fmt: skip
    if layers < 1:
        raise InputError(Fault("--layers", f"is {layers}; it must be 1 or more"))
    return _chained(profile, tuple(LayerRun((span,), layers) for span in spans), layers)


def own_chain(profile: Profile) -> Chain:
    """The chain of a profile that says itself how its layers follow one another."""
    return _chained(profile, profile.runs, sum(run.repeats for run in profile.runs))


def _chained(profile: Profile, runs: tuple[LayerRun, ...], layers: int) -> Chain:
    """The runs, and between them what stands once."""
    if (count := sum(len(run.rows) * run.repeats for run in runs)) > MOST_OPS:
        raise InputError(Fault("--layers", f"is {layers:,}: {count:,} operators; up to {MOST_OPS:,} are planned"))
    rows: list[int] = []
    blocks: list[ChainBlock] = []
    at = 0
    for run in runs:
        own = run.rows
        rows += range(at, min(own))
        at = max(at, max(own) + 1)
        last = run is runs[-1] and at == len(profile.ops)
        blocks.append(_inner(len(rows), len(own), run.repeats, ends=last))
        rows += own * run.repeats
    rows += range(at, len(profile.ops))
    names = tuple(profile.ops[row] for row in rows)
    repeated = tuple(block for block in blocks if block.repeats > 1)
    return Chain(rows=tuple(rows), names=names, blocks=repeated, layers=layers)


def _inner(start: int, period: int, layers: int, *, ends: bool) -> ChainBlock:
    """Layers that are truly alike: the model's very first and very last operator differ in what they send."""
    head = int(start == 0)
    return ChainBlock(start + head * period, period, layers - head - int(ends))


def _spans(profile: Profile, layer_ops: tuple[str, str] | None) -> list[tuple[int, int]]:
    if layer_ops is not None:
        lost = [name for name in layer_ops if name not in profile.ops]
        if lost:
            known = ", ".join(profile.ops)
            raise InputError(Fault("--layer-ops", f"{', '.join(lost)} is no operator of {profile.name}: {known}"))
    pairs = (layer_ops,) if layer_ops else LAYERS
    found = [(profile.ops.index(a), profile.ops.index(b)) for a, b in pairs if a in profile.ops and b in profile.ops]
    return sorted(span for span in found if span[0] <= span[1])


Array = np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranges:
    """Numbers of the distinct ranges: those from a first layer on, and those that begin later in a run of layers and
    end beyond it.
    """

    count: int
    """Operators."""
    longest: int
    """Operators of the longest range."""
    starts: Array
    """First operators of ranges from a first layer on: each has a range of every length."""
    number: Array
    """[first, end] number of the range; -1: none, or longer than the longest. Late ones are added by `extended`."""
    total: int

    def extended(self, firsts: Array, ends: Array) -> Ranges:
        """With so many ranges more."""
        number = self.number.copy()
        number[firsts, ends] = self.total + np.arange(len(firsts))
        return replace(self, number=number, total=self.total + len(firsts))


def ranges_of(chain: Chain, longest: int) -> Ranges:
    """All ranges that are, up to whole layers, ranges from a first layer on."""
    count = len(chain.rows)
    longest = min(longest, count)
    shift, limit = np.zeros(count, dtype=int), np.full(count, count)
    late = np.zeros(count, dtype=bool)
    for block in chain.blocks:
        inside = np.arange(block.start, block.end)
        shift[inside] = (inside - block.start) // block.period * block.period
        limit[inside] = block.end
        late[inside] = shift[inside] > 0
    starts = np.flatnonzero(~late)
    place = np.full(count, -1)
    place[starts] = np.arange(len(starts))
    first, length = np.arange(count)[:, None], np.arange(1, longest + 1)[None, :]
    end = first + length
    good = (end <= count) & ~(late[:, None] & (end > limit[:, None]))
    number = place[np.arange(count) - shift][:, None] * longest + length - 1
    by_end = np.full((count + 1, count + 1), -1)
    by_end[np.broadcast_to(first, end.shape)[good], end[good]] = number[good]
    return Ranges(count=count, longest=longest, starts=starts, number=by_end, total=len(starts) * longest)
