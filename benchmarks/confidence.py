"""Whether limits hold: plans made of drawn rounds of measuring, held against their hidden truths.

python benchmarks/confidence.py [ROUNDS]; 500 by default. What is drawn, and how a plan is judged, stands in
tests/partition/drawn_rounds.py. A plan is over its limit where any of its stages is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "partition"))

from drawn_rounds import Outcome, drawn, outcome

ROUNDS, MOST = 500, 0.05


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    began, found = time.process_time(), list[Outcome]()
    for seed in range(rounds):
        found.append(outcome(drawn(seed)))
        if (seed + 1) % 50 == 0:
            print(f"{seed + 1} rounds, {time.process_time() - began:.0f} CPU s: {said(found)}", flush=True)
    for name, own in (
        ("no degree of freedom", [one for one in found if one.spare == 0]),
        ("1 or 2", [one for one in found if one.spare in {1, 2}]),
        ("3 or more", [one for one in found if one.spare > 2]),
        ("one kind of layers", [one for one in found if one.kinds == 1]),
        ("several kinds", [one for one in found if one.kinds > 1]),
        ("all", found),
    ):
        print(f"{name:22} {said(own)}")
    plans = [one for one in found if one.planned]
    return int(sum(one.over_in_run > 0 for one in plans) > MOST * len(plans))


def said(found: Sequence[Outcome]) -> str:
    plans = [one for one in found if one.planned]
    if not plans:
        return f"{len(found)} rounds, no plan"
    stages = sum(one.stages for one in plans)
    over, in_run = (sum(getattr(one, name) > 0 for one in plans) for name in ("over", "over_in_run"))
    each, refused = sum(one.over_in_run for one in plans), sum(one.refused for one in found)
    slower = [100 * one.slower for one in plans]
    slow = f"slower than knowing the truth {mean(slower):.2f}% (median {median(slower):.2f}%)"
    return (
        f"{len(plans)} plans of {len(found)} rounds ({refused} refused); over the limit {over} by the truth, "
        f"{in_run} in their own run ({each} of {stages} stages); {slow}"
    )


if __name__ == "__main__":
    sys.exit(main())
