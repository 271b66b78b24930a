"""Iteration-time error on published 16-bit runs, each source left out of the fit: python benchmarks/leave_one_out.py.

What was fitted to published runs is a runtime's `slowdown`, a site's, and a GPU family's share of its peak. For every
source all are taken from the others: a runtime that only this source shows gets the mean slowdown of the rest, its site
is taken for the usual one, and the family's share is moved by the median error of the other sources on it.

Last it says what is learnt of sites: the factor of every source that a usual site leaves, their middle, and how far
they lie apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import exp, log
from statistics import mean, median

from shardwise.inputs.site import USUAL
from shardwise.measure.validate.validate import Outcome, validate

SIXTEEN = {"bf16", "fp16", "fp16/bf16 mixed"}
LEAST_ROWS = 5
TIME = "iteration_seconds"


def by_source(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        case = one.case
        if case.complete and case.precision in SIXTEEN and TIME in one.error and not case.source.startswith("h200"):
            found[case.source].append(one)
    return found


def shift(source: str, family: str, rows: dict[str, list[Outcome]]) -> float:
    """How much longer runs on a GPU family take than predicted, by the other sources' dense runs on usual sites."""
    told = {other: [log(1 + o.error[TIME]) for o in all_of if _tells(o, family)] for other, all_of in rows.items()}
    logs = [median(logs) for other, logs in told.items() if other != source and logs]
    return exp(-median(logs)) if len(logs) > 1 else 1.0


def _tells(one: Outcome, family: str) -> bool:
    case = one.case
    return case.gpu == family and case.model.moe is None and case.cluster.site == USUAL


def slowdowns(source: str, rows: dict[str, list[Outcome]]) -> dict[str, float]:
    """Fitted speeds of the runtimes that other sources show."""
    others = [one.case.runtime for other, outcomes in rows.items() if other != source for one in outcomes]
    return {runtime.name: runtime.overheads.slowdown for runtime in others}


def error_without(source: str, rows: dict[str, list[Outcome]]) -> float:
    known = slowdowns(source, rows)
    default = mean(known.values())
    errors = []
    for one in rows[source]:
        own = one.case.runtime.overheads.slowdown
        speed = known.get(one.case.runtime.name, default) / own * USUAL.slowdown / one.case.cluster.site.slowdown
        errors.append(abs((1 + one.error[TIME]) * shift(source, one.case.gpu, rows) * speed - 1))
    return mean(errors)


def site_factor(outcomes: list[Outcome]) -> float:
    """Measured over predicted, the middle of a source's runs, as if it had been taken for a usual site."""
    return median(one.case.cluster.site.slowdown / USUAL.slowdown / (1 + one.error[TIME]) for one in outcomes)


def show_sites(rows: dict[str, list[Outcome]]) -> None:
    factors = {source: site_factor(outcomes) for source, outcomes in rows.items()}
    for source, factor in sorted(factors.items(), key=lambda pair: pair[1]):
        print(f"  site of {source:18s} {factor:5.2f}")
    middle = median(factors.values())
    apart = sorted(abs(log(factor / middle)) for factor in factors.values())
    print(
        f"  {len(factors)} sites: middle {middle:.3f}, two in three within {apart[round(2 / 3 * len(apart)) - 1]:.3f}"
    )


def main() -> None:
    rows = by_source(validate().outcomes)
    large = sorted(source for source, outcomes in rows.items() if len(outcomes) >= LEAST_ROWS)
    inside = {source: mean(abs(one.error[TIME]) for one in rows[source]) for source in large}
    outside = {source: error_without(source, rows) for source in large}
    for source in large:
        show(source, f"{len(rows[source]):4d} rows", inside[source], outside[source])
    show("mean over sources", " " * 9, mean(inside.values()), mean(outside.values()))
    show_sites(rows)


def show(name: str, count: str, fitted: float, left_out: float) -> None:
    print(f"{name:18s} {count}  fitted {fitted:6.1%}  left out {left_out:6.1%}")


if __name__ == "__main__":
    main()
