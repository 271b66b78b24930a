"""The cheapest changes to a strategy that would help: make it fit, or make it faster.

Every strategy one step away is estimated. Where none of them fits, the best of them are taken a second step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from shardwise.check.check import check
from shardwise.errors import ShardwiseError
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.estimate.neighbours import difference, neighbours
from shardwise.inputs.load import load_runtime
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy

WORTH = 0.002
"""Share of the iteration that a change must win to be named: less is within the model's own rounding."""
SECOND = 4
"""How many of the first steps are taken further where one step is not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a strategy and what it would bring."""

    kind: str
    """Changes of one kind are alternatives to each other; only the best is named."""
    text: str
    """What to change: `tp 8 -> 4, dp 2 -> 4`."""
    strategy: Strategy
    """The strategy after it."""
    seconds: float
    """Seconds that an iteration takes less; below 0: more."""
    bytes: float
    """Bytes that the fullest rank needs less; below 0: more."""
    fits: str
    """Whether it then fits: yes, no or close."""


def advise(base: Estimate, *, runtime: Runtime | None = None, count: int = 3) -> tuple[Change, ...]:
    """The changes that help most, best first; none of two is the same kind."""
    runtime = runtime or load_runtime(base.strategy.runtime)
    first = _changes(base, base.strategy, runtime, {base.strategy})
    if base.fits == "yes":
        return _faster(base, first, count)
    fitting = _fitting(first)
    if sum(change.fits == "yes" for change in _best_of_kinds(fitting, count)) < count:
        first += _second(base, first, runtime)
        fitting = _fitting(first)
    # nothing fits: what comes nearest
    return _best_of_kinds(fitting or sorted(first, key=lambda change: -change.bytes), count)


def _second(base: Estimate, first: list[Change], runtime: Runtime) -> list[Change]:
    """One step further from the leanest changes, where that makes them leaner."""
    seen = {base.strategy, *(change.strategy for change in first)}
    short = sorted((change for change in first if change.fits != "yes"), key=lambda change: -change.bytes)
    leanest = _best_of_kinds(short, SECOND)
    return [
        replace(further, kind=" and ".join(sorted({change.kind, further.kind})))
        for change in leanest
        for further in _changes(base, change.strategy, runtime, seen)
        if further.bytes > change.bytes + WORTH * base.total_bytes
    ]


def _fitting(changes: Iterable[Change]) -> list[Change]:
    """Changes after which it fits, surely before closely, then by time."""
    found = [change for change in changes if change.fits != "no" and change.bytes > 0]
    return sorted(found, key=lambda change: (change.fits != "yes", -change.seconds))


def _faster(base: Estimate, changes: Iterable[Change], count: int) -> tuple[Change, ...]:
    least = WORTH * base.iteration_seconds
    found = [change for change in changes if change.fits == "yes" and change.seconds > least]
    return _best_of_kinds(sorted(found, key=lambda change: -change.seconds), count)


def _best_of_kinds(changes: Iterable[Change], count: int) -> tuple[Change, ...]:
    best: dict[str, Change] = {}
    for change in changes:
        best.setdefault(change.kind, change)
    return tuple(best.values())[:count]


def _changes(base: Estimate, start: Strategy, runtime: Runtime, seen: set[Strategy]) -> list[Change]:
    """What every valid strategy one step from `start` would bring over `base`."""
    found = []
    for kind, strategy in neighbours(base.model, start, runtime):
        if strategy in seen or check(base.model, base.cluster, strategy, runtime):
            continue
        seen.add(strategy)
        change = _change(base, kind, strategy, runtime)
        if change:
            found.append(change)
    return found


def _change(base: Estimate, kind: str, strategy: Strategy, runtime: Runtime) -> Change | None:
    try:
        then = estimate(base.model, base.cluster, strategy, runtime=runtime, checked=True)
    except ShardwiseError:
        return None
    return Change(
        kind=kind,
        text=difference(base.strategy, strategy),
        strategy=strategy,
        seconds=base.iteration_seconds - then.iteration_seconds,
        bytes=base.total_bytes - then.total_bytes,
        fits=then.fits,
    )
