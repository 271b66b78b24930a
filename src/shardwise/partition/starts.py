"""Partitions to start from: every turn of the ranks with chunks of one size, and layers cut by their time.

Where layers do not divide over the chunks, a rank should not get all the larger chunks, and a chunk that is larger than
its neighbours in the same turn holds them all up; so whole turns are made larger. Which ones depends on the order of
work and on memory, so all are tried, within reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice

import numpy as np

from shardwise.partition.graph import Ints, Ready
from shardwise.partition.least_memory import laid_out
from shardwise.partition.near import repaired

_PATTERNS = 12


def starts(ready: Ready) -> Iterator[Ints]:
    """Different partitions that fit."""
    seen = set[bytes]()
    shares = islice(_by_turns(ready), _PATTERNS) if len(ready.run_counts) == 1 else _by_time(ready)
    for share in shares:
        fitting = repaired(ready, share)
        if fitting is not None and fitting.tobytes() not in seen:
            seen.add(fitting.tobytes())
            yield laid_out(ready, fitting)


def _by_turns(ready: Ready) -> Iterator[Ints]:
    """Chunks of a turn alike; what is left over goes to ranks spread over one more turn, the last one first."""
    pp, vpp, layers = ready.problem.pp, ready.problem.vpp, int(ready.run_counts.sum())
    each, rest = divmod(layers, ready.chunks)
    whole, odd = divmod(rest, pp)
    spread = np.linspace(0, pp - 1, odd).round().astype(int) if odd > 1 else np.arange(odd) + pp // 2
    for larger in combinations(range(vpp), whole):
        for turn in reversed([turn for turn in range(vpp) if turn not in larger]) if odd else (0,):
            shares = np.full((vpp, pp), each)
            shares[list(larger)] += 1
            shares[turn, spread] += 1
            yield shares.ravel()


def _by_time(ready: Ready) -> Iterator[Ints]:
    """Cuts where the time of the layers so far, head and tail included, is nearest to an even share."""
    time = ready.option_time[0] + ready.option_time[3]
    fixed = ready.fixed_time[0] + ready.fixed_time[3]
    each = [float(time[ready.run_of == run].min()) for run in range(len(ready.run_counts))]
    ahead = np.concatenate(([0.0], np.cumsum(np.repeat(each, ready.run_counts))))
    total = ahead[-1] + fixed.sum()
    for lean in (0.0, -0.25, 0.25):
        wanted = (np.arange(1, ready.chunks) + lean) * total / ready.chunks - np.cumsum(fixed)[:-1]
        cuts = np.abs(ahead[None, :] - wanted[:, None]).argmin(axis=1)
        yield np.diff(np.concatenate(([0], np.maximum.accumulate(cuts), [len(ahead) - 1])))
