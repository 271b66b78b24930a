"""An adversary of the search: draws questions, and tries to beat what the search prints by annealing.

It takes the space's word on which axes there are, and nothing else: layers go anywhere, each strategy is estimated in
full. What it looks for: a strategy that fits and is faster than the best, or than the bound that is said to hold for
all; and one that is faster, or leaner, than the screen's bound of its own point.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from math import exp
from typing import NamedTuple

from shardwise.check.check import check
from shardwise.errors import ShardwiseError
from shardwise.estimate.estimate import estimate
from shardwise.inputs.layers import spread
from shardwise.inputs.recompute import Recompute
from shardwise.search.api import question_of
from shardwise.search.question import Point
from shardwise.search.recomputes import AS_NEEDED
from shardwise.search.screen import Screen
from shardwise.search.search import Search
from shardwise.search.space import Space

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
    winner: str = ""
    broken: list[str] = field(default_factory=list)
    """Strategies below a bound."""


def attack(number: int, evaluations: int) -> Attack | None:
    """Plan, then try to do better."""
    question = drawn(number)
    space = Space(question=question) if question else None
    if space is None or not space.bases:
        return None
    answer = Search(question=question).run()
    if answer.fastest is None:
        return None
    found = Attack(number, str(answer.fastest.strategy), answer.fastest.iteration_seconds, answer.bound, answer.gap)
    return _Adversary(question, space, answer, found, evaluations).run()


class _Adversary:
    def __init__(self, question, space, answer, found, evaluations) -> None:
        self.question, self.space, self.found, self.left = question, space, found, evaluations
        self.rng = random.Random(found.number)  # noqa: S311
        self.screen, self.rows, self.seen = Screen(space=space), {}, {}
        self.best = self._known(answer.fastest.strategy)
        self.near = [self._known(one.strategy) for one in answer.top[:12]]

    def run(self) -> Attack:
        while self.left > 0:
            self._anneal(self._begin(), min(self.left, 400), self.rng.choice((_seconds, _above_own_bound)))
        return self.found

    def _known(self, s):
        """A simulated strategy with the point of the space that it is a cut of."""
        bare = replace(s, layers=(), recompute=Recompute(), cuda_graphs="none")  # those that bring nothing are dropped
        for base in self.space.bases:
            if (base.tp, base.cp, base.ep, base.etp, base.micro_batch) == (s.tp, s.cp, s.ep, s.etp, s.micro_batch):
                for layout in self.space.layouts(base):
                    for sharding in self.space.shardings(base, layout):
                        plain = Point(base, layout, sharding, Recompute())
                        if replace(self.space.strategy(plain), cuda_graphs="none") == bare:
                            return s, plain._replace(recompute=self._kind(s, base, layout))
        raise AssertionError(s)

    def _kind(self, s, base, layout):
        if s.recompute in self.space.recomputes(base, layout):
            return s.recompute
        return replace(s.recompute, layers=AS_NEEDED)

    def _begin(self):
        """The best, one of the other layouts that were simulated, or any point."""
        draw = self.rng.random()
        if draw < 0.35:
            return self.best
        if draw < 0.6 and self.near:
            return self.rng.choice(self.near)
        return self._over(self.rng.choice(self.space.bases)) or self.best

    def _over(self, base, layout=None, sharding=None, recompute=None):
        """A cut of a point; what is not given, or is not there, is drawn."""
        layouts = self.space.layouts(base)
        if not layouts:
            return None
        layout = layout if layout in layouts else self.rng.choice(layouts)
        shardings, recomputes = self.space.shardings(base, layout), self.space.recomputes(base, layout)
        if not shardings or not recomputes:
            return None
        sharding = sharding if sharding in shardings else self.rng.choice(shardings)
        point = Point(base, layout, sharding, recompute if recompute in recomputes else self.rng.choice(recomputes))
        return self._cut(point, spread(self.question.model.layers, self.space.strategy(point)))

    def _cut(self, point, layers):
        """The strategy of a point with so many layers in every chunk."""
        s = self.space.strategy(point)
        layers = () if layers == spread(self.question.model.layers, s) else layers
        recompute = point.recompute
        if recompute.layers == AS_NEEDED:
            again = tuple(self.rng.randint(0, count) for count in spread(self.question.model.layers, s))
            recompute = replace(recompute, layers=again) if any(again) else Recompute()
        return replace(s, layers=layers, recompute=recompute), point

    def _anneal(self, begin, steps, aim) -> None:
        strategy, point = begin
        value, warm = aim(self._judged(strategy, point)), 0.02
        for step in range(steps):
            moved = self._moved(strategy, point)
            if moved is None:
                return
            now = aim(self._judged(*moved))
            heat = warm * value * (1 - step / steps) + 1e-12
            if now <= value or self.rng.random() < exp((value - now) / heat):
                (strategy, point), value = moved, now

    def _moved(self, s, point):
        """Layers to another chunk, or another value of one axis."""
        if self.rng.random() < 0.1:
            return self._turned(point) or (s, point)
        if s.chunks == 1 or not self.question.runtime.can.uneven_layers:
            return self._turned(point)
        if s.recompute.layers and len(s.recompute.layers) == s.chunks and self.rng.random() < 0.3:
            return self._recomputed(s), point
        layers = list(spread(self.question.model.layers, s))
        giver, taker = self.rng.sample(range(len(layers)), 2)
        if self.rng.random() < 0.5:
            taker = min(max(giver + self.rng.choice((-1, 1)), 0), len(layers) - 1)
        count = self.rng.choice((1, 1, 1, 2))
        if layers[giver] <= count or giver == taker:
            return s, point
        layers[giver] -= count
        layers[taker] += count
        if len(s.recompute.layers) == s.chunks:
            again = tuple(min(n, most) for n, most in zip(s.recompute.layers, layers, strict=True))
            s = replace(s, recompute=replace(s.recompute, layers=again))
        return replace(s, layers=tuple(layers)), point

    def _recomputed(self, s):
        """One layer of a chunk more, or one less, is recomputed."""
        layers, again = spread(self.question.model.layers, s), list(s.recompute.layers)
        chunk = self.rng.randrange(len(again))
        again[chunk] = min(max(again[chunk] + self.rng.choice((-1, 1)), 0), layers[chunk])
        return replace(s, recompute=replace(s.recompute, layers=tuple(again)) if any(again) else Recompute())

    def _turned(self, point):
        """The same but for one axis, and what must follow it."""
        which = self.rng.randrange(4)
        base = self.rng.choice(self.space.bases) if which == 0 else point.base
        layout = None if which == 1 else point.layout
        sharding = None if which == 2 else point.sharding
        return self._over(base, layout, sharding, None if which == 3 else point.recompute)

    def _judged(self, s, point):
        """What is known of a strategy; bounds are held against it on the way."""
        if s in self.seen:
            return self.seen[s]
        self.left -= 1
        self.found.evaluations += 1
        q = self.question
        if check(q.model, q.cluster, s, q.runtime):
            self.seen[s] = Judged(float("inf"), fits=False, own=1.0)
            return self.seen[s]
        made = estimate(q.model, q.cluster, s, runtime=q.runtime, checked=True)
        fits = made.total_bytes <= q.memory_limit and made.host_bytes <= q.cluster.host_memory
        found, seconds = self.found, made.iteration_seconds
        own, size = self._row(point)
        if fits:
            if 1 - seconds / found.best > found.beaten:
                found.beaten, found.winner = 1 - seconds / found.best, str(s)
            if seconds < found.bound * CLOSE:
                found.broken.append(f"{s}: {seconds:.6g} s, bound {found.bound:.6g} s")
        if fits and seconds < own * CLOSE:
            found.broken.append(f"{s}: {seconds:.6g} s, its own bound {own:.6g} s")
        if made.total_bytes < size * CLOSE:
            found.broken.append(f"{s}: {made.total_bytes:.6g} bytes, its own bound {size:.6g}")
        self.seen[s] = Judged(seconds, fits=fits, own=own)
        return self.seen[s]

    def _row(self, point):
        if point.base not in self.rows:
            rows = self.screen.rows(point.base)
            places = {}
            for layout in self.space.layouts(point.base):
                for sharding in self.space.shardings(point.base, layout):
                    for recompute in self.space.recomputes(point.base, layout):
                        places[layout, sharding, recompute] = len(places)
            self.rows[point.base] = rows, places
        rows, places = self.rows[point.base]
        place = places[point.layout, point.sharding, point.recompute]
        return float(rows.seconds[place]), float(rows.bytes[place])


class Judged(NamedTuple):
    """A strategy that was estimated."""

    seconds: float
    fits: bool
    own: float
    """The bound of its point: on cuts that fit."""


def _seconds(one: Judged) -> float:
    return one.seconds if one.fits else float("inf")


def _above_own_bound(one: Judged) -> float:
    return one.seconds / one.own
