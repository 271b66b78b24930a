"""Partitions near a relaxed optimum: its layers rounded, every layer with its smallest choice, made to fit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shardwise.partition.graph import Floats, Ints, Ready
from shardwise.partition.least_memory import laid_out


def roundings(ready: Ready, fractions: Floats, count: int) -> Iterator[Ints]:
    """Up to `count` different roundings that fit."""
    seen = set[bytes]()
    ends = np.cumsum(fractions.sum(axis=1))
    for k in range(4 * count):
        # The cuts are rounded, not the counts, so that totals and the order of layers hold.
        cuts = np.floor(ends + (k + 0.5) / (4 * count)).astype(int)
        cuts[-1] = int(ready.run_counts.sum())
        shares = repaired(ready, np.diff(np.concatenate(([0], cuts))))
        if shares is None or shares.tobytes() in seen:
            continue
        seen.add(shares.tobytes())
        yield laid_out(ready, shares)
        if len(seen) == count:
            return


def repaired(ready: Ready, shares: Ints) -> Ints | None:
    """Hand layers from ranks over their limit to those with most room until all fit; None: they never do."""
    shares = np.array(shares)
    for chunk in np.flatnonzero(shares < ready.least):
        shares[int(np.argmax(shares - ready.least))] -= 1
        shares[chunk] += 1
    for _ in range(2 * ready.chunks):
        spare = ready.limits - ready.peaks(laid_out(ready, shares))
        if spare.min() >= 0:
            return shares
        over, room = int(np.argmin(spare)), int(np.argmax(spare))
        donors = np.flatnonzero((ready.rank_of == over) & (shares > ready.least))
        takers = np.flatnonzero(ready.rank_of == room)
        if not len(donors) or over == room:
            return None
        shares[donors[int(np.argmax(shares[donors]))]] -= 1
        shares[takers[int(np.argmin(shares[takers]))]] += 1
    return None
