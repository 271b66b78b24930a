"""One chunk a rank: the best cut by dynamic programme, exact for the paths that rule there.

With T_j = F_j + B_j the time of one micro batch on stage j, a path that dwells on stage s goes once forward and back
through all stages, k more times through F_s, l more times through B_s and e more times through every later stage:

    iteration >= S + D,   S = sum of all T_j,   D = max over s of k F_s + l B_s + e x sum of T_j over j > s.

1F1B has two such paths a stage, with n = micro batches - pp + s: k = l = n, e = 1 (out to the last stage again with the
last micro batch), and k = n, l = micro batches - 1, e = 0 (stay for the last backwards). They are read off the order
itself, so they hold for any order of full backwards. Given the layers of a stage, the least T_s that fits in its memory
is a matter of that stage alone; given D, it is best to make the sum behind each stage as small as possible: a shortest
path over cuts from the last stage to the first. Walking D down meets every pair (S, D) that is not beaten in both, so
the least S + D is exact. It is a lower bound on the simulated time of every partition; 1F1B nearly always reaches it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwise.partition.graph import Floats, Ints, Ready
from shardwise.partition.mixed import MixedReady
from shardwise.pipeline.action import B, F

_CLOSE = 1e-10
_HALVINGS = 12
"""Of D for a good plan to walk down from; the walk finds the best whatever it is."""
_LARGEST = 10**8
"""Stages x cuts x cuts."""
_KEPT = 10**6
"""The same where what stages take on their paths is kept from plan to plan: some tens of megabytes."""
_MANY = 4000
"""Steps down in D before the walk stops; the bound is then that of the last D."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeMix:
    """A way to choose for some layers: their time and memory, and the layers of every option."""

    time: float
    held: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BestCut:
    """The best cut and the bound that it reaches."""

    counts: Ints
    bound: float


def applies(ready: Ready) -> bool:
    """One chunk a rank in the order of the model, backwards in one piece, and tables that can be held."""
    in_order = bool((ready.rank_of == np.arange(ready.chunks)).all())
    small = ready.chunks * (int(ready.run_counts.sum()) + 1) ** 2 <= _LARGEST
    return ready.problem.vpp == 1 and in_order and ready.schedule.fused and small


def best_cut(ready: Ready) -> BestCut | None:
    """None where no cut fits."""
    stages = stages_of(ready)
    plan = stages.plan(float("inf"))
    if plan is None:
        return None
    best, bound = _walked(stages, plan)
    return BestCut(counts=stages.counts(best), bound=bound)


def _walked(stages: Stages, plan: list[int]) -> tuple[list[int], float]:
    """The best plan and its bound, from the one with the smallest S on."""
    smallest, dwell = stages.value(plan)
    best, least = _glimpse(stages, plan, smallest + dwell, dwell)
    # A better plan has S of at least `smallest`, so its D is below this; from here down every pair is met.
    target = (least - smallest) * (1 - _CLOSE)
    for walked in range(_MANY + 1):
        found = stages.plan(target)
        total, dwell = (float("inf"), 0.0) if found is None else stages.value(found)
        if found is None or total >= least:
            break
        if total + dwell < least:
            best, least = found, total + dwell
        target = min(dwell, least - smallest) * (1 - _CLOSE)
        if walked == _MANY:
            return best, total  # plans not looked at have at least this S
    return best, least * (1 - _CLOSE)


class First(NamedTuple):
    """The first layers of every stage that are run another way than the rest."""

    layers: int
    time: float
    """What each takes more."""
    held: float
    """What each holds less."""


def least(ready: Ready, enough: float, first: Sequence[First | None] = (None,)) -> float:
    """A bound on the time of every cut that fits, infinite where none does; `enough` where that much is proven.

    `first`: one for each kind of rank.
    """
    stages = stages_of(ready, first)
    plan = stages.plan(float("inf"))
    if plan is None:
        return float("inf")
    if stages.plan((enough - stages.value(plan)[0]) * (1 - _CLOSE)) is None:  # S is at least that of this plan
        return enough * (1 - _CLOSE)
    return _walked(stages, plan)[1]


def _glimpse(stages: Stages, best: list[int], least: float, high: float) -> tuple[list[int], float]:
    """A good plan, so that the walk is short: halve D while something fits."""
    low = 0.0
    for _ in range(_HALVINGS):
        target = (low + high) / 2
        plan = stages.plan(target)
        if plan is None:
            low = target
            continue
        total, dwell = stages.value(plan)
        high = min(dwell, target)
        if total + dwell < least:
            best, least = plan, total + dwell
    return best, least


def stages_of(ready: Ready, first: Sequence[First | None] = (None,)) -> Stages:
    return MixedStages(ready, first) if isinstance(ready, MixedReady) else Stages(ready, first[0])


class Stages:
    """The least time of every stage for every stretch of layers, and the plans that follow."""

    def __init__(self, ready: Ready, first: First | None = None) -> None:
        self.ready, self.first = ready, first or First(0, 0.0, 0.0)
        self._runs = np.repeat(np.arange(len(ready.run_counts)), ready.run_counts)
        self._frontiers: dict[tuple[int, ...], tuple[RecomputeMix, ...]] = {}
        self._single = [_single(ready, run) for run in range(len(ready.run_counts))]
        self._grown: list[list[tuple[RecomputeMix, ...]]] = [[(_nothing(ready),)] for _ in self._single]
        self._least_held = [min(mix.held for mix in mixes) for mixes in self._single]
        self._static = [run.kind.static for run in ready.problem.runs]
        self._parts, self._part_of, self._backwards = _stretches(tuple(ready.run_counts.tolist()))
        ahead = np.concatenate(([0.0], np.cumsum(self._forward_of_layers())))
        self.forward = ahead[None, :] - ahead[:, None]
        settled = all(len(mixes) == 1 for mixes in self._single)
        times = self._settled() if settled else np.stack([self._stage(s) for s in range(ready.chunks)])
        fixed = ready.fixed_time[F] + ready.fixed_time[B]
        self.time = np.where(self._backwards, np.inf, (times + fixed[:, None])[:, self._part_of])
        self.path = [_dwelling(ready, s) for s in range(ready.chunks)]

    def _forward_of_layers(self) -> Floats:
        """Most forward time of every layer: should choices differ in it, the rest counts as backward."""
        most = [self.ready.option_time[F, self.ready.run_of == run].max() for run in range(len(self._single))]
        return np.asarray(most)[self._runs]

    def _stage(self, s: int) -> Floats:
        """Time of stage s by stretch of layers; infinite where it does not fit."""
        room, flight = self._room(s)
        times = np.full(len(self._parts), np.inf)
        for k, part in enumerate(self._parts.tolist()):
            mix = self._best(tuple(part), room, flight) if sum(part) >= self.ready.least[s] else None
            if mix is not None:
                times[k] = mix.time
        return times

    def _settled(self) -> Floats:
        """The same for all stages where nothing is to be chosen: all at once."""
        room, flight = np.array([self._room(s) for s in range(self.ready.chunks)]).T[:, :, None]
        static, layers = self._parts @ np.array(self._static), self._parts.sum(axis=1)
        again = np.minimum(layers, self.first.layers)
        held = self._parts @ np.array(self._least_held) - again * self.first.held
        fits = (static + flight * held <= room) & (static <= room) & (layers >= self.ready.least[:, None])
        time = self._parts @ np.array([mixes[0].time for mixes in self._single])
        return np.where(fits, time + again * self.first.time, np.inf)

    def _room(self, s: int) -> tuple[float, float]:
        """Memory left for the layers of stage s, and its micro batches in flight."""
        ready = self.ready
        flight = float(ready.rows[ready.row_rank == s][:, s].max())
        return float(ready.limits[s] - ready.fixed_static[s] - flight * ready.fixed_held[s]), flight

    def _best(self, part: tuple[int, ...], room: float, flight: float) -> RecomputeMix | None:
        """The fastest choice for these layers that fits."""
        left = room - sum(n * static for n, static in zip(part, self._static, strict=True))
        least = sum(n * held for n, held in zip(part, self._least_held, strict=True))
        if left < 0 or flight * least > left:  # nothing fits: spare the frontier
            return None
        frontier = self._frontier(part)
        if flight == 0:
            return frontier[0]
        fitting = bisect_left(frontier, -left / flight, key=lambda mix: -mix.held)
        return frontier[min(fitting, len(frontier) - 1)]

    def _frontier(self, part: tuple[int, ...]) -> tuple[RecomputeMix, ...]:
        if part not in self._frontiers:
            mixes: tuple[RecomputeMix, ...] = (_nothing(self.ready),)
            for run, count in enumerate(part):
                if count:
                    mixes = _pareto([_sum(a, b) for a in mixes for b in self._of_run(run, count)])
            self._frontiers[part] = mixes
        return self._frontiers[part]

    def _of_run(self, run: int, count: int) -> tuple[RecomputeMix, ...]:
        """For so many layers of a run: the mixes of choices that nothing else beats in both time and memory."""
        grown = self._grown[run]
        while len(grown) <= count:
            grown.append(_pareto([_sum(a, b) for a in grown[-1] for b in self._single[run]]))
        return grown[count]

    def of(self, _s: int) -> Stages:
        """The stages whose times and memory those of one are."""
        return self

    def plan(self, most: float) -> list[int] | None:
        """Cuts with D at most `most`, the sums behind the stages as small as possible."""
        stages, layers = self.time.shape[0], self.time.shape[1] - 1
        behind = np.full(layers + 1, np.inf)
        behind[layers] = 0.0
        choice = list[np.ndarray]()
        for s in reversed(range(stages)):
            table = self.time[s]
            with np.errstate(invalid="ignore"):  # 0 x infinity: does not fit, and compares false
                fine = self._dwells(s, behind) <= most
            total = np.where(fine, table + behind, np.inf)
            choice.append(total.argmin(axis=1))
            behind = total.min(axis=1)
        if behind[0] == np.inf:
            return None
        cuts = [0]
        for chosen in reversed(choice):
            cuts.append(int(chosen[cuts[-1]]))
        return cuts

    def value(self, cuts: Sequence[int]) -> tuple[float, float]:
        """S and D of a plan."""
        times = [float(self.time[s, cuts[s], cuts[s + 1]]) for s in range(len(cuts) - 1)]
        behind = [sum(times[s + 1 :]) for s in range(len(times))]
        dwells = [self._dwell(s, times[s], behind[s], cuts) for s in range(len(times))]
        return sum(times), max(dwells)

    def _steady(self, s: int) -> list[tuple[Floats, float, float]]:
        """Of every path that dwells on stage s what the stage itself takes, by stretch of layers: the same for all
        plans; then e and the messages.
        """
        if s in self._kept:
            return self._kept[s]
        f = self.of(s).forward + self.ready.fixed_time[F, s]
        found = [(k * f + more * (self.time[s] - f), e, lag) for k, more, e, lag in self.path[s]]
        if self.time.size <= _KEPT:
            self._kept[s] = found
        return found

    @cached_property
    def _kept(self) -> dict[int, list[tuple[Floats, float, float]]]:
        return {}

    def _dwells(self, s: int, behind: Floats) -> Floats:
        """The longest of the paths that dwell on stage s, less S, by stretch of layers."""
        worst = np.zeros(self.time.shape[1:])
        for steady, e, lag in self._steady(s):
            np.maximum(worst, steady + e * behind + lag, out=worst)
        return worst

    def _dwell(self, s: int, time: float, behind: float, cuts: Sequence[int]) -> float:
        """The same of one plan."""
        f = float(self.of(s).forward[cuts[s], cuts[s + 1]] + self.ready.fixed_time[F, s])
        return max(0.0, *(k * f + more * (time - f) + e * behind + lag for k, more, e, lag in self.path[s]))

    def chosen(self, s: int, start: int, end: int) -> RecomputeMix:
        """How the layers from one cut to another are run on stage s."""
        part = self._parts[self._part_of[start, end]]
        mix = self._best(tuple(part.tolist()), *self._room(s))
        assert mix is not None  # noqa: S101 - the plan was made of stages that fit
        return mix

    def counts(self, cuts: Sequence[int]) -> Ints:
        rows = [self.of(s).chosen(s, start, end).counts for s, (start, end) in enumerate(pairwise(cuts))]
        return np.array(rows, dtype=np.int32)


class MixedStages(Stages):
    """The same where every stage is of a kind of rank that has stages of its own."""

    def __init__(self, ready: MixedReady, first: Sequence[First | None] = (None,)) -> None:
        self.ready: MixedReady = ready
        firsts = first if len(first) > 1 else (first[0],) * len(ready.kinds)
        self._kinds = [Stages(one, own) for one, own in zip(ready.kinds, firsts, strict=True)]
        self.time = np.stack([self.of(s).time[s] for s in range(ready.chunks)])
        self.path = [_dwelling(ready, s) for s in range(ready.chunks)]

    def of(self, s: int) -> Stages:
        return self._kinds[self.ready.kind_of[s]]


@lru_cache(maxsize=16)
def _stretches(counts: tuple[int, ...]) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """The different stretches of layers by what they hold of every run, which of them lies between any two cuts, and
    where the second cut is before the first.
    """
    runs = len(counts)
    each = np.eye(runs, dtype=np.int32)[np.repeat(np.arange(runs), counts)]
    held = np.concatenate((np.zeros((1, runs), dtype=np.int32), np.cumsum(each, axis=0)))
    between = held[None, :, :] - held[:, None, :]
    backwards = between.min(axis=2) < 0
    flat = np.where(backwards[..., None], 0, between).reshape(-1, runs)
    kinds, which = np.unique(flat, axis=0, return_inverse=True)
    return kinds, which.reshape(backwards.shape), backwards


def _dwelling(ready: Ready, s: int) -> list[tuple[float, float, float, float]]:
    """k, l, e and the messages of the longest paths when stage s is a little, or much, slower than the others."""
    found = []
    for slower in (1.2, 1.8):
        weights = np.ones((4, ready.chunks))
        weights[B] = 2.0
        weights[:, s] *= slower
        path = ready.critical(weights)
        forward, backward = path.times[F] - 1, path.times[B] - 1
        if min(forward.min(), backward.min()) >= 0:  # a path that leaves a stage out would not count S
            later = min(float(forward[s + 1 :].min()), float(backward[s + 1 :].min())) if s + 1 < ready.chunks else 0.0
            found.append((float(min(forward[s], backward[s])), float(backward[s]), later, path.lag))
    return found


def _nothing(ready: Ready) -> RecomputeMix:
    return RecomputeMix(time=0.0, held=0.0, counts=(0,) * ready.options)


def _single(ready: Ready, run: int) -> list[RecomputeMix]:
    """One layer of a run, by choice."""
    time = (ready.option_time[0] + ready.option_time[3]).tolist()
    return [
        RecomputeMix(
            time=time[o], held=float(ready.option_held[o]), counts=tuple(int(k == o) for k in range(ready.options))
        )
        for o in np.flatnonzero(ready.run_of == run).tolist()
    ]


def _sum(a: RecomputeMix, b: RecomputeMix) -> RecomputeMix:
    counts = tuple(x + y for x, y in zip(a.counts, b.counts, strict=True))
    return RecomputeMix(time=a.time + b.time, held=a.held + b.held, counts=counts)


def _pareto(mixes: list[RecomputeMix]) -> tuple[RecomputeMix, ...]:
    """Fastest first, each with less memory than all before it."""
    kept, least = list[RecomputeMix](), float("inf")
    for mix in sorted(mixes, key=lambda m: (m.time, m.held, m.counts)):
        if mix.held < least - 1e-9 * (1 + abs(mix.held)):
            kept.append(mix)
            least = mix.held
    return tuple(kept)
