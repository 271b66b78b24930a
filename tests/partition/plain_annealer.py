"""A plain annealer to be measured against: one run on the simulated time, one layer a move, what does not fit refused.

Written as anyone would in an afternoon; only the longest path is the kernel's.
"""

from __future__ import annotations

import math
import random
import time

import numpy as np

from shardwise.partition.graph import Ints, Ready
from shardwise.partition.least_memory import spread_evenly, tightest

HOT, COLD = 5e-3, 3e-5
"""Temperatures, as shares of the time."""


def anneal_plainly(ready: Ready, *, seed: int, steps: int = 0, seconds: float = 0.0) -> float:
    """The best time found in so many steps, or in so many CPU seconds."""
    draw, began = random.Random(seed), time.process_time()  # noqa: S311 - not for secrets
    counts = spread_evenly(ready)
    counts = counts if ready.fits(counts) else tightest(ready).counts
    now = best = float(ready.times(counts[None])[0])
    done, k = 0.0, 0
    while done < 1.0:
        done = k / steps if steps else (time.process_time() - began) / seconds
        heat, k = best * HOT * (COLD / HOT) ** done, k + 1
        other = counts.copy()
        if not _moved(ready, other, draw) or not bool(ready.fits(other)):
            continue
        value = float(ready.times(other[None])[0])
        if value <= now - heat * math.log(1.0 - draw.random()):
            counts, now, best = other, value, min(best, value)
    return best


def _moved(ready: Ready, counts: Ints, draw: random.Random) -> bool:
    """A layer runs otherwise, or goes to any other chunk; False: it cannot."""
    a, b = draw.randrange(ready.chunks), draw.randrange(ready.chunks)
    given = draw.choice(np.flatnonzero(counts[a]).tolist() or [-1])
    same = np.flatnonzero(ready.run_of == ready.run_of[given]).tolist()
    taken = draw.choice(same)
    b = a if draw.random() < 0.3 else b
    if given < 0 or (a, given) == (b, taken):
        return False
    counts[a, given] -= 1
    counts[b, taken] += 1
    return bool(counts[a].sum() >= ready.least[a]) and bool(ready.in_order(counts[None])[0])
