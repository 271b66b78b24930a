"""The search behind `schedule auto`: build under many rules, anneal the best, stop at the bound.

Builds differ in the horizon, the memory reserve and a bias on the tails. A bias is a sum of simple shapes (one per
kind and position of chunk: a constant, a slope over ranks, a slope over micro batches), for what tails cannot see:
queues. All randomness is seeded, so the same problem gives the same schedule unless a time limit cuts in.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from shardwise.pipeline.arrays import Floats, Objective, OrderArrays
from shardwise.pipeline.bounds import heads, tails
from shardwise.pipeline.build import Builder, BuildRule, Built

Report = Callable[[float, float, int], None]
"""Called with the best value, the bound, and how many schedules were looked at."""

_STARTS = Path(__file__).with_name("starts.json")
_SMALL = 4000
"""Actions up to which annealing is worth more and hotter runs, with moves off the critical path."""
_LARGE = 8000
"""Actions from which a build and a replay miss the cache: fewer of both, so that pp 32 with 128 micro batches takes
about 7 CPU seconds."""
_HOT = ((0.2, 0.0), (0.5, 0.1), (1.0, 0.1), (2.0, 0.1))
_COOL = ((0.3, 0.0), (0.15, 0.0))
"""Annealing runs: start temperature in typical action times, share of moves anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderPoint:
    """A rule and the bias on the tails, in typical action times."""

    horizon: float
    """Over the bound."""
    reserve: float
    inherit: float
    bias: Floats


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
    point: OrderPoint = field(init=False)
    looked: int = 0
    interrupted: bool = False
    out_of_time: bool = False
    _point_value: float = float("inf")
    _left: tuple[OrderPoint, float] = field(init=False)
    _builder: Builder = field(init=False)
    _tail: Floats = field(init=False)
    _sizes: int = field(init=False)
    """Numbers of a bias: three shapes for each kind and position."""
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        lag = np.zeros(self.problem.pp)
        if self.objective == "period":  # a rank may end as much later as it begins later
            lag = heads(self.problem)[0, self.problem.chunk_of[:, 0], 0].copy()
        self._builder = Builder(self.problem, self.objective, lag=lag)
        self._tail = tails(self.problem, lag).ravel()
        self._sizes = 9 * self.problem.vpp
        self._random = random.Random(20240503)  # noqa: S311 - a search, not a secret
        empty = np.zeros(self.problem.actions, dtype=np.int32)
        self.best = Built(value=float("inf"), rows=empty)
        self.point = OrderPoint(horizon=1.0, reserve=1.0, inherit=0.0, bias=np.zeros(self._sizes))

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
        for points in (self._plain, self._learned):
            for point in points():
                self._try(point)
                if self.finished:
                    return

    def glance(self) -> None:
        """A quick look, to compare problems rather than to solve one."""
        self.first()
        if not self.proven:
            self._anneal(min(2e6, 1e4 * self.problem.actions), 0.5, 0.1, 0)

    def refine(self) -> None:
        """Vary and anneal from the best so far until it is proven, or the plan or the time is through."""
        for step in self._plan():
            if self.finished:
                return
            step()

    def offer(self, built: Built) -> None:
        self.looked += 1
        if built.value < self.best.value:
            self.best = built
            self.report(built.value, self.bound, self.looked)

    def _plan(self) -> Iterator[Callable[[], None]]:
        """Builds first, then annealing from the best, in three rounds of a fixed number of steps."""
        size = self.problem.actions
        builds = int(min(1500, max(40, (3e6 if size > _LARGE else 5e6) / size)) * self.effort)
        work = min(1.5e8 if size > _LARGE else 3e8, 4e5 * size) * self.effort
        runs = _HOT if size <= _SMALL else _COOL
        for turn in range(3):
            if turn == 1:  # a second valley; the third round goes on from the better of the two
                yield partial(self._restart, builds // 12)
            if turn == 2:
                yield self._return
            for _ in range(builds):
                yield self._vary
            for k, (heat, anywhere) in enumerate(runs):
                yield partial(self._anneal, work / len(runs), heat, anywhere, 10 * turn + k)

    def _plain(self) -> Iterator[OrderPoint]:
        zero = np.zeros(self._sizes)
        for reserve in (1.0, 0.0, 2.0, 3.0) if self.problem.limited else (0.0,):
            for horizon in (1.0, 0.9, 0.97, 1.03, 0.5, 1.1):
                yield OrderPoint(horizon=horizon, reserve=reserve, inherit=0.0, bias=zero)

    def _learned(self) -> Iterator[OrderPoint]:
        """starts.json knows the first and the last chunk of a rank; those between get what lies between."""
        place = np.linspace(0.0, 1.0, self.problem.vpp)[None, :, None]
        for entry in json.loads(_STARTS.read_text())["points"]:
            ends = np.array(entry["bias"]).reshape(3, 2, 3)
            bias = (ends[:, :1] * (1 - place) + ends[:, 1:] * place).ravel()
            reserve = entry["reserve"] if self.problem.limited else 0.0
            yield OrderPoint(horizon=entry["horizon"], reserve=reserve, inherit=entry["inherit"], bias=bias)

    def _try(self, point: OrderPoint) -> None:
        scale = self.problem.unit
        tail = self._tail + _shift(self.problem, point.bias) * scale if point.bias.any() else self._tail
        rule = BuildRule(horizon=self.bound * point.horizon, reserve=point.reserve, inherit=point.inherit * scale)
        built = self._builder.build(rule, tail)
        if built.value <= self._point_value:
            self.point, self._point_value = point, built.value
        self.offer(built)

    def _vary(self) -> None:
        self._try(self._fresh() if self._random.random() < 0.2 else self._near())

    def _restart(self, tries: int) -> None:
        """Go on from the best of some random points, whatever was known before."""
        known, value = self.point, self._point_value
        self._point_value = float("inf")
        for _ in range(tries):
            self._try(self._fresh())
        self._left = known, value

    def _return(self) -> None:
        """Back to the point left at the restart, if it was better."""
        point, value = self._left
        if value < self._point_value:
            self.point, self._point_value = point, value

    def _fresh(self) -> OrderPoint:
        """A random point."""
        dice = self._random
        size = dice.choice((0.5, 1, 2, 4, 8))
        bias = np.array([size * dice.gauss(0, 1) for _ in range(self._sizes)])
        if dice.random() < 0.5:
            bias.reshape(-1, 3)[:, 1:] = 0.0
        return OrderPoint(
            horizon=dice.choice((0.5, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1)),
            reserve=dice.choice((0, 1, 1, 2, 3)) if self.problem.limited else 0.0,
            inherit=dice.choice((0, 0, 0.5, 1, 2, -1)),
            bias=bias,
        )

    def _near(self) -> OrderPoint:
        """A step away from the best point."""
        dice, at = self._random, self.point
        horizon, reserve, inherit = at.horizon, at.reserve, at.inherit
        if dice.random() < 0.3:
            horizon *= 1 + dice.choice((-0.05, -0.02, -0.01, 0.01, 0.02, 0.05))
        if self.problem.limited and dice.random() < 0.2:
            reserve = max(0.0, reserve + dice.choice((-0.5, 0.5)))
        if dice.random() < 0.2:
            inherit += dice.gauss(0, 1)
        size, share = dice.choice((0.1, 0.3, 1, 3)), dice.choice((0.1, 0.3, 0.6))
        moved = np.array([size * dice.gauss(0, 1) if dice.random() < share else 0.0 for _ in at.bias])
        return OrderPoint(horizon=horizon, reserve=reserve, inherit=inherit, bias=at.bias + moved)

    def _anneal(self, work: float, heat: float, anywhere: float, seed: int) -> None:
        target, heat = self.bound * (1 + 1e-9), heat * self.problem.unit
        run = self._builder.anneal(self.best, target=target, work=work, heat=heat, anywhere=anywhere, seed=seed)
        self.offer(run)


def _shift(problem: OrderArrays, bias: Floats) -> Floats:
    """The sum of the shapes, by code: for each kind and position 1, the rank and the micro batch from -0.5 to 0.5."""
    rank = problem.rank_of / max(1, problem.pp - 1) - 0.5
    batch = np.arange(problem.microbatches) / max(1, problem.microbatches - 1) - 0.5
    constant, by_rank, by_batch = np.moveaxis(bias.reshape(3, problem.vpp, 3)[:, problem.position], 2, 0)
    return np.asarray(((constant + by_rank * rank)[:, :, None] + by_batch[:, :, None] * batch).ravel())
