"""The search: bounds for whole bases, bounds for their strategies, simulations in the order of the bounds.

Nothing is dropped but by proof: a base whose least work is slower than a strategy that fits; a strategy whose memory
bound is above the limit or whose time bound is above the best. Batches have a fixed size and ties go to the earlier
strategy of the space, so that the answer does not depend on how many workers there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shardwise.plan.search.executor import Executor, Serial
from shardwise.plan.search.refine import Refined
from shardwise.plan.search.screen import Screen
from shardwise.plan.search.space import Space
from shardwise.plan.search.types import GAP, Answer, Base, Candidate, Counts, Question
from shardwise.plan.search.table import Floats

BATCH = 48
"""Strategies simulated between two looks at the best."""
WAVE = 24
"""Bases screened between two looks."""
Report = Callable[["Search"], None]


@dataclass(kw_only=True)
class Search:
    """One search under way; everything that is known so far."""

    question: Question
    gap: float = GAP
    time_limit: float | None = None
    executor: Executor = field(default_factory=Serial)
    report: Report = lambda _: None
    best: Refined | None = None
    best_at: int = 0
    """Place of the best in the space."""
    leanest: Refined | None = None
    """The strategy that needs least memory, while none fits."""
    candidates: list[tuple[float, int, Refined]] = field(default_factory=list)
    screened: int = 0
    too_large: int = 0
    simulated: int = 0
    points: int = 0
    bound: float = 0.0
    finished: bool = True
    screen_seconds: float = 0.0
    began: float = field(default_factory=time.process_time)
    wall: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.space = Space(question=self.question)
        self.screen = Screen(space=self.space)
        self._pool_seconds: Floats = np.empty(0)
        self._pool_places = np.empty(0, dtype=np.int64)
        self._starts: Floats = np.empty(0)

    @property
    def limit(self) -> float:
        """Bounds at or above this need no look: they cannot win by more than the gap."""
        return float("inf") if self.best is None else self.best.seconds / (1 + self.gap)

    @property
    def out_of_time(self) -> bool:
        return self.time_limit is not None and time.monotonic() - self.wall > self.time_limit

    def run(self) -> Answer:
        """Search until the best is proven, the time is up or Ctrl-C is pressed."""
        try:
            self._search()
        except KeyboardInterrupt:
            self.finished = False
        return self.answer()

    def _search(self) -> None:
        started = time.process_time()
        bases = self.space.bases
        sizes = [self.space.size(base) for base in bases]
        self._starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        least = np.array([self.screen.least(base) for base in bases])
        order = np.lexsort((np.arange(len(bases)), least))
        self.screen_seconds += time.process_time() - started
        for start in range(0, len(order), WAVE):
            wave = [int(index) for index in order[start : start + WAVE] if least[index] < self.limit]
            self.bound = float(min(least[order[start]], self._lowest()))
            if not wave or self._stopped():
                break
            self._expand([(index, bases[index]) for index in wave])
            self._simulate(1 if self.best else 4)
        while len(self._pool_places) and not self._stopped():
            self.bound = min(self._lowest(), self.best.seconds if self.best else float("inf"))
            if self._lowest() >= self.limit:
                break
            self._simulate(1)
        self._settle(order, least)

    def _settle(self, order: np.ndarray, least: Floats) -> None:
        """What is proven at the end."""
        if not self.finished:
            return
        best = self.best.seconds if self.best else float("inf")
        pruned = least[least >= self.limit] if self.best else least[:0]
        rest = float(pruned.min()) if len(pruned) else float("inf")
        self.bound = min(best, self._lowest(), max(rest, self.limit if self.best else rest))

    def _stopped(self) -> bool:
        if self.out_of_time:
            self.finished = False
        return not self.finished

    def _lowest(self) -> float:
        return float(self._pool_seconds[0]) if len(self._pool_seconds) else float("inf")

    def _expand(self, wave: list[tuple[int, Base]]) -> None:
        """Bound every strategy over these bases; keep those that may fit and win."""
        started = time.process_time()
        seconds, places = [self._pool_seconds], [self._pool_places]
        for index, base in wave:
            rows = self.screen.rows(base)
            self.screened += len(rows.seconds)
            may_fit = rows.bytes <= self.question.memory_limit
            self.too_large += int(len(may_fit) - may_fit.sum())
            kept = np.flatnonzero(may_fit & (rows.seconds < self.limit))
            seconds.append(rows.seconds[kept])
            places.append(kept + self._starts[index])
        self._sort(np.concatenate(seconds), np.concatenate(places))
        self.screen_seconds += time.process_time() - started

    def _sort(self, seconds: Floats, places: np.ndarray) -> None:
        kept = seconds < self.limit
        seconds, places = seconds[kept], places[kept]
        order = np.lexsort((places, seconds))
        self._pool_seconds, self._pool_places = seconds[order], places[order]

    def _simulate(self, batches: int) -> None:
        """Simulate the strategies with the lowest bounds."""
        for _ in range(batches):
            count = int(np.searchsorted(self._pool_seconds[:BATCH], self.limit))
            places = self._pool_places[:count]
            if not count:
                return
            strategies = [self.strategy(int(place)) for place in places]
            for place, refined in zip(places, self.executor.refine(self.question, strategies), strict=True):
                self._take(int(place), refined)
            self._pool_seconds, self._pool_places = self._pool_seconds[count:], self._pool_places[count:]
            self.report(self)
            if self.best or self._stopped():
                return

    def strategy(self, place: int) -> object:
        """The strategy at a place of the space."""
        index = int(np.searchsorted(self._starts, place, side="right")) - 1
        base = self.space.bases[index]
        return self.space.strategy(self.screen.point(base, place - int(self._starts[index])))

    def _take(self, place: int, refined: Refined | None) -> None:
        self.points += 1
        if refined is None:
            return
        self.simulated += refined.simulated
        if not refined.fits:
            if self.leanest is None or refined.total_bytes < self.leanest.total_bytes:
                self.leanest = refined
            return
        self.candidates.append((refined.seconds, place, refined))
        if self.best is None or (refined.seconds, place) < (self.best.seconds, self.best_at):
            self.best, self.best_at = refined, place

    def answer(self) -> Answer:
        """The answer as it stands."""
        from shardwise.plan.estimate import estimate

        question, best = self.question, self.best
        found = best and estimate(question.model, question.cluster, best.strategy, runtime=question.runtime)
        total, axes = self.space.count()
        counts = Counts(
            space=total, axes=axes, screened=self.screened, too_large=self.too_large, simulated=self.simulated,
            points=self.points,
        )  # fmt: skip
        return Answer(
            question=question, best=found, bound=self.bound, counts=counts, top=self._top(), finished=self.finished,
            cpu_seconds=time.process_time() - self.began, screen_seconds=self.screen_seconds,
        )  # fmt: skip

    def _top(self) -> tuple[Candidate, ...]:
        """The best of every layout."""
        seen: dict[tuple[object, ...], Candidate] = {}
        for _, _, one in sorted(self.candidates, key=lambda item: item[:2]):
            s = one.strategy
            key = (s.tp, s.cp, s.pp, s.vpp, s.ep, s.etp, s.micro_batch, s.schedule)
            seen.setdefault(
                key, Candidate(strategy=s, seconds=one.seconds, total_bytes=one.total_bytes, mfu=one.mfu)
            )
        return tuple(seen.values())
