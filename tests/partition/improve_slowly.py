"""The reference of improve.c: the same numbers, some hundred times slower."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from shardwise.partition.graph import Ints, Ready
from shardwise.partition.improve import Improved

_MASK = 2**64 - 1


PATHS, HEAVY = 32, 10.0


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
        self.graph = ready.steps
        self.before: dict[int, tuple[list[int], list[float]]] = {}
        """Chunks that a move touches: their counts and times before it."""
        self.end = [0.0]
        self.paths: list[tuple[list[float], float]] = []
        """Longest paths: how often each stream is on them, and their length before the move."""
        self.next = 0
        self.excess = self.old_excess = [0.0] * ready.problem.pp
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
        return ((self.draw() >> 11) + 0.5) * 2.0**-53

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

    def put(self, chunk: int, option: int, by: int) -> None:
        if chunk not in self.before:
            self.before[chunk] = (self.counts[chunk].copy(), [self.duration[kind][chunk] for kind in range(4)])
        self.counts[chunk][option] += by

    def over(self, rank: int) -> float:
        limit = float(self.ready.limits[rank])
        if limit == math.inf:
            return 0.0
        stock, most = float(self.ready.fixed_static[rank]), 0.0
        for chunk in self.own[rank]:
            for o in self.options:
                stock += self.counts[chunk][o] * float(self.ready.option_static[o])
        for row in self.rows[rank]:
            level = stock
            for chunk in self.own[rank]:
                level += row[chunk] * self.held[chunk]
            most = max(most, level)
        return most / limit - 1.0 if most > limit else 0.0

    def longest(self) -> float:
        flat = [time for kind in self.duration for time in kind]
        end, last = [0.0], 0.0
        for before, source, stream, hop in self.graph:
            end.append(max(end[before], end[source] + hop) + flat[stream])
            last = max(last, end[-1])
        self.end = end
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
            self.put(chunk, given, -1)
            changes = chunk + step == b and self.below(2)
            self.put(chunk + step, self.other(given) if changes else given, 1)
            carried = given
        return True

    def change(self, chunk: int) -> bool:
        before = self.used(chunk, -1)
        if before < 0:
            return False
        after = self.other(before)
        self.put(chunk, before, -1)
        self.put(chunk, after, 1)
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

    def settled(self) -> bool:
        for chunk in [chunk for chunk, (counts, _) in self.before.items() if counts == self.counts[chunk]]:
            del self.before[chunk]
        self.old_excess = self.excess.copy()
        for chunk in self.before:
            self.settle(chunk)
        for chunk in self.before:
            self.excess[self.rank_of[chunk]] = self.over(self.rank_of[chunk])
        return bool(self.before)

    def all_excess(self) -> float:
        total = 0.0
        for one in self.excess:  # not sum(), which rounds otherwise from Python 3.12 on
            total += one
        return total

    def longer(self, on_path: list[float]) -> float:
        total, chunks = 0.0, len(self.counts)
        for chunk, (_, times) in self.before.items():
            for kind in range(4):
                total += on_path[kind * chunks + chunk] * (self.duration[kind][chunk] - times[kind])
        return total

    def hopeless(self, most: float) -> bool:
        for p, (on_path, length) in enumerate(self.paths):
            if length + self.longer(on_path) > most:
                self.paths[p], self.paths[p // 2] = self.paths[p // 2], self.paths[p]
                return True
        return False

    def remember(self, value: float) -> None:
        on_path, k = [0.0] * (4 * len(self.counts)), len(self.end) - 1 - self.end[::-1].index(value)
        while k > 0:
            before, source, stream, hop = self.graph[k - 1]
            on_path[stream] += 1.0
            k = source if self.end[source] + hop > self.end[before] else before
        path = (on_path, value - self.longer(on_path))
        if len(self.paths) < PATHS:
            self.paths.append(path)
        else:
            self.paths[PATHS // 2 + self.next % (PATHS // 2)] = path
            self.next += 1

    def keep(self) -> None:
        self.paths = [(on_path, length + self.longer(on_path)) for on_path, length in self.paths]

    def undo(self) -> None:
        for chunk, (counts, _) in self.before.items():
            self.counts[chunk] = counts
            self.settle(chunk)


def improve_slowly(
    ready: Ready, counts: Ints, *, steps: int, hot: float, cold: float, seed: int, goal: float, fine: float
) -> Improved:
    walk = Walk(ready, counts, seed)
    now = best = walk.longest()
    kept, looked, heat, over_all = counts.copy(), 1, hot, 0.0
    cooling = math.pow(cold / hot, 1.0 / (steps - 1)) if steps > 1 else 1.0
    dearer = math.pow(HEAVY / fine, 1.0 / (steps - 1)) if steps > 1 else 1.0
    fine *= now
    for _ in range(steps):
        if best <= goal:
            break
        moved = walk.move()
        accepted = moved and walk.settled()
        if accepted:
            excess = walk.all_excess()
            most = now - heat * math.log(walk.unit()) + fine * (over_all - excess)
            looked += 1
            accepted = not walk.hopeless(most + 1e-9 * now)
        if accepted:
            value = walk.longest()
            accepted = value <= most
            if not accepted:
                walk.remember(value)
        if accepted:
            walk.keep()
            now, over_all = value, excess
            if now < best and over_all == 0.0:
                best, kept = now, np.array(walk.counts, dtype=np.int32)
        else:
            if moved:
                walk.excess = walk.old_excess
            walk.undo()
        walk.before.clear()
        heat *= cooling
        fine *= dearer
    return Improved(counts=kept, time=best, evaluations=looked)
