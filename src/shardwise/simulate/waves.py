"""The engine without a compiler: all ranks take one step together, each step a handful of numpy calls.

A step runs the next action of every rank whose input is there, so its cost is shared by as many ranks as are busy.
Below eight ranks plain lists are faster, and that is the path taken there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from shardwise.simulate.engine import Prepared

_FEW = 8
"""Fewer ranks than this: plain lists (measured: 1.3 us an action; a numpy step is about 20 us)."""


def replay_in_waves(data: Prepared) -> int:
    return replay_slowly(data) if data.schedule.pp < _FEW or data.contention else _replay_vectorised(data)


def replay_slowly(data: Prepared) -> int:
    """One action at a time on plain lists; the twin of replay.c, statement by statement."""
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


def _replay_vectorised(data: Prepared) -> int:
    """All ranks step together; a spare action that waits for ever ends each row, so no step asks who has finished."""
    needs, fills, latency, transfer, duration = _tables(data)
    cells = 2 * data.schedule.microbatches * data.schedule.chunks
    arrival = np.full(cells + 3, -1.0)
    arrival[: data.schedule.microbatches] = 0.0
    arrival[cells] = 0.0
    total, done = len(data.codes), 0
    begins = np.zeros(total + data.schedule.pp)
    k, clock = data.offset[:-1] + np.arange(data.schedule.pp), np.zeros(data.schedule.pp)
    while done < total:
        ready = arrival[needs[k]]
        runs = np.flatnonzero(ready >= 0)
        if not runs.size:
            break
        at = k[runs]
        begin = np.maximum(clock[runs], ready[runs])
        begins[at] = begin
        ended = begin + duration[at]
        clock[runs] = ended
        arrival[fills[at]] = ended + latency[at] + transfer[at]
        k[runs] += 1
        done += runs.size
    data.next[:] = k - np.arange(data.schedule.pp)
    _fill_in(data, begins[_padded(data)])
    return done


def _padded(data: Prepared) -> np.ndarray:
    """Where the actions lie when every row has a spare place at its end."""
    return np.arange(len(data.codes)) + np.repeat(np.arange(data.schedule.pp), np.diff(data.offset))


def _fill_in(data: Prepared, begins: np.ndarray) -> None:
    """Ends and causes from the starts, for all actions at once."""
    data.start[:] = begins
    data.end[:] = begins + data.duration[data.codes // data.schedule.microbatches]
    before = np.concatenate(([0.0], data.end[:-1]))
    before[data.offset[:-1]] = 0.0
    data.cause[:] = np.where(begins > before, 2, 1)
    first = data.offset[:-1]
    data.cause[first] = np.where(begins[first] > 0, 2, 0)


def _tables(data: Prepared) -> tuple[np.ndarray, ...]:
    """Per place: slot it waits for, slot it fills, latency, transfer, duration.

    Three spare slots: always there (W waits for nothing), filled by those that feed nobody, and never there.
    """
    m_all, chunks = data.schedule.microbatches, data.schedule.chunks
    cells = m_all * chunks
    stream, m = np.divmod(data.codes, m_all)
    kind, chunk = np.divmod(stream, chunks)
    base = np.where(kind == 0, 0, cells)
    needs = np.where(kind == 2, 2 * cells, base + chunk * m_all + m)
    to = np.where(kind == 0, chunk + 1, chunk - 1)
    fills = np.where((kind == 2) | (to < 0), 2 * cells + 1, base + to * m_all + m)
    fills = np.where((kind == 0) & (to == chunks), cells + chunk * m_all + m, fills)
    edge = np.clip(np.minimum(chunk, to), 0, chunks - 1)
    inside = (to < 0) | (to == chunks) | (data.rank_of[np.clip(to, 0, chunks - 1)] == data.rank_of[chunk])
    place, size = _padded(data), len(data.codes) + data.schedule.pp
    spread = [np.full(size, 2 * cells + 2), np.full(size, 2 * cells + 1), *(np.zeros(size) for _ in range(3))]
    hops = (np.where(inside, 0.0, data.latency[edge]), np.where(inside, 0.0, data.transfer[edge]))
    for table, values in zip(spread, (needs, fills, *hops, data.duration[stream]), strict=True):
        table[place] = values
    return tuple(spread)
