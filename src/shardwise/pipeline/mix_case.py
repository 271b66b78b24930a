"""One set of costs on ranks, and what must run before what on a rank: for rederive.py, and as plain as that.

Micro batches are alike, so first in, first out inside a stream costs nothing. With it all that runs before an action is
a number of actions of each stream. Memory tells too: so many forwards fit before a gradient, the next one comes after.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import floor, gcd, inf, lcm
from typing import NamedTuple

SLACK = 1e-9
"""Rounding that is let pass, relative."""
Key = tuple[str, int, int]
"""Kind, chunk, micro batch."""
Stream = tuple[str, int]
"""Kind and chunk: its micro batches run in their order."""
Times = dict[Key, float]


class Chunks(NamedTuple):
    """Times and bytes of every chunk."""

    f: tuple[float, ...]
    i: tuple[float, ...]
    w: tuple[float, ...]
    activation: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class MixCase:
    """One set of costs on ranks."""

    chunks: Chunks
    rank_of: Sequence[int]
    microbatches: int
    hop: Sequence[float]
    free: float | Sequence[float]
    """Share of its bytes that I gives back, of every chunk or one each."""
    room: Sequence[float]
    """By rank; empty: no limit."""
    latency: Sequence[float] = ()
    """Where messages of one link wait for each other: what of `hop` they do not wait for; empty: they never wait."""
    transfer: Sequence[float] = ()
    """The rest of `hop`: how long a message has its link for itself."""

    @cached_property
    def own(self) -> list[list[int]]:
        """Chunks by rank."""
        return [[c for c, r in enumerate(self.rank_of) if r == rank] for rank in range(1 + max(self.rank_of))]

    @cached_property
    def length(self) -> dict[str, tuple[float, ...]]:
        return {"F": self.chunks.f, "I": self.chunks.i, "W": self.chunks.w}

    @cached_property
    def frees(self) -> Sequence[float]:
        """Share that I gives back, by chunk."""
        return self.free if isinstance(self.free, Sequence) else [self.free] * len(self.rank_of)

    def sizes(self, rank: int) -> list[float]:
        """What the actions of a rank take and give back."""
        held, own = self.chunks.activation, self.own[rank]
        return [share * held[c] for c in own for share in (1.0, self.frees[c], 1 - self.frees[c])]

    def message(self, a: int, b: int) -> float:
        return self.hop[min(a, b)] if self.rank_of[a] != self.rank_of[b] else 0.0

    @cached_property
    def ahead(self) -> dict[Key, dict[Stream, int]]:
        """How many actions of each stream of the same rank run before an action in any order."""
        count, chunks, found = range(self.microbatches), range(len(self.rank_of)), dict[Key, dict[Stream, int]]()
        for m in count:
            for key in [("F", c, m) for c in chunks] + [(kind, c, m) for c in reversed(chunks) for kind in "IW"]:
                found[key] = {}
                for source in self._sources(key):
                    for stream, told in (*found[source].items(), (source[:2], source[2] + 1)):
                        found[key][stream] = max(told, found[key].get(stream, 0))
        return found

    def _sources(self, key: Key) -> list[Key]:
        """What an action waits for on its own rank: its input, the one before it in its stream, and room."""
        kind, c, m = key
        own = self.own[self.rank_of[c]]
        near = own[own.index(c) + (1 if kind == "I" else -1)] if c != own[-1 if kind == "I" else 0] else None
        found = [(kind, c, m - 1), ("I", c, m)] if kind == "W" else [(kind, c, m - 1)]
        if kind != "W" and near is not None:
            found.append((kind, near, m))
        elif kind == "I":
            found.append(("F", c, m))
        if kind == "F" and self.room:
            found += [(gives, k, m - self._fits(gives, k, c)) for k in own if k >= c for gives in "IW"]
        return [source for source in found if source[2] >= 0]

    def _fits(self, kind: str, k: int, c: int) -> int:
        """Forwards of chunk c that have room beyond micro batch n while I (or W) of chunk k and n is not done.

        Before that I, chunks up to c hold all of these, those between one (that of n); before that W each forward is
        still held by its own chunk, or by what W of k keeps.
        """
        rank, held = self.rank_of[c], self.chunks.activation
        room, own = self.room[rank] * (1 + SLACK), self.own[rank]
        each, others = min(held[c], (1 - self.frees[k]) * held[k]), 0.0
        if kind == "I":
            each, others = sum(held[d] for d in own if d <= c), sum(held[d] for d in own if c < d <= k)
        return self.microbatches if each * self.microbatches + others <= room else int((room - others) / each)

    @cached_property
    def behind(self) -> dict[Key, dict[Stream, int]]:
        """By stream of the same rank, the first micro batch that runs after an action in any order."""
        found: dict[Key, dict[Stream, int]] = {key: {} for key in self.ahead}
        for kind, c, m in reversed(self.ahead):
            for stream, told in self.ahead[kind, c, m].items():
                found[*stream, told - 1][kind, c] = m
        for kind, c, m in reversed(self.ahead):  # what is behind one is behind those before it in its stream
            if m + 1 < self.microbatches:
                found[kind, c, m] = found[kind, c, m + 1] | {(kind, c): m + 1} | found[kind, c, m]
        return found

    def before(self, key: Key) -> list[Key]:
        return [(kind, c, m) for (kind, c), told in self.ahead[key].items() for m in range(told)]

    def after(self, key: Key) -> list[Key]:
        return [(kind, c, m) for (kind, c), n in self.behind[key].items() for m in range(n, self.microbatches)]

    def through(self, keys: Iterable[Key], ready: Times) -> float:
        """When one machine can be through with them, each no earlier than it is ready; what never binds is left out."""
        clock = -inf
        for begin, key in sorted((ready[key], key) for key in keys if ready[key] > -inf):
            clock = max(clock, begin) + self.length[key[0]][key[1]]
        return clock


def reachable(room: float, sizes: Sequence[float]) -> float:
    """The largest level that fits, where all sizes are multiples of one: no sum of them lies between two multiples."""
    largest = max(sizes)
    if not largest:
        return room
    parts = [Fraction(size / largest).limit_denominator(1000) for size in sizes]
    if any(abs(float(part) * largest - size) > SLACK * largest for part, size in zip(parts, sizes, strict=True)):
        return room
    common = lcm(*(part.denominator for part in parts))
    step = largest * gcd(*(int(part * common) for part in parts)) / common
    return floor(room * (1 + SLACK) / step) * step
