"""The best order where messages on one link wait for each other, or passes run together.

Builds and annealing (order_search.py) know a message as a delay and a pass as one that runs alone. So candidates are
made without either: for the messages as they are and for longer ones, whose orders leave time between messages; for
passes as short as they are in pairs; and by a rule of its own that runs pairs (pair_rule.py). They, the named orders
and what is known already are timed by the engine, and the best are polished (polish.py). The bound is of messages that
never wait and of passes so short that no pair is longer, so it holds for whatever waits and runs together.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardwise.kernels import library
from shardwise.pipeline.action import Schedule, placed
from shardwise.pipeline.arrays import Objective
from shardwise.pipeline.bounds import Bound
from shardwise.pipeline.contention import contends
from shardwise.pipeline.costs import ROUNDING, Costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.faults import find_fault
from shardwise.pipeline.offload_search import weights_early
from shardwise.pipeline.optimise import OrderAnswer, bound_of, optimise, published, value_of
from shardwise.pipeline.pair_rule import PairBuilder
from shardwise.pipeline.pairs import combined, joined
from shardwise.pipeline.polish import PairPolisher, Polisher

LONGER = ((0.5, 0.2), (1.0, 0.3), (3.0, 0.2))
"""Messages so many times their transfer longer, and the share of the effort that their search gets."""
SHORTER = 0.3
"""Share of the effort for passes as short as in pairs."""
SCOPES = {
    "links": "any order on this placement, even if messages never wait for each other",
    "pairs": "any order on this placement, whatever runs together",
}
_POLISHED, _MOVES, _WORK, _PAIR_MOVES = 2, 40_000, 2e7, 0.3
"""Orders that are polished; moves of each, and actions replayed in all of them, at effort 1; with pairs, so many of
them (more find nothing new)."""
_BUILT = 3e5
"""Actions in all orders that the rule with pairs builds, at effort 1 (about a CPU second)."""
_SEED = 20240503


def optimise_retimed(
    costs: Costs,
    *,
    effort: float,
    time_limit: float | None,
    known: Sequence[Schedule],
    **asked: Any,  # noqa: ANN401 - of optimise
) -> OrderAnswer:
    """The best order found, as the engine times it; never slower than plain auto's or a named one that fits, whatever
    of it can run together.
    """
    began = time.process_time()
    until = began + time_limit if time_limit else math.inf
    plain = replace(costs.alone(), contention=False)
    first = optimise(plain, effort=effort, time_limit=time_limit and time_limit / 2, known=known, **asked)
    search = _Retimed(costs=costs, first=first, effort=effort, until=until)
    search.add(first.schedule)
    stopped = first.interrupted
    try:
        shape = {name: asked[name] for name in ("pp", "vpp", "microbatches", "placement")}
        for order in (*known, *published(plain, **shape)):
            search.add(order)
        if not stopped:
            search.others(asked, known)
            search.polish()
    except KeyboardInterrupt:  # the best so far is an answer
        stopped = True
    line = simulate(replace(search.order, name="auto"), costs)
    return replace(
        first, timeline=line, value=value_of(line, first.objective), bound=search.bound, evaluated=search.looked,
        seconds=time.process_time() - began, interrupted=stopped,
        out_of_time=first.out_of_time or time.process_time() >= until,
    )  # fmt: skip


@dataclass(slots=True, kw_only=True, eq=False)
class _Retimed:
    """Orders and what the engine says that they take."""

    costs: Costs
    first: OrderAnswer
    """The best order where nothing waits and nothing runs together."""
    effort: float
    until: float
    pool: list[tuple[float, Schedule]] = field(default_factory=list)
    """The best first."""
    looked: int = 0
    bound: Bound = field(init=False)
    plain: Costs = field(init=False)
    seen: set[Schedule] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.looked, self.plain = self.first.evaluated, self.first.timeline.costs
        self.bound = replace(self.first.bound, scope=SCOPES["links"])
        if self.costs.pairs:
            found = bound_of(replace(self.costs.least(), contention=False), schedule=self.first.schedule,
                             objective=self.objective)  # fmt: skip
            self.bound = replace(found, scope=SCOPES["pairs"])

    @property
    def objective(self) -> Objective:
        return self.first.objective

    @property
    def best(self) -> float:
        return self.pool[0][0]

    @property
    def order(self) -> Schedule:
        return self.pool[0][1]

    @property
    def least(self) -> float:
        """No less is to be had: what the first order takes when messages never wait, or the bound of pairs."""
        return (self.bound.value if self.costs.pairs else self.first.value) * (1 + ROUNDING)

    @property
    def finished(self) -> bool:
        return self.best <= self.least or time.process_time() > self.until

    def add(self, order: Schedule) -> None:
        """Keep an order of these chunks that runs and fits: its backwards apart, and with what can run together."""
        given = self.first.schedule
        if order.rank_of != given.rank_of or order.microbatches != given.microbatches:
            return
        self._keep(order.split())
        if self.costs.pairs:
            self._keep(order if order.pairs else combined(order))
            self._keep(combined(joined(weights_early(order.split()))))

    def _keep(self, made: Schedule) -> None:
        self.looked += 1
        if made in self.seen or find_fault(made, self.costs) is not None:
            return
        self.seen.add(made)
        self.pool.append((value_of(simulate(made, self.costs), self.objective), made))
        self.pool.sort(key=lambda one: one[0])  # stable: the first of equal ones stays first

    def others(self, asked: dict[str, Any], known: Sequence[Schedule]) -> None:
        """Orders for longer messages and shorter passes, and of the rule with pairs."""
        for costs, share in self._near():
            if self.finished:
                return
            left = max(0.05, (self.until - time.process_time()) / 2) if self.until < math.inf else None
            answer = optimise(costs, effort=share * self.effort, time_limit=left, known=known, **asked)
            self.looked += answer.evaluated
            self.add(answer.schedule)
            if answer.interrupted:  # Ctrl-C stopped that search alone
                raise KeyboardInterrupt
        if self.costs.pairs:
            self._build(placed(asked["pp"], asked["vpp"], asked["placement"]))

    def _near(self) -> Iterator[tuple[Costs, float]]:
        if contends(self.costs):
            for more, share in LONGER:
                yield replace(self.plain, transfer=tuple((1 + more) * one for one in self.plain.transfer)), share
        if self.costs.pairs:
            yield replace(self.costs.least(), contention=False), SHORTER

    def _build(self, rank_of: tuple[int, ...]) -> None:
        builder = PairBuilder(self.costs, rank_of, self.order.microbatches)
        dice = random.Random(_SEED)  # noqa: S311 - a search, not a secret
        points = builder.plain()
        count = max(len(points), int(self.effort * _BUILT / self.order.actions))
        for k in range(count):
            if self.finished:
                return
            built = builder.build(points[k] if k < len(points) else builder.drawn(dice))
            if built is not None:
                self._keep(built)

    def polish(self) -> None:
        if library() is None or self.finished:  # without kernels it would take minutes
            return
        kind, share = (PairPolisher, _PAIR_MOVES) if self.costs.pairs else (Polisher, 1.0)
        moves = int(share * self.effort * min(_MOVES, _WORK / self.order.actions))
        for value, order in self.pool[:_POLISHED]:
            polisher = kind(order=order, costs=self.costs, objective=self.objective, value=value)
            polisher.run(moves, self.until, self.least)
            self.looked += polisher.looked
            self._keep(polisher.best)
