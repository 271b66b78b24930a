"""All mixes of alternatives at once: branch and bound over what every chunk may take.

A case says what each chunk may still take. The least time and bytes that a chunk may take there make a problem that
any schedule of any mix of the case also solves (shorter actions may start when the longer ones did), so its lower
bound holds for all of them. The least bound over cases that together hold every mix holds for every mix.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from shardwise.errors import InfeasibleError
from shardwise.pipeline.arrays import Objective, make_problem
from shardwise.pipeline.bounds import Bound, lower_bound
from shardwise.pipeline.costs import Costs

Choice = tuple[int, ...]
"""By chunk, the alternative that it takes."""
Case = tuple[tuple[int, ...], ...]
"""By chunk, the alternatives that it may take."""
_NEVER = Bound(value=float("inf"), rank=0, kind="memory")


def mix(alternatives: Sequence[Costs], choice: Choice) -> Costs:
    """The costs when chunk c takes alternative choice[c]; links, limits and static bytes are the first one's."""
    return least(alternatives, tuple((k,) for k in choice))


def least(alternatives: Sequence[Costs], case: Case) -> Costs:
    """For every chunk the least of each cost that it may take in this case."""
    picked = [[alternatives[k] for k in taken] for taken in case]
    return replace(
        alternatives[0],
        f=tuple(min(costs.f[c] for costs in open_) for c, open_ in enumerate(picked)),
        i=tuple(min(costs.i[c] for costs in open_) for c, open_ in enumerate(picked)),
        w=tuple(min(costs.w[c] for costs in open_) for c, open_ in enumerate(picked)),
        activation=tuple(min(costs.held(c) for costs in open_) for c, open_ in enumerate(picked)),
    )


class Mixes:
    """The cases so far; `split` the one of the least bound and the bound can only rise."""

    def __init__(
        self, alternatives: Sequence[Costs], rank_of: tuple[int, ...], microbatches: int, objective: Objective
    ) -> None:
        self.alternatives, self.rank_of, self.microbatches = alternatives, rank_of, microbatches
        self.objective: Objective = objective
        self._stands_for = [_stands_for(alternatives, c) for c in range(len(rank_of))]
        self._root: Case = tuple(tuple(sorted(set(groups))) for groups in self._stands_for)
        self._parts: dict[Case, list[Case]] = {}
        self.bounds: dict[Case, Bound] = {}
        self._open: list[tuple[float, int, Case]] = []
        self._single = _NEVER
        self._add(self._root)

    @property
    def bound(self) -> Bound:
        """For every order of every mix."""
        first = self.bounds[self._open[0][2]] if self._open else _NEVER
        return min(first, self._single, key=lambda bound: bound.value)

    @property
    def smallest(self) -> Choice:
        """For every chunk the alternative that holds least."""
        kinds = range(len(self.alternatives))
        return tuple(min(kinds, key=lambda k: self.alternatives[k].held(c)) for c in range(len(self.rank_of)))

    def plain(self, choice: Choice) -> Choice:
        """The same with the first alternative that is nowhere worse, chunk by chunk."""
        return tuple(groups[k] for groups, k in zip(self._stands_for, choice, strict=True))

    @property
    def through(self) -> bool:
        """Whether every mix has been a case of its own."""
        return not self._open

    def split(self) -> Choice | None:
        """Split the open case of the least bound; where it is a single mix, close it and give that."""
        _, _, case = heapq.heappop(self._open)
        chunk = self._branch(case)
        if chunk is None:
            self._single = min(self._single, self.bounds[case], key=lambda bound: bound.value)
            return tuple(taken[0] for taken in case)
        self._parts[case] = [(*case[:chunk], (k,), *case[chunk + 1 :]) for k in case[chunk]]
        for part in self._parts[case]:
            self._add(part)
        return None

    def cover(self) -> tuple[Case, ...]:
        """As few cases as prove the bound, which hold every mix once."""
        value, left, found = self.bound.value * (1 - 1e-12), [self._root], list[Case]()
        while left:
            case = left.pop()
            if self.bounds[case].value >= value:
                found.append(self._whole(case))
            else:
                left += self._parts[case]
        return tuple(found)

    def _whole(self, case: Case) -> Case:
        """With the alternatives that those of the case stand for."""
        return tuple(
            tuple(k for k, by in enumerate(groups) if by in taken)
            for groups, taken in zip(self._stands_for, case, strict=True)
        )

    def _add(self, case: Case) -> None:
        try:
            problem = make_problem(least(self.alternatives, case), self.rank_of, self.microbatches)
            self.bounds[case] = lower_bound(problem, self.objective)
        except InfeasibleError:
            self.bounds[case] = _NEVER
        heapq.heappush(self._open, (self.bounds[case].value, sum(map(len, case)), case))

    def _branch(self, case: Case) -> int | None:
        """A chunk of the rank that forces the bound, else the one whose alternatives differ most in time."""
        undecided = [c for c, taken in enumerate(case) if len(taken) > 1]
        rank = self.bounds[case].rank
        forced = [c for c in undecided if self.rank_of[c] == rank]
        return max(forced or undecided, key=lambda c: self._spread(case, c), default=None)

    def _spread(self, case: Case, c: int) -> float:
        times = [costs.f[c] + costs.i[c] + costs.w[c] for costs in (self.alternatives[k] for k in case[c])]
        return max(times) - min(times)


def _stands_for(alternatives: Sequence[Costs], c: int) -> list[int]:
    """By alternative, the first one that is nowhere worse for this chunk."""
    costs = [(one.f[c], one.i[c], one.w[c], one.held(c)) for one in alternatives]
    best = [
        k for k, own in enumerate(costs)
        if not any(other != own and _nowhere_worse(other, own) for other in costs) and own not in costs[:k]
    ]  # fmt: skip
    return [next(k for k in best if _nowhere_worse(costs[k], own)) for own in costs]


def _nowhere_worse(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))
