"""The twin of improve.c for machines without a compiler: the same numbers, some hundred times slower."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from shardwise.partition.graph import Ints, Ready
from shardwise.partition.improve import Improved

_MASK = 2**64 - 1


class Walk:
    """The state of one annealing run: counts as lists, and what follows from them."""

    def __init__(self, ready: Ready, counts: Ints, seed: int) -> None:
        self.ready, self.seed, self.options = ready, seed, range(ready.options)
        self.counts = counts.tolist()
        self.run_of, self.rank_of, self.least = ready.run_of.tolist(), ready.rank_of.tolist(), ready.least.tolist()
        self.time, self.fixed_time = ready.option_time.tolist(), ready.fixed_time.tolist()
        self.own = [np.flatnonzero(ready.rank_of == rank).tolist() for rank in range(ready.problem.pp)]
        self.rows = [ready.rows[ready.row_rank == rank].tolist() for rank in range(ready.problem.pp)]
        self.duration = [[0.0] * ready.chunks for _ in range(4)]
        self.held = [0.0] * ready.chunks
        self.graph = list(zip(ready.before.tolist(), ready.input.tolist(), ready.stream.tolist(), ready.hop.tolist(),
                              strict=True))[1:]  # fmt: skip
        for chunk in range(ready.chunks):
            self.settle(chunk)

    def draw(self) -> int:
        self.seed = (self.seed + 0x9E3779B97F4A7C15) & _MASK
        z = self.seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        return (self.draw() >> 33) % n

    def unit(self) -> float:
        return (self.draw() >> 11) * 2.0**-53

    def settle(self, chunk: int) -> None:
        counts = self.counts[chunk]
        for kind in range(4):
            total = self.fixed_time[kind][chunk]
            for o in self.options:
                total += counts[o] * self.time[kind][o]
            self.duration[kind][chunk] = total
        held = float(self.ready.fixed_held[chunk])
        for o in self.options:
            held += counts[o] * float(self.ready.option_held[o])
        self.held[chunk] = held

    def fits(self, rank: int) -> bool:
        stock = float(self.ready.fixed_static[rank])
        for chunk in self.own[rank]:
            for o in self.options:
                stock += self.counts[chunk][o] * float(self.ready.option_static[o])
        for row in self.rows[rank]:
            level = stock
            for chunk in self.own[rank]:
                level += row[chunk] * self.held[chunk]
            if level > self.ready.limits[rank]:
                return False
        return True

    def longest(self) -> float:
        flat = [time for kind in self.duration for time in kind]
        end, last = [0.0], 0.0
        for before, source, stream, hop in self.graph:
            end.append(max(end[before], end[source] + hop) + flat[stream])
            last = max(last, end[-1])
        return last

    def pick(self, wanted: Callable[[int], bool], among: int) -> int:
        """A random one of 0 .. among - 1 that is wanted; -1: none is."""
        found = [k for k in range(among) if wanted(k)]
        return found[self.below(len(found))] if found else -1

    def used(self, chunk: int, run: int) -> int:
        counts = self.counts[chunk]
        return self.pick(lambda o: counts[o] > 0 and (run < 0 or self.run_of[o] == run), len(self.run_of))

    def other(self, option: int) -> int:
        run = self.run_of[option]
        found = self.pick(lambda o: o != option and self.run_of[o] == run, len(self.run_of))
        return option if found < 0 else found

    def neighbour(self, chunk: int) -> int:
        rank = self.rank_of[chunk]
        found = self.pick(lambda c: c != chunk and self.rank_of[c] == rank, len(self.rank_of))
        return chunk if found < 0 else found

    def shift(self, a: int, b: int) -> bool:
        step, carried = (1 if b > a else -1), -1
        if sum(self.counts[a]) <= self.least[a]:
            return False
        for chunk in range(a, b, step):
            runs = [self.run_of[o] for o in self.options if self.counts[chunk][o] > 0]
            if not runs:
                return False
            run = runs[-1] if step > 0 else runs[0]
            given = carried if carried >= 0 and self.run_of[carried] == run else self.used(chunk, run)
            self.counts[chunk][given] -= 1
            changes = chunk + step == b and self.below(2)
            self.counts[chunk + step][self.other(given) if changes else given] += 1
            carried = given
        return True

    def change(self, chunk: int) -> bool:
        before = self.used(chunk, -1)
        if before < 0:
            return False
        after = self.other(before)
        self.counts[chunk][before] -= 1
        self.counts[chunk][after] += 1
        return after != before

    def move(self) -> bool:
        kind, a = self.below(10), self.below(len(self.counts))
        b = self.neighbour(a) if kind < 5 else self.below(len(self.counts))
        if a == b or kind in {0, 5}:
            return self.change(a)
        if kind in {1, 2, 6}:
            return self.change(a) and self.change(b)
        if not self.shift(a, b):
            return False
        if kind in {3, 9}:
            return True
        return self.change({4: a, 7: b}[kind] if kind < 8 else self.neighbour(b))

    def settled(self, before: list[list[int]]) -> bool:
        changed = [c for c in range(len(before)) if before[c] != self.counts[c]]
        for chunk in changed:
            self.settle(chunk)
        return all(self.fits(self.rank_of[chunk]) for chunk in changed)

    def undo(self, before: list[list[int]]) -> None:
        for chunk, counts in enumerate(before):
            if counts != self.counts[chunk]:
                self.counts[chunk] = counts
                self.settle(chunk)


def improve_slowly(
    ready: Ready, counts: Ints, *, steps: int, hot: float, cold: float, seed: int, goal: float = 0.0
) -> Improved:
    walk = Walk(ready, counts, seed)
    now = best = walk.longest()
    kept, looked, heat = counts.copy(), 1, hot
    cooling = math.pow(cold / hot, 1.0 / (steps - 1)) if steps > 1 else 1.0
    for _ in range(steps):
        if best <= goal:
            break
        before = [row.copy() for row in walk.counts]
        accepted = walk.move() and walk.settled(before)
        if accepted:
            value = walk.longest()
            looked += 1
            accepted = value <= now or walk.unit() < math.exp((now - value) / heat)
        if accepted:
            now = value
            if now < best:
                best, kept = now, np.array(walk.counts, dtype=np.int32)
        else:
            walk.undo(before)
        heat *= cooling
    return Improved(counts=kept, time=best, evaluations=looked)
