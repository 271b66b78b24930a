"""Laws of the cost model on drawn strategies: python benchmarks/laws.py [--count 4000] [--seed 0] [--src FOLDER]."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--src", default=str(HERE / "src"))
    asked = parser.parse_args()
    sys.path[:0] = [asked.src, str(HERE / "tests" / "plan")]
    from laws import LAWS, MADE_FROM_COSTS, drawn, held

    found = defaultdict(list)
    for case in drawn(asked.seed, asked.count):
        try:
            all_ = list(held(case))
        except KeyError as error:
            print('crash', case, repr(error))
            continue
        for one in all_:
            tag = "*" if one.less.strategy.schedule in MADE_FROM_COSTS and one.less.strategy.pp > 1 else ""
            found[one.law + tag].append(one)
    for name, all_ in sorted(found.items()):
        bad = sorted((one for one in all_ if one.broken), key=lambda one: -one.excess)
        print(f"{name:45} {len(all_):6} {len(bad):5} {100 * bad[0].excess if bad else 0:8.3f}%")
        for one in bad[: asked.show]:
            print("    ", f"{one.excess:.2e}", one.less, "\n            <=", one.more)
    return 0


if __name__ == "__main__":
    sys.exit(main())
