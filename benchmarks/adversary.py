"""What the search prints, attacked: python benchmarks/adversary.py [--questions 30] [--evaluations 10000] [--src DIR].

Prints for every drawn question the best, the gap, and by how much annealing over cuts and strategies could beat the
best or a bound; ends with 1 where a bound is broken or a best beaten by more than 0.05%.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--evaluations", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first question")
    parser.add_argument("--src", default=str(HERE / "src"), help="the source tree to attack")
    asked = parser.parse_args()
    sys.path[:0] = [asked.src, str(HERE / "tests" / "search")]
    from adversary import BEATEN, attack

    found, number = [], asked.first
    while len(found) < asked.questions:
        one = attack(number, asked.evaluations)
        number += 1
        if one is None:
            continue
        found.append(one)
        print(
            f"{one.number:4d}  {one.best:9.4f} s  gap {one.gap:7.3%}  beaten by {one.beaten:8.4%}  "
            f"{len(one.broken)} bounds broken in {one.evaluations:,}  {one.said}",
            flush=True,
        )
        if one.beaten > BEATEN:
            print(f"      beaten by {one.winner}")
        for broken in one.broken[:2]:
            print(f"      {broken}")
    beaten, broken = sum(one.beaten > BEATEN for one in found), sum(len(one.broken) > 0 for one in found)
    print(f"{len(found)} questions: {beaten} bests beaten by more than {BEATEN:.2%}, bounds broken in {broken}")
    return 1 if beaten or broken else 0


if __name__ == "__main__":
    sys.exit(main())
