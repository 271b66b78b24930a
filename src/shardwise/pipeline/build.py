"""One schedule, built action by action in the order of time, under a rule.

Every action has a latest start: the horizon aimed at, less its tail (bounds.py). When a rank is free it takes the
candidate after which the worst lateness is least, looking one action ahead; waiting for a message that is under way is
a candidate too. Or it takes the most urgent of those that can start within some patience, while no more than a window
of micro batches is under way and these follow each other at a pace: little memory wants that (admission.py). A forward
is taken only if it fits and if the first micro batch that still needs the rank can pass, so memory never locks the
pipeline; when memory blocks an urgent forward, what frees memory inherits its urgency.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import astuple, dataclass, fields

import numpy as np

from shardwise.kernels import library
from shardwise.pipeline.arrays import NEVER, Floats, Ints, Objective, OrderArrays


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRule:
    """How the builder decides; see build.c."""

    horizon: float
    """End aimed at."""
    reserve: float = 0.0
    """Room kept free for a rank's later chunks before an earlier one may start, in units of their bytes."""
    inherit: float = 0.0
    """How much more urgent than a blocked forward is what frees its memory."""
    window: float = NEVER
    """Micro batches at most between F and I of the first chunk."""
    pace: float = 0.0
    """Least time from the start of one micro batch to that of the next."""
    patience: float = -1.0
    """Take the most urgent that could start within so long; below 0: what makes the worst lateness least."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Built:
    """Rows of codes, one rank after the other, and what they reach; `value` is infinite when the rule got stuck."""

    value: float
    rows: Ints


class _Problem(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("ranks", "chunks", "microbatches", "vpp")),
        *((name, ctypes.c_void_p) for name in ("rank_of", "position", "chunk_of", "duration", "hop", "held", "freed")),
        ("room", ctypes.c_void_p),
    )


class _Rule(ctypes.Structure):
    _fields_ = tuple((field.name, ctypes.c_double) for field in fields(BuildRule))


class Builder:
    """A problem made ready for many builds."""

    def __init__(self, problem: OrderArrays, objective: Objective = "makespan", *, lag: Floats | None = None) -> None:
        self.problem, self.objective = problem, objective
        self.lag = np.zeros(problem.pp) if lag is None else lag
        self.kernel = _kernel()
        self.start = np.empty(problem.actions)
        self._arrays = (
            problem.rank_of, problem.position, np.ascontiguousarray(problem.chunk_of), problem.duration, problem.hop,
            problem.held, problem.freed, problem.room,
        )  # fmt: skip
        sizes = (problem.pp, problem.chunks, problem.microbatches, problem.vpp)
        self._view = _Problem(*sizes, *(array.ctypes.data for array in self._arrays))

    def build(self, rule: BuildRule, tail: Floats) -> Built:
        """A schedule by this rule; `tail` by code."""
        rows = np.zeros(self.problem.actions, dtype=np.int32)
        if self.kernel is None:
            ended = build_slowly(self.problem, rule, tail, self.lag, rows, self.start)
        else:
            view = _Rule(*astuple(rule))
            pointers = (tail, self.lag, rows, self.start)
            ended = self.kernel.build(
                ctypes.addressof(self._view), ctypes.addressof(view), *(array.ctypes.data for array in pointers)
            )
        return Built(value=float("inf") if ended < 0 else self._value(ended, rows), rows=rows)

    def anneal(self, built: Built, *, target: float, work: float, heat: float, anywhere: float, seed: int) -> Built:
        """Moves along the critical path, a share of them anywhere; without kernels the schedule stays as it is."""
        if self.kernel is None:
            return built
        rows, period = built.rows.copy(), int(self.objective == "period")
        view, at = ctypes.addressof(self._view), rows.ctypes.data
        value = self.kernel.anneal(view, at, period, target, work, heat, anywhere, seed)
        return Built(value=value, rows=rows) if value < built.value else built

    def _value(self, ended: float, rows: Ints) -> float:
        if self.objective == "makespan":
            return ended
        grid = rows.reshape(self.problem.pp, -1)
        length = self.problem.duration[grid[:, -1] // self.problem.microbatches]
        return float((self.start[grid[:, -1]] + length - self.start[grid[:, 0]]).max())


@functools.cache
def _kernel() -> ctypes.CDLL | None:
    kernel = library()
    if kernel is None:
        return None
    pointer, number, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_double
    kernel.build.restype, kernel.build.argtypes = real, [pointer] * 6
    kernel.anneal.restype = real
    kernel.anneal.argtypes = [pointer, pointer, number, real, real, real, real, number]
    return kernel


_TINY = 1e-9
_Offer = tuple[int, float, float]
"""A stream (kind x chunks + chunk), when it could start, and its latest start."""


class _Build:
    def __init__(self, problem: OrderArrays, rule: BuildRule, tail: Floats, lag: Floats) -> None:
        self.rule = rule
        self.tail: list[float] = tail.tolist()
        self.lag: list[float] = lag.tolist()
        self.chunks, self.microbatches = problem.chunks, problem.microbatches
        self.duration: list[float] = problem.duration.tolist()
        self.hop: list[float] = problem.hop.tolist()
        self.held: list[float] = problem.held.tolist()
        self.freed: list[float] = problem.freed.tolist()
        self.room: list[float] = problem.room.tolist()
        self.own: list[list[int]] = problem.chunk_of.tolist()
        self.rank_of: list[int] = problem.rank_of.tolist()
        self.count = [0] * (3 * self.chunks)
        self.start = [-1.0] * problem.actions
        self.clock, self.used, self.left = [0.0] * problem.pp, [0.0] * problem.pp, [0.0] * problem.pp
        self.rows: list[list[int]] = [[] for _ in range(problem.pp)]
        self.stale = [True] * problem.pp
        self.offers: list[list[_Offer]] = [[] for _ in range(problem.pp)]
        self.next = [NEVER] * problem.pp
        for c, rank in enumerate(self.rank_of):
            busy = self.duration[c] + self.duration[self.chunks + c] + self.duration[2 * self.chunks + c]
            self.left[rank] += self.microbatches * busy

    def fits(self, r: int, j: int) -> bool:
        own, last = self.own[r], len(self.own[r]) - 1
        if own[j] == 0 and self.count[0] - self.count[self.chunks] >= self.rule.window:
            return False
        if self.room[r] >= NEVER:
            return True
        first = self.count[own[last]] + (j == last)
        more, later, worst = first < self.microbatches, 0.0, 0.0
        for k, chunk in enumerate(own):
            ahead = self.count[chunk] + (k == j) - first
            if k > j:
                later += self.held[chunk]
            if more or ahead > 0:
                worst += max(ahead, 1) * self.held[chunk]
        keep = self.rule.reserve * later if self.count[own[last]] < self.microbatches else 0.0
        limit = self.room[r]
        return self.used[r] + self.held[own[j]] + keep <= limit and worst <= limit

    def arrival(self, kind: int, c: int, m: int) -> float:
        hop = 0.0
        if kind == 0:
            if c == 0:
                return m * self.rule.pace
            source, hop = c - 1, self.hop[c - 1]
        elif c == self.chunks - 1:
            source = c
        else:
            source, hop = self.chunks + c + 1, self.hop[c]
        s = self.start[source * self.microbatches + m]
        return NEVER if s < 0 else s + self.duration[source] + hop

    def offer(self, r: int, stream: int, ready: float) -> None:
        begin = max(ready, self.clock[r])
        self.offers[r].append((stream, begin, self.latest(stream)))
        self.next[r] = min(self.next[r], begin)

    def latest(self, stream: int) -> float:
        tail = self.tail[stream * self.microbatches + self.count[stream]]
        return self.rule.horizon - tail - self.duration[stream]

    def refresh(self, r: int) -> None:
        c_all, m_all, waiting = self.chunks, self.microbatches, list[tuple[float, float]]()
        self.offers[r], self.next[r], self.stale[r] = [], NEVER, False
        for j, c in enumerate(self.own[r]):
            ready = self.arrival(0, c, self.count[c]) if self.count[c] < m_all else NEVER
            if ready < NEVER and self.fits(r, j):
                self.offer(r, c, ready)
            elif ready < NEVER:
                waiting.append((ready, self.latest(c)))
            ready = self.arrival(1, c, self.count[c_all + c]) if self.count[c_all + c] < m_all else NEVER
            if ready < NEVER:
                self.offer(r, c_all + c, ready)
            if self.count[2 * c_all + c] < self.count[c_all + c]:
                self.offer(r, 2 * c_all + c, self.clock[r])
        urgent = min((wanted for ready, wanted in waiting if ready <= self.next[r] + _TINY), default=NEVER)
        if urgent < NEVER:
            self.offers[r] = [self.inherited(offer, urgent - self.rule.inherit) for offer in self.offers[r]]

    def inherited(self, offer: _Offer, urgent: float) -> _Offer:
        stream, begin, latest = offer
        kind, c = divmod(stream, self.chunks)
        frees = (0.0, self.freed[c], self.held[c] - self.freed[c])[kind]
        return (stream, begin, min(urgent, latest)) if frees > 0 else offer

    def best(self, r: int) -> _Offer:
        if self.rule.patience < 0:
            return self.least_late(r)
        near = (offer for offer in self.offers[r] if offer[1] <= self.next[r] + self.rule.patience + _TINY)
        return min(near, key=lambda offer: offer[2])

    def least_late(self, r: int) -> _Offer:
        now = self.next[r]
        slack = self.rule.horizon + self.lag[r] - now - self.left[r]
        chosen, least, start, latest = self.offers[r][0], NEVER, NEVER, NEVER
        for z, (stream, begin, wish) in enumerate(self.offers[r]):
            end = begin + self.duration[stream]
            late = max(0.0, begin - wish, begin - now - slack)
            for o, (_, other, other_wish) in enumerate(self.offers[r]):
                if o != z:
                    late = max(late, max(end, other) - other_wish)
            sooner = begin < start - _TINY or (begin <= start + _TINY and wish < latest)
            if late < least - _TINY or (late <= least + _TINY and sooner):
                chosen, least, start, latest = self.offers[r][z], late, begin, wish
        return chosen

    def place(self, r: int, offer: _Offer) -> None:
        stream, begin, _ = offer
        kind, c = divmod(stream, self.chunks)
        code = stream * self.microbatches + self.count[stream]
        self.count[stream] += 1
        self.start[code] = begin
        self.clock[r] = begin + self.duration[stream]
        self.left[r] -= self.duration[stream]
        self.used[r] += (self.held[c], -self.freed[c], -(self.held[c] - self.freed[c]))[kind]
        self.rows[r].append(code)
        self.stale[r] = True
        if kind == 0 and c + 1 < self.chunks:
            self.stale[self.rank_of[c + 1]] = True
        if kind == 1 and c > 0:
            self.stale[self.rank_of[c - 1]] = True


def build_slowly(problem: OrderArrays, rule: BuildRule, tail: Floats, lag: Floats, rows: Ints, start: Floats) -> float:
    """Fill in rows and start; the last end, or -1 when memory leaves no way on."""
    state = _Build(problem, rule, tail, lag)
    for _ in range(problem.actions):
        for r, stale in enumerate(state.stale):
            if stale:
                state.refresh(r)
        r = min(range(problem.pp), key=state.next.__getitem__)
        if state.next[r] >= NEVER:
            return -1.0
        state.place(r, state.best(r))
    rows[:] = [code for row in state.rows for code in row]
    start[:] = state.start
    return max(state.clock)
