"""The partition as a linear programme over counts, with longest paths as cuts; highspy solves it.

Variables: layers per chunk and option, and the time T. Memory rows and totals are linear. The simulated time is the
largest of very many paths, each linear in the counts, so T >= path is valid for every path and only those that matter
are added, as they show up. How much is kept integer is the caller's choice: nothing, the layers of every rank, those of
every chunk, or all counts. Less is a relaxation: still a valid bound, and far faster to solve. In this form no column
per interval is needed; runs of several kinds keep their order by one binary per chunk and seam.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardwise.partition.graph import Bools, Floats, Ints, Path, Ready
from shardwise.partition.rank_cuts import RankCut

Level = Literal["ranks", "chunks", "counts"]
_FEASIBLE = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solved:
    """What the solver says: counts (fractions where relaxed), the value, and a bound on it."""

    counts: Floats
    value: float
    bound: float
    finished: bool
    """The value is the optimum of this programme."""
    out_of_time: bool


class Programme:
    """A programme that grows by cuts and by integer variables."""

    def __init__(self, ready: Ready, *, ordered: bool = True, allowed: Bools | None = None) -> None:
        """`allowed`: chunks x runs, where layers may lie; None: anywhere."""
        import highspy

        self.ready, self.allowed, self.kinds = ready, allowed, highspy.HighsVarType
        self.infinity = highspy.kHighsInf
        self.status = highspy.HighsModelStatus
        self.solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in (
            ("output_flag", False),
            ("threads", 1),
            ("random_seed", 1),
            ("mip_rel_gap", 1e-6),
            ("mip_heuristic_effort", 0.0),
        ):
            self.solver.setOptionValue(option, value)
        self._until, self._stopped_by = float("inf"), ""
        self.solver.setCallback(self._watch, None)
        kinds = highspy.cb.HighsCallbackType
        for kind in (kinds.kCallbackMipInterrupt, kinds.kCallbackSimplexInterrupt):
            self.solver.startCallback(kind)
        self.cells = ready.chunks * ready.options
        self._columns()
        self._totals()
        self._memory()
        if ordered:
            self._seams()
        self.paths: list[Path] = []
        self.rank_cuts: list[RankCut] = []
        self._path_rows: list[int] = []
        self._begun: list[int] = []

    def _watch(self, _kind: object, _message: str, _out: object, back: Any, _data: object) -> None:  # noqa: ANN401
        """Stop at the CPU time that was given (the solver's own limit is wall time), or at Ctrl-C."""
        try:
            if time.process_time() > self._until:
                self._stopped_by = self._stopped_by or "time"
        except KeyboardInterrupt:  # must not pass through the solver
            self._stopped_by = "user"
        if self._stopped_by:
            back.user_interrupt = True

    def _columns(self) -> None:
        most = np.tile(self.ready.run_counts[self.ready.run_of].astype(float), self.ready.chunks)
        if self.allowed is not None:
            most *= self.allowed[:, self.ready.run_of].ravel()
        self.solver.addVars(self.cells, np.zeros(self.cells), most)
        self.solver.addVar(0.0, self.infinity)
        self.solver.changeColCost(self.cells, 1.0)

    def _row(
        self, low: float, high: float, columns: Sequence[int] | np.ndarray, values: Sequence[float] | Floats
    ) -> None:
        index = np.asarray(columns, dtype=np.int32)
        self.solver.addRow(low, high, len(index), index, np.asarray(values, dtype=float))

    def _column(self, chunk: int, option: int) -> int:
        return chunk * self.ready.options + option

    def _of_chunk(self, chunk: int) -> np.ndarray:
        return np.arange(self._column(chunk, 0), self._column(chunk + 1, 0))

    def _totals(self) -> None:
        ready = self.ready
        for run, count in enumerate(ready.run_counts.tolist()):
            options = np.flatnonzero(ready.run_of == run)
            columns = (np.arange(ready.chunks)[:, None] * ready.options + options).ravel()
            self._row(count, count, columns, np.ones(len(columns)))
        for chunk, least in enumerate(ready.least.tolist()):
            if least:
                self._row(least, self.infinity, self._of_chunk(chunk), np.ones(ready.options))

    def _memory(self) -> None:
        columns, values, room = memory_table(self.ready)
        self._rows(columns, values, room)

    def _rows(self, columns: Ints, values: Floats, room: Floats) -> None:
        """Rows of equal length, each at most its room."""
        count, width = columns.shape
        starts = np.arange(0, count * width, max(width, 1), dtype=np.int32)
        low = np.full(count, -self.infinity)
        self.solver.addRows(count, low, room, columns.size, starts, columns.ravel(), values.ravel())

    def _seams(self) -> None:
        """A binary per chunk and seam between runs: 1 once the earlier run is over. It guards the order of runs."""
        ready = self.ready
        for run in range(1, len(ready.run_counts)):
            earlier, later = (np.flatnonzero(ready.run_of == k) for k in (run - 1, run))
            before = -1
            for chunk in range(ready.chunks):
                seam = self._integer(1.0)
                upto = np.arange(chunk + 1)[:, None] * ready.options
                here, there = (upto + later).ravel(), (upto + earlier).ravel()
                self._row(-self.infinity, 0.0, [*here, seam], [*np.ones(len(here)), -float(ready.run_counts[run])])
                self._row(0.0, self.infinity, [*there, seam], [*np.ones(len(there)), -float(ready.run_counts[run - 1])])
                if before >= 0:
                    self._row(0.0, self.infinity, [seam, before], [1.0, -1.0])
                before = seam

    def begin(self, count: int, most: float) -> None:
        """Every chunk's first `count` layers run their second choice, the others, `most` of them, their first.

        A column a chunk is 1 where it has others; between 0 and 1 until counts are made whole.
        """
        plain, again = (np.flatnonzero(np.arange(self.ready.options) % 2 == k) for k in (0, 1))
        ones = np.ones(len(plain))
        for chunk in range(self.ready.chunks):
            first, rest = (self._column(chunk, 0) + options for options in (again, plain))
            longer = int(self.solver.getNumCol())
            self.solver.addVar(0.0, 1.0)
            self._row(-self.infinity, float(count), first, ones)
            self._row(-self.infinity, 0.0, [*rest, longer], [*ones, -most])
            self._row(0.0, self.infinity, [*first, longer], [*ones, -float(count)])
            self._begun.append(longer)

    def _integer(self, most: float) -> int:
        column = int(self.solver.getNumCol())
        self.solver.addVar(0.0, most)
        self.solver.changeColIntegrality(column, self.kinds.kInteger)
        return column

    def cut(self, path: Path) -> None:
        """T is at least this path."""
        ready = self.ready
        weights = np.einsum("kc,ko->co", path.times, ready.option_time).ravel()
        const = float((path.times * ready.fixed_time).sum()) + path.lag
        columns = np.flatnonzero(weights)
        self._path_rows.append(int(self.solver.getNumRow()))
        self._row(const, self.infinity, [*columns, self.cells], [*-weights[columns], 1.0])
        self.paths.append(path)

    def cut_rank(self, cut: RankCut) -> None:
        """What holds for whole layers of one rank."""
        self.rank_cuts.append(cut)
        used = np.flatnonzero(cut.values)
        self._row(-self.infinity, cut.most, cut.columns[used], cut.values[used])

    def mean_path(self) -> Path:
        """Of a linear programme that was solved and not cut since: its paths, weighed as they hold the optimum up.

        The weights are the multipliers of the paths; they add up to the cost of T, which is 1.
        """
        weights = np.maximum(np.asarray(self.solver.getSolution().row_dual, dtype=float)[self._path_rows], 0.0)
        weights /= max(weights.sum(), 1e-9)  # nothing takes time
        return Path(
            time=0.0,
            times=np.einsum("p,pkc->kc", weights, np.array([path.times for path in self.paths])),
            lag=float(weights @ [path.lag for path in self.paths]),
        )

    def make_integer(self, level: Level) -> None:
        ready = self.ready
        for column in self._begun:
            self.solver.changeColIntegrality(column, self.kinds.kInteger)
        if level == "counts":
            for column in range(self.cells):
                self.solver.changeColIntegrality(column, self.kinds.kInteger)
            return
        groups = (
            [np.flatnonzero(ready.rank_of == rank) for rank in range(ready.problem.pp)]
            if level == "ranks"
            else [np.array([chunk]) for chunk in range(ready.chunks)]
        )
        for chunks in groups:
            whole = self._integer(float(ready.run_counts.sum()))
            columns = np.concatenate([self._of_chunk(int(chunk)) for chunk in chunks])
            self._row(0.0, 0.0, [*columns, whole], [*np.ones(len(columns)), -1.0])

    def suggest(self, counts: Ints) -> None:
        """Tell the solver of a partition, so that it does not look for worse ones."""
        values = np.asarray(counts, dtype=float).ravel()
        self.solver.setSolution(self.cells, np.arange(self.cells, dtype=np.int32), values)

    def solve(self, *, seconds: float, nodes: int = 0) -> Solved | None:
        """None: there is no solution. Nodes bound the work the same way on every machine, seconds are a backstop."""
        self._until, self._stopped_by = time.process_time() + max(seconds, 0.01), ""
        if nodes:
            self.solver.setOptionValue("mip_max_nodes", nodes)
        self.solver.run()
        if self.solver.getModelStatus() in {self.status.kUnknown, self.status.kSolveError, self.status.kNotset}:
            self.solver.clearSolver()  # a basis gone bad: start anew
            self.solver.run()
        if self._stopped_by == "user":
            raise KeyboardInterrupt
        status, info = self.solver.getModelStatus(), self.solver.getInfo()
        if status in {self.status.kInfeasible, self.status.kUnboundedOrInfeasible}:
            return None
        values = np.asarray(self.solver.getSolution().col_value, dtype=float)
        whole = bool(info.mip_node_count >= 0)
        finished = status == self.status.kOptimal
        bound = float(info.mip_dual_bound) if whole else float(info.objective_function_value) if finished else 0.0
        known = len(values) > self.cells and info.primal_solution_status == 2
        counts = values[: self.cells] if known else np.zeros(self.cells)
        return Solved(
            counts=counts.reshape(self.ready.chunks, -1),
            value=float(info.objective_function_value) if known else np.inf,
            bound=bound if np.isfinite(bound) else 0.0,
            finished=finished,
            out_of_time=self._stopped_by == "time",
        )


def memory_table(ready: Ready) -> tuple[Ints, Floats, Floats]:
    """Every moment of a limited rank's memory as a row: columns, values and the room for them."""
    limited = np.flatnonzero(np.isfinite(ready.limits[ready.row_rank]))
    ranks, rows = ready.row_rank[limited], ready.rows[limited]
    own = ready.rank_of.argsort(kind="stable").reshape(ready.problem.pp, -1)[ranks]
    held = np.take_along_axis(rows, own, axis=1)
    columns = own[:, :, None] * ready.options + np.arange(ready.options)
    values = ready.option_static + held[:, :, None] * ready.option_held
    room = ready.limits[ranks] - ready.fixed_static[ranks] - (held * ready.fixed_held[own]).sum(axis=1)
    shape = (len(ranks), -1) if len(ranks) else (0, 0)
    return columns.reshape(shape).astype(np.int32), values.reshape(shape), room
