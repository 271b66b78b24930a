"""`schedule auto` where activations may go to host memory: the fastest order that fits so.

Orders are searched under the limit and under larger ones, which they break; those and the named ones, with their W as
they are and right after their I, are made to fit by offloads (offload.py), timed, and the fastest is taken. What may
leave is no longer bound by memory, so the bound is the one without a limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np

from shardwise.errors import Fault, InfeasibleError, InputError
from shardwise.pipeline.action import Codes, I, Schedule, W, placed
from shardwise.pipeline.arrays import Objective
from shardwise.pipeline.bounds import Bound
from shardwise.pipeline.costs import ROUNDING, Costs
from shardwise.pipeline.offload import offloaded
from shardwise.pipeline.optimise import OrderAnswer, bound_of, optimise, published, value_of
from shardwise.pipeline.timeline import Timeline

ROOMIER = (
    (1.5, 0.2), (2.0, 0.2), (math.inf, 0.2), (1.25, 0.1), (3.0, 0.1),
    (1.5, 0.01), (2.0, 0.01), (math.inf, 0.01), (1.25, 0.01), (4.0, 0.01),
)  # fmt: skip
"""Limits so many times as large, and the share of the effort that their search gets: little gives other orders, and the
best without a lane need not be the best with one."""
SCOPE = "any order on this placement, whatever goes to host memory"


def with_host(found: Sequence[Costs], seconds: float | None) -> tuple[Costs, ...]:
    """The costs with the time of the command line to bring one forward's activations to host memory, or back."""
    if seconds is not None:
        found = [replace(one, offload=(float(seconds),) * one.chunks) for one in found]
    if any(one.reload and not one.offload for one in found):
        told = "is the way back of activations that nothing takes away; give offload too, or leave it out"
        raise InputError(Fault("reload", told))
    if len(found) > 1 and found[0].offload:
        told = "stands beside alternatives, and which of both pays is not searched; leave one of them out"
        raise InputError(Fault("offload", told))
    return tuple(found)


def optimise_offloaded(
    costs: Costs,
    *,
    effort: float,
    time_limit: float | None,
    known: Sequence[Schedule],
    **asked: Any,  # noqa: ANN401 - of optimise
) -> OrderAnswer:
    """The fastest order found that fits with its offloads; never slower than without them, or a named one is with.

    Where the time runs out before the named ones are tried, it may be slower than they are.
    """
    began = time.process_time()
    until = began + time_limit if time_limit else math.inf
    search = _HostOrders(costs=costs, objective=asked["objective"])
    try:
        answers = _orders(costs, effort, until, known, asked, search)
        for order in chain(islice(answers, 1), _named(costs, asked), answers):  # roomier ones may use up the time
            search.add(order)
            if search.proven or (search.best and time.process_time() > until):
                break
    except KeyboardInterrupt:  # the best so far is an answer; without one there is none to give
        if search.best is None:
            raise
        search.interrupted = True
    return search.answer(began, until)


def _orders(
    costs: Costs, effort: float, until: float, known: Sequence[Schedule], asked: dict[str, Any], search: _HostOrders
) -> Iterator[Schedule]:
    """The best orders under the limit, which need no offload, and under larger ones."""
    pp = asked["pp"]
    static, free = costs.static or (0.0,) * pp, costs.limits(pp)
    for times, share in ((1.0, 1.0), *ROOMIER):
        if time.process_time() > until:
            return
        limits = tuple(base + times * room for base, room in zip(static, free, strict=True))
        one = replace(costs, offload=(), reload=(), memory_limit=limits if times < math.inf else ())
        left = max(0.05, (until - time.process_time()) / 2) if until < math.inf else None
        with suppress(InfeasibleError):
            answer = optimise(one, effort=share * effort, time_limit=left, known=known, **asked)
            search.looked += answer.evaluated
            yield answer.schedule
            if times > 1:
                yield weights_early(answer.schedule)
            if answer.interrupted:  # Ctrl-C stopped that search alone
                raise KeyboardInterrupt


def _named(costs: Costs, asked: dict[str, Any]) -> Iterator[Schedule]:
    shape = {name: asked[name] for name in ("pp", "vpp", "microbatches", "placement")}
    rank_of = placed(asked["pp"], asked["vpp"], asked["placement"])
    for order in published(costs, **shape):
        if order.rank_of == rank_of:
            yield order.split()
            yield weights_early(order.split())


def weights_early(order: Schedule) -> Schedule:
    """Every W right after its I: what it holds is freed as early as can be, and gradients leave later."""
    return replace(order, codes=tuple(_early(row, order.chunks * order.microbatches) for row in order.codes))


def _early(row: Codes, cells: int) -> Codes:
    kept = row[row // cells != W]
    apart = kept // cells == I
    twice = np.repeat(kept, np.where(apart, 2, 1))
    twice[np.cumsum(np.where(apart, 2, 1))[apart] - 1] += (W - I) * cells
    return twice


@dataclass(slots=True, kw_only=True, eq=False)
class _HostOrders:
    """The fastest order so far, with its offloads."""

    costs: Costs
    objective: Objective
    best: Timeline | None = None
    value: float = math.inf
    bound: float = -math.inf
    looked: int = 0
    interrupted: bool = False

    @property
    def proven(self) -> bool:
        return self.value <= self.bound * (1 + ROUNDING)

    def add(self, order: Schedule) -> None:
        self.looked += 1
        line = offloaded(order, self.costs, self.objective)
        if line is None:
            return
        if self.bound < 0:
            self.bound = self._bound(order).value
        if (value := value_of(line, self.objective)) < self.value:
            self.best, self.value = line, value

    def _bound(self, order: Schedule) -> Bound:
        """Of any order of the same chunks on the same ranks, with all the memory in the world."""
        return bound_of(replace(self.costs, memory_limit=()), schedule=order, objective=self.objective)

    def answer(self, began: float, until: float) -> OrderAnswer:
        if self.best is None:
            raise InfeasibleError(_short(self.costs))
        line = replace(self.best, schedule=replace(self.best.schedule, name="auto"))
        bound = self._bound(line.schedule)
        return OrderAnswer(
            timeline=line, objective=self.objective, value=self.value, bound=replace(bound, scope=SCOPE),
            evaluated=self.looked, seconds=time.process_time() - began, interrupted=self.interrupted,
            out_of_time=time.process_time() >= until,
        )  # fmt: skip


def _short(costs: Costs) -> str:
    pp = len(costs.memory_limit)
    least = min(range(pp), key=costs.limits(pp).__getitem__)
    room, most = costs.limits(pp)[least], max(map(costs.held, range(costs.chunks)))
    return (
        f"no order was found that fits, even with activations in host memory: rank {least} has room for "
        f"{costs.shown(max(0.0, room))} of them and one forward of the largest chunk leaves {costs.shown(most)}; "
        "allow more memory, or cut the model into smaller chunks"
    )
