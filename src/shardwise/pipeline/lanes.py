"""The engine where activations go to host memory and back: every rank has one lane out and one lane in.

Activations leave when their forward has ended and those before them have left, in the order of the forwards; they come
back when the action before `back` has ended, what has to leave by then has left, and those before them are back. What
runs without them waits until they have left, and their backward until they are back. So what a rank holds beside every
action is a matter of the order alone (`place_bytes`): it fits whatever the times turn out to be.
"""

from __future__ import annotations

import numpy as np

from shardwise.errors import InputError
from shardwise.pipeline.action import B, F, I, Offload, Schedule
from shardwise.pipeline.engine import Prepared, SlowEngine


class LanesEngine(SlowEngine):
    """The plain engine, with the lanes of every rank."""

    def __init__(self, data: Prepared) -> None:
        super().__init__(data)
        check_offloads(data.schedule)
        costs = data.costs
        out = costs.offload or (0.0,) * costs.chunks
        self.seconds = out, costs.reload or out
        self.moves = [list(own) for own in data.schedule.offloads]
        self.times = [[[-1.0] * 4 for _ in own] for own in self.moves]
        """By rank and offload: leaves, has left, comes back, is back."""
        self.free = [[0.0, 0.0] for _ in self.moves]
        self.at = [_by_place(own) for own in self.moves]

    def run(self) -> int:
        done = super().run()
        self.data.host = tuple(np.array(own).reshape(-1, 4) for own in self.times)
        return done

    def _gate(self, rank: int, places: tuple[int, ...]) -> float:
        here = [one for place in places for one in self.at[rank].get(place - self.offset[rank], ())]
        own = self.times[rank]
        gone = max((own[n][1] for name, n in here if name == "away"), default=0.0)
        for name, n in here:
            if name == "back" and own[n][2] < 0:
                own[n][2:] = self._move(rank, n, 1, max(self.clock[rank], gone))
        return max([gone, *(own[n][3] for name, n in here if name == "backward")])

    def _ran(self, rank: int, places: tuple[int, ...], now: float) -> None:
        for place in places:
            for name, n in self.at[rank].get(place - self.offset[rank], ()):
                if name == "forward":
                    self.times[rank][n][:2] = self._move(rank, n, 0, now)

    def _move(self, rank: int, n: int, way: int, ready: float) -> tuple[float, float]:
        """When the activations are on a lane, 0 out or 1 in."""
        chunk = self.codes[self.offset[rank] + self.moves[rank][n].forward] // self.m % self.chunks
        begin = max(self.free[rank][way], ready)
        self.free[rank][way] = begin + self.seconds[way][chunk]
        return begin, self.free[rank][way]


def _by_place(own: list[Offload]) -> dict[int, list[tuple[str, int]]]:
    """Place -> what happens there, of which offload; those that come back beside one action in the order of use."""
    found = dict[int, list[tuple[str, int]]]()
    for n in sorted(range(len(own)), key=lambda n: own[n].backward):
        for name in Offload._fields:
            found.setdefault(getattr(own[n], name), []).append((name, n))
    return found


def check_offloads(schedule: Schedule) -> None:
    """Refuse offloads that are of no forward and its own backward, or out of their order."""
    if len(schedule.offloads) != schedule.pp:
        raise InputError(f"offloads are of {len(schedule.offloads)} ranks, the order has {schedule.pp}")
    cells = schedule.chunks * schedule.microbatches
    for rank, own in enumerate(schedule.offloads):
        row, seen = schedule.codes[rank], set[int]()
        for one in own:
            inside = 0 <= one.forward < one.away <= one.back <= one.backward < len(row)
            ends = (int(row[one.forward]), int(row[one.backward])) if inside else (-1, -1)
            alike = ends[0] // cells == F and ends[1] // cells in {I, B} and ends[0] % cells == ends[1] % cells
            if not inside or not alike or one.forward in seen:
                raise InputError(f"offload {tuple(one)} of rank {rank} is not from a forward to its own backward, once")
            seen.add(one.forward)
