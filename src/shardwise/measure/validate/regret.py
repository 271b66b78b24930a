"""Regret: how much slower the layout that we rank first is than the best measured one.

It is what a user loses who follows the predictions, so it counts only the order of layouts, not their times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from shardwise.measure.validate.predict import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """One set of runs that differ only in layout."""

    group: str
    source: str
    rows: int
    """Runs of the set that were timed."""
    chosen: str
    """The run that is predicted to be fastest of those predicted to fit."""
    best: str
    """The run that was fastest."""
    regret: float
    """Measured time of the chosen one over that of the best, less 1."""
    spread: float
    """Measured time of the slowest over that of the best, less 1: what there was to lose."""
    refused: int
    """Layouts ranked before the chosen one that ran out of memory when they were tried."""


def regrets(outcomes: Iterable[Outcome]) -> list[Regret]:
    """The regret of every set of at least two timed runs, in the order of their names."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.case.group and "fits" in outcome.case.measured:
            groups.setdefault(_setting(outcome), []).append(outcome)
    found = (_regret(name, groups[name]) for name in sorted(groups))
    return [one for one in found if one]


def mean_regret(found: Iterable[Regret], source: str = "") -> float | None:
    """Mean over the sets of a source; none where it has none."""
    values = [one.regret for one in found if not source or one.source == source]
    return fmean(values) if values else None


def _setting(outcome: Outcome) -> str:
    """What two runs must share to differ only in layout: also their kernels, number formats and hardware."""
    case, strategy = outcome.case, outcome.case.strategy
    kernels = case.runtime.kernels
    own = (case.gpu, case.runtime.name, strategy.dtype, strategy.flash, strategy.compile, kernels.norm)
    return "/".join(str(part) for part in (case.group, *own, kernels.softmax_bytes))


def _regret(name: str, members: list[Outcome]) -> Regret | None:
    ran = [one for one in members if "iteration_seconds" in one.case.measured]
    if len(ran) < 2:
        return None
    # a user takes what is predicted to fit, fastest first, and moves on when it runs out of memory
    ranked = sorted(members, key=lambda one: (not one.predicted["fits"], one.predicted["iteration_seconds"]))
    place = next(index for index, one in enumerate(ranked) if "iteration_seconds" in one.case.measured)
    chosen, best = ranked[place], min(ran, key=_seconds)
    return Regret(
        group=name,
        source=chosen.case.source,
        rows=len(ran),
        chosen=chosen.case.id,
        best=best.case.id,
        regret=_seconds(chosen) / _seconds(best) - 1,
        spread=max(map(_seconds, ran)) / _seconds(best) - 1,
        refused=place,
    )


def _seconds(outcome: Outcome) -> float:
    return float(outcome.case.measured["iteration_seconds"])
