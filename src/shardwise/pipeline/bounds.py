"""Lower bounds under the cost model in use: no order of the actions can end earlier.

Every action has a head (nothing lets it start earlier) and a tail (so much must follow it). Both count chains of
messages, the first-in-first-out order inside a chunk (which costs nothing) and the work of the own rank that must come
before or after. What a memory limit forces is in memory_bounds.py; here are the plain ones, for orders without a limit
and as the priorities of the search. Then

    A  each rank alone is a one-machine problem with heads and tails; Jackson's preemptive rule solves it exactly
    B  head + duration + tail of any one action; with a limit this holds "the first gradient, then all forwards that
       did not fit before it"
    C  bytes x time: what a rank must hold, and for how long at least, fits into its room x its span (area.py)

Sources: J. R. Jackson, "Scheduling a production line to minimize maximum tardiness" (1955); J. Carlier, "The
one-machine sequencing problem" (EJOR 11, 1982). Zero-bubble papers write B for our I.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardwise.pipeline.area import spans
from shardwise.pipeline.arrays import NEVER, Floats, Objective, OrderArrays
from shardwise.pipeline.costs import ROUNDING
from shardwise.pipeline.memory_bounds import limited_heads, limited_tails
from shardwise.pipeline.streams import every

_EXACT_BELOW = 300_000
"""Above so many actions Jackson's rule is left out (seconds in Python) and only sums are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A proven lower bound and where it comes from."""

    value: float
    rank: int
    """The rank that forces it."""
    kind: str
    """`machine` (bound A), `chain` (bound B), `memory` (bound C) or `work`."""
    scope: str = "any order on this placement"
    """What it holds for."""


def lower_bound(problem: OrderArrays, objective: Objective = "makespan") -> Bound:
    """The largest bound over all ranks."""
    period = objective == "period"
    windows = list(_own_windows(problem)) if period else [_windows(problem)] * problem.pp
    found = [_rank_bound(problem, rank, *window) for rank, window in enumerate(windows)]
    found += [_work_bound(problem, rank) for rank in range(problem.pp)] if period else []
    best = max(found, key=lambda b: (b.value, -b.rank))
    if problem.limited:
        for rank, least in spans(every(problem), windows, best.value):
            best = Bound(value=least, rank=rank, kind="memory")
    return best


def _windows(problem: OrderArrays) -> tuple[Floats, Floats]:
    """Heads and tails from the begin of all to the end of all."""
    if problem.limited:
        return limited_heads(problem, [0])[0], limited_tails(problem, np.zeros((1, problem.pp)))[0]
    return heads(problem), tails(problem)


def _rank_bound(problem: OrderArrays, rank: int, head: Floats, tail: Floats) -> Bound:
    own = problem.chunk_of[rank]
    duration = np.repeat(problem.duration.reshape(3, -1)[:, own, None], problem.microbatches, axis=2).ravel()
    first, after = head[:, own].ravel(), tail[:, own].ravel()
    chain = float((first + duration + after).max())
    if problem.actions > _EXACT_BELOW:
        machine = float(first.min() + duration.sum() + max(0.0, float(after.min())))
    else:
        machine = jackson(first, duration, after)
    return Bound(value=max(chain, machine), rank=rank, kind="chain" if chain >= machine else "machine")


def _work_bound(problem: OrderArrays, rank: int) -> Bound:
    work = float(problem.duration.reshape(3, -1)[:, problem.chunk_of[rank]].sum() * problem.microbatches)
    return Bound(value=work, rank=rank, kind="work")


def _own_windows(problem: OrderArrays) -> Iterator[tuple[Floats, Floats]]:
    """Heads and tails as each rank sees them."""
    first = problem.chunk_of[:, 0].tolist()
    lags = np.where(np.eye(problem.pp, dtype=bool), 0.0, NEVER)
    if not problem.limited:
        return ((heads(problem, c), tails(problem, lag)) for c, lag in zip(first, lags, strict=True))
    return zip(limited_heads(problem, first), limited_tails(problem, -lags), strict=True)


def jackson(head: Floats, duration: Floats, tail: Floats) -> float:
    """One machine, heads and tails, preemption allowed: the exact least end, by always running the largest tail."""
    order = np.argsort(head, kind="stable")
    ready, work, after = head[order].tolist(), duration[order].tolist(), tail[order].tolist()
    queue: list[list[float]] = []
    now, k, worst, count = 0.0, 0, 0.0, len(ready)
    while k < count or queue:
        if not queue and ready[k] > now:
            now = ready[k]
        while k < count and ready[k] <= now:
            heapq.heappush(queue, [-after[k], work[k]])
            k += 1
        until = ready[k] if k < count else NEVER
        if queue[0][1] > until - now:
            queue[0][1] -= until - now
            now = until
        else:
            minus_tail, left = heapq.heappop(queue)
            now += left
            worst = max(worst, now - minus_tail)
    return worst


def tails(problem: OrderArrays, lag: Floats | None = None) -> Floats:
    """Least time from the end of every action to the end of all, by kind, chunk and micro batch.

    `lag`: by rank, how much later than the others it may end without harm.
    """
    lag = np.zeros(problem.pp) if lag is None else lag
    left = problem.microbatches - np.arange(problem.microbatches, dtype=float)
    tail = np.empty((3, problem.chunks, problem.microbatches))
    tail[2] = (left - 1) * problem.w[:, None] - lag[problem.rank_of][:, None]
    for c in range(problem.chunks):
        tail[1, c] = _input_tail(problem, tail, lag, left, c)
    for c in reversed(range(problem.chunks)):
        tail[0, c] = _forward_tail(problem, tail, lag, left, c)
    return tail


def _input_tail(problem: OrderArrays, tail: Floats, lag: Floats, left: Floats, c: int) -> Floats:
    rank, j = problem.rank_of[c], problem.position[c]
    own = problem.chunk_of[rank]
    g, w, early = problem.i, problem.w, own[: j + 1]
    base = left * (g[early] + w[early]).sum() - g[c] + _held_back(problem, rank, j, left) - lag[rank]
    base = np.maximum(base, w[c] + tail[2, c])
    if c > 0:
        base = np.maximum(base, problem.hop[c - 1] + g[c - 1] + tail[1, c - 1])
    if j > 0:  # all gradients of this rank's earlier chunks come later, the very last of them with its own tail
        base = np.maximum(base, left * g[early].sum() - g[c] + tail[1, own[0], -1])
    return _backward_scan(base, g[c])


def _held_back(problem: OrderArrays, rank: int, j: int, left: Floats) -> Floats | float:
    """Least time of the forwards that cannot run before a gradient of position j, for want of memory.

    Until then this rank's chunks up to j have freed at most m micro batches each, the later ones all of theirs.
    """
    if problem.room[rank] >= NEVER:
        return 0.0
    own = problem.chunk_of[rank]
    room = problem.room[rank] / (1 + ROUNDING)  # a share of the time as small as that of the bytes: rounding again
    over = left * problem.held[own[: j + 1]].sum() - room
    return np.asarray(np.maximum(over, 0.0) * _cheapest(problem, own))


def _cheapest(problem: OrderArrays, own: np.ndarray) -> float:
    held = problem.held[own]
    return float((problem.f[own][held > 0] / held[held > 0]).min()) if (held > 0).any() else 0.0


def _forward_tail(problem: OrderArrays, tail: Floats, lag: Floats, left: Floats, c: int) -> Floats:
    rank, j = problem.rank_of[c], problem.position[c]
    own = problem.chunk_of[rank]
    f, g, late = problem.f, problem.i, own[j:]
    forwards, gradients = f[late].sum(), g[own].sum()
    base = left * (forwards + gradients + problem.w[own].sum()) - f[c] - lag[rank]
    if c + 1 < problem.chunks:
        base = np.maximum(base, problem.hop[c] + f[c + 1] + tail[0, c + 1])
    else:
        base = np.maximum(base, g[c] + tail[1, c])
    base = np.maximum(base, left * (forwards + gradients) - f[c] + tail[1, own[0], -1])
    if c != own[-1]:
        base = np.maximum(base, left * forwards - f[c] + tail[0, own[-1], -1])
    return _backward_scan(base, f[c])


def _backward_scan(base: Floats, step: float) -> Floats:
    """The actions of one stream follow each other: tail(m) >= step + tail(m + 1)."""
    slope = step * np.arange(len(base))
    return np.asarray(np.maximum.accumulate((base + slope)[::-1])[::-1] - slope)


def _forward_scan(base: Floats, step: float) -> Floats:
    slope = step * np.arange(len(base))
    return np.asarray(np.maximum.accumulate(base - slope) + slope)


def heads(problem: OrderArrays, first: int = 0) -> Floats:
    """Earliest start of every action if memory never binds, by kind, chunk and micro batch.

    `first`: the chunk whose inputs are all there.
    """
    head = np.zeros((3, problem.chunks, problem.microbatches))
    for c in range(first, problem.chunks):
        head[0, c] = _forward_head(problem, head, c, first)
    for c in reversed(range(problem.chunks)):
        head[1, c] = _input_head(problem, head, c, first)
        head[2, c] = _forward_scan(head[1, c] + problem.i[c], problem.w[c])
    return head


def _forward_head(problem: OrderArrays, head: Floats, c: int, first: int) -> Floats:
    rank, j = problem.rank_of[c], problem.position[c]
    own = problem.chunk_of[rank]
    f, count = problem.f, 1.0 + np.arange(problem.microbatches)
    base = np.zeros(problem.microbatches) if c == first else head[0, c - 1] + f[c - 1] + problem.hop[c - 1]
    begin = base[0] if own[0] == c else head[0, max(own[0], first), 0] if own[0] >= first else 0.0
    known = [k for k in own[: j + 1] if k >= first]
    return _forward_scan(np.maximum(base, begin + count * f[known].sum() - f[c]), f[c])


def _input_head(problem: OrderArrays, head: Floats, c: int, first: int) -> Floats:
    rank, j = problem.rank_of[c], problem.position[c]
    own = problem.chunk_of[rank]
    g, count = problem.i, 1.0 + np.arange(problem.microbatches)
    late, last = own[j:], c == problem.chunks - 1
    base = head[0, c] + problem.f[c] if last else head[1, c + 1] + g[c + 1] + problem.hop[c]
    if own[0] >= first:
        base = np.maximum(base, head[0, own[0], 0] + count * (problem.f[own].sum() + g[late].sum()) - g[c])
    if c != own[-1]:
        base = np.maximum(base, head[1, own[-1], 0] + count * g[late].sum() - g[c])
    return _forward_scan(base, g[c])
