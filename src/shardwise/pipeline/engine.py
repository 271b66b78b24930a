"""The event engine: a schedule and its costs in, a timeline out.

Every rank keeps the order of its row; an action starts when its rank is free and its input has arrived; a message
between two ranks takes its latency and transfer time and does not hold up the sender's compute.
"""

from __future__ import annotations

import ctypes
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from shardwise.errors import InputError
from shardwise.kernels import library
from shardwise.pipeline.action import B, Schedule
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.timeline import Timeline

Floats = npt.NDArray[np.float64]


class _Replay(ctypes.Structure):
    _fields_ = (
        ("ranks", ctypes.c_int),
        ("chunks", ctypes.c_int),
        ("microbatches", ctypes.c_int),
        ("contention", ctypes.c_int),
        ("rank_of", ctypes.c_void_p),
        ("offset", ctypes.c_void_p),
        ("codes", ctypes.c_void_p),
        ("duration", ctypes.c_void_p),
        ("latency", ctypes.c_void_p),
        ("transfer", ctypes.c_void_p),
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
        self.duration = np.array([*costs.f, *costs.i, *costs.w, *both], dtype=np.float64)
        self.latency, self.transfer = np.zeros(chunks), np.zeros(chunks)
        self.latency[: len(costs.hop)] = costs.hop
        self.transfer[: len(costs.transfer)] = costs.transfer
        total = len(self.codes)
        self.next = np.zeros(schedule.pp, dtype=np.int64)
        self.start, self.end, self.cause = np.zeros(total), np.zeros(total), np.zeros(total, dtype=np.int8)


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
    )


def replay(data: Prepared) -> int:
    """Fill in the times; the number of actions that could run."""
    kernel = library()
    return replay_slowly(data) if kernel is None else _replay_compiled(kernel, data)


def _replay_compiled(kernel: ctypes.CDLL, data: Prepared) -> int:
    schedule = data.schedule
    fields = (data.rank_of, data.offset, data.codes, data.duration, data.latency, data.transfer)
    view = _Replay(
        schedule.pp, schedule.chunks, schedule.microbatches, int(data.contention), *(a.ctypes.data for a in fields)
    )
    run = kernel.replay
    run.restype, run.argtypes = ctypes.c_longlong, [ctypes.c_void_p] * 5
    outputs = (data.next, data.start, data.end, data.cause)
    return int(run(ctypes.addressof(view), *(a.ctypes.data for a in outputs)))


def _check_sizes(schedule: Schedule, costs: Costs) -> None:
    if costs.chunks != schedule.chunks:
        raise InputError(f"the costs are of {costs.chunks} chunks, the schedule has {schedule.chunks}")
    if schedule.chunks % schedule.pp:
        raise InputError(f"{schedule.chunks} chunks cannot be spread evenly over {schedule.pp} ranks")
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
    m_all, chunks, pp = data.schedule.microbatches, data.schedule.chunks, data.schedule.pp
    cells = m_all * chunks
    arrival = [-1.0] * (2 * cells)
    arrival[:m_all] = [0.0] * m_all
    codes, offset, rank_of = data.codes.tolist(), data.offset.tolist(), data.rank_of.tolist()
    duration, latency, transfer = data.duration.tolist(), data.latency.tolist(), data.transfer.tolist()
    start, end, cause = [0.0] * len(codes), [0.0] * len(codes), [0] * len(codes)
    clock, nexts, waits, link = [0.0] * pp, offset[:-1], [-1] * pp, dict[tuple[int, int], float]()
    stack, done = list(range(pp))[::-1], 0
    while stack:
        r = stack.pop()
        k = nexts[r]
        while k < offset[r + 1]:
            stream, m = divmod(codes[k], m_all)
            kind, chunk = divmod(stream, chunks)
            begin, why = clock[r], int(k > offset[r])
            if kind != 2:
                slot = (0 if kind == 0 else cells) + chunk * m_all + m
                ready = arrival[slot]
                if ready < 0:
                    waits[r] = slot
                    break
                if ready > begin:
                    begin, why = ready, 2
            start[k], cause[k] = begin, why
            end[k] = clock[r] = now = begin + duration[stream]
            k, done = k + 1, done + 1
            to = chunk + 1 if kind == 0 else chunk - 1
            if kind == 2 or to < 0:
                continue
            if to == chunks:
                arrival[cells + chunk * m_all + m] = now
                continue
            other, edge = rank_of[to], min(chunk, to)
            slot = (0 if kind == 0 else cells) + to * m_all + m
            if other != r:
                if data.contention:
                    free_at = max(link.get((r, other), 0.0), now) + transfer[edge]
                    link[r, other] = free_at
                    now = free_at + latency[edge]
                else:
                    now = now + latency[edge] + transfer[edge]
                if waits[other] == slot:
                    waits[other] = -1
                    stack.append(other)
            arrival[slot] = now
        nexts[r] = k
    data.start[:], data.end[:], data.cause[:], data.next[:] = start, end, cause, nexts
    return done
