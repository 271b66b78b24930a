"""Annealing on the simulated time: see improve.c, which does the work. Without kernels a descent stands in for it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from shardwise.kernels import library
from shardwise.partition.graph import GraphView, Ints, Ready

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
            "run_of", "rank_of", "least", "time", "held", "stock", "fixed_time", "fixed_held", "fixed_stock", "row",
            "first_row", "limit",
        )),
    )  # fmt: skip


def improve(
    ready: Ready, counts: Ints, *, steps: int, hot: float, cold: float, seed: int, goal: float = 0.0, fine: float = 0.3
) -> Improved:
    """Anneal from counts that fit; temperatures in the unit of time. Stops early at `goal`.

    `fine`: what a rank twice over its limit costs at first, as a share of the time; it rises to 10.
    """
    kernel = library()
    if kernel is None:
        return descend(ready, counts)
    arrays = _arrays(ready)
    sizes = (ready.chunks, ready.options, ready.problem.pp, len(ready.rows))
    task = _Task(ready.view, *sizes, *(array.ctypes.data for array in arrays))
    best, looked = np.ascontiguousarray(counts, dtype=np.int32).copy(), ctypes.c_longlong(0)
    run = kernel.improve
    run.restype = ctypes.c_double
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_double, ctypes.c_double,
                    ctypes.c_ulonglong, ctypes.c_double, ctypes.c_double, ctypes.c_void_p]  # fmt: skip
    time = run(ctypes.addressof(task), best.ctypes.data, steps, hot, cold, seed, goal, fine, ctypes.addressof(looked))
    return Improved(counts=best, time=float(time), evaluations=int(looked.value))


def descend(ready: Ready, counts: Ints) -> Improved:
    """The best single change, again and again while one helps. All are timed abreast, which numpy does well."""
    time, looked, near = float(ready.times(counts[None])[0]), 1, _near(ready, counts)
    while len(near):
        times = ready.times(near)
        looked += len(near)
        if times.min() >= time:
            break
        time, counts = float(times.min()), near[times.argmin()]
        near = _near(ready, counts)
    return Improved(counts=counts, time=time, evaluations=looked)


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
