"""The bound of a certificate, derived anew and slowly; imports nothing of Shardwise (see certificate.py).

head    an action starts no earlier than its input arrives, than its predecessors on its own rank can be through, and,
        for a forward that does not fit, than enough memory can have been given back
tail    the same after it, read backwards; what memory keeps from running before a gradient runs after it

Predecessors and successors are those of first in, first out inside a chunk, which costs nothing as micro batches are
alike. A rank then takes at least the largest of least head + work + least tail over sets of its actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

_PASSES = 64
SLACK = 1e-9
"""Rounding that is let pass, relative."""
Key = tuple[str, int, int]
"""Kind, chunk, micro batch."""
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

    def message(self, a: int, b: int) -> float:
        return self.hop[min(a, b)] if self.rank_of[a] != self.rank_of[b] else 0.0

    def before(self, key: Key) -> list[Key]:
        """What runs on the same rank before it in any order."""
        kind, c, m = key
        own, upto = self.own[self.rank_of[c]], range(m + 1)
        if kind == "F":
            return [("F", k, n) for k in own if k <= c for n in upto if (k, n) != (c, m)]
        found = [("F", k, n) for k in own for n in upto]
        found += [("I", k, n) for k in own if k >= c for n in upto if kind == "W" or (k, n) != (c, m)]
        return found + [("W", c, n) for n in range(m) if kind == "W"]

    def after(self, key: Key) -> list[Key]:
        """What runs on the same rank after it in any order."""
        kind, c, m = key
        own, later = self.own[self.rank_of[c]], range(m, self.microbatches)
        if kind == "W":
            return [("W", c, n) for n in later if n > m]
        if kind == "I":
            own = [k for k in own if k <= c]
            return [(kind, k, n) for kind in "IW" for k in own for n in later if (kind, k, n) != key]
        found = [("F", k, n) for k in own if k >= c for n in later if (k, n) != (c, m)]
        return found + [(kind, k, n) for kind in "IW" for k in own for n in later]

    def through(self, keys: Iterable[Key], ready: Times) -> float:
        """When one machine can be through with them, each no earlier than it is ready; what never binds is left out."""
        clock = -inf
        for begin, key in sorted((ready[key], key) for key in keys if ready[key] > -inf):
            clock = max(clock, begin) + self.length[key[0]][key[1]]
        return clock


def rederived(case: MixCase, objective: str) -> float:
    """A lower bound for every order of the case, derived rule by rule."""
    ranks = range(len(case.own))
    if objective == "period":
        return max(_machine(case, rank, _heads(case, case.own[rank][0]), _tails(case, rank)) for rank in ranks)
    head, tail = _heads(case, 0), _tails(case, None)
    return max(_machine(case, rank, head, tail) for rank in ranks)


def _machine(case: MixCase, rank: int, head: Times, tail: Times) -> float:
    own = [key for key in head if case.rank_of[key[1]] == rank and head[key] > -inf and tail[key] > -inf]
    chain = max(head[key] + case.length[key[0]][key[1]] + tail[key] for key in own)
    sets = (case.through([key for key in own if tail[key] >= least], head) + least for least in {tail[k] for k in own})
    return max(chain, *sets)


def _heads(case: MixCase, first: int) -> Times:
    """Earliest starts, counted from the first forward of chunk `first`; of the chunks before it nothing is known."""
    count, chunks = range(case.microbatches), range(len(case.rank_of))
    head: Times = {(kind, c, m): -inf if kind == "F" and c < first else 0.0
                   for kind in "FIW" for c in chunks for m in count}  # fmt: skip
    order = [("F", c, m) for c in chunks[first:] for m in count]
    order += [(kind, c, m) for c in reversed(chunks) for kind in "IW" for m in count]
    for _ in range(_PASSES if case.room else 1):
        known = dict(head)
        for key in order:
            ready = max(_arrival(case, key, head), case.through(case.before(key), head))
            head[key] = max(head[key], ready, _room_from(case, key, head))
        if head == known:
            break
    return head


def _arrival(case: MixCase, key: Key, head: Times) -> float:
    kind, c, m = key
    if kind == "F":
        source = ("F", c - 1, m)
    elif kind == "W":
        source = ("I", c, m)
    else:
        source = ("F", c, m) if c == len(case.rank_of) - 1 else ("I", c + 1, m)
    return head[source] + case.length[source[0]][source[1]] + case.message(source[1], c) if source[1] >= 0 else 0.0


def _room_from(case: MixCase, key: Key, head: Times) -> float:
    """When a forward can have room: its rank's chunks up to it took m + 1 micro batches each, less what they freed."""
    kind, c, m = key
    if kind != "F" or not case.room:
        return -inf
    early, held, room = (
        [k for k in case.own[case.rank_of[c]] if k <= c],
        case.chunks.activation,
        case.room[case.rank_of[c]],
    )
    over, when = ((m + 1) * sum(held[k] for k in early) - room * (1 + SLACK)) * (1 - SLACK), -inf
    gifts = [
        (head[kind, k, n] + case.length[kind][k], share * held[k])
        for k in early
        for kind, share in (("I", case.frees[k]), ("W", 1 - case.frees[k]))
        for n in range(case.microbatches)
    ]
    for end, given in sorted(gifts):
        if over <= 0:
            break
        over, when = over - given, end
    return when


def _tails(case: MixCase, only: int | None) -> Times:
    """Least time after each action; `only`: to the end of this rank, else of all."""
    count, chunks = range(case.microbatches), range(len(case.rank_of))
    tail: Times = {}
    order = [("W", c, m) for c in chunks for m in reversed(count)]
    order += [("I", c, m) for c in chunks for m in reversed(count)]
    order += [("F", c, m) for c in reversed(chunks) for m in reversed(count)]
    for key in order:
        rank, after = case.rank_of[key[1]], case.after(key)
        work = sum(case.length[kind][c] for kind, c, _ in after) + _kept_back(case, key)
        tail[key] = max(work if only in {None, rank} else -inf, case.through(after, tail), _onward(case, key, tail))
    return tail


def _onward(case: MixCase, key: Key, tail: Times) -> float:
    """What follows on the way of the message."""
    kind, c, m = key
    last = len(case.rank_of) - 1
    if kind == "W" or (kind == "I" and c == 0):
        return tail["W", 0, m] + case.chunks.w[0] if kind == "I" else -inf
    to = ("I", c, m) if (kind, c) == ("F", last) else (kind, c + 1 if kind == "F" else c - 1, m)
    return tail[to] + case.length[to[0]][to[1]] + case.message(c, to[1])


def _kept_back(case: MixCase, key: Key) -> float:
    """Least time of the forwards that have no room before a gradient."""
    kind, c, m = key
    rank, bytes_ = case.rank_of[c], case.chunks.activation
    if kind != "I" or not case.room:
        return 0.0
    over = (case.microbatches - m) * sum(bytes_[k] for k in case.own[rank] if k <= c) - case.room[rank]
    cheapest = min((case.chunks.f[k] / bytes_[k] for k in case.own[rank] if bytes_[k] > 0), default=0.0)
    return max(0.0, over) * cheapest
