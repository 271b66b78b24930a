"""A lower bound on the simulated time of every partition that fits, tightened step by step.

First the linear relaxation with the longest paths that matter; paths are looked for not only at the relaxed optimum but
also between it and the best partition known, which finds the ones that will bind later. Cuts of what whole layers cost
a rank (rank_cuts.py) make it much tighter where memory is short. Then the layers of every rank are made whole, then
those of every chunk, then all counts: the bound rises at each step, and when the last one settles the best partition is
proven.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwise.partition.graph import Bools, Floats, Ints, Path, Ready
from shardwise.partition.milp import Level, Programme, Solved
from shardwise.partition.rank_cuts import RankCut, RankCuts
from shardwise.pipeline.action import B

_MIXES = (1.0, 0.9, 0.5)
"""How much of the relaxed optimum is in the point whose longest path is added."""
_TIGHT = 1e-5
_HOLDS = 1 - 1e-6
_ROUGH = 3e-4
"""Where the first relaxation stops: the rest of the way is long and does not change where it leads."""
_SURE = 1 - 2e-7
"""Takes the solver's tolerance off its bounds."""
_LEVELS: tuple[tuple[Level, int], ...] = (("ranks", 400), ("chunks", 400), ("counts", 2000), ("counts", 20_000))
"""Level and nodes of one solve."""
_HELPS, _ROSE = 1e-4, 5e-5
"""A cut, or a solve with whole numbers, is followed by another where it raised the bound by such a share."""
_SEAMS = (100, 6)
"""Nodes of one solve of the relaxation, and solves, where runs of layers keep their order by binaries."""
Found = Callable[[float, "Ints | None"], bool]
"""Told of a bound, and of counts that may be a good partition; true: stop."""


@dataclass(slots=True, kw_only=True, eq=False)
class Bounder:
    """One search for a bound."""

    ready: Ready
    incumbent: Ints
    """The best partition known."""
    deadline: float
    """CPU seconds of this process at which to stop."""
    found: Found
    rounds: int = 60
    relaxations: int = 1200
    """Solutions of the linear relaxation at most."""
    rank_cuts: bool = False
    """Whether what whole layers cost a rank goes in: tighter where memory is short, but no mean of paths any more."""
    begins: tuple[int, float] | None = None
    """`Programme.begin`: so many first layers of every chunk, and how many may follow."""
    allowed: Bools | None = None
    """Chunks x runs, where layers may lie; None: anywhere that keeps their order."""
    bound: float = 0.0
    out_of_time: bool = False
    infeasible: bool = False
    """Proven: nothing fits."""
    fractions: Floats | None = None
    """Counts of the relaxed optimum: where good partitions are near."""
    _programme: Programme = field(init=False)
    _whole_ranks: bool = False

    def relax(self, *, ordered: bool = True, known: Sequence[Path] = (), cuts: Sequence[RankCut] = ()) -> None:
        """The linear relaxation, nearly to the last path, or until `found` has enough.

        `ordered` False lets runs of layers stand in any order: looser, and without binary variables. `known`, `cuts`:
        to begin with, such as the paths that bind in a problem over the same order.
        """
        self._programme = Programme(self.ready, ordered=False, allowed=self.allowed)
        if self.begins:
            self._programme.begin(*self.begins)
        own = self.ready.critical(self.ready.durations(self.incumbent))
        self._cut(known or (own, *rank_paths(self.ready)), cuts)
        self._relaxed(_ROUGH)
        if self.rank_cuts:
            self._cut_ranks()
        enough = self.found(self.bound, None)
        if ordered and len(self.ready.run_counts) > 1 and not (enough or self.out_of_time or self.infeasible):
            self._order()
            self.found(self.bound, None)

    def _order(self) -> None:
        """The same in order: without the binaries that takes, most paths were found a hundred times faster."""
        known, cuts, self.relaxations = self._programme.paths, self._programme.rank_cuts, _SEAMS[1]
        self._programme = Programme(self.ready, allowed=self.allowed)
        if self.begins:
            self._programme.begin(*self.begins)
        self._cut(known, cuts)
        self._relaxed(_ROUGH)

    def _cut(self, paths: Sequence[Path], cuts: Sequence[RankCut]) -> None:
        for path in paths:
            self._programme.cut(path)
        for cut in cuts:
            self._programme.cut_rank(cut)

    def _cut_ranks(self) -> None:
        """Cuts of single ranks, as long as they help."""
        ranks, before = RankCuts(self.ready, self.allowed), 0.0
        while not self.out_of_time and self.bound > before * (1 + _HELPS):
            before, path = self.bound, self.mean_path()
            if path is None or self.fractions is None:
                return
            cuts = list(ranks.violated(self.fractions, path, _TIGHT * before))
            self._cut((), cuts)
            if not cuts or self.found(self.bound, None):
                return
            self._relaxed(_ROUGH)

    def binding(self, share: float = _HOLDS) -> list[Path]:
        """The paths that hold the relaxed optimum up, or are nearly as long."""
        if self.fractions is None:
            return []
        times = self.ready.durations(self.fractions)
        lengths = [path.under(times) for path in self._programme.paths]
        return [path for path, long in zip(self._programme.paths, lengths, strict=True) if long > max(lengths) * share]

    @property
    def cuts(self) -> list[RankCut]:
        """Those of single ranks so far."""
        return self._programme.rank_cuts

    def raised(self) -> bool:
        """After `relax`, once more with the layers of every rank whole; false: that raises the bound no further."""
        if not self._whole_ranks:
            self._programme.make_integer("ranks")
        self._whole_ranks, self.rounds, before = True, 1, self.bound
        self._whole(*_LEVELS[0])
        return self.bound > before * (1 + _HELPS)

    def mean_path(self) -> Path | None:
        """The paths of the relaxation as they hold its optimum up: their mean alone proves the bound."""
        solved = self._programme.solve(seconds=self._left())
        return self._programme.mean_path() if solved and solved.finished else None

    def tighten(self, levels: Sequence[tuple[Level, int]] = _LEVELS) -> None:
        """To the last path, then more and more counts whole; `relax` comes first."""
        self.out_of_time = False  # the time may be another one now
        self._relaxed(_TIGHT)
        if self.found(self.bound, None) or self.out_of_time:
            return
        for level, nodes in levels:
            self._programme.make_integer(level)
            if self._whole(level, nodes):
                return

    def _left(self) -> float:
        return self.deadline - time.process_time()

    def _relaxed(self, close: float) -> None:
        for _ in range(self.relaxations):
            solved = self._programme.solve(seconds=self._left(), nodes=_SEAMS[0])
            if solved is None or not solved.finished:
                self.infeasible = solved is None
                self.bound = max(self.bound, solved.bound * _SURE if solved else 0.0)
                self.out_of_time = solved is not None and solved.out_of_time
                return
            self.bound, self.fractions = max(self.bound, solved.value * _SURE), solved.counts
            if self._cut_off(solved) <= solved.value * (1 + close) or self.found(self.bound, None):
                return
            if self._left() <= 0:
                self._stopped(solved)
                return

    def _whole(self, level: Level, nodes: int) -> bool:
        for _ in range(self.rounds):
            self._programme.suggest(self.incumbent)
            solved = self._programme.solve(seconds=self._left(), nodes=nodes)
            if solved is None:
                return self._stopped(solved)
            rose = solved.bound > self.bound * (1 + _ROSE)
            self.bound = max(self.bound, solved.bound * _SURE)
            real = level == "counts" and np.isfinite(solved.value)
            if self.found(self.bound, np.rint(solved.counts).astype(np.int32) if real else None):
                return True
            if solved.out_of_time or self._left() <= 0:
                return self._stopped(solved)
            if not np.isfinite(solved.value):
                return False
            reached = self._cut_off(solved) <= solved.value * (1 + _TIGHT)
            if reached or not (rose or level == "counts") or (level == "counts" and not solved.finished):
                return False
        return False

    def _stopped(self, solved: Solved | None) -> bool:
        self.out_of_time = solved is not None
        return True

    def _cut_off(self, solved: Solved) -> float:
        """Add the longest paths at and near a solution; the time of the solution itself."""
        there, here = self.ready.durations(solved.counts), self.ready.durations(self.incumbent)
        longest = 0.0
        for mix in _MIXES:
            path = self.ready.critical(mix * there + (1 - mix) * here)
            length = path.under(there)
            longest = max(longest, length)
            if length > solved.value * (1 + _TIGHT / 2):
                self._programme.cut(path)
        return longest


def rank_paths(ready: Ready) -> Iterator[Path]:
    """For every rank the longest path when it is slowest."""
    for rank in range(ready.problem.pp):
        for slower in (1.03, 1.2, 1000.0):
            weights = np.ones((4, ready.chunks))
            weights[B] = 2.0
            weights[:, ready.rank_of == rank] *= slower
            yield ready.critical(weights)
