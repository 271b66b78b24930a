"""Fit the widths of the intervals to measured runs, each source left out: python benchmarks/intervals.py.

Writes `catalog/accuracy.toml` and prints the share of the left-out runs that lies inside, by regime; `--check` writes
nothing. Every run counts once as it is predicted today, if its runtime was seen on its GPU, and once more as it would
be predicted without its source (`leave_one_out.py`), if the two would then be unseen.

A width is that of nine runs in ten. Each cause in turn gets the width with which nine in ten of the runs that have it
lie inside, given the others, until nothing moves; a runtime's own factor follows, drawn towards 1 by 50 runs. At last
every cause is scaled until nine in ten of the runs whose source was left out of all this lie inside as well: runs of
one source are alike, and a new source is not like them. Rows composed of measured parts are of one source alone: left
out, nothing is known of their like, so that they count in the fit only.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, combinations
from math import exp, log
from statistics import mean
from typing import NamedTuple

import tomli_w

from leave_one_out import by_source, shift, slowdowns
from shardwise.estimate.intervals import (
    ANY,
    CAUSES,
    COMPOSED,
    GPU,
    LAUNCH,
    NODES,
    UNSEEN,
    Spread,
    changed_settings,
    unseen_of,
)
from shardwise.inputs.accuracy import FILE
from shardwise.inputs.calibrations import family_of, is_shipped
from shardwise.measure.validate.summary import POOLED, coverages, setting_of
from shardwise.measure.validate.validate import INTERVALS, Outcome, bars, validate
from shardwise.report.validation import COVERAGE_HEADS, coverage_rows
from shardwise.search.simplicity import kinds_of

SHARE = 0.9
PRIOR = 20
"""Runs that speak for a runtime being like the others."""
FINEST = 0.5
"""Least factor of a runtime: few sites stand behind any one."""
LEAST_ROWS, LEAST_SOURCES = 10, 2
"""Runs and sources without which a cause has no width of its own."""
ROUNDS = 25
LEAST, MOST = 0.8, 3.0
"""A cause is scaled for left-out sources by a factor between these."""
FIRST_SIGHT = 0.34
"""Width of what an unseen GPU adds to times: that of 23 runs on an H100 of 500 W, an MI300X and V100s, left out, before
anything was fitted to them. Predictions of today are no longer of GPUs unseen, so that it can only be kept."""
NOT_OF_MEMORY = {NODES, LAUNCH}
"""Causes that do not touch what a rank holds."""
TIME, MEMORY = INTERVALS

Values = dict[str, float]


class Entry(NamedTuple):
    """A run as it is counted once."""

    outcome: Outcome
    off: float
    """log(predicted / measured)."""
    causes: tuple[str, ...]

    @property
    def runtime(self) -> str:
        """Whose own factor counts; none where it was not seen."""
        return "" if UNSEEN.intersection(self.causes) else self.outcome.case.runtime.base

    @property
    def source(self) -> str:
        return self.outcome.case.source

    def total(self, causes: Values, without: str = "") -> float:
        """What its causes add, but for one; a run that is nearly launch-bound has a part of that one."""
        partly = 0.0 if LAUNCH in self.causes else self.outcome.launch * causes[LAUNCH]
        return sum(causes[name] for name in self.causes if name != without) + partly


class Fit(NamedTuple):
    """Widths, squared, and the factors of the runtimes, squared."""

    causes: Values
    runtimes: Values

    def square(self, entry: Entry) -> float:
        return self.runtimes.get(entry.runtime, 1.0) * entry.total(self.causes)


def seen(outcomes: Iterable[Outcome]) -> dict[str, Counter[str]]:
    """Runtime -> GPU family -> timed runs."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for one in outcomes:
        family = family_of(one.case.cluster.gpu)
        if TIME in one.error and is_shipped(family):
            found[one.case.runtime.base][family] += 1
    return found


def unseen(one: Outcome, where: dict[str, Counter[str]]) -> tuple[str, ...]:
    """As `causes_of` has it: a calibration that came with the run was measured where it ran."""
    family = family_of(one.case.cluster.gpu)
    return unseen_of(one.case.runtime.base, family, where) if is_shipped(family) else ()


def entries(
    outcomes: Sequence[Outcome], quantity: str, moved: Callable[[Outcome], float], without_cause: Iterable[str] = ()
) -> list[Entry]:
    """Every run with the quantity: as it is, and as without its source. `moved`: what is then predicted, log."""
    rows = [one for one in outcomes if quantity in one.error]
    whole = seen(outcomes)
    without = {name: seen(one for one in outcomes if one.case.source != name) for name in {o.case.source for o in rows}}
    found = []
    for one in rows:
        off = log(1 + one.error[quantity])
        own = tuple(name for name in one.causes if name not in {*UNSEEN, *without_cause})
        if not unseen(one, whole):
            found.append(Entry(one, off, own))
        if new := unseen(one, without[one.case.source]):
            found.append(Entry(one, off + moved(one), (*own, *new)))
    return found


def quantile(values: Sequence[float]) -> float:
    ranked = sorted(values)
    place = SHARE * (len(ranked) - 1)
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (place - low) * (ranked[high] - ranked[low])


def enough(rows: Sequence[Entry], name: str) -> bool:
    own = [row for row in rows if name in row.causes]
    sources = LEAST_SOURCES if name != COMPOSED else 1
    return len({row.outcome.case.id for row in own}) >= LEAST_ROWS and len({row.source for row in own}) >= sources


def fit(rows: Sequence[Entry]) -> Fit:
    found = Fit(dict.fromkeys(CAUSES, 0.0), {})
    own = {name: [row for row in rows if name in row.causes] for name in CAUSES if enough(rows, name)}
    for _ in range(ROUNDS):
        refit(found, own)
        found = found._replace(runtimes=factors(rows, found.causes))
    refit(found, own)  # the causes last: it is by regime that nine in ten are to lie inside
    return found


def refit(found: Fit, own: dict[str, list[Entry]]) -> None:
    """Each cause in turn, given the others."""
    causes = found.causes
    for name, rows in own.items():
        left = [row.off**2 / found.runtimes.get(row.runtime, 1.0) - row.total(causes, name) for row in rows]
        causes[name] = max(1e-4 if name == ANY else 0.0, quantile(left))


def factors(rows: Sequence[Entry], causes: Values) -> Values:
    own: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.runtime:
            own[row.runtime].append(row.off**2 / row.total(causes))
    return {
        name: max(FINEST**2, quantile(values) ** (len(values) / (len(values) + PRIOR))) for name, values in own.items()
    }


def scaled(rows: Sequence[Entry], folds: dict[str, Fit]) -> Values:
    """Factor on every cause's square so that nine in ten of its runs lie inside the widths fitted without them."""
    found = dict.fromkeys(CAUSES, 1.0)
    for _ in range(ROUNDS):
        for name in CAUSES:
            left = []
            for row in rows:
                one = folds[row.source]
                if name in row.causes and one.causes[name]:
                    rest = row.total({other: found[other] * one.causes[other] for other in CAUSES}, name)
                    left.append((row.off**2 / one.runtimes.get(row.runtime, 1.0) - rest) / one.causes[name])
            # of few left-out runs, of two or three sources, nothing more can be learnt
            found[name] = min(MOST**2, max(LEAST**2, quantile(left))) if len(left) >= POOLED else 1.0
    return found


def at_first_sight(one: Fit) -> Fit:
    return one._replace(causes={**one.causes, GPU: max(FIRST_SIGHT**2, one.causes[GPU])})


class Fitted(NamedTuple):
    """One quantity."""

    rows: list[Entry]
    fit: Fit
    folds: dict[str, Fit]
    """Without each source."""


def fitted(rows: list[Entry]) -> Fitted:
    left = measured(rows)
    folds = {name: fit([row for row in rows if row.source != name]) for name in sorted({row.source for row in left})}
    factor = scaled(left, folds)

    def rescaled(one: Fit) -> Fit:
        return one._replace(causes={name: factor[name] * square for name, square in one.causes.items()})

    whole = rescaled(fit(rows))
    refit(whole, {COMPOSED: [row for row in rows if COMPOSED in row.causes]} if enough(rows, COMPOSED) else {})
    return Fitted(rows, whole, {name: rescaled(one) for name, one in folds.items()})


def measured(rows: Iterable[Entry]) -> list[Entry]:
    """Those that ran as a whole."""
    return [row for row in rows if COMPOSED not in row.causes]


def left_out(found: Fitted, quantity: str) -> list[Outcome]:
    """The runs with the intervals that they have without their source."""
    made = []
    for row in measured(found.rows):
        width = found.folds[row.source].square(row) ** 0.5
        told = {**row.outcome.predicted, quantity: float(row.outcome.case.measured[quantity]) * exp(row.off)}
        made.append(replace(row.outcome, predicted={**told, **bars(told, Spread(width, width))}, causes=row.causes))
    return made


def without_source(outcomes: Sequence[Outcome]) -> Callable[[Outcome], float]:
    """How much longer a run is predicted to take where its source is left out of the fit, log."""
    rows = by_source(outcomes)

    def moved(one: Outcome) -> float:
        source = one.case.source
        if source not in rows:  # our own measurements: no runtime or GPU was fitted to them alone
            return 0.0
        speeds = slowdowns(source, rows)
        own, name = one.case.runtime.overheads.slowdown, one.case.runtime.name
        return log(shift(source, one.case.gpu, rows) * speeds.get(name, mean(speeds.values())) / own)

    return moved


def layout_sets(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
    """Timed runs that differ only in layout."""
    sets: dict[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        if one.case.group and one.case.complete and TIME in one.error:
            sets[setting_of(one)].append(one)
    return list(sets.values())


def own_width(one: Outcome, found: Fit) -> float:
    return float(found.square(Entry(one, 0.0, own_causes(one))) ** 0.5)


def pairs(sets: Iterable[list[Outcome]], found: Fit) -> Values:
    """Width of the difference of two layouts over that of either, by how many settings differ; every run counts once,
    however many others its set has.
    """
    values: dict[str, list[tuple[float, float]]] = {"one": [], "several": []}
    for members in sets:
        for left, right in combinations(members, 2):
            name = "one" if changed_settings(left.case.strategy, right.case.strategy) <= 1 else "several"
            offs = [log(1 + one.error[TIME]) for one in (left, right)]
            width = max(own_width(one, found) for one in (left, right))
            values[name].append((abs(offs[0] - offs[1]) / width, 2 / (len(members) - 1)))
    return {name: weighted_quantile(each) for name, each in values.items()}


def kinds(sets: Iterable[list[Outcome]], found: Fit, several: float) -> dict[str, float | dict[str, int]]:
    """What a kind of layout costs beyond its prediction, from the runs of every set between which a choice is made:
    those predicted within the error of the fastest.
    """
    near = []
    for members in sets:
        best = min(members, key=_predicted)
        most = _predicted(best) * exp(several * own_width(best, found))
        near.append([one for one in members if _predicted(one) <= most])
    sources = sorted({members[0].case.source for members in near})
    left = [kind_cost([one for one in near if one[0].case.source != name]) for name in sources]
    error = ((len(left) - 1) / len(left) * sum((one - mean(left)) ** 2 for one in left)) ** 0.5
    rows: Counter[str] = Counter()
    for members in near:
        own = [kinds_of_run(one) for one in members]
        rows.update({name: len(own) for name in {*chain(*own)} if not all(name in one for one in own)})
    cost = max(0.0, kind_cost(near))
    drawn = cost**3 / (cost**2 + error**2) if cost else 0.0  # what is no larger than its own error is mostly chance
    return {"cost": round(drawn, 4), "error": round(error, 4), "rows": dict(sorted(rows.items()))}


def kind_cost(sets: Iterable[list[Outcome]]) -> float:
    """Slope of log(measured / predicted) over the number of kinds, inside sets; sets weigh the same."""
    both = square = 0.0
    for members in sets:
        counts = [len(kinds_of_run(one)) for one in members]
        offs = [-log(1 + one.error[TIME]) for one in members]
        both += mean((n - mean(counts)) * off for n, off in zip(counts, offs, strict=True))
        square += mean((n - mean(counts)) ** 2 for n in counts)
    return both / square if square else 0.0


def kinds_of_run(one: Outcome) -> tuple[str, ...]:
    return kinds_of(one.case.strategy, experts=one.case.model.moe is not None)


def _predicted(one: Outcome) -> float:
    return float(one.predicted[TIME])  # type: ignore[arg-type]


def own_causes(one: Outcome) -> tuple[str, ...]:
    return tuple(name for name in one.causes if name not in UNSEEN)


def weighted_quantile(values: Sequence[tuple[float, float]]) -> float:
    total, so_far = sum(weight for _, weight in values), 0.0
    for value, weight in sorted(values):
        so_far += weight
        if so_far >= SHARE * total:
            return value
    return 0.0


def table(found: Fitted) -> dict[str, dict[str, float] | dict[str, int]]:
    """As the file has it."""
    own = {name: [row for row in found.rows if name in row.causes] for name in CAUSES}
    return {
        "causes": {name: round(square**0.5, 4) for name, square in found.fit.causes.items() if square},
        "rows": {name: len({row.outcome.case.id for row in rows}) for name, rows in own.items() if rows},
        "sources": {name: len({row.source for row in rows}) for name, rows in own.items() if rows},
        "runtimes": {name: round(square**0.5, 3) for name, square in sorted(found.fit.runtimes.items())},
    }


HEAD = """\
# How far predictions are to be trusted. Written by benchmarks/intervals.py from what `validate` predicts; run it again
# after every change of the cost model. Widths are logarithms of factors, of nine runs in ten; their squares add.

"""


def main() -> None:
    outcomes = validate().outcomes
    time = fitted(entries(outcomes, TIME, without_source(outcomes)))
    time = time._replace(fit=at_first_sight(time.fit))
    memory = fitted(entries(outcomes, MEMORY, lambda _: 0.0, NOT_OF_MEMORY))
    for quantity, found in ((TIME, time), (MEMORY, memory)):
        print(f"\n{quantity}: widths {table(found)['causes']}")
        print(f"each source left out\n  {' | '.join(COVERAGE_HEADS)}")
        for row in coverage_rows(coverages(left_out(found, quantity), quantity)):
            print("  " + " | ".join(row))
    sets = layout_sets(outcomes)
    apart = {name: round(value, 3) for name, value in pairs(sets, time.fit).items()}
    data = {
        "time": table(time),
        "memory": table(memory),
        "pairs": apart,
        "kinds": kinds(sets, time.fit, apart["several"]),
        "seen": {name: dict(sorted(counts.items())) for name, counts in sorted(seen(outcomes).items())},
    }
    print(f"\npairs {data['pairs']}\nkinds {data['kinds']}")
    if "--check" not in sys.argv:
        FILE.write_text(HEAD + tomli_w.dumps(data))
        print(f"written to {FILE}")


if __name__ == "__main__":
    main()
