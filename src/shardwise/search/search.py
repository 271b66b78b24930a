"""The search: bounds for whole bases, bounds for their strategies, simulations in the order of the bounds.

Nothing is dropped but by proof: a base whose least work is slower than a strategy that fits; a strategy whose memory
bound is above the limit or whose time bound is above the best. Batches have a fixed size and ties go to the earlier
strategy of the space, so that the answer does not depend on how many workers there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from shardwise.estimate.passes import SPLIT
from shardwise.inputs.strategy import Strategy
from shardwise.search.cut_bound import Effort, prove
from shardwise.search.findings import Findings
from shardwise.search.question import Answer, Base
from shardwise.search.refine import NEAR, as_it_is, candidate_of, every_cut, refine
from shardwise.search.screen import ScreenRows
from shardwise.search.space import apart, axes_apart
from shardwise.search.table import Floats

BATCH = 48
"""Strategies simulated between two looks at the best."""
WAVE = 24
"""Bases screened between two looks."""
FIRST = 4
"""Batches in a row that look for the first strategy that fits."""
ROOMY = 0.85
"""Share of the limit at which a memory bound makes a good first guess."""
PROMISING = 1.1
"""Times the lowest bound: what is worth an exact cut while nothing is known to fit."""
CLOSE, THOROUGH = 1.005, 8
"""Times the best: what is cut as well as can be, and how many strategies at most."""
PROBED = 3
"""Strategies over one order whose cuts are bounded before they are simulated; more as long as that rules out half."""
PROOFS = 100
"""Strategies of which all cuts are bounded at most."""
DEEP_PROOFS = 250
"""Chunks times micro batches of all strategies whose cuts into whole layers are bounded: 300 take about a second."""
PERIOD = 0.2
"""Seconds between two reports, about."""


@dataclass(kw_only=True)
class Search(Findings):
    """One search under way."""

    def run(self) -> Answer:
        """Search until the best is proven, the time is up or Ctrl-C is pressed."""
        try:
            self._search()
        except KeyboardInterrupt:
            self.finished, self.interrupted = False, True
        if not self.interrupted:
            self.report(self)
        return self.answer()

    def _search(self) -> None:
        started = time.process_time()
        bases = self.space.bases
        sizes = [self.space.size(base) for base in bases]
        self._starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        glances = self._glance = self._glances()
        if self._stopped():
            return
        order = np.lexsort((np.arange(len(bases)), glances))
        self.screen_seconds += time.process_time() - started
        for start in range(0, len(order), WAVE):
            rest = order[start:]
            self.bound = min(float(glances[rest[0]]), self._proven())
            if self._stopped():
                return
            if glances[rest[0]] >= self.limit:
                self._drop(glances[rest])
                self.pruned += sum(sizes[index] for index in rest)
                break
            self._expand([(int(index), bases[index]) for index in rest[:WAVE]])
            if not self.finished:  # the bound above covers the bases that were not looked at
                return
            first = self.best is None
            self._simulate(FIRST if first else 1)
            if first and self.best:
                self._bound_again()
        while len(self._pool) and not self._stopped():
            self.bound = self._proven()
            if self._lowest() >= self.limit:
                break
            self._simulate(1)
        self._look_again()
        self._polish()
        self._prove()
        self._drop_graphs()
        self.bound = self._proven()

    def _glances(self) -> Floats:
        """A first bound for every base; 0 for those that were not reached when the search was stopped."""
        found = np.zeros(len(self.space.bases))
        for index, base in enumerate(self.space.bases):
            if self._stopped():
                break
            found[index] = self.screen.glance(base)
        return found

    def _stopped(self) -> bool:
        """Whether to stop; reports on the way."""
        now = time.monotonic()
        if now - self.reported >= PERIOD:
            self.reported = now
            self.report(self)
        if self.stop() or (self.time_limit is not None and now - self.wall > self.time_limit):
            self.finished = False
        return not self.finished

    def _expand(self, wave: list[tuple[int, Base]]) -> None:
        """Bound every strategy over these bases; keep those that may fit and win."""
        started = time.process_time()
        found, chosen = [self._pool], []
        for index, base in wave:
            if self._stopped():
                return
            least = self.screen.least(base)
            if least >= self.limit:
                self._drop(np.array([least]))
                self.pruned += int(self._starts[index + 1] - self._starts[index])
            else:
                chosen.append((index, base))
        for (index, _), rows in zip(chosen, self.screen.rows_of([base for _, base in chosen], self.limit), strict=True):
            self._rows[index] = rows
            self.screened += len(rows.seconds)
            may_fit = np.flatnonzero((rows.bytes <= self.question.memory_limit) & np.isfinite(rows.seconds))
            self.too_large += len(rows.seconds) - len(may_fit)
            self.pruned += len(rows.seconds) - len(may_fit)
            found.append(np.stack((rows.seconds[may_fit], may_fit + self._starts[index], rows.bytes[may_fit]), axis=1))
        self._keep(np.concatenate(found))
        self.screen_seconds += time.process_time() - started

    def _bound_again(self) -> None:
        """Bound what is in the pool once more: where it is known what to beat, orders of passes are looked at, too."""
        started = time.process_time()
        base_of = np.searchsorted(self._starts, self._pool[:, 1], side="right") - 1
        self._screen(np.unique(base_of).tolist(), self.limit)
        for index in np.unique(base_of).tolist():
            own = base_of == index
            rows = self._pool[own, 1].astype(np.int64) - self._starts[index]
            self._pool[own, 0] = np.maximum(self._pool[own, 0], self._rows[index].seconds[rows])
        self._keep(self._pool)
        self.screen_seconds += time.process_time() - started

    def _keep(self, pool: Floats) -> None:
        """What may still win, lowest bound first."""
        wins = pool[:, 0] < self.limit
        self._drop(pool[~wins, 0])
        self.pruned += int(np.count_nonzero(~wins))
        pool = pool[wins]
        self._pool = pool[np.lexsort((pool[:, 1], pool[:, 0]))]

    def _simulate(self, batches: int) -> None:
        """Simulate the strategies with the lowest bounds."""
        for _ in range(batches):
            chosen = self._chosen()
            if not len(chosen):
                return
            chosen = self._unproven(chosen)
            places, bounds = self._pool[chosen, 1].astype(np.int64).tolist(), self._pool[chosen, 0].tolist()
            done = 0
            goal = self.best.seconds if self.best else PROMISING * self._lowest()
            for one in self.executor.refine(self.question, [self.strategy(place) for place in places], goal):
                self.open[places[done]] = max(bounds[done], one.bound) if one else float("inf")
                self._take(places[done], one, goal)
                done += 1
                if self._stopped():
                    break
            self._pool = np.delete(self._pool, chosen[:done], axis=0)
            self._keep(self._pool)
            if self.best or self._stopped():
                return

    def _unproven(self, chosen: np.ndarray) -> np.ndarray:
        """Those of the pool whose cuts a proof does not rule out; the others leave it."""
        if self.best is None:
            return chosen
        for index in chosen.tolist():
            place = int(self._pool[index, 1])
            order = _order(self.strategy(place))
            tried, ruled_out = self._proofs.get(order, (0, 0))
            if self._stopped() or (tried >= PROBED and 2 * ruled_out < tried):
                continue
            self._pool[index, 0] = max(self._pool[index, 0], self._bounded(place, "quick"))
            self._proofs[order] = tried + 1, ruled_out + bool(self._pool[index, 0] >= self.limit)
        out = chosen[self._pool[chosen, 0] >= self.limit]
        self._drop(self._pool[out, 0])
        self.pruned += len(out)
        self._pool = np.delete(self._pool, out, axis=0)
        left = np.setdiff1d(chosen, out)
        return np.asarray(left - np.searchsorted(out, left))

    def _look_again(self) -> None:
        """Cut with care what is near the best after all: what it was held against first may have been out of reach."""
        while self.best and not self._stopped():
            most = NEAR * self.best.seconds
            places = sorted(place for place, seconds in self.hasty.items() if seconds < most)[:BATCH]
            if not places:
                return
            found = self.executor.refine(self.question, [self.strategy(place) for place in places], float("inf"))
            for place, one in zip(places, found, strict=True):
                del self.hasty[place]
                self._take_again(place, one)

    def _polish(self) -> None:
        """Try every strategy one axis away from the best that its bound does not exclude, as long as one is better.

        The gap lets the search stop with such strategies unseen; nobody should be able to name one at a glance.
        """
        before = None
        while self.best and self.best is not before and not self._stopped():
            before = self.best
            for place, bound in self._one_axis_away():
                if place not in self.open and bound < self.best.seconds and not self._stopped():
                    self._look(place, bound)
        self._cut_thoroughly()

    def _cut_thoroughly(self) -> None:
        """The best and what comes close, cut as well as can be: which of them wins may depend on it."""
        done = set[int]()
        while self.best and len(done) < THOROUGH and not self._stopped():
            most = CLOSE * self.best.seconds
            close = [
                (one.seconds, place)
                for place, one in self.tried
                if one.allowed and one.seconds <= most and (place == self.best_at or _annealed(one.strategy))
            ]
            left = [place for _, place in sorted(close) if place not in done and self.open[place] < self.best.seconds]
            if not left:
                return
            done.add(left[0])
            self._take_again(left[0], refine(self.question, self.strategy(left[0]), thorough=True))

    def _drop_graphs(self) -> None:
        """CUDA graphs that cover less, or nothing, where that takes no longer: only the most covering were searched."""
        wishes, can = self.question.wishes, self.question.runtime.can
        if self.best is None or len(wishes.named("cuda_graphs")) < 2:
            return
        old = self.best
        for graphs in wishes.kept("cuda_graphs", can.graphs):
            plain = as_it_is(self.question, replace(old.strategy, cuda_graphs=graphs))
            if plain.allowed and plain.seconds <= old.seconds * (1 + 1e-9):
                self.best = plain._replace(simulated=old.simulated, bound=old.bound)
                break
        self.tried = [(at, candidate_of(self.best) if one.strategy == old.strategy else one) for at, one in self.tried]

    def _look(self, place: int, bound: float) -> None:
        goal = self.best.seconds if self.best else float("inf")
        one = next(iter(self.executor.refine(self.question, [self.strategy(place)], goal)))
        self.open[place] = max(bound, one.bound) if one else float("inf")
        self._take(place, one, goal)
        others = self._pool[:, 1] != place
        self.pruned -= bool(others.all())  # not in the pool: it was pruned, as it cannot win by more than the gap
        self._pool = self._pool[others]

    def rows_within(self, seconds: float, wanted: Callable[[Base], bool]) -> Iterator[tuple[ScreenRows, int]]:
        """Bounds of all strategies over the wanted bases that may take less, and the place of the first; of bases that
        were not yet screened two waves, the lowest bounds first.
        """
        near = [index for index in np.argsort(self._glance, kind="stable").tolist() if self._glance[index] < seconds]
        near = [index for index in near if wanted(self.space.bases[index])]
        self._screen([index for index in near if index not in self._rows][: 2 * WAVE])
        yield from ((self._rows[index], int(self._starts[index])) for index in near if index in self._rows)

    def _screen(self, places: list[int], most: float = float("inf")) -> None:
        bases = [self.space.bases[index] for index in places]
        self._rows |= zip(places, self.screen.rows_of(bases, most), strict=True)

    def _one_axis_away(self) -> Iterator[tuple[int, float]]:
        """Places and bounds of what may fit, in the order of the space: plainer first."""
        here, bases = self.point(self.best_at), self.space.bases
        limit = self.best.seconds if self.best else float("inf")
        near = np.flatnonzero(self._glance < limit).tolist()
        near = [index for index in near if axes_apart(bases[index], here.base) <= 1]
        self._screen([index for index in near if index not in self._rows])
        for index in near:
            rows = self._rows[index]
            may = (rows.seconds < limit) & (rows.bytes <= self.question.memory_limit)
            for row in np.flatnonzero(may).tolist():
                if apart(self.screen.point(rows.base, row), here) == 1:
                    yield row + int(self._starts[index]), float(rows.seconds[row])

    def _prove(self) -> None:
        """Bound all cuts of the simulated strategies with the lowest bounds, until the gap is proven or a proof fails.

        Here and in this order, so that what is known of earlier ones is the same however many workers there are.
        """
        looks, deep = dict[int, int](), 0
        for _ in range(PROOFS if self.best else 0):
            place = min(self.open, key=lambda one: (self.open[one], one))
            look = looks.get(place, 0)
            deep += self.strategy(place).chunks * self.strategy(place).microbatches if look == 1 else 0
            if self.open[place] >= self.limit or look > 2 or deep > DEEP_PROOFS or self._stopped():
                return
            looks[place] = look + 1
            found = self._tried_all(place) if look == 2 else self._bounded(place, "deep" if look else "whole")
            self.open[place] = max(self.open[place], found)

    def _bounded(self, place: int, effort: Effort) -> float:
        return prove(self.question, self.strategy(place), self.limit, self._lessons, effort)

    def _tried_all(self, place: int) -> float:
        """Where a proof fails and a strategy has few cuts, all of them are estimated."""
        found = every_cut(self.question, self.strategy(place), self.cuts_left)
        if found is None:
            return 0.0
        self.cuts_left -= found.simulated
        self._take_again(place, found)
        return found.bound

    def _chosen(self) -> np.ndarray:
        """The next batch: half by bound alone, half of what surely seems to fit, which finds a good best early."""
        roomy = np.flatnonzero(self._pool[:, 2] <= ROOMY * self.question.memory_limit)
        share = BATCH if self.best is None and len(roomy) else BATCH // 2
        lowest = np.arange(min(BATCH - len(roomy[:share]), len(self._pool)))
        return np.union1d(lowest, roomy[:share])


def _annealed(strategy: Strategy) -> bool:
    """Not cut exactly, as chains are."""
    return strategy.vpp > 1 or strategy.schedule in SPLIT


def _order(strategy: Strategy) -> tuple[object, ...]:
    return strategy.schedule, strategy.pp, strategy.vpp, strategy.microbatches, strategy.group
