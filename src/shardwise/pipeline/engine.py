"""The event engine: a schedule and its costs in, a timeline out.

Every rank keeps the order of its row; an action starts when its rank is free and its input has arrived; a message
between two ranks takes its latency and transfer time and does not hold up the sender's compute. A forward and a full
backward that run together start when both inputs are there, and both results leave when both are done; in the timeline
they stand one after the other in the time that they take together. Activations that go to host memory and back have two
lanes of their own on every rank (lanes.py).
"""

from __future__ import annotations

import ctypes
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from shardwise.errors import InputError
from shardwise.kernels import library
from shardwise.pipeline.action import B, F, Schedule, W
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.timeline import Timeline

Floats = npt.NDArray[np.float64]


class _Replay(ctypes.Structure):
    _fields_ = (
        ("ranks", ctypes.c_int),
        ("chunks", ctypes.c_int),
        ("microbatches", ctypes.c_int),
        ("contention", ctypes.c_int),
        ("each", ctypes.c_int),
        ("rank_of", ctypes.c_void_p),
        ("offset", ctypes.c_void_p),
        ("codes", ctypes.c_void_p),
        ("duration", ctypes.c_void_p),
        ("latency", ctypes.c_void_p),
        ("transfer", ctypes.c_void_p),
        ("pair", ctypes.c_void_p),
    )


class Prepared:
    """A schedule and its costs as flat arrays: what both engines read and where they write."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        chunks = schedule.chunks
        self.schedule, self.contention = schedule, costs.contention
        self.rank_of = np.array(schedule.rank_of, dtype=np.int32)
        self.offset = np.concatenate(([0], np.cumsum([len(row) for row in schedule.codes]))).astype(np.int64)
        self.codes = np.concatenate(schedule.codes)
        both = [i + w for i, w in zip(costs.i, costs.w, strict=True)]
        self.costs = costs
        self.pairs = [
            begin + k for begin, places in zip(self.offset.tolist(), schedule.pairs, strict=False) for k in places
        ]
        self.pair: Floats | None = None
        """By place: time of the pair that begins there, or -1; None: nothing runs together."""
        if self.pairs:
            self.pair = np.full(len(self.codes), -1.0)
            chunk = self.codes // schedule.microbatches % chunks
            self.pair[self.pairs] = [costs.both(chunk[k], chunk[k + 1]) for k in self.pairs]
        self.duration = np.array([*costs.f, *costs.i, *costs.w, *both], dtype=np.float64)
        self.each = False
        """Durations are of every code by itself: micro batches differ."""
        self.latency, self.transfer = np.zeros(chunks), np.zeros(chunks)
        self.latency[: len(costs.hop)] = costs.hop
        self.transfer[: len(costs.transfer)] = costs.transfer
        total = len(self.codes)
        self.next = np.zeros(schedule.pp, dtype=np.int64)
        self.start, self.end, self.cause = np.zeros(total), np.zeros(total), np.zeros(total, dtype=np.int8)
        self.host: tuple[Floats, ...] = ()
        """By rank, when offloaded activations leave, have left, come back and are back, a row each."""


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """When every action starts and ends. The schedule must be sound: `schedule.validate` says what is wrong with it."""
    _check_sizes(schedule, costs)
    data = Prepared(schedule, costs)
    if (data.rank_of < 0).any():
        raise InputError(f"no rank runs chunk {int(data.rank_of.argmin())}")
    done = replay(data)
    if done < len(data.codes):
        raise InputError(_deadlock(data))
    rows = [slice(begin, end) for begin, end in pairwise(data.offset.tolist())]
    return Timeline(
        schedule=schedule,
        costs=costs,
        start=tuple(data.start[row] for row in rows),
        end=tuple(data.end[row] for row in rows),
        cause=tuple(data.cause[row] for row in rows),
        host=data.host,
    )


def replay(data: Prepared) -> int:
    """Fill in the times; the number of actions that could run."""
    if any(data.schedule.offloads):
        from shardwise.pipeline.lanes import LanesEngine

        return LanesEngine(data).run()
    if data.schedule.copies > 1:  # the kernel knows one model
        return replay_slowly(data)
    kernel = library()
    return replay_slowly(data) if kernel is None else _replay_compiled(kernel, data)


def _replay_compiled(kernel: ctypes.CDLL, data: Prepared) -> int:
    schedule = data.schedule
    fields = (data.rank_of, data.offset, data.codes, data.duration, data.latency, data.transfer, data.pair)
    view = _Replay(
        schedule.pp, schedule.chunks, schedule.microbatches, int(data.contention), int(data.each),
        *(None if one is None else one.ctypes.data for one in fields),
    )  # fmt: skip
    run = kernel.replay
    run.restype, run.argtypes = ctypes.c_longlong, [ctypes.c_void_p] * 5
    outputs = (data.next, data.start, data.end, data.cause)
    return int(run(ctypes.addressof(view), *(a.ctypes.data for a in outputs)))


def _check_sizes(schedule: Schedule, costs: Costs) -> None:
    if costs.chunks != schedule.chunks:
        raise InputError(f"the costs are of {costs.chunks} chunks, the schedule has {schedule.chunks}")
    top = (B + 1) * schedule.chunks * schedule.microbatches
    if any(len(row) and (row.min() < 0 or row.max() >= top) for row in schedule.codes):
        raise InputError("the schedule holds an action code outside its chunks and micro batches")


def _deadlock(data: Prepared) -> str:
    schedule = data.schedule
    stuck = [r for r in range(schedule.pp) if data.next[r] < data.offset[r + 1]]
    waits = ", ".join(f"rank {r} at {schedule.decode(int(data.codes[data.next[r]]))}" for r in stuck[:8])
    return f"deadlock: {len(stuck)} ranks wait for each other ({waits}); an action comes before what it needs"


def replay_slowly(data: Prepared) -> int:
    """Fill in the times; the number of actions that could run."""
    return SlowEngine(data).run()


class SlowEngine:
    """The engine in Python: where there is no kernel, where there are two copies, and where activations leave."""

    def __init__(self, data: Prepared) -> None:
        self.data, self.m, self.chunks = data, data.schedule.microbatches, data.schedule.chunks
        self.cells = self.m * self.chunks
        self.arrival = [-1.0] * (2 * self.cells)
        self.length = data.schedule.length
        for first in range(0, self.cells, self.length * self.m):
            self.arrival[first : first + self.m] = [0.0] * self.m
        self.codes, self.offset, self.rank_of = data.codes.tolist(), data.offset.tolist(), data.rank_of.tolist()
        self.duration, self.latency, self.transfer = (
            one.tolist() for one in (data.duration, data.latency, data.transfer)
        )
        self.start, self.end, self.cause = ([0.0] * len(self.codes) for _ in range(3))
        pp = data.schedule.pp
        self.clock, self.nexts, self.waits = [0.0] * pp, self.offset[:-1], [-1] * pp
        self.link: dict[tuple[int, int], float] = {}
        self.stack, self.together = list(range(pp))[::-1], frozenset(data.pairs)

    def run(self) -> int:
        while self.stack:
            rank = self.stack.pop()
            while self.nexts[rank] < self.offset[rank + 1] and self._step(rank, self.nexts[rank]):
                pass
        data = self.data
        data.start[:], data.end[:], data.cause[:], data.next[:] = self.start, self.end, self.cause, self.nexts
        return int(sum(self.nexts) - sum(self.offset[:-1]))

    def _step(self, rank: int, k: int) -> bool:
        """Run the next action of a rank, with the one after it where both run together; False: it must wait."""
        places = (k, k + 1) if k in self.together else (k,)
        gate = self._gate(rank, places)
        slots = [self._slot(self.codes[one]) for one in places]
        if missing := [slot for slot in slots if slot >= 0 and self.arrival[slot] < 0]:
            self.waits[rank] = missing[0]
            return False
        ready = [self.arrival[slot] if slot >= 0 else 0.0 for slot in slots]
        begin = max(self.clock[rank], *ready, gate)
        late = begin > self.clock[rank]
        for place, time in zip(places, ready, strict=True):
            told = 2 if late and time == begin else int(place > self.offset[rank])
            self.cause[place] = 3 if gate > max(self.clock[rank], *ready) else told
        self.clock[rank] = now = self._lay(places, begin)
        self.nexts[rank] = k + len(places)
        self._ran(rank, places, now)
        for place in places:
            self._send(rank, self.codes[place], now)
        return True

    def _gate(self, rank: int, places: tuple[int, ...]) -> float:  # noqa: ARG002 - of the engine with lanes
        """When the room that actions need is there; asked again while they wait for their input."""
        return 0.0

    def _ran(self, rank: int, places: tuple[int, ...], now: float) -> None:
        """Actions have ended."""

    def _lay(self, places: tuple[int, ...], begin: float) -> float:
        """Write the times down; when all is done."""
        alone = [self.duration[self.codes[place] // (1 if self.data.each else self.m)] for place in places]
        share = 1.0
        if self.data.pair is not None and len(places) > 1 and sum(alone):
            share = float(self.data.pair[places[0]]) / sum(alone)
        for place, seconds in zip(places, alone, strict=True):
            self.start[place] = begin
            self.end[place] = begin = begin + share * seconds
        return begin

    def _slot(self, code: int) -> int:
        """Where the input of an action is noted; -1: it needs none from elsewhere."""
        stream, m = divmod(code, self.m)
        kind, chunk = divmod(stream, self.chunks)
        return -1 if kind == W else (0 if kind == F else self.cells) + chunk * self.m + m

    def _send(self, rank: int, code: int, now: float) -> None:
        """Hand a result on; who waits for it goes on."""
        stream, m = divmod(code, self.m)
        kind, chunk = divmod(stream, self.chunks)
        to = chunk + 1 if kind == F else chunk - 1
        if kind == W or (kind != F and chunk % self.length == 0):
            return
        if kind == F and to % self.length == 0:
            self.arrival[self.cells + chunk * self.m + m] = now
            return
        other, edge = self.rank_of[to], min(chunk, to)
        slot = (0 if kind == F else self.cells) + to * self.m + m
        if other != rank:
            if self.data.contention:
                self.link[rank, other] = free_at = max(self.link.get((rank, other), 0.0), now) + self.transfer[edge]
                now = free_at + self.latency[edge]
            else:
                now = now + self.latency[edge] + self.transfer[edge]
            if self.waits[other] == slot:
                self.waits[other] = -1
                self.stack.append(other)
        self.arrival[slot] = now
