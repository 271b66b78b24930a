"""Recompute as a decision: every chunk may take one of several sets of times and bytes.

An alternative is a whole Costs (plain, recomputed ...); a choice picks one per chunk. Choices are compared by a quick
search (the plain rules of search.py): changed one rank or chunk at a time while that helps, then those that branch and
bound (mixes.py) cannot rule out, which also gives the bound over all choices. The best get the full search.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from shardwise.errors import Fault, InfeasibleError, InputError
from shardwise.pipeline.action import placed
from shardwise.pipeline.arrays import Objective, make_problem
from shardwise.pipeline.bounds import lower_bound
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.mixes import Choice, Mixes, mix
from shardwise.pipeline.optimise import OrderAnswer, optimise
from shardwise.pipeline.order_search import OrderSearch, Report

_NONE = float("inf")
_ROUNDS = 4
"""Passes over all ranks and chunks at most."""
_FINALISTS = 4
"""Choices that get the full search, beside the uniform ones."""
_LOOKED_AT = 16
"""Choices that get a longer look to become finalists."""
_LOOK = 0.03
"""Effort of that look, as a share."""
_CASES, _CASES_LEAST, _CASES_WORK, _LOOKS_WORK = 400, 16, 3e5, 1e6
"""At effort 1: cases of the bound at most and at least, and actions in all of them (about 3 CPU seconds); actions in
all quick searches (about 10)."""
_SCOPE = "any order of any mix on this placement"


@dataclass(slots=True, kw_only=True, eq=False)
class _Comparison:
    """Choices and what a quick search reaches for them; infinite where one micro batch does not fit."""

    mixes: Mixes
    deadline: float
    """CPU seconds of this process at which to stop."""
    looks: int
    """Quick searches at most."""
    known: dict[Choice, float] = field(default_factory=dict)
    bounds: dict[Choice, float] = field(default_factory=dict)
    """Of each choice that fits, for any order of it."""
    best: float = _NONE

    @property
    def uniform(self) -> list[Choice]:
        """One alternative everywhere, or what is nowhere worse than it."""
        alone = ((k,) * len(self.mixes.rank_of) for k in range(len(self.mixes.alternatives)))
        return [self.mixes.plain(choice) for choice in alone]

    @property
    def by_position(self) -> list[Choice]:
        """One alternative for every run of pp chunks, or what is nowhere worse, while they are few: below 1F1B's memory
        the first chunks, which hold longest, are often the ones to recompute, and a quick search does not see it.
        """
        chunks, kinds = len(self.mixes.rank_of), range(len(self.mixes.alternatives))
        pp = 1 + max(self.mixes.rank_of)
        if len(kinds) ** (chunks // pp) > _LOOKED_AT:
            return []
        taken = product(kinds, repeat=chunks // pp)
        return [self.mixes.plain(tuple(kind for kind in each for _ in range(pp))) for each in taken]

    @property
    def late(self) -> bool:
        return time.process_time() > self.deadline

    @property
    def finished(self) -> bool:
        return self.late or self.mixes.bound.value >= self.best

    @property
    def enough(self) -> bool:
        return self.finished or len(self.known) >= self.looks

    def worth(self, choice: Choice) -> float:
        """What a quick search reaches; `choice` is a plain one (mixes.py)."""
        if choice not in self.known:
            self.known[choice] = self._quick(choice)
            self.best = min(self.best, self.known[choice])
        return self.known[choice]

    def _quick(self, choice: Choice) -> float:
        mixes = self.mixes
        try:
            problem = make_problem(mix(mixes.alternatives, choice), mixes.rank_of, mixes.microbatches)
        except InfeasibleError:
            return _NONE
        self.bounds[choice] = lower_bound(problem, mixes.objective).value
        if self.bounds[choice] >= self.best:  # it cannot be better
            return self.bounds[choice]
        search = OrderSearch(problem=problem, objective=mixes.objective, bound=self.bounds[choice])
        search.glance()
        return search.best.value

    def compare(self, cases: int) -> None:
        """Change a rank or a chunk at a time while it helps, then split cases until all others are ruled out, then
        change some chunks at once.
        """
        try:
            self._descend()
            for _ in range(cases):
                if self.finished or self.mixes.through:
                    break
                choice = self.mixes.split()
                if choice is not None and not self.enough:
                    self.worth(choice)
            self._wander(cases)
        except KeyboardInterrupt:  # go on with the choices known so far
            pass

    def _wander(self, tries: int) -> None:
        dice = random.Random(20240503)  # noqa: S311 - a search, not a secret
        at, kinds = min(self.known, key=self.worth), range(len(self.mixes.alternatives))
        for _ in range(tries):
            if self.enough:
                return
            near = list(at)
            for c in dice.sample(range(len(at)), min(len(at), dice.choice((1, 2, 2, 3)))):
                near[c] = dice.choice(kinds)
            plain = self.mixes.plain(tuple(near))
            if self.worth(plain) <= self.worth(at):
                at = plain

    def _descend(self) -> None:
        best = min([self.mixes.plain(self.mixes.smallest), *self.uniform, *self.by_position], key=self.worth)
        for _ in range(_ROUNDS):
            before = self.worth(best)
            for near in _neighbours(best, self.mixes.rank_of, len(self.mixes.alternatives)):
                if self.enough:
                    return
                if self.worth(self.mixes.plain(near)) < self.worth(best):
                    best = self.mixes.plain(near)
            if self.worth(best) >= before:
                break

    def finalists(self, look: Callable[[Choice], float]) -> list[Choice]:
        """The choices for the full search, the most promising first: those that do best in a longer look."""
        order = sorted(self.known, key=lambda choice: (self.known[choice], choice))
        near = [choice for choice in order if choice in self.bounds]
        shaped = [choice for choice in self.by_position if choice in self.bounds]
        looked = {choice: look(choice) for choice in dict.fromkeys([*near[:_LOOKED_AT], *shaped]) if not self.finished}
        first = sorted(looked, key=lambda choice: looked[choice])
        return list(dict.fromkeys([*first, *near][:_FINALISTS] + [one for one in self.uniform if one in self.bounds]))


def optimise_alternatives(
    alternatives: Sequence[Costs],
    *,
    pp: int,
    vpp: int,
    microbatches: int,
    placement: str = "v",
    objective: Objective = "makespan",
    effort: float = 1.0,
    time_limit: float | None = None,
    report: Report | None = None,
) -> OrderAnswer:
    """The best schedule over the choices that were tried; never worse than any alternative taken everywhere.

    Its bound holds for every order of every choice.
    """
    if len({costs.chunks for costs in alternatives}) != 1 or alternatives[0].chunks != pp * vpp:
        raise InputError(f"alternatives must each be costs of the same {pp * vpp} chunks")
    if any(one.pairs for one in alternatives):
        why = "stand beside alternatives, and which of both pays is not searched; leave one of them out"
        raise InputError(Fault("traffic_f, traffic_b, together", why))
    began = time.process_time()
    mixes = Mixes(alternatives, placed(pp, vpp, placement), microbatches, objective)
    make_problem(mix(alternatives, mixes.smallest), mixes.rank_of, microbatches)  # says what is missing if none fits
    actions = 3 * pp * vpp * microbatches
    looks = int(effort * max(_CASES_LEAST, _LOOKS_WORK / actions))
    found = _Comparison(mixes=mixes, deadline=began + 0.5 * (time_limit or _NONE), looks=looks)
    found.compare(int(effort * max(_CASES_LEAST, min(_CASES, _CASES_WORK / actions))))
    found.deadline = began + (time_limit or _NONE)

    def told(value: float, _: float, looked: int) -> None:
        if report is not None:
            report(value, mixes.bound.value, looked)

    def full(choice: Choice, share: float) -> OrderAnswer:
        left = max(0.05, found.deadline - time.process_time()) if time_limit else None
        answer = optimise(
            mix(alternatives, choice), pp=pp, vpp=vpp, microbatches=microbatches, placement=placement,
            objective=objective, effort=share * effort, time_limit=left, report=told,
        )  # fmt: skip
        return replace(answer, choice=choice)

    best = _best(found, full)
    bound = replace(mixes.bound, scope=_SCOPE)
    return replace(best, bound=bound, cases=mixes.cover(), seconds=time.process_time() - began)


def _best(found: _Comparison, full: Callable[[Choice, float], OrderAnswer]) -> OrderAnswer:
    """The best of the finalists; those whose own bound says that they cannot be are passed over."""
    answers = list[OrderAnswer]()

    def tried(choice: Choice, share: float = 1.0) -> float:
        least = min((answer.value for answer in answers), default=_NONE)
        stopped = bool(answers) and (answers[-1].interrupted or found.late)
        if stopped or found.bounds[choice] >= least:
            return _NONE
        answers.append(full(choice, share))
        found.best = min(found.best, answers[-1].value)
        return answers[-1].value

    for choice in found.finalists(lambda choice: tried(choice, _LOOK)):
        tried(choice)
    return replace(
        min(answers, key=lambda answer: answer.value), evaluated=sum(answer.evaluated for answer in answers),
        interrupted=answers[-1].interrupted, out_of_time=any(answer.out_of_time for answer in answers),
    )  # fmt: skip


def _neighbours(choice: Choice, rank_of: tuple[int, ...], count: int) -> Iterator[Choice]:
    """Another alternative for a whole position, half of one, a rank, or one chunk: coarse changes first, as a limit
    that binds everywhere is eased only by changing every rank.
    """
    pp, chunks = 1 + max(rank_of), len(choice)
    groups = [list(range(begin, begin + pp)) for begin in range(0, chunks, pp)]
    groups += [half for group in groups[:] for half in (group[: pp // 2], group[pp // 2 :]) if half]
    groups += [[c for c, r in enumerate(rank_of) if r == rank] for rank in range(pp)]
    groups += [[c] for c in range(chunks)]
    for group, other in product(groups, range(count)):
        changed = list(choice)
        for c in group:
            changed[c] = other
        if tuple(changed) != choice:
            yield tuple(changed)
