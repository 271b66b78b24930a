"""What whole layers cost a rank, as cuts of the linear programme.

Memory is where a relaxation lies most: it puts 2.9 and 2.7 layers on a rank that holds 3 and 2, or 2 and 4, and
recomputes a tenth of a layer less. So for every rank all whole numbers of layers that fit are listed (of every run in
every chunk, n), with the least time w(n) that its chunks then add to a mean of paths, recomputing what memory asks for.
Whatever line lies below all these points, a n + b <= w(n), lies below every partition; one that lies above the relaxed
optimum cuts it off, and a small linear programme finds the one that cuts most. Weights of paths are those that hold the
optimum up at the moment. Of the recomputing only parts of layers are counted, so w(n) is a bound itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shardwise.partition.graph import Bools, Floats, Ints, Path, Ready

_MOST = 4000
"""Points of a rank; one with more is left out."""
_STEEP = 100.0
"""The steepest line, in the greatest time of a layer."""


class RankCut(NamedTuple):
    """The sum of values x counts of these columns is at most `most`."""

    columns: Ints
    values: Floats
    most: float


class RankPoints:
    """The whole numbers of layers that fit on a rank, and what they cost."""

    def __init__(self, ready: Ready, rank: int, allowed: Bools | None = None) -> None:
        """`allowed`: chunks x runs, where layers may lie."""
        self.ready, self.allowed = ready, allowed
        self.own = np.flatnonzero(ready.rank_of == rank)
        self.runs = len(ready.run_counts)
        moments = ready.rows[ready.row_rank == rank][:, self.own]
        self.room = ready.limits[rank] - ready.fixed_static[rank] - moments @ ready.fixed_held[self.own]
        # Per moment, chunk and option: what a layer takes of the room.
        self.taken = ready.option_static + moments[:, :, None] * ready.option_held
        leanest = np.stack([self.taken[:, :, ready.run_of == k].min(axis=2) for k in range(self.runs)], axis=2)
        self.leanest = leanest.reshape(len(moments), -1)

    @cached_property
    def points(self) -> Floats | None:
        """Per point: layers of every chunk and run, in that order. None: too many."""
        cells = len(self.own) * self.runs
        found, left = np.zeros((1, 0)), self.room[None, :]
        allowed = np.ones(cells) if self.allowed is None else self.allowed[self.own].ravel()
        for cell in range(cells):
            most = int(self.ready.run_counts[cell % self.runs] * allowed[cell])
            layers = np.tile(np.arange(most + 1.0), len(found))
            found = np.hstack((np.repeat(found, most + 1, axis=0), layers[:, None]))
            left = np.repeat(left, most + 1, axis=0) - layers[:, None] * self.leanest[:, cell]
            kept = (left >= -1e-9 * np.abs(self.room)).all(axis=1) & self._sound(found, cell)
            found, left = found[kept], left[kept]
            if len(found) > _MOST:
                return None
        return found

    def _sound(self, found: Floats, cell: int) -> Bools:
        """Where runs keep their order up to this cell, and a chunk that ends there has its fewest layers."""
        chunk, run = divmod(cell, self.runs)
        later = [k for k in range(cell) if k % self.runs > run and k // self.runs < chunk]
        sound = (found[:, cell] == 0) | ~found[:, later].any(axis=1)
        inside = chunk * self.runs
        for first in range(run - 1):  # what lies between two runs of a chunk lies in it whole
            between = np.arange(first + 1, run)
            whole = (found[:, inside + between] == self.ready.run_counts[between]).all(axis=1)
            sound &= (found[:, inside + first] == 0) | (found[:, cell] == 0) | whole
        if run == self.runs - 1:
            sound &= found[:, inside:].sum(axis=1) >= self.ready.least[self.own[chunk]]
        return np.asarray(sound)

    def weights(self, path: Path) -> Floats:
        """Per chunk and option: what a layer adds to a path."""
        return np.asarray(np.einsum("kc,ko->co", path.times[:, self.own], self.ready.option_time))

    def cost(self, weights: Floats) -> Floats:
        """w(n) of every point; infinite where no choice fits: at every moment the cheapest layers recompute first."""
        assert self.points is not None  # noqa: S101 - asked for ranks that have points
        cells = [(chunk, run) for chunk in range(len(self.own)) for run in range(self.runs)]
        of_run = [np.flatnonzero(self.ready.run_of == run) for run in range(self.runs)]
        base = np.array([weights[chunk, of_run[run]].min() for chunk, run in cells])
        extra = np.zeros(len(self.points))
        for moment, room in zip(self.taken, self.room, strict=True):
            steps = list[tuple[float, float, int]]()
            held = np.zeros(len(cells))
            for k, (chunk, run) in enumerate(cells):
                held[k], own = _steps(weights[chunk, of_run[run]], moment[chunk, of_run[run]])
                steps += [(rate, saved, k) for rate, saved in own]
            lacking = self.points @ held - room - 1e-9 * abs(room)
            needs = np.zeros(len(self.points))
            for rate, saved, k in sorted(steps):
                given = np.clip(lacking, 0.0, self.points[:, k] * saved)
                needs += rate * given
                lacking -= given
            extra = np.maximum(extra, np.where(lacking > 1e-6 * (1 + abs(room)), np.inf, needs))
        return np.asarray(self.points @ base + extra)


def _steps(cost: Floats, taken: Floats) -> tuple[float, list[tuple[float, float]]]:
    """What the cheapest choice takes; then, along the lower hull, cost a unit of room and the room that it gives."""
    order = np.lexsort((taken, cost))
    at = int(order[0])
    first, found = float(taken[at]), list[tuple[float, float]]()
    while (taken < taken[at]).any():
        rates = np.where(taken < taken[at], (cost - cost[at]) / np.maximum(taken[at] - taken, 1e-300), np.inf)
        best = float(rates.min())
        after = int(np.flatnonzero(rates <= best * (1 + 1e-12))[np.argmin(taken[rates <= best * (1 + 1e-12)])])
        found.append((best, float(taken[at] - taken[after])))
        at = after
    return first, found


class RankCuts:
    """Cuts for every rank whose points can be listed."""

    def __init__(self, ready: Ready, allowed: Bools | None = None) -> None:
        self.ready = ready
        ranks = np.flatnonzero(np.isfinite(ready.limits)).tolist()
        listed = (RankPoints(ready, rank, allowed) for rank in ranks)
        self.ranks = [one for one in listed if one.points is not None and len(one.points)]

    def violated(self, fractions: Floats, path: Path, least: float) -> Iterator[RankCut]:
        """Cuts that a relaxed optimum breaks by at least so much time; `path`: the mean of those that hold it up."""
        for rank in self.ranks:
            weights = rank.weights(path)
            times = rank.cost(weights)
            assert rank.points is not None  # noqa: S101 - see RankCuts
            points, times = rank.points[np.isfinite(times)], times[np.isfinite(times)]
            counts = fractions[rank.own]
            layers = np.stack([counts[:, self.ready.run_of == k].sum(axis=1) for k in range(rank.runs)], axis=1).ravel()
            if not len(points):
                continue
            slope, height = _below(points, times, layers, _STEEP * max(float(weights.max()), least))
            if slope @ layers + height > float((weights * counts).sum()) + least:
                per_option = slope.reshape(-1, rank.runs)[:, self.ready.run_of]
                columns = (rank.own[:, None] * self.ready.options + np.arange(self.ready.options)).ravel()
                yield RankCut(columns.astype(np.int32), (per_option - weights).ravel(), -height)


def _below(points: Floats, times: Floats, at: Floats, steep: float) -> tuple[Floats, float]:
    """Of the lines below all points the one that is highest at a place: slope and height."""
    import highspy

    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    size = points.shape[1]
    cost, low = -np.append(at, 1.0), np.append(np.full(size, -steep), -highspy.kHighsInf)
    solver.addVars(size + 1, low, -low)
    solver.changeColsCost(size + 1, np.arange(size + 1, dtype=np.int32), cost)
    rows = np.hstack((points, np.ones((len(points), 1))))
    starts = np.arange(0, rows.size, size + 1, dtype=np.int32)
    columns = np.tile(np.arange(size + 1, dtype=np.int32), len(points))
    below = np.full(len(points), -highspy.kHighsInf)
    solver.addRows(len(points), below, times, rows.size, starts, columns, rows.ravel())
    solver.run()
    slope = np.asarray(solver.getSolution().col_value, dtype=float)[:size]
    # The height is taken from the points, whatever the solver's tolerance was.
    return slope, float((times - points @ slope).min())
