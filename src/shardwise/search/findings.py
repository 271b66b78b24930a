"""What a search has found so far, and the answer as it stands."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwise.estimate.predictions import Searched
from shardwise.inputs.strategy import Strategy
from shardwise.plan.plan import ProofPart
from shardwise.search.cut_bound import Lessons
from shardwise.search.executor import Executor, Serial
from shardwise.search.mixed_screen import screen_of
from shardwise.search.question import GAP, MOST_SHOWN, Answer, Candidate, Point, Question, covered, top_of
from shardwise.search.refine import NEAR, Refined, candidate_of
from shardwise.search.screen import ScreenRows
from shardwise.search.space import Space
from shardwise.search.table import Floats

NAMED = 8
"""Strategies that a proof names."""
Report = Callable[[Any], None]
Stop = Callable[[], bool]


@dataclass(kw_only=True)
class Findings:
    """Everything that a search knows so far: what was tried, what a bound excludes, the best."""

    question: Question
    gap: float = GAP
    time_limit: float | None = None
    executor: Executor = field(default_factory=Serial)
    report: Report = lambda _: None
    """Called now and then with the search itself, and once at its end."""
    stop: Stop = lambda: False
    """Asked often; once it says yes, the best so far is the answer."""
    best: Refined | None = None
    best_at: int = 0
    """Place of the best in the space."""
    leanest: Refined | None = None
    """The strategy that needs least memory, while none fits."""
    tried: list[tuple[int, Candidate]] = field(default_factory=list)
    """Every simulated strategy with its place in the space, in the order of simulation; it only grows, and what was
    looked at again stands in it twice."""
    hasty: dict[int, float] = field(default_factory=dict)
    """Seconds, by place, of what was cut into stages in haste because it seemed to come nowhere near."""
    screened: int = 0
    too_large: int = 0
    simulations: int = 0
    """Every cut into stages counts."""
    points: int = 0
    """Strategies simulated, all cuts into stages of one together."""
    pruned: int = 0
    """Strategies that were not simulated because a bound proves them too large or no faster than the best."""
    open: dict[int, float] = field(default_factory=dict)
    """By place, what no cut of a simulated strategy can beat: a cut that was found proves nothing of the others."""
    cuts_left: int = 4000
    """Cuts that may yet be estimated one by one for a proof."""
    bound: float = 0.0
    dropped: float = float("inf")
    """Lowest bound of what was dropped because it cannot win."""
    finished: bool = True
    interrupted: bool = False
    screen_seconds: float = 0.0
    began: float = field(default_factory=time.process_time)
    wall: float = field(default_factory=time.monotonic)
    reported: float = 0.0
    """When the last report was made."""

    def __post_init__(self) -> None:
        self.space = Space(question=self.question)
        self.screen = screen_of(self.space)
        self._pool: Floats = np.empty((0, 3))
        self._starts = np.empty(0, dtype=np.int64)
        self._lessons = Lessons()
        self._glance: Floats = np.empty(0)
        self._rows: dict[int, ScreenRows] = {}
        self._seen = set[Strategy]()
        self._proofs: dict[tuple[object, ...], tuple[int, int]] = {}

    @property
    def size(self) -> int:
        """Strategies of the space; 0 while they are not yet counted."""
        return int(self._starts[-1]) if len(self._starts) else 0

    @property
    def least(self) -> float:
        """What no strategy takes less than, whatever the order of ranks; 0 while that is not known of all."""
        return float(self._glance.min()) if len(self._glance) else 0.0

    @property
    def limit(self) -> float:
        """Bounds at or above this need no look: they cannot win by more than the gap."""
        return float("inf") if self.best is None else self.best.seconds / (1 + self.gap)

    def _proven(self) -> float:
        """What nothing beats that was looked at or is in the pool; the best itself cannot be beaten by a bound."""
        best = self.best.seconds if self.best else float("inf")
        return min(self.dropped, self._lowest(), min(self.open.values(), default=best), best)

    def _lowest(self) -> float:
        return float(self._pool[0, 0]) if len(self._pool) else float("inf")

    def _drop(self, bounds: Floats) -> None:
        """Remember the lowest bound of all that was dropped for its time."""
        if len(bounds):
            self.dropped = min(self.dropped, float(bounds.min()))

    def point(self, place: int) -> Point:
        """The point at a place of the space."""
        index = int(np.searchsorted(self._starts, place, side="right")) - 1
        return self.screen.point(self.space.bases[index], place - int(self._starts[index]))

    def strategy(self, place: int) -> Strategy:
        return self.space.strategy(self.point(place))

    def _take(self, place: int, refined: Refined | None, goal: float = float("inf")) -> None:
        self.points += 1
        if refined is None:
            return
        self.simulations += refined.simulated
        if refined.strategy not in self._seen:
            self._seen.add(refined.strategy)
            self.tried.append((place, candidate_of(refined)))
        if not refined.allowed:
            if self.leanest is None or refined.total_bytes < self.leanest.total_bytes:
                self.leanest = refined
            return
        if refined.seconds >= NEAR * goal:
            self.hasty[place] = refined.seconds
        if self.best is None or (refined.seconds, place) < (self.best.seconds, self.best_at):
            self.best, self.best_at = refined, place

    def answer(self) -> Answer:
        """The answer as it stands."""
        from shardwise.estimate.estimate import estimate

        question, best = self.question, self.best
        found = best and estimate(
            question.model, question.cluster, best.strategy, runtime=question.runtime,
            memory_limit=question.memory_limit,
        )  # fmt: skip
        total, axes = self.space.count()
        counts = Searched(
            strategies=total, simulated=self.points, simulations=self.simulations, screened=self.screened,
            too_large=self.too_large, pruned=self.pruned, left_open=total - self.points - self.pruned,
            finished=self.finished, covers=covered(axes), axes=axes,
        )  # fmt: skip
        tried = self._sorted()
        return Answer(
            question=question, fastest=found, bound=self.bound, counts=counts, lowest=self._evidence(),
            top=top_of(tried), simulated=tuple(tried[:MOST_SHOWN]), interrupted=self.interrupted,
            cpu_seconds=time.process_time() - self.began, screen_seconds=self.screen_seconds,
        )  # fmt: skip

    def _evidence(self) -> tuple[ProofPart, ...]:
        """What the bound is the least of: the lowest of what was simulated, and of all the rest."""
        places = sorted(self.open, key=lambda place: (self.open[place], place))[:NAMED]
        named = [
            ProofPart(bound=self.open[place], strategy=str(self.strategy(place)))
            for place in places
            if self.open[place] < float("inf")
        ]
        best = self.best.seconds if self.best else float("inf")
        rest = min(self.dropped, self._lowest(), best) if self.finished else self.bound
        return (ProofPart(bound=rest), *named)

    def _sorted(self) -> list[Candidate]:
        def key(item: tuple[int, Candidate]) -> tuple[bool, float, int]:
            place, one = item
            return not one.allowed, one.seconds if one.allowed else one.total_bytes, place

        known: dict[int, Candidate] = {}
        for place, one in sorted(self.tried, key=key):
            known.setdefault(place, one)
        return list(known.values())

    def _take_again(self, place: int, one: Refined | None) -> None:
        """What was counted before."""
        self.points -= 1
        self._take(place, one)
