"""The search behind `schedule auto`: build under many rules, anneal the best, stop at the bound.

Two kinds of rules compete: those that aim at a horizon (lateness.py) and those that admit micro batches (admission.py),
which little memory wants. Each is climbed from random points; the better kind gets the later rounds. All randomness is
seeded, so the same problem gives the same schedule unless a time limit cuts in.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from shardwise.pipeline.admission import Admission, AdmissionPoint
from shardwise.pipeline.arrays import Floats, Objective, OrderArrays
from shardwise.pipeline.bounds import heads
from shardwise.pipeline.build import Builder, BuildRule, Built
from shardwise.pipeline.lateness import Lateness, LatenessPoint

Report = Callable[[float, float, int], None]
"""Called with the best value, the bound, and how many schedules were looked at."""

_SMALL, _LARGE = 4_000, 13_000
"""Actions up to which annealing is worth more and hotter runs, with moves off the critical path; and from which a build
and a replay miss the cache: fewer of both, so that pp 32 with 128 micro batches takes about a CPU second."""
_BUILT, _MOST_BUILDS, _FEWER_FROM = 6e6, 4000, 1.3e4
"""Actions in all builds at effort 1, about a CPU second; builds at most; actions from which there are fewer still."""
_ANNEALED = 1e6
"""Actions replayed at most for each action of a small pipeline: more of them find nothing new."""
_ROUNDS = 3


class _Annealing(NamedTuple):
    """Actions replayed in all at effort 1 (1e8 are about a CPU second), and the runs of a round and of the end: start
    temperature in typical action times, share of moves anywhere.
    """

    work: float
    runs: tuple[tuple[float, float], ...]
    last: tuple[tuple[float, float], ...]


_ANNEALING = {
    "small": _Annealing(2e8, ((0.3, 0.0), (1.0, 0.1)), ((0.5, 0.1), (2.0, 0.1))),
    "middle": _Annealing(8e7, ((0.3, 0.05),), ((0.15, 0.0),)),
    "large": _Annealing(1e8, (), ((0.3, 0.02),)),  # one long run finds more than two short ones
}
P = TypeVar("P")


class _Rules(Protocol[P]):
    def rule(self, point: P) -> tuple[BuildRule, Floats]: ...
    def fresh(self, dice: random.Random) -> P: ...
    def near(self, at: P, dice: random.Random) -> P: ...


@dataclass(slots=True, eq=False)
class _Climb(Generic[P]):
    """The points of one kind of rules: the best of this round, and what the best of all rounds reaches."""

    rules: _Rules[P]
    point: P | None = None
    value: float = float("inf")
    least: float = float("inf")

    def next(self, dice: random.Random, *, fresh: bool) -> P:
        return self.rules.fresh(dice) if fresh or self.point is None else self.rules.near(self.point, dice)

    def tell(self, point: P, value: float) -> None:
        self.least = min(self.least, value)
        if value <= self.value:
            self.point, self.value = point, value


@dataclass(slots=True, kw_only=True, eq=False)
class OrderSearch:
    """State of one search: the best schedule so far and how it was made."""

    problem: OrderArrays
    objective: Objective
    bound: float
    effort: float = 1.0
    deadline: float = float("inf")
    """CPU seconds of this process at which to stop."""
    report: Report = lambda *_: None
    best: Built = field(init=False)
    looked: int = 0
    interrupted: bool = False
    out_of_time: bool = False
    _round: Built = field(init=False)
    """The best of this round, which is annealed: another valley than the best of all, maybe."""
    _late: Lateness = field(init=False)
    _admit: Admission = field(init=False)
    _lateness: _Climb[LatenessPoint] = field(init=False)
    _admission: _Climb[AdmissionPoint] = field(init=False)
    _builder: Builder = field(init=False)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        lag = np.zeros(self.problem.pp)
        if self.objective == "period":  # a rank may end as much later as it begins later
            lag = heads(self.problem)[0, self.problem.chunk_of[:, 0], 0].copy()
        self._builder = Builder(self.problem, self.objective, lag=lag)
        self._late, self._admit = Lateness(self.problem, self.bound, lag), Admission(self.problem)
        self._lateness, self._admission = _Climb(self._late), _Climb(self._admit)
        self._random = random.Random(20240503)  # noqa: S311 - a search, not a secret
        empty = np.zeros(self.problem.actions, dtype=np.int32)
        self.best = self._round = Built(value=float("inf"), rows=empty)

    @property
    def proven(self) -> bool:
        return self.best.value <= self.bound * (1 + 1e-9)

    @property
    def finished(self) -> bool:
        if time.process_time() > self.deadline:
            self.out_of_time = True
        return self.proven or self.out_of_time

    def first(self) -> None:
        """The plain rules, enough in most cases, then the ones that long searches found."""
        for step in self._first():
            step()
            if self.finished:
                return

    def _first(self) -> Iterator[Callable[[], None]]:
        large = self.problem.actions > _LARGE
        for aim in islice(self._late.plain(), 9 if large else None):
            yield partial(self._try, self._lateness, aim)
        for entry in chain(self._admit.plain(), self._admit.learned()) if self.problem.limited else ():
            yield partial(self._try, self._admission, entry)
        for aim in self._late.learned():
            yield partial(self._try, self._lateness, aim)

    def glance(self) -> None:
        """A quick look, to compare problems rather than to solve one."""
        self.first()
        if not self.proven:
            self._anneal("best", min(2e6, 1e4 * self.problem.actions), 0.5, 0.1, 0)

    def refine(self) -> None:
        """Vary and anneal from the best so far until it is proven, or the plan or the time is through."""
        for step in self._plan():
            if self.finished:
                return
            step()

    def offer(self, built: Built) -> None:
        self.looked += 1
        if built.value < self._round.value:
            self._round = built
        if built.value < self.best.value:
            self.best = built
            self.report(built.value, self.bound, self.looked)

    def _plan(self) -> Iterator[Callable[[], None]]:
        """In every round builds, then annealing of the round's best; at last annealing of the best of all."""
        size = self.problem.actions
        large = size > _LARGE
        rounds, fresh = (1, 0.1) if large else (_ROUNDS, 0.25)  # share of random points; the others are near the best
        most = min(_MOST_BUILDS, _BUILT * min(1.0, _FEWER_FROM / size) / size)
        builds = int(max(0.0, most * self.effort - self.looked) / rounds) + 1
        annealing = _ANNEALING["large" if large else "small" if size <= _SMALL else "middle"]
        count = rounds * len(annealing.runs) + len(annealing.last)
        work = min(annealing.work, _ANNEALED * size) * self.effort / count
        for turn in range(rounds):
            if turn:
                yield self._restart
            for k in range(builds):
                yield partial(self._vary, both=turn == 0 and not large, fresh=k < fresh * builds)
            for k, (heat, anywhere) in enumerate(annealing.runs):
                yield partial(self._anneal, "round", work, heat, anywhere, 10 * turn + k)
        for k, (heat, anywhere) in enumerate(annealing.last):
            yield partial(self._anneal, "best", work, heat, anywhere, 10 * _ROUNDS + k)

    def _vary(self, *, both: bool, fresh: bool) -> None:
        """A point of both kinds in turn, or of the one that has reached less."""
        leads = self._lateness.least <= self._admission.least
        if not self.problem.limited or (self.looked % 2 == 0 if both else leads):
            self._try(self._lateness, self._lateness.next(self._random, fresh=fresh))
        else:
            self._try(self._admission, self._admission.next(self._random, fresh=fresh))

    def _restart(self) -> None:
        """Go on from random points, whatever was known before."""
        for climb in (self._lateness, self._admission):
            climb.point, climb.value = None, float("inf")
        self._round = Built(value=float("inf"), rows=self.best.rows)

    def _try(self, climb: _Climb[P], point: P) -> None:
        rule, tail = climb.rules.rule(point)
        built = self._builder.build(rule, tail)
        climb.tell(point, built.value)
        self.offer(built)

    def _anneal(self, which: Literal["round", "best"], work: float, heat: float, anywhere: float, seed: int) -> None:
        built = self.best if which == "best" else self._round
        if built.value == float("inf"):
            return
        target, heat = self.bound * (1 + 1e-9), heat * self.problem.unit
        self.offer(self._builder.anneal(built, target=target, work=work, heat=heat, anywhere=anywhere, seed=seed))
