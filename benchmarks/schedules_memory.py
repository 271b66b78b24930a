"""The schedule optimiser below 1F1B's memory: `python benchmarks/schedules_memory.py [--pp 8,16,32] [--rows FILE]`.

Gaps on a grid of pipelines at 0.5 and 0.75 of 1F1B's memory, with limits of each rank's own, and against exact optima
of small ones (schedules_optima.csv), which say what part of a gap is a loose bound. One line per requirement.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import random
import statistics
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

from schedules import faults, limited, line, solved
from shardwise.pipeline.action import placed
from shardwise.pipeline.costs import Costs, costs, limit_of

OPTIMA = Path(__file__).with_name("schedules_optima.csv")
TIMES = (10, 11, 9)
SLOW_MESSAGES = ((4, 3, 3, 6, 584), (3, 4, 4, 6, 775), (3, 3, 4, 5, 583), (4, 3, 4, 6, 644), (3, 3, 5, 5, 694))
"""Of the kind with the widest gaps: ranks, chunks a rank, micro batches, room in activations, optimum by CP-SAT."""


def cell(pp: int, vpp: int, times: float, hop: float, *, heavy: bool) -> Costs:
    """F, I, W of 10, 11, 9 a chunk; with a heavy rank, the middle one's take half as long again."""
    scale = [1.5 if heavy and rank == pp // 2 else 1.0 for rank in placed(pp, vpp, "v")]
    f, i, w = ([x * s for s in scale] for x in TIMES)
    return limited(costs(pp=pp, vpp=vpp, f=f, i=i, w=w, hop=hop), pp, vpp, times)


class Cell(NamedTuple):
    """A pipeline of the grid and what was reached."""

    pp: int
    vpp: int
    microbatches: int
    times: float
    hop: float
    heavy: bool
    value: float = 0.0
    bound: float = 0.0
    gap: float = 0.0
    proven: bool = False
    seconds: float = 0.0


def grid(pps: list[int]) -> Iterator[Cell]:
    axes = (pps, (1, 2, 3, 4), (0.5, 1, 2, 4), (0.5, 0.75), (0, 5), (False, True))
    for pp, vpp, share, times, hop, heavy in product(*axes):
        m = int(share * pp)
        answer = solved(cell(pp, vpp, times, hop, heavy=heavy), pp, vpp, m)
        yield Cell(pp, vpp, m, times, hop, heavy, answer.value, answer.bound.value, answer.gap, answer.proven,
                   answer.seconds)  # fmt: skip


def told(what: str, gaps: list[float], mean: float, most: float) -> bool:
    text = f"mean {100 * statistics.mean(gaps):.2f}%, max {100 * max(gaps):.1f}% of {len(gaps)}"
    good = statistics.mean(gaps) <= mean and max(gaps) <= most
    return line(what, text, f"mean <= {100 * mean:g}%, max <= {100 * most:g}%", good=good)


def below(pps: list[int], rows: Path | None) -> bool:
    found = list[Cell]()
    for one in grid(pps):
        found.append(one)
        if rows:
            with rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(one._asdict()) + "\n")
    for key in ("pp", "vpp", "times", "hop", "heavy"):
        for value in sorted({getattr(one, key) for one in found}):
            gaps = [one.gap for one in found if getattr(one, key) == value]
            print(f"      {key} {value}: mean {100 * statistics.mean(gaps):.2f}%, max {100 * max(gaps):.1f}%")
    slowest = max(one.seconds for one in found)
    print(f"      proven: {sum(one.proven for one in found)} of {len(found)}; slowest answer {slowest:.1f} CPU s")
    return told("0.5p and 0.75p, the whole grid, gap", [one.gap for one in found], 0.04, 0.15)


def own_limits() -> bool:
    """Every rank its own limit, from 0.6 to 1.6 of 1F1B's memory."""
    gaps = []
    for seed in range(20):
        dice = random.Random(seed)  # noqa: S311 - named instances
        pp, vpp = dice.choice((4, 8, 16)), dice.choice((1, 2, 3))
        given = costs(pp=pp, vpp=vpp, f=10, i=11, w=9, hop=dice.choice((0, 1, 5)))
        rooms = limit_of(given, placed(pp, vpp, "v"), 1.0)
        given = dataclasses.replace(given, memory_limit=tuple(dice.uniform(0.6, 1.6) * room for room in rooms))
        gaps.append(solved(given, pp, vpp, dice.choice((1, 2, 4)) * pp).gap)
    return told("limits of each rank's own, 0.6p to 1.6p, gap", gaps, 0.02, 0.10)


def against_optima() -> bool:
    """Small pipelines whose optimum CP-SAT has proven."""
    best, loose = 0, []
    with OPTIMA.open(encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if not row[0].startswith("#")]
    for pp, vpp, m, placement, hop, room, f, i, w, optimum in rows:
        times = [[float(x) for x in values.split()] for values in (f, i, w)]
        given = costs(pp=int(pp), vpp=int(vpp), f=times[0], i=times[1], w=times[2], hop=float(hop),
                      memory_limit=float(room))  # fmt: skip
        answer = solved(given, int(pp), int(vpp), int(m), placement=placement)
        best += answer.value <= float(optimum) * (1 + 1e-9)
        loose.append(float(optimum) / answer.bound.value - 1)
    share = best / len(rows)
    ok = line("small ones below 1p, optimum found", f"{best} of {len(rows)}", ">= 98%", good=share >= 0.98)
    text = f"mean {100 * statistics.mean(loose):.2f}%, max {100 * max(loose):.1f}%"
    return ok & line("the same, optimum over bound", text, "mean <= 2%", good=statistics.mean(loose) <= 0.02)


def split() -> None:
    """What part of a wide gap is a loose bound, and what a slow order."""
    for pp, vpp, m, room, optimum in SLOW_MESSAGES:
        answer = solved(costs(pp=pp, vpp=vpp, f=10, i=11, w=9, hop=5, memory_limit=room), pp, vpp, m)
        loose, slow = optimum / answer.bound.value - 1, answer.value / optimum - 1
        told = f"optimum over bound {100 * loose:.1f}%, order over optimum {100 * slow:.1f}%"
        print(f"      pp {pp} vpp {vpp} m {m} room {room}: {told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pp", default="8,16,32", help="pipeline ranks of the grid")
    parser.add_argument("--rows", type=Path, help="append every cell of the grid to this file, as JSON lines")
    asked = parser.parse_args()
    split()
    ok = against_optima() & own_limits() & below([int(pp) for pp in asked.pp.split(",")], asked.rows)
    ok &= line("schedules over a limit or otherwise unsound", str(len(faults)), "0", good=not faults)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
