"""Which activations go to host memory so that an order fits, and which order to take for that.

The compute order stays. Along a rank's row, where an action does not fit, those activations leave that cost least
waiting: what has had time to leave and will have time to come back, the last needed first (L. A. Belady, "A study of
replacement algorithms for a virtual-storage computer", IBM Systems Journal 5, 1966). They come back as late as their
lane allows, and earlier where there is room. The times that this needs are those of the order, then those of the order
with its offloads. Lanes, not bytes, are the cost: see PipeOffload (Wan et al., 2025) for the idea of a pass over an
order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shardwise.pipeline.action import B, F, I, Offload, Schedule
from shardwise.pipeline.arrays import Objective
from shardwise.pipeline.costs import ROUNDING, Costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.timeline import Timeline, place_bytes

_ROUNDS = 3
"""Times that offloads are chosen anew for the times that the last ones gave."""
_STAYS = 2**62
"""The first action that needs the room of what stays."""
Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


def offloaded(order: Schedule, costs: Costs, objective: Objective = "makespan") -> Timeline | None:
    """The order with the offloads that make it fit, timed; as it is where it fits already; None: it cannot fit."""
    order = replace(order, offloads=())
    found, line = list[Timeline](), simulate(order, costs)
    if fits(order, costs):
        return line
    for _ in range(_ROUNDS):
        plans = [_Rank(line, rank, costs).plan() for rank in range(order.pp)]
        if any(plan is None for plan in plans):
            break
        line = simulate(replace(order, offloads=tuple(plan or () for plan in plans)), costs)
        found.append(line)
    return min(found, key=lambda one: one.period if objective == "period" else one.makespan, default=None)


def fits(order: Schedule, costs: Costs) -> bool:
    """Whether no rank holds more than its limit beside any action."""
    rooms = enumerate(costs.limits(order.pp))
    return all(float(place_bytes(order, rank, costs).max()) <= room * (1 + ROUNDING) for rank, room in rooms)


class _Rank:
    """One rank's row: what it holds beside every action, and what may leave. Arrays are by forward, in their order."""

    def __init__(self, line: Timeline, rank: int, costs: Costs) -> None:
        order = replace(line.schedule, offloads=())
        row, cells = order.codes[rank], order.chunks * order.microbatches
        self.start, self.end = line.start[rank], line.end[rank]
        self.plain = place_bytes(order, rank, costs)
        self.room = costs.limits(order.pp)[rank] * (1 + ROUNDING)
        self.forward = np.flatnonzero(row // cells == F)
        needed = np.zeros(cells, dtype=np.int64)
        used = np.flatnonzero((row // cells == I) | (row // cells == B))
        needed[row[used] % cells] = used
        self.backward = needed[row[self.forward] % cells]
        chunk = row[self.forward] // order.microbatches
        self.held = np.array([costs.held(c) for c in chunk.tolist()])
        self.out, self.into = (np.array(one)[chunk] for one in (costs.offload, costs.reload or costs.offload))
        count = len(self.forward)
        self.first, self.last, self.back = np.full(count, _STAYS), np.full(count, -1), np.full(count, -1)
        self.left = np.zeros(count)

    def plan(self) -> tuple[Offload, ...] | None:
        """The offloads that make the row fit; None: there are none."""
        for _ in range(4 * len(self.forward) + 1):
            over = np.flatnonzero(self._level() > self.room)
            if not len(over):
                return self._made()
            if not self._relieve(int(over[0])):
                return None
        return None

    @property
    def away(self) -> Places:
        return np.flatnonzero(self.first < _STAYS)

    def _level(self) -> Floats:
        change, away = np.zeros(len(self.plain) + 1), self.away
        np.add.at(change, self.first[away], -self.held[away])
        np.add.at(change, self.back[away], self.held[away])
        return np.asarray(self.plain + np.cumsum(change)[:-1])

    def _relieve(self, k: int) -> bool:
        """Take something away from action k, or keep it away until after it: what makes others wait least, then what is
        away already, then what is needed last.
        """
        there = (self.first > k) | (self.back <= k)
        live = np.flatnonzero((self.forward < k) & (self.backward > k) & (self.held > 0) & there)
        if not len(live):
            return False
        order = np.lexsort((-self.backward[live], self.first[live] == _STAYS, self._waits(live, k)))
        n = live[order[0]]
        self.first[n], self.last[n] = min(self.first[n], k), max(self.last[n], k)
        self._lanes()
        return True

    def _waits(self, live: Places, k: int) -> Floats:
        """About how long the rank waits if these are away beside action k, with the lanes as they are now."""
        goes = self.first < _STAYS
        before = np.concatenate(([0.0], np.maximum.accumulate(np.where(goes, self.left, 0.0))))[live]
        left = np.where(goes[live], self.left[live], np.maximum(before, self.end[self.forward[live]]) + self.out[live])
        gone = np.where(self.first[live] <= k, 0.0, np.maximum(left - self.start[k], 0.0))
        return np.asarray(gone + np.maximum(self.end[k] + self.into[live] - self.start[self.backward[live]], 0.0))

    def _lanes(self) -> None:
        """When each has left, in the order of forwards; when each must come back, from the last needed to the first."""
        away = self.away
        spent = np.cumsum(self.out[away])
        ready = self.end[self.forward[away]] - spent + self.out[away]
        self.left[away] = np.maximum.accumulate(ready) + spent
        away = away[np.argsort(-self.backward[away], kind="stable")]
        spent = np.cumsum(self.into[away])
        due = np.minimum.accumulate(self.start[self.backward[away]] + spent - self.into[away]) - spent
        latest = np.minimum(np.searchsorted(self.end, due, side="right"), self.backward[away])
        self.back[away] = np.maximum(self.last[away] + 1, latest)

    def _made(self) -> tuple[Offload, ...]:
        """What was chosen, brought back earlier where there is room: times are never quite as planned."""
        level, floor, away = self._level(), 0, self.away
        for n in away[np.argsort(self.backward[away], kind="stable")].tolist():
            least, back = max(floor, int(self.last[n]) + 1), int(self.back[n])
            tight = np.flatnonzero(level[least:back] + self.held[n] > self.room)
            sooner = min(back, least + int(tight[-1]) + 1 if len(tight) else least)
            level[sooner:back] += self.held[n]
            self.back[n] = floor = sooner
        rows = zip(*(one[away].tolist() for one in (self.forward, self.first, self.back, self.backward)), strict=True)
        return tuple(Offload(*row) for row in rows)
