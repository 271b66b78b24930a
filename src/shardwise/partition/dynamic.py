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

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.partition.graph import Floats, Ints, Ready
from shardwise.simulate.action import B, F

_CLOSE = 1e-10
_MANY = 4000
"""Steps down in D before the walk stops; the bound is then that of the last D."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A way to choose for some layers: their time and memory, and the layers of every option."""

    time: float
    held: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """The best cut and the bound that it reaches."""

    counts: Ints
    bound: float


def applies(ready: Ready) -> bool:
    """One chunk a rank in the order of the model, backwards in one piece."""
    in_order = bool((ready.rank_of == np.arange(ready.chunks)).all())
    return ready.problem.vpp == 1 and in_order and ready.schedule.fused


def best_cut(ready: Ready) -> Cut | None:
    """None where no cut fits."""
    stages = Stages(ready)
    best, least, target, walked = None, float("inf"), float("inf"), 0
    least_sum = 0.0
    while (plan := stages.plan(target)) is not None and least_sum < least:
        total, dwell = stages.value(plan)
        if total + dwell < least:
            best, least = plan, total + dwell
        least_sum, target, walked = total, dwell - _CLOSE * abs(dwell) - 1e-300, walked + 1
        if walked == _MANY:
            least = min(least, total)  # plans not looked at have at least this S
            break
    return None if best is None else Cut(counts=stages.counts(best), bound=least * (1 - _CLOSE))


class Stages:
    """The least time of every stage for every stretch of layers, and the plans that follow."""

    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        self._runs = np.repeat(np.arange(len(ready.run_counts)), ready.run_counts)
        self._frontiers: dict[tuple[int, ...], tuple[Mix, ...]] = {}
        self._single = [_frontier_of_run(ready, run) for run in range(len(ready.run_counts))]
        ahead = np.concatenate(([0.0], np.cumsum(self._forward_of_layers())))
        self.forward = ahead[None, :] - ahead[:, None]
        self.time = np.stack([self._stage(s) for s in range(ready.chunks)])
        self.path = [_dwelling(ready, s) for s in range(ready.chunks)]

    def _forward_of_layers(self) -> Floats:
        """Most forward time of every layer: should choices differ in it, the rest counts as backward."""
        most = [self.ready.option_time[F, self.ready.run_of == run].max() for run in range(len(self._single))]
        return np.asarray(most)[self._runs]

    def _stage(self, s: int) -> Floats:
        """Time of stage s by first layer and end; infinite where it does not fit."""
        layers = len(self._runs)
        table = np.full((layers + 1, layers + 1), np.inf)
        room, flight = self._room(s)
        fixed = float(self.ready.fixed_time[0, s] + self.ready.fixed_time[3, s])
        known: dict[tuple[int, ...], float] = {}
        for a in range(layers + 1):
            for b in range(a + int(self.ready.least[s]), layers + 1):
                part = self._part(a, b)
                if part not in known:
                    mix = self._best(part, room, flight)
                    known[part] = np.inf if mix is None else mix.time + fixed
                table[a, b] = known[part]
                if table[a, b] == np.inf:
                    break  # more layers need more memory
        return table

    def _room(self, s: int) -> tuple[float, float]:
        """Memory left for the layers of stage s, and its micro batches in flight."""
        ready = self.ready
        flight = float(ready.rows[ready.row_rank == s][:, s].max())
        return float(ready.limits[s] - ready.fixed_static[s] - flight * ready.fixed_held[s]), flight

    def _part(self, a: int, b: int) -> tuple[int, ...]:
        return tuple(np.bincount(self._runs[a:b], minlength=len(self._single)).tolist())

    def _best(self, part: tuple[int, ...], room: float, flight: float) -> Mix | None:
        """The fastest choice for these layers that fits."""
        static = np.array([run.kind.static for run in self.ready.problem.runs])
        left = room - float(static @ part)
        frontier = self._frontier(part)
        held = [-mix.held for mix in frontier]  # falls along the frontier, so its negative rises
        if left < 0 or flight * frontier[-1].held > left:
            return None
        at = 0 if flight == 0 else _first_that_fits(held, left / flight)
        return frontier[at]

    def _frontier(self, part: tuple[int, ...]) -> tuple[Mix, ...]:
        if part not in self._frontiers:
            mixes: tuple[Mix, ...] = (Mix(time=0.0, held=0.0, counts=(0,) * self.ready.options),)
            for run, count in enumerate(part):
                mixes = _pareto([_sum(a, b) for a in mixes for b in self._single[run][count]])
            self._frontiers[part] = mixes
        return self._frontiers[part]

    def plan(self, most: float) -> list[int] | None:
        """Cuts with D at most `most`, the sums behind the stages as small as possible."""
        stages, layers = self.time.shape[0], self.time.shape[1] - 1
        behind = np.full(layers + 1, np.inf)
        behind[layers] = 0.0
        choice = list[np.ndarray]()
        for s in reversed(range(stages)):
            table = self.time[s]
            with np.errstate(invalid="ignore"):  # 0 x infinity: does not fit, and compares false
                fine = self._dwell(s, table, behind) <= most
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
        dwells = [float(self._dwell(s, np.array(times[s]), np.array(behind[s]), cuts)) for s in range(len(times))]
        return sum(times), max(dwells)

    def _dwell(self, s: int, time: Floats, behind: Floats, cuts: Sequence[int] | None = None) -> Floats:
        """The longest of the paths that dwell on stage s, less S."""
        f = self.forward if cuts is None else self.forward[cuts[s], cuts[s + 1]]
        f = f + self.ready.fixed_time[F, s]
        worst = np.zeros(())
        for k, more, e, lag in self.path[s]:
            worst = np.maximum(worst, k * f + more * (time - f) + e * behind + lag)
        return np.asarray(worst + np.zeros(np.shape(time)))

    def counts(self, cuts: Sequence[int]) -> Ints:
        rows = []
        for s in range(len(cuts) - 1):
            mix = self._best(self._part(cuts[s], cuts[s + 1]), *self._room(s))
            assert mix is not None  # noqa: S101 - the plan was made of stages that fit
            rows.append(mix.counts)
        return np.array(rows, dtype=np.int32)


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


def _first_that_fits(negative_held: list[float], most: float) -> int:
    """The fastest mix whose memory is at most `most`."""
    at = bisect_right(negative_held, -most)
    return at - 1 if at and -negative_held[at - 1] <= most else at


def _frontier_of_run(ready: Ready, run: int) -> list[tuple[Mix, ...]]:
    """For 0, 1, 2 ... layers of a run: the mixes of choices that nothing else beats in both time and memory."""
    own = np.flatnonzero(ready.run_of == run).tolist()
    time = (ready.option_time[0] + ready.option_time[3]).tolist()
    single = [
        Mix(time=time[o], held=float(ready.option_held[o]), counts=tuple(int(k == o) for k in range(ready.options)))
        for o in own
    ]
    mixes: list[tuple[Mix, ...]] = [(Mix(time=0.0, held=0.0, counts=(0,) * ready.options),)]
    for _ in range(int(ready.run_counts[run])):
        mixes.append(_pareto([_sum(a, b) for a in mixes[-1] for b in single]))
    return mixes


def _sum(a: Mix, b: Mix) -> Mix:
    counts = tuple(x + y for x, y in zip(a.counts, b.counts, strict=True))
    return Mix(time=a.time + b.time, held=a.held + b.held, counts=counts)


def _pareto(mixes: list[Mix]) -> tuple[Mix, ...]:
    """Fastest first, each with less memory than all before it."""
    kept, least = list[Mix](), float("inf")
    for mix in sorted(mixes, key=lambda m: (m.time, m.held, m.counts)):
        if mix.held < least - 1e-9 * (1 + abs(mix.held)):
            kept.append(mix)
            least = mix.held
    return tuple(kept)
