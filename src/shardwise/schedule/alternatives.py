"""Recompute as a decision: every chunk may take one of several sets of times and bytes.

An alternative is a whole Costs (plain, recomputed ...); a choice picks one per chunk. Choices are compared by a quick
search (the plain rules of search.py), changed one rank or chunk at a time while that helps, and the best one gets the
full search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from shardwise.errors import InfeasibleError, InputError
from shardwise.schedule.bounds import lower_bound
from shardwise.schedule.optimise import Answer, optimise
from shardwise.schedule.problem import Objective, make_problem
from shardwise.schedule.search import Report, Search
from shardwise.simulate.action import placed
from shardwise.simulate.costs import Costs

Choice = tuple[int, ...]
_NONE = float("inf")
_ROUNDS = 4
"""Passes over all ranks and chunks at most."""
_FINALISTS = 2
"""Mixed choices that get the full search, beside the uniform ones."""


def mix(alternatives: Sequence[Costs], choice: Choice) -> Costs:
    """The costs when chunk c takes alternative choice[c]; links, limits and static bytes are the first one's."""
    picked = [alternatives[k] for k in choice]
    return replace(
        alternatives[0],
        f=tuple(costs.f[c] for c, costs in enumerate(picked)),
        i=tuple(costs.i[c] for c, costs in enumerate(picked)),
        w=tuple(costs.w[c] for c, costs in enumerate(picked)),
        activation=tuple(costs.held(c) for c, costs in enumerate(picked)),
    )


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
) -> Answer:
    """The best schedule over the choices that were tried; never worse than any alternative taken everywhere."""
    if len({costs.chunks for costs in alternatives}) != 1 or alternatives[0].chunks != pp * vpp:
        raise InputError(f"alternatives must each be costs of the same {pp * vpp} chunks")
    rank_of = placed(pp, vpp, placement)

    def value(choice: Choice) -> float:
        return _quick(mix(alternatives, choice), rank_of, microbatches, objective)

    def full(choice: Choice) -> Answer:
        answer = optimise(
            mix(alternatives, choice), pp=pp, vpp=vpp, microbatches=microbatches, placement=placement,
            objective=objective, effort=effort, time_limit=time_limit, report=report,
        )  # fmt: skip
        return replace(answer, choice=choice)

    uniform = [(k,) * len(rank_of) for k in range(len(alternatives))]
    finalists = {choice: None for choice in (*_descend(value, rank_of, uniform), *uniform) if value(choice) < _NONE}
    if not finalists:
        _quick(mix(alternatives, _smallest(alternatives)), rank_of, microbatches, objective, strict=True)
    answers = list[Answer]()
    for choice in finalists:
        answers.append(full(choice))
        if answers[-1].interrupted:
            break
    return min(answers, key=lambda answer: answer.value)


def _smallest(alternatives: Sequence[Costs]) -> Choice:
    """For every chunk the alternative that holds least."""
    kinds = range(len(alternatives))
    return tuple(min(kinds, key=lambda k: alternatives[k].held(c)) for c in range(alternatives[0].chunks))


def _quick(
    costs: Costs, rank_of: tuple[int, ...], microbatches: int, objective: Objective, *, strict: bool = False
) -> float:
    """What the plain rules reach; infinite where one micro batch does not fit."""
    try:
        problem = make_problem(costs, rank_of, microbatches)
    except InfeasibleError:
        if strict:
            raise
        return _NONE
    search = Search(problem=problem, objective=objective, bound=lower_bound(problem, objective).value)
    search.glance()
    return search.best.value


def _descend(value: Callable[[Choice], float], rank_of: tuple[int, ...], uniform: list[Choice]) -> list[Choice]:
    """From the best uniform choice, change a rank or a chunk at a time while it helps; the best met."""
    known: dict[Choice, float] = {}

    def worth(choice: Choice) -> float:
        if choice not in known:
            known[choice] = value(choice)
        return known[choice]

    best = min(uniform, key=worth)
    try:
        for _ in range(_ROUNDS):
            before = worth(best)
            for near in _neighbours(best, rank_of, len(uniform)):
                if worth(near) < worth(best):
                    best = near
            if worth(best) >= before:
                break
    except KeyboardInterrupt:  # go on with the choices known so far
        pass
    return sorted(known, key=lambda choice: (known[choice], choice))[:_FINALISTS]


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
