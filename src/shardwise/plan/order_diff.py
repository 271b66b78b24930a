"""Two orders of passes, wherever they come from, compared: in what their rows differ, and what each takes.

An order is a schedule, a CSV of one, an answer of `schedule --json`, or a plan: the order that it carries, or that of
its schedule. Times and memory are told where costs are known: the given ones, else those that the order came with,
else those that the other came with. An order that cannot run is compared all the same, and what is wrong is said: that
is often why two orders are compared. Only one in which an action stands twice in a row is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shardwise.errors import InputError
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.compare import RankDiff, compare_rows
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.costs_text import costs_of
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.faults import find_fault
from shardwise.pipeline.replay import checked_proof, proven_costs, read_order
from shardwise.pipeline.timeline import Timeline
from shardwise.plan.plan import Plan
from shardwise.plan.predict import plan_iteration

Timer = Callable[[Schedule], Timeline]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderSide:
    """One of two orders."""

    name: str
    """The file's name, or the schedule's."""
    schedule: Schedule
    fault: str
    """Why it cannot run; empty: it can."""
    timeline: Timeline | None
    """Its passes; none where no costs are known, or it cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderDiff:
    """In what two orders differ."""

    left: OrderSide
    right: OrderSide
    ranks: tuple[RankDiff, ...]
    """One entry a rank."""
    costs: str
    """Whose costs the times are of, `given` or names of the orders that came with some; empty: there are none."""
    seconds: bool
    """Times are seconds and memory is bytes, not the user's own units."""

    @property
    def equal(self) -> bool:
        """Whether every rank runs the same actions in the same order."""
        return all(one.equal for one in self.ranks)


class _Read(NamedTuple):
    """An order with what came with it."""

    name: str
    order: Schedule
    timed: Timer | None = None
    seconds: bool = False


def diff_orders(
    left: Schedule | Plan | str | Path,
    right: Schedule | Plan | str | Path,
    costs: Costs | Sequence[Costs] | str | None = None,
    *,
    hop: float | None = None,
    free: float | None = None,
    names: tuple[str, str] = ("left", "right"),
) -> OrderDiff:
    """Compare two orders; `names`: what they are called where they have no file."""
    if costs is None and (hop is not None or free is not None):
        raise InputError("--hop and --free-at-input-grad go with --costs: give F,I,W of one chunk, such as 10,11,9")
    read = [_once(_read(source, name)) for source, name in zip((left, right), names, strict=True)]
    if costs is not None:
        read = [one._replace(timed=_given(costs, hop, free), seconds=False) for one in read]
    known = [one for one in read if one.timed]
    sides = [_side(one, known) for one in read]
    return OrderDiff(
        left=sides[0], right=sides[1], ranks=compare_rows(read[0].order, read[1].order),
        costs="given" if costs is not None else " and ".join(dict.fromkeys(one.name for one in known)),
        seconds=bool(known) and all(one.seconds for one in known),
    )  # fmt: skip


def _read(source: Schedule | Plan | str | Path, name: str) -> _Read:
    if isinstance(source, Schedule):
        return _Read(source.name or name, source)
    if isinstance(source, Plan):
        return _of_plan(source, name)
    proof, order = read_order(source)
    if proof is None:
        return _Read(name, order)
    checked_proof(proof, str(source), ())
    costs = proven_costs(proof)
    return _Read(name, order, lambda order: simulate(order, costs))


def _once(read: _Read) -> _Read:
    """Refuse an action that stands twice in a row: nothing could say which of them moved."""
    for rank, row in enumerate(read.order.codes):
        codes, counts = np.unique(row, return_counts=True)
        for code, count in zip(codes[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
            told = f"{read.order.decode(code)} stands {count} times in the row of rank {rank}; leave one"
            raise InputError(told, title=read.name)
    return read


def _of_plan(plan: Plan, name: str) -> _Read:
    made = plan_iteration(plan)
    own = made.schedule

    def timed(order: Schedule) -> Timeline:
        """Priced anew: I and W apart take other times than a whole backward."""
        _refuse_other_shape(order, own)
        return made if order is own else plan_iteration(replace(plan, order=order))

    return _Read(name, own, timed, seconds=True)


def _given(costs: Costs | Sequence[Costs] | str, hop: float | None, free: float | None) -> Timer:
    return lambda order: simulate(order, costs_of(costs, order.pp, order.vpp, hop, free, chunks=order.chunks)[0])


def _refuse_other_shape(order: Schedule, own: Schedule) -> None:
    shapes = [(one.pp, one.chunks, one.microbatches) for one in (order, own)]
    if shapes[0] != shapes[1] or order.rank_of != own.rank_of:
        raise InputError("the costs of the plan are of another pipeline")


def _side(read: _Read, known: list[_Read]) -> OrderSide:
    """`known`: those whose costs are known, used where one's own are not."""
    found = find_fault(read.order)
    fault, timeline = str(found) if found else "", None
    timed = read.timed or (known[0].timed if known else None)
    if timed and not fault:
        try:
            timeline = timed(read.order)
        except InputError:
            if read.timed:
                raise
    return OrderSide(name=read.name, schedule=read.order, fault=fault, timeline=timeline)
