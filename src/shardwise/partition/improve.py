"""Better partitions from given ones: annealing on the simulated time (improve.c does the work; without kernels a
descent stands in for it), and what it starts from: even turns of the ranks, and a relaxed optimum rounded.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np

from shardwise.kernels import library
from shardwise.partition.graph import Floats, GraphView, Ints, Ready
from shardwise.partition.least_memory import laid_out
from shardwise.partition.mixed import MixedReady

_ABREAST = 4_000_000
"""Actions that a descent times in one go: 32 MB."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Improved:
    """The best counts of one annealing run."""

    counts: Ints
    time: float
    evaluations: int


class _Task(ctypes.Structure):
    _fields_ = (
        ("graph", GraphView),
        *((name, ctypes.c_int) for name in ("chunks", "options", "ranks", "rows")),
        *((name, ctypes.c_void_p) for name in (
            "run_of", "rank_of", "least", "time", "held", "static", "fixed_time", "fixed_held", "fixed_static", "row",
            "first_row", "limit",
        )),
    )  # fmt: skip


def improve(
    ready: Ready,
    counts: Ints,
    *,
    steps: int,
    hot: float,
    cold: float,
    seed: int,
    goal: float = 0.0,
    fine: float = 0.3,
    until: float = float("inf"),
) -> Improved:
    """Anneal from counts that fit; temperatures in the unit of time. Stops early at `goal`.

    `fine`: what a rank twice over its limit costs at first, as a share of the time; it rises to 10. `until`: CPU
    seconds of this process at which a descent stops; annealing takes its steps.
    """
    kernel = library()
    if kernel is None or isinstance(ready, MixedReady):  # the kernel knows one time of a layer
        return descend(ready, counts, until=until)
    arrays = _arrays(ready)
    sizes = (ready.chunks, ready.options, ready.problem.pp, len(ready.rows))
    task = _Task(ready.view, *sizes, *(array.ctypes.data for array in arrays))
    best, looked = np.ascontiguousarray(counts, dtype=np.int32).copy(), ctypes.c_longlong(0)
    run = kernel.improve
    run.restype = ctypes.c_double
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_double, ctypes.c_double,
                    ctypes.c_ulonglong, ctypes.c_double, ctypes.c_double, ctypes.c_void_p]  # fmt: skip
    pointers = (ctypes.addressof(task), best.ctypes.data)
    reached = run(*pointers, steps, hot, cold, seed, goal, fine, ctypes.addressof(looked))
    return Improved(counts=best, time=float(reached), evaluations=int(looked.value))


def descend(ready: Ready, counts: Ints, *, until: float = float("inf")) -> Improved:
    """The best single change, again and again while one helps. All are timed abreast, which numpy does well."""
    best, looked, near = float(ready.times(counts[None])[0]), 1, _near(ready, counts)
    while len(near) and time.process_time() < until:
        times = ready.times(near)
        looked += len(near)
        if times.min() >= best:
            break
        best, counts = float(times.min()), near[times.argmin()]
        near = _near(ready, counts)
    return Improved(counts=counts, time=best, evaluations=looked)


def _near(ready: Ready, counts: Ints) -> Ints:
    """What fits and is one change away: a layer runs otherwise, or in another chunk; near chunks first."""
    run = np.tile(ready.run_of, ready.chunks)
    given, taken = np.nonzero((counts.ravel() > 0)[:, None] & (run[:, None] == run) & ~np.eye(len(run), dtype=bool))
    far = np.abs(given // ready.options - taken // ready.options)
    few = np.argsort(far, kind="stable")[: _ABREAST // len(ready.before) + 1]
    tables = np.tile(counts.ravel(), (len(few), 1))
    np.subtract.at(tables, (np.arange(len(few)), given[few]), 1)
    np.add.at(tables, (np.arange(len(few)), taken[few]), 1)
    tables = tables.reshape(-1, *counts.shape)
    sound = (tables.sum(axis=2) >= ready.least).all(axis=1) & ready.in_order(tables) & ready.fits(tables)
    return np.asarray(tables[sound])


def _arrays(ready: Ready) -> tuple[np.ndarray, ...]:
    """In the order of `Task`; the caller keeps them alive while C reads them."""
    first = np.searchsorted(ready.row_rank, np.arange(ready.problem.pp + 1)).astype(np.int32)
    return (
        ready.run_of.astype(np.int32), ready.rank_of, ready.least, np.ascontiguousarray(ready.option_time),
        ready.option_held, ready.option_static, np.ascontiguousarray(ready.fixed_time), ready.fixed_held,
        ready.fixed_static, ready.rows, first, ready.limits,
    )  # fmt: skip


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
