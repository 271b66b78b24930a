"""A tighter bound for several kinds of layers: branch and bound over the seams between them.

Memory and time of a rank are whole numbers of layers, but where kinds may mix in every chunk, nearly all sums can be
had. So every seam gets a range of chunks that the last layer before it may lie in, at first all. A range rules out
the later kinds ahead of it and the earlier ones behind it; what is left has few whole numbers, and the cuts of single
ranks (rank_cuts.py) grow strong. The node with the lowest bound goes on: its seam that is crossed most is split where
that is, and where all seams stand still the layers of every rank are made whole, which is fast without binaries for
seams. The lowest of all nodes bounds all partitions.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from shardwise.partition.bound import Bounder
from shardwise.partition.graph import Bools, Floats, Ints, Ready

_NEAR = 0.97
"""Paths of a node that its parts begin with: those so long, as a share of the longest."""
_MOST = 200
"""Nodes and raises at most, where time does not end it."""
Ranges = tuple[tuple[int, int], ...]
"""First and last chunk that the last layer before every seam may lie in."""


class _Node(NamedTuple):
    """Partitions of some ranges; the lowest comes first."""

    bound: float
    number: int
    ranges: Ranges
    bounder: Bounder


@dataclass(slots=True, kw_only=True, eq=False)
class SeamSearch:
    """The open nodes; `run` goes on where it stopped."""

    ready: Ready
    found: Callable[[float, Ints | None], bool]
    """Told of the bound of all partitions; true: stop."""
    stuck: bool = False
    """Nothing that is done here raises the bound further."""
    _open: list[_Node] = field(default_factory=list)
    _made: int = 0

    @property
    def fractions(self) -> Floats | None:
        """The relaxed optimum of the lowest node."""
        return self._open[0].bounder.fractions if self._open else None

    def run(self, incumbent: Ints, limit: float, deadline: float, *, whole: bool) -> None:
        """Raise the lowest bound to the time of the best partition known, or until the CPU time that is given.

        `whole` False: only until all seams of the lowest node stand still.
        """
        if not self._made:
            everywhere = ((0, self.ready.chunks - 1),) * (len(self.ready.run_counts) - 1)
            self._add(everywhere, None, incumbent, limit, deadline)
        while self._made < _MOST and time.process_time() < deadline and not self.stuck:
            if self.found(self._open[0].bound if self._open else limit, None) or not self._open:
                return
            node = self._open[0]
            parts = list(split(self.ready, node.ranges, node.bounder.fractions))
            if not parts and not whole:
                return
            heapq.heappop(self._open)
            for ranges in parts:
                self._add(ranges, node, incumbent, limit, deadline)
            if not parts:
                self._raise(node, incumbent, limit, deadline)

    def _raise(self, node: _Node, incumbent: Ints, limit: float, deadline: float) -> None:
        bounder = node.bounder
        bounder.deadline, bounder.incumbent = deadline, incumbent
        self.stuck = not bounder.raised() and not bounder.out_of_time
        self._keep(max(node.bound, bounder.bound), node.ranges, bounder, limit)

    def _add(self, ranges: Ranges, above: _Node | None, incumbent: Ints, limit: float, deadline: float) -> None:
        bounder = Bounder(
            ready=self.ready, incumbent=incumbent, deadline=deadline, found=lambda bound, _: bound >= limit,
            rank_cuts=True, allowed=allowed(self.ready, ranges),
        )  # fmt: skip
        known, cuts = (above.bounder.binding(_NEAR), above.bounder.cuts) if above else ([], [])
        bounder.relax(ordered=False, known=known, cuts=cuts)
        if not bounder.infeasible:
            self._keep(max(bounder.bound, above.bound if above else 0.0), ranges, bounder, limit)

    def _keep(self, bound: float, ranges: Ranges, bounder: Bounder, limit: float) -> None:
        self._made += 1
        if bound < limit:
            heapq.heappush(self._open, _Node(bound, self._made, ranges, bounder))


def allowed(ready: Ready, ranges: Ranges) -> Bools:
    """Chunks x runs: where layers may lie."""
    table = np.ones((ready.chunks, len(ready.run_counts)), dtype=np.bool_)
    for later, (first, last) in enumerate(ranges, start=1):
        table[last + 1 :, :later] = False
        table[:first, later:] = False
    return table


def split(ready: Ready, ranges: Ranges, fractions: Floats | None) -> Iterator[Ranges]:
    """Two halves of the range of the seam that a relaxed optimum crosses most; nothing where all stand still."""
    wide = [seam for seam, (first, last) in enumerate(ranges) if first < last]
    if not wide:
        return
    seam, at = max((_crossed(ready, ranges, k, fractions) for k in wide), key=lambda one: one[0])[1]
    first, last = ranges[seam]
    for half in ((first, at), (at + 1, last)):
        changed = _in_step([*ranges[:seam], half, *ranges[seam + 1 :]])
        if changed is not None:
            yield changed


def _crossed(ready: Ready, ranges: Ranges, seam: int, fractions: Floats | None) -> tuple[float, tuple[int, int]]:
    """How many layers are on the wrong side at most, and of which seam where; the middle where all are as many."""
    first, last = ranges[seam]
    here = np.arange(first, last)
    if fractions is None:
        return 0.0, (seam, int(here[len(here) // 2]))
    before = fractions[:, ready.run_of <= seam].sum(axis=1).cumsum()
    after = fractions[:, ready.run_of > seam].sum(axis=1).cumsum()
    wrong = np.minimum(before[-1] - before[here], after[here])
    middle = -np.abs(here - here.mean())
    best = np.lexsort((middle, wrong))[-1]
    return float(wrong[best]), (seam, int(here[best]))


def _in_step(ranges: list[tuple[int, int]]) -> Ranges | None:
    """Every seam at or behind the one before; None: that cannot be."""
    firsts = np.maximum.accumulate([first for first, _ in ranges]).tolist()
    lasts = np.minimum.accumulate([last for _, last in ranges][::-1])[::-1].tolist()
    found = tuple(zip(firsts, lasts, strict=True))
    return found if all(first <= last for first, last in found) else None
