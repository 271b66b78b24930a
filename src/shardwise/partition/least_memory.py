"""Whether anything fits, and if not, how much is missing where: the least memory over all partitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.errors import InfeasibleError
from shardwise.partition.graph import Ints, Ready
from shardwise.partition.milp import Programme, memory_table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tightest:
    """The partition whose worst rank is least over its limit."""

    counts: Ints
    missing: float
    """What the worst rank lacks; negative: what it has left."""
    proven: bool
    """No partition lacks less."""


class _Memory(Programme):
    """T is what the worst rank holds above its limit, from a floor that no partition is below."""

    def _columns(self) -> None:
        super()._columns()
        self.solver.changeColBounds(self.cells, -self.infinity, self.infinity)

    def _memory(self) -> None:
        columns, values, room = memory_table(self.ready)
        ends = np.full((len(room), 1), self.cells, dtype=np.int32)
        self._rows(np.hstack((columns, ends)), np.hstack((values, -np.ones((len(room), 1)))), room)


def tightest(ready: Ready, *, seconds: float = 10.0) -> Tightest:
    """Every layer takes its smallest choice: more memory never makes another partition fit."""
    if not np.isfinite(ready.limits).any():
        return Tightest(counts=spread_evenly(ready), missing=-np.inf, proven=True)
    programme = _Memory(ready)
    for column in range(programme.cells):
        if column % ready.options not in ready.smallest:
            programme.solver.changeColBounds(column, 0.0, 0.0)
    even = spread_evenly(ready)
    if bool(ready.fits(even)):
        return Tightest(counts=even, missing=float((ready.peaks(even) - ready.limits).max()), proven=False)
    programme.make_integer("counts")
    solved = programme.solve(seconds=seconds)
    if solved is None or not np.isfinite(solved.value):
        return Tightest(counts=even, missing=float((ready.peaks(even) - ready.limits).max()), proven=False)
    counts = np.rint(solved.counts).astype(np.int32)
    missing = float((ready.peaks(counts) - ready.limits)[np.isfinite(ready.limits)].max())
    return Tightest(counts=counts, missing=missing, proven=solved.finished or solved.bound > 0)


def spread_evenly(ready: Ready) -> Ints:
    """Layers in equal parts, in model order, each with its smallest choice; empty chunks only where needed."""
    layers, chunks = int(ready.run_counts.sum()), ready.chunks
    shares = np.array([layers // chunks + (k < layers % chunks) for k in range(chunks)])
    needy = np.flatnonzero(shares < ready.least)
    for chunk in needy:  # an empty chunk is allowed elsewhere: its layer goes here
        donors = np.flatnonzero(shares > ready.least)
        shares[donors[np.argmax(shares[donors])]] -= 1
        shares[chunk] += 1
    return laid_out(ready, shares)


def laid_out(ready: Ready, shares: Ints) -> Ints:
    """Counts of so many layers per chunk in model order, each with its smallest choice."""
    owner = np.repeat(np.arange(ready.chunks), shares)
    counts = np.bincount(owner * ready.options + ready.leanest, minlength=ready.chunks * ready.options)
    return counts.reshape(ready.chunks, ready.options).astype(np.int32)


def refuse(ready: Ready, found: Tightest) -> InfeasibleError:
    """Why nothing fits: the ranks, what each lacks, and the smallest limit that works."""
    peaks, limits = ready.peaks(found.counts), np.array(ready.problem.rank_limits)
    short = [rank for rank in range(len(peaks)) if peaks[rank] > ready.limits[rank]]
    listed = ", ".join(f"{rank} ({peaks[rank] - limits[rank]:,.0f} missing)" for rank in short[:16])
    equal = len(set(limits.tolist())) == 1
    needed = f"a limit of {limits[0] + found.missing:,.0f}" if equal else f"{found.missing:,.0f} more on every rank"
    sure = "the smallest that works is" if found.proven else "what was found to work is"
    return InfeasibleError(
        f"infeasible: no partition fits, even with every layer recomputed as far as it was measured; "
        f"stages over their limit at best: {listed}; {sure} {needed}"
    )
