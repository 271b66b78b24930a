"""Which plan to run: the layouts that are plainer than the fastest and as fast as far as can be told, looked at after
the search, and of all of them the one of least expected regret.

The search prunes what cannot be the fastest. So plain layouts (a known order, even chunks, no unusual kind) are looked
at here once more: all whose bound lies within the error of the fastest are in question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from math import exp
from typing import NamedTuple

import numpy as np

from shardwise.estimate.estimate import Estimate, estimate
from shardwise.estimate.intervals import layout_width, pair_width
from shardwise.inputs.strategy import Strategy
from shardwise.search.question import Answer, Base, Candidate, Proposal
from shardwise.search.recomputes import AS_NEEDED
from shardwise.search.refine import candidate_of, plainly
from shardwise.search.regret import Rival, weighed
from shardwise.search.search import ROOMY, Search
from shardwise.search.simplicity import SHORT, UNUSUAL, kinds_of, plainness

LOOKS, ALIKE = 64, 12
"""Plain layouts simulated at most for the simplest, and again for what lies between it and the fastest; and of those
that are alike: as plain, or split over as many ranks."""


class _Plain(NamedTuple):
    """A plain layout of the space; its seconds are the bound."""

    plainness: tuple[int, ...]
    bound: float
    expected: float
    """The bound with what its kinds are expected to cost."""
    bytes: float
    """What it needs at least."""
    layout: Rival


def advised(answer: Answer, search: Search, *, fastest: bool = False) -> Answer:
    """The answer of a search with the simplest plan and the recommended one; `fastest`: recommend that."""
    if answer.fastest is None:
        return answer
    looks = _Looks(answer, search)
    best = min(looks.near, key=lambda one: one.seconds)
    if best.seconds < answer.fastest.iteration_seconds:  # within the gap of the search, and found afterwards
        answer = replace(answer, fastest=_estimate(answer, best.strategy))
    found = weighed(looks.near, looks.width, search.gap)
    front = [looks.near[one] for one in found.layouts]
    proposals = tuple(
        Proposal(
            candidate=looks.near[one], kinds=one.kinds, surcharge=one.expected(looks.width) / one.seconds - 1,
            regret=regret,
        )
        for one, regret in zip(found.layouts, found.regrets, strict=True)
    )  # fmt: skip
    return replace(
        answer,
        proposals=proposals,
        simplest=_estimate(answer, found.simplest.strategy) if answer.finished else None,
        recommended=answer.fastest if fastest else _estimate(answer, found.chosen.strategy),
        top=_with(answer.top, front),
        simulated=_with(answer.simulated, front),
    )


def _estimate(answer: Answer, strategy: Strategy) -> Estimate:
    question, best = answer.question, answer.fastest
    if best is not None and best.strategy == strategy:
        return best
    return estimate(
        question.model, question.cluster, strategy, runtime=question.runtime, memory_limit=question.memory_limit
    )


def _with(listed: tuple[Candidate, ...], front: list[Candidate]) -> tuple[Candidate, ...]:
    """The proposals among the candidates of a list: those that fit, fastest first, then the others as they stand."""
    known = {one.strategy for one in listed}
    fit = [one for one in listed if one.allowed]
    new = [one for one in front if one.strategy not in known]
    return (*sorted((*fit, *new), key=lambda one: one.seconds), *listed[len(fit) :])


class _Looks:
    """What is as fast as the fastest, as far as can be told: of what was simulated, and of the plain layouts."""

    def __init__(self, answer: Answer, search: Search) -> None:
        self.answer, self.search, self.question = answer, search, answer.question
        best = answer.fastest
        assert best is not None  # noqa: S101 - for the type checker: `advised` has looked
        self.experts = self.question.model.moe is not None
        self.width, self.most = layout_width(best), best.iteration_seconds * exp(pair_width(best))
        self.near: dict[Rival, Candidate] = {}
        self.seen = set[Strategy]()
        self.more: dict[tuple[object, ...], float] = {}
        for one in answer.simulated:
            self._take(one)
        if answer.finished:
            plain = list(self._plain())
            self._look_for_the_simplest(plain)
            self._look_between(plain)

    def _take(self, one: Candidate) -> None:
        self.seen.add(one.strategy)
        if one.allowed and self.answer.within_error(one):
            self.near[Rival(one.strategy, one.seconds, self.experts)] = one

    def _plain(self) -> Iterator[_Plain]:
        """The plain layouts of the space whose bounds are within the error of the fastest, and may fit."""
        search, question = self.search, self.question
        unusual = {*UNUSUAL} - {*kinds_of(question.base, experts=self.experts)}  # what was asked for is no choice
        for rows, start in search.rows_within(self.most, self._usual):
            may = (rows.seconds <= self.most) & (rows.bytes <= question.memory_limit)
            for row in np.flatnonzero(may).tolist():
                for strategy in self._with_and_without_graphs(search.strategy(start + row)):
                    one = Rival(strategy, float(rows.seconds[row]), self.experts)
                    if one.strategy.recompute.layers != AS_NEEDED and unusual.isdisjoint(one.kinds):
                        least = float(rows.bytes[row])
                        yield _Plain(self._plainness(one), one.seconds, one.expected(self.width), least, one)

    def _with_and_without_graphs(self, strategy: Strategy) -> Iterator[Strategy]:
        """Of CUDA graphs that are named the space holds those that cover most, which are never slower: their bounds
        hold without them, too, which is simpler.
        """
        yield strategy
        wishes = self.question.wishes
        choice = len(wishes.named("cuda_graphs")) > 1 and wishes.allow("cuda_graphs", "none")
        if choice and strategy.cuda_graphs != "none":
            yield replace(strategy, cuda_graphs="none")

    def _usual(self, base: Base) -> bool:
        return (base.cp == 1 or self.question.base.seq > SHORT) and (base.sp or base.tp == 1) and base.etp == 1

    def _look_for_the_simplest(self, plain: list[_Plain]) -> None:
        """The plainest first, of the equally plain the lowest bound, until one is near and none of its like faster."""
        looks = Counter[tuple[int, ...]]()
        for rank, alike in groupby(sorted(plain, key=lambda one: one[:2]), key=lambda one: one.plainness):
            if min(map(self._plainness, self.near)) < rank:
                return
            for one in alike:
                if one.bound >= self._least(rank) or looks[rank] == ALIKE:
                    break
                if looks.total() == LOOKS:
                    return
                looks[rank] += self._look(one)

    def _plainness(self, one: Rival) -> tuple[int, ...]:
        return plainness(one.strategy, experts=self.experts)

    def _least(self, rank: tuple[int, ...]) -> float:
        """Seconds of the fastest that is so plain."""
        return min((one.seconds for one in self.near if self._plainness(one) == rank), default=self.most)

    def _look_between(self, plain: list[_Plain]) -> None:
        """The least expected first, of what surely seems to fit and then of the rest, until nothing can be expected to
        be faster.
        """
        looks, roomy = Counter[tuple[int, ...]](), ROOMY * self.question.memory_limit
        for part in ([one for one in plain if one.bytes <= roomy], [one for one in plain if one.bytes > roomy]):
            for one in sorted(part, key=lambda one: one.expected):
                if looks.total() == LOOKS or one.expected >= min(other.expected(self.width) for other in self.near):
                    break
                s = one.layout.strategy
                split = (s.tp, s.pp, s.ep)
                if looks[split] < ALIKE:
                    looks[split] += self._look(one)

    def _look(self, one: _Plain) -> bool:
        """Simulate it, if it was not yet and may fit: once one of its like was simulated, it is known by which factor
        they need more than their bounds say.
        """
        strategy = one.layout.strategy
        like = (one.layout.kinds, strategy.pp, strategy.vpp, strategy.micro_batch)
        if strategy in self.seen or one.bytes * self.more.get(like, 1.0) > self.question.memory_limit:
            return False
        self.seen.add(strategy)
        for found in plainly(self.question, strategy):
            self.more[like] = min(found.total_bytes / one.bytes, self.more.get(like, float("inf")))
            self._take(candidate_of(found))
        return True
