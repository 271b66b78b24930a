"""The twin of replay.c, statement by statement, where no kernels were built: one action at a time on plain lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwise.pipeline.engine import Prepared


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
