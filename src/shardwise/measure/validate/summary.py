"""Error tables over predicted rows: mean, median, largest and bias, how often "fits" was right, and regret: how much
slower the layout that we recommend is than the best measured one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median

from shardwise.estimate.intervals import ANY, COMPOSED, NODES, UNSEEN, near, spread_of
from shardwise.inputs.calibrations import calibration_of
from shardwise.measure.validate.validate import Outcome
from shardwise.search.question import GAP
from shardwise.search.regret import Rival, weighed

Key = Callable[[Outcome], str]

SIXTEEN_BIT = ("bf16", "fp16")
JOBS = "h200_jobs_"
"""What sources of whole jobs begin with."""
ENOUGH = 5
"""Rows that a source must have to count in the headline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """Errors (predicted / measured - 1) of one quantity over some rows."""

    name: str
    rows: int
    mean: float
    """Mean of the absolute errors."""
    median: float
    """Median of the absolute errors."""
    max: float
    """Largest absolute error."""
    bias: float
    """Mean of the errors with their sign: below 0, predictions are too low."""
    worst: str
    """The row with the largest error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """How often a prediction that a run fits, or does not, was right."""

    name: str
    ran_fits: int
    """Ran, and predicted to fit."""
    ran_oom: int
    """Ran, but predicted not to fit."""
    oom_fits: int
    """Out of memory, but predicted to fit."""
    oom_oom: int
    """Out of memory, and predicted so."""

    @property
    def rows(self) -> int:
        return self.ran_fits + self.ran_oom + self.oom_fits + self.oom_oom

    @property
    def right(self) -> float:
        """Share of the rows that are right."""
        return (self.ran_fits + self.oom_oom) / max(1, self.rows)

    @property
    def right_of_ran(self) -> float | None:
        ran = self.ran_fits + self.ran_oom
        return self.ran_fits / ran if ran else None

    @property
    def right_of_oom(self) -> float | None:
        oom = self.oom_fits + self.oom_oom
        return self.oom_oom / oom if oom else None


def errors_of(outcomes: Iterable[Outcome], quantity: str, name: str = "all") -> ErrorRow | None:
    """Errors of a quantity over the rows that have it; none where no row has."""
    found = [(outcome.error[quantity], outcome.case.id) for outcome in outcomes if quantity in outcome.error]
    if not found:
        return None
    sizes = [abs(error) for error, _ in found]
    return ErrorRow(
        name=name,
        rows=len(found),
        mean=fmean(sizes),
        median=median(sizes),
        max=max(sizes),
        bias=fmean(error for error, _ in found),
        worst=max(found, key=lambda pair: abs(pair[0]))[1],
    )


def table(outcomes: Iterable[Outcome], quantity: str, key: Key) -> list[ErrorRow]:
    """Errors of a quantity for every value of a key, in the order of their names."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome), []).append(outcome)
    found = (errors_of(groups[name], quantity, name) for name in sorted(groups))
    return [errors for errors in found if errors]


def by_source(outcome: Outcome) -> str:
    return outcome.case.source


def by_gpu(outcome: Outcome) -> str:
    return outcome.case.gpu


def by_precision(outcome: Outcome) -> str:
    return outcome.case.precision


def by_job(outcome: Outcome) -> str:
    """Framework and kind of a whole job's row."""
    case = outcome.case
    kind = "mixture of experts" if case.model.moe else "dense"
    narrow = "" if case.strategy.dtype in SIXTEEN_BIT else f", {case.strategy.dtype}"
    return f"{case.source.removeprefix(JOBS)}, {kind}{narrow}{', compiled' if case.strategy.compile else ''}"


def scored(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Published rows in 16 bit whose settings are known: those that a time error is counted on."""
    return [
        outcome
        for outcome in outcomes
        if outcome.case.complete
        and outcome.case.precision.startswith(SIXTEEN_BIT)
        and not outcome.case.source.startswith("h200_")
    ]


def headline(outcomes: Iterable[Outcome], quantity: str = "iteration_seconds") -> ErrorRow | None:
    """The mean over sources of the mean error of their scored rows, sources with fewer than 5 rows left out.

    Sources weigh the same, so that a sweep of hundreds of runs does not drown the others.
    """
    sources = [errors for errors in table(scored(outcomes), quantity, by_source) if errors.rows >= ENOUGH]
    if not sources:
        return None
    worst = max(sources, key=lambda errors: errors.max)
    return ErrorRow(
        name="mean over sources",
        rows=sum(errors.rows for errors in sources),
        mean=fmean(errors.mean for errors in sources),
        median=fmean(errors.median for errors in sources),
        max=worst.max,
        bias=fmean(errors.bias for errors in sources),
        worst=worst.worst,
    )


def confusions(outcomes: Iterable[Outcome]) -> list[Confusion]:
    """A confusion table for every source with a run that did not fit, and one over all rows."""
    pairs: dict[str, list[tuple[bool, bool]]] = {}
    for outcome in outcomes:
        if "fits" in outcome.case.measured:
            pair = bool(outcome.case.measured["fits"]), bool(outcome.predicted["fits"])
            pairs.setdefault(outcome.case.source, []).append(pair)
    own = [_confusion(name, found) for name, found in sorted(pairs.items()) if not all(ran for ran, _ in found)]
    return [*own, _confusion("all", [pair for found in pairs.values() for pair in found])] if pairs else []


def _confusion(name: str, pairs: list[tuple[bool, bool]]) -> Confusion:
    return Confusion(
        name=name,
        ran_fits=pairs.count((True, True)),
        ran_oom=pairs.count((True, False)),
        oom_fits=pairs.count((False, True)),
        oom_oom=pairs.count((False, False)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """One set of runs that differ only in layout."""

    group: str
    source: str
    rows: int
    """Runs of the set that were timed."""
    chosen: str
    """The run that would be recommended, as `plan` does, of those predicted to fit."""
    best: str
    """The run that was fastest."""
    regret: float
    """Measured time of the chosen one over that of the best, less 1."""
    spread: float
    """Measured time of the slowest over that of the best, less 1: what there was to lose."""
    refused: int
    """Layouts ranked before the chosen one that ran out of memory when they were tried."""
    experts: bool = False
    """The model has experts."""


def regrets(outcomes: Iterable[Outcome]) -> list[Regret]:
    """The regret of every set of at least two timed runs, in the order of their names."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.case.group and "fits" in outcome.case.measured:
            groups.setdefault(setting_of(outcome), []).append(outcome)
    found = (_regret(name, groups[name]) for name in sorted(groups))
    return [one for one in found if one]


def mean_regret(found: Iterable[Regret], source: str = "") -> float | None:
    """Mean over the sets of a source; none where it has none."""
    values = [one.regret for one in found if not source or one.source == source]
    return fmean(values) if values else None


def setting_of(outcome: Outcome) -> str:
    """What two runs must share to differ only in layout: also their kernels, number formats and hardware."""
    case, strategy = outcome.case, outcome.case.strategy
    kernels = case.runtime.kernels
    own = (case.gpu, case.runtime.name, strategy.dtype, strategy.flash, strategy.compile, kernels.norm)
    return "/".join(str(part) for part in (case.group, *own, kernels.softmax_bytes))


def _regret(name: str, members: list[Outcome]) -> Regret | None:
    ran = [one for one in members if "iteration_seconds" in one.case.measured]
    if len(ran) < 2:
        return None
    # a user takes what is recommended of what is predicted to fit, and moves on when it runs out of memory
    left, best = list(members), min(ran, key=_seconds)
    while (chosen := recommended(left)) not in ran:
        left.remove(chosen)
    return Regret(
        group=name,
        source=chosen.case.source,
        rows=len(ran),
        chosen=chosen.case.id,
        best=best.case.id,
        regret=_seconds(chosen) / _seconds(best) - 1,
        spread=max(map(_seconds, ran)) / _seconds(best) - 1,
        refused=len(members) - len(left),
        experts=best.case.model.moe is not None,
    )


def recommended(members: list[Outcome]) -> Outcome:
    """Which of several layouts `plan` would recommend: of those predicted to fit and to be as fast as the fastest, as
    far as can be told, that of least expected regret.
    """
    fit = [one for one in members if one.predicted["fits"]] or members
    layouts = {
        Rival(one.case.strategy, float(one.predicted["iteration_seconds"]), one.case.model.moe is not None): one  # type: ignore[arg-type]
        for one in reversed(fit)
    }
    fastest = min(layouts, key=lambda one: (one.seconds, one.simplicity))
    width = _layout_width(layouts[fastest])
    close = [one for one in layouts if near(fastest.strategy, one.strategy, one.seconds / fastest.seconds, width)]
    return layouts[weighed(close, width, GAP).chosen]


def _layout_width(one: Outcome) -> float:
    """As `intervals.layout_width` has it."""
    own, case = tuple(name for name in one.causes if name not in UNSEEN), one.case
    return spread_of(own, case.runtime.name, calibration_of(case.cluster.gpu), launch=one.launch).time


def _seconds(outcome: Outcome) -> float:
    return float(outcome.case.measured["iteration_seconds"])


KNOWN = "dense, 16 bit, all known"
POOLED = 50
"""Rows from which on a regime's share says something by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How often what was measured lies in its interval."""

    name: str
    rows: int
    sources: int
    inside: float
    """Share of the rows; intervals are meant to hold nine in ten."""
    half_width: float
    """Median half of an interval, as a share of its figure."""


def coverages(outcomes: Iterable[Outcome], quantity: str) -> list[Coverage]:
    """By regime, all together first; regimes overlap, since an MoE run in fp8 is one of both."""
    rows = [one for one in outcomes if quantity in one.error]
    regimes: dict[str, list[Outcome]] = {"all": rows}
    for one in rows:
        for name in _regimes(one):
            regimes.setdefault(name, []).append(one)
    small = {name for name, own in regimes.items() if len(own) < POOLED}
    together = [one for one in rows if small.intersection(_regimes(one))]
    ranked = sorted(regimes.items(), key=lambda item: (item[0] != "all", item[0]))
    found = [_coverage(name, own, quantity) for name, own in ranked if own]
    return [*found, _coverage(f"regimes of fewer than {POOLED} rows", together, quantity)] if together else found


def _regimes(one: Outcome) -> list[str]:
    """What a row belongs to: its causes of error, its format, and where there is none of them, the number of nodes.

    What never ran as a whole says nothing of any other regime.
    """
    if COMPOSED in one.causes:
        return [COMPOSED]
    other = [name for name in one.causes if name not in {ANY, NODES}]
    dtype = one.case.strategy.dtype
    formats = [f"in {dtype}"] if dtype in {"fp8", "mxfp8", "nvfp4"} else []
    nodes = "many nodes" if NODES in one.causes else "one node"
    return [*other, *formats] if other else [KNOWN, f"{KNOWN}, {nodes}"]


def _coverage(name: str, rows: list[Outcome], quantity: str) -> Coverage:
    intervals = [one.interval(quantity) for one in rows]
    return Coverage(
        name=name,
        rows=len(rows),
        sources=len({one.case.source for one in rows}),
        inside=fmean(one.inside(quantity) for one in rows),
        half_width=median((high - low) / 2 / sqrt(low * high) for low, high in intervals),
    )
