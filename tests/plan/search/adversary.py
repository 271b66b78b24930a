"""An adversary of the search: draws questions, and tries to beat what the search prints by annealing.

It takes the space's word on which axes there are, and nothing else: layers go anywhere, each strategy is estimated in
full. What it looks for: a strategy that fits and is faster than the best, or than the bound that is said to hold for
all; and one that is faster, or leaner, than the screen's bound of its own point.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from math import exp

from shardwise.errors import ShardwiseError
from shardwise.inputs.check import check
from shardwise.inputs.layers import spread
from shardwise.plan.estimate import estimate
from shardwise.plan.search.api import question_of
from shardwise.plan.search.screen import Screen
from shardwise.plan.search.search import Search
from shardwise.plan.search.space import AS_NEEDED, Space
from shardwise.plan.search.types import Point

MODELS = (
    "llama-3.2-3b", "llama-3-8b", "llama-3-70b", "gpt-3-175b", "bloom-560m", "gemma-2-9b", "mixtral-8x7b",
    "deepseek-v2-lite", "qwen3-30b-a3b", "deepseek-v3",
)  # fmt: skip
CLUSTERS = ("8xh100", "16xh100", "32xa100", "64xh100", "96xmi300x", "64xb200", "128xh200")
RUNTIMES = ("megatron", "megatron", "megatron", "zero-bubble", "torchtitan", "mindformers", "megatron-2023")
WISHES = (
    "",
    "pp>=2",
    "pp=2 vpp>=2 cp=1",
    "pp=4 vpp>=2 tp=1 cp=1",
    "pp>=4 tp<=2",
    "schedule=zb-v",
    "cp=1 recompute=none,full",
)
BEATEN = 5e-4
CLOSE = 1 - 1e-7


def drawn(number: int):
    """The question of a number; none where it makes no sense."""
    rng = random.Random(number)  # noqa: S311
    model, cluster, runtime = rng.choice(MODELS), rng.choice(CLUSTERS), rng.choice(RUNTIMES)
    batch = rng.choice((1, 2, 4, 8)) * int(cluster.split("x")[0])
    only = rng.choice(WISHES)
    try:
        return question_of(
            model, cluster, global_batch=batch, seq=rng.choice((2048, 4096, 8192)), runtime=runtime, only=only
        )
    except ShardwiseError:
        return None


@dataclass
class Attack:
    """What was found against one question."""

    number: int
    said: str = ""
    best: float = float("inf")
    bound: float = 0.0
    gap: float = 0.0
    evaluations: int = 0
    beaten: float = 0.0
    """By how much the best was beaten."""
    broken: list[str] = field(default_factory=list)
    """Strategies below a bound."""


def attack(number: int, evaluations: int) -> Attack | None:
    """Plan, then try to do better."""
    question = drawn(number)
    space = Space(question=question) if question else None
    if space is None or not space.bases:
        return None
    answer = Search(question=question).run()
    if answer.best is None:
        return None
    found = Attack(number, str(answer.best.strategy), answer.best.iteration_seconds, answer.bound, answer.gap)
    return _Adversary(question, space, answer, found, evaluations).run()


class _Adversary:
    def __init__(self, question, space, answer, found, evaluations) -> None:
        self.question, self.space, self.found, self.left = question, space, found, evaluations
        self.start, self.rng = answer.best.strategy, random.Random(found.number)  # noqa: S311
        self.screen, self.rows, self.seen = Screen(space=space), {}, {}
        self.near = [one.strategy for one in answer.top[:12]]

    def run(self) -> Attack:
        while self.left > 0:
            self._anneal(self._begin(), min(self.left, 400))
        return self.found

    def _begin(self):
        """The best, one of the other layouts that were simulated, or any point."""
        draw = self.rng.random()
        if draw < 0.35:
            return self.start, None
        if draw < 0.7 and self.near:
            return self.rng.choice(self.near), None
        base = self.rng.choice(self.space.bases)
        layout = self.rng.choice(self.space.layouts(base))
        shardings = self.space.shardings(base, layout)
        recomputes = [one for one in self.space.recomputes(layout) if one.layers != AS_NEEDED]
        if not shardings or not recomputes:
            return self.start, None
        point = Point(base, layout, self.rng.choice(shardings), self.rng.choice(recomputes))
        return self.space.strategy(point), point

    def _anneal(self, begin, steps) -> None:
        strategy, point = begin
        value = self._value(strategy, point)
        warm = 0.02
        for step in range(steps):
            other = self._moved(strategy)
            if other is None:
                return
            now = self._value(other, point)
            heat = warm * value * (1 - step / steps) + 1e-12
            if now <= value or self.rng.random() < exp((value - now) / heat):
                strategy, value = other, now

    def _moved(self, s):
        """A layer, or several, to another chunk; or another recomputation, sharding or order over the same stages."""
        if s.chunks == 1 or not self.question.runtime.can.uneven_layers:
            return None
        layers = list(spread(self.question.model.layers, s))
        giver, taker = self.rng.sample(range(len(layers)), 2)
        if self.rng.random() < 0.5:
            taker = min(max(giver + self.rng.choice((-1, 1)), 0), len(layers) - 1)
        count = self.rng.choice((1, 1, 1, 2))
        if layers[giver] <= count or giver == taker:
            return s
        layers[giver] -= count
        layers[taker] += count
        return replace(s, layers=tuple(layers))

    def _value(self, s, point) -> float:
        """Seconds, infinite where it does not fit; bounds are held against it on the way."""
        if s in self.seen:
            return self.seen[s]
        self.left -= 1
        self.found.evaluations += 1
        q = self.question
        if check(q.model, q.cluster, s, q.runtime):
            self.seen[s] = float("inf")
            return float("inf")
        made = estimate(q.model, q.cluster, s, runtime=q.runtime, checked=True)
        fits = made.total_bytes <= q.memory_limit and made.host_bytes <= q.cluster.host_memory
        self._judge(s, point, made, fits=fits)
        self.seen[s] = made.iteration_seconds if fits else float("inf")
        return self.seen[s]

    def _judge(self, s, point, made, *, fits) -> None:
        found, seconds = self.found, made.iteration_seconds
        if fits:
            found.beaten = max(found.beaten, 1 - seconds / found.best)
            if seconds < found.bound * CLOSE:
                found.broken.append(f"{s}: {seconds:.6g} s, bound {found.bound:.6g} s")
        if point is not None:
            time, size = self._row(point)
            if seconds < time * CLOSE:
                found.broken.append(f"{s}: {seconds:.6g} s, its own bound {time:.6g} s")
            if made.total_bytes < size * CLOSE:
                found.broken.append(f"{s}: {made.total_bytes:.6g} bytes, its own bound {size:.6g}")

    def _row(self, point):
        if point.base not in self.rows:
            rows = self.screen.rows(point.base)
            places = {}
            for layout in self.space.layouts(point.base):
                for sharding in self.space.shardings(point.base, layout):
                    for recompute in self.space.recomputes(layout):
                        places[layout, sharding, recompute] = len(places)
            self.rows[point.base] = rows, places
        rows, places = self.rows[point.base]
        place = places[point.layout, point.sharding, point.recompute]
        return float(rows.seconds[place]), float(rows.bytes[place])
