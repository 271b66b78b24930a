"""The schedule optimiser against its rivals and its own bounds: `python benchmarks/schedules.py [--quick]`.

Prints one line per requirement with what must be reached. Every schedule is checked for soundness and its limit.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import random
import statistics
import sys
import time
from pathlib import Path

from shardwise.pipeline.action import placed
from shardwise.pipeline.costs import Costs, costs, limit_of
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.faults import find_fault
from shardwise.pipeline.generate import generate
from shardwise.pipeline.optimise import OrderAnswer, optimise

COST_SETS = {
    "unit": (10, 10, 10, 0), "w0.8": (10, 10, 8, 0), "seed": (10, 11, 9, 1), "sail16": (14407, 14380, 9676, 1610),
    "paddle": (61, 72, 71, 3), "recomp": (10, 20, 10, 1),
}  # fmt: skip
RIVALS = Path(__file__).with_name("schedules_rivals.csv")
faults: list[str] = []


def limited(given: Costs, pp: int, vpp: int, times: float | None, placement: str = "v") -> Costs:
    if times is None:
        return given
    return dataclasses.replace(given, memory_limit=limit_of(given, placed(pp, vpp, placement), times))


def solved(given: Costs, pp: int, vpp: int, m: int, **options) -> OrderAnswer:
    answer = optimise(given, pp=pp, vpp=vpp, microbatches=m, **options)
    fault = find_fault(answer.schedule, given)
    if fault is not None:
        faults.append(f"pp {pp} vpp {vpp} m {m}: {fault}")
    return answer


def line(what: str, value: str, must: str, *, good: bool) -> bool:
    print(f"{'ok  ' if good else 'MISS'}  {what:<58} {value:<44} must {must}", flush=True)
    return good


def read_cells() -> list[tuple[int, int, str, float | None, dict[str, float], str]]:
    with RIVALS.open(encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if not row[0].startswith("#")]
    names = ("official", "paddle", "best")
    return [
        (int(r[0]), int(r[1]), r[2], float(r[3]) if r[3] else None,
         {name: float(x) for name, x in zip(names, r[4:7], strict=True) if x}, r[7])
        for r in rows
    ]  # fmt: skip


def grid(*, quick: bool) -> bool:
    gaps: dict[str, list[float]] = {"ours": [], "official": [], "paddle": []}
    behind, slowest, cache = list[str](), 0.0, dict[tuple[object, ...], OrderAnswer]()
    for pp, m, name, times, rivals, who in read_cells():
        if quick and pp > 8:
            continue
        f, i, w, hop = COST_SETS[name]
        binds = None if times is None or times * pp >= m else times  # all micro batches fit: the same problem
        if (pp, m, name, binds) not in cache:
            given = limited(costs(pp=pp, vpp=2, f=f, i=i, w=w, hop=hop), pp, 2, binds)
            cache[pp, m, name, binds] = solved(given, pp, 2, m)
        answer = cache[pp, m, name, binds]
        slowest = max(slowest, answer.seconds)
        gaps["ours"].append(answer.gap)
        for rival in ("official", "paddle"):
            if rival in rivals:
                gaps[rival].append(rivals[rival] / answer.bound.value - 1)
        if answer.value > rivals["best"] * (1 + 1e-9):
            behind.append(f"pp {pp} m {m} {name} {times}: {answer.value:g} > {rivals['best']:g} of {who}")
    shown = {who: f"{100 * statistics.mean(x):.3f} / {100 * max(x):.2f}%" for who, x in gaps.items()}
    good = statistics.mean(gaps["ours"]) <= 0.0015 and max(gaps["ours"]) <= 0.015
    ok = line(f"grid of {len(gaps['ours'])} cells, gap mean / max", shown["ours"], "<= 0.15 / 1.5%", good=good)
    print(
        f"      official {shown['official']}, Paddle {shown['paddle']} where it ran; slowest answer {slowest:.1f} CPU s"
    )
    ok &= line("grid, cells behind the best rival of any placement", str(len(behind)), "0", good=not behind)
    for text in behind:
        print("     ", text)
    return ok


def seed_instance() -> bool:
    given = costs(pp=8, vpp=2, f=10, i=11, w=9, hop=1)
    answer = solved(given, 8, 2, 16)
    text = f"{answer.value:g}, {'proven' if answer.proven else 'unproven'}, {answer.seconds:.2f} CPU s"
    ok = line(
        "seed, pp 8, 16 micro batches, makespan", text, "1037, proven", good=answer.proven and answer.value == 1037
    )
    stacked = solved(given, 8, 2, 16, objective="period")
    rate = stacked.timeline.seed_rate
    ok &= line(
        "the same, period", f"{stacked.value:g} (bound {stacked.bound.value:g})", "<= 971", good=stacked.value <= 971
    )
    ok &= line("the same, seed rate", f"{100 * rate:.2f}%", "<= 1.15%", good=rate <= 11 / 960)
    tight = solved(limited(given, 8, 2, 1.0), 8, 2, 16)
    peak = 2 * max(tight.timeline.peak)
    return ok & line("the same at 1p: peak in the seed's units", f"{peak:g} of 32", "<= 32", good=peak <= 32)


def unequal(*, quick: bool) -> bool:
    """Instance (pp, seed): random.Random(1000 pp + seed) scales every F, then I, then W by 0.7 to 1.3."""
    gaps = []
    for pp in (4, 8) if quick else (4, 8, 16):
        for seed in range(20):
            dice = random.Random(1000 * pp + seed)  # noqa: S311 - named instances
            f, i, w = ([x * dice.uniform(0.7, 1.3) for _ in range(2 * pp)] for x in (10, 11, 9))
            given = limited(costs(pp=pp, vpp=2, f=f, i=i, w=w, hop=1), pp, 2, 1.5)
            gaps.append(solved(given, pp, 2, 2 * pp, effort=0.3).gap)
    mean = statistics.mean(gaps)
    text = f"mean {100 * mean:.3f}%, max {100 * max(gaps):.2f}%"
    return line("unequal chunks +-30%, 20 seeds a pp, 1.5p", text, "mean <= 0.7%", good=mean <= 0.007)


def many_chunks(*, quick: bool) -> bool:
    gaps = []
    for vpp in (3, 4):
        for placement in ("loop", "v"):
            for pp in (4,) if quick else (4, 8):
                for m in (pp, 2 * pp, 4 * pp):
                    for times in (None, 1.0, 1.5):
                        given = costs(pp=pp, vpp=vpp, f=20 / vpp, i=22 / vpp, w=18 / vpp, hop=1)
                        given = limited(given, pp, vpp, times, placement)
                        gaps.append(solved(given, pp, vpp, m, placement=placement, effort=0.3).gap)
    mean = statistics.mean(gaps)
    text = f"mean {100 * mean:.3f}%, max {100 * max(gaps):.2f}%"
    return line("vpp 3 and 4, loop and zig-zag, pp 4 and 8", text, "mean <= 1.5%", good=mean <= 0.015)


def unseen() -> None:
    """Sizes and costs that no learned start (starts.json) was made on; slow messages and short W, so harder."""
    gaps = []
    for pp in (6, 12, 24):
        for m in (pp, 3 * pp):
            for f, i, w, hop in ((12, 15, 8, 1.5), (20, 19, 14, 2)):
                for times in (None, 1.0, 1.25) if m > 1.25 * pp else (None,):
                    given = limited(costs(pp=pp, vpp=2, f=f, i=i, w=w, hop=hop), pp, 2, times)
                    gaps.append(solved(given, pp, 2, m).gap)
    text = f"mean {100 * statistics.mean(gaps):.3f}%, max {100 * max(gaps):.2f}%"
    print(f"      {'cells unlike those the starts were learned on':<58} {text}", flush=True)


def below_1p() -> bool:
    ok = True
    for chunks, most, optimum in ((6, 558, 558), (4, 660, 655)):
        given = costs(pp=4, vpp=2, f=10, i=11, w=9, hop=1, free_at_input_grad=0, memory_limit=chunks)
        answer = solved(given, 4, 2, 8)
        what = f"{chunks / 8:g}p, memory freed at W, pp 4, 8 micro batches"
        ok &= line(what, f"{answer.value:g} (optimum {optimum})", f"<= {most}", good=answer.value <= most)
    return ok


def large() -> bool:
    """The largest pipeline of the grid at a limit that binds, and the speed of the engine."""
    firsts: list[float] = []
    began = time.process_time()
    given = limited(costs(pp=32, vpp=2, f=10, i=11, w=9, hop=1), 32, 2, 1.0)
    answer = solved(given, 32, 2, 128, report=lambda *_: firsts.append(time.process_time() - began))
    ok = line("pp 32, 128 micro batches, 1p: first schedule", f"{firsts[0]:.2f} CPU s", "<= 0.1", good=firsts[0] <= 0.1)
    text = f"{answer.seconds:.1f} CPU s, gap {100 * answer.gap:.2f}%"
    ok &= line("the same: final", text, "<= 1.5 CPU s", good=answer.seconds <= 1.5)
    began = time.process_time()
    schedule = generate("interleaved", pp=64, vpp=4, microbatches=1024)
    timeline = simulate(schedule, costs(pp=64, vpp=4, f=10, i=11, w=9, hop=1))
    figures = (timeline.makespan, timeline.period, timeline.bubble, timeline.peak, timeline.bubbles())
    whole = time.process_time() - began
    began = time.process_time()
    simulate(schedule, timeline.costs)
    rate = schedule.actions / (time.process_time() - began) / 1e6
    ok &= line("replay, pp 64, vpp 4, 1,024 micro batches", f"{rate:.1f} M actions / CPU s", ">= 2", good=rate >= 2)
    return ok & line(
        "the same end to end", f"{whole:.2f} CPU s ({len(figures)} figures)", "<= 1 CPU s", good=whole <= 1
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="pp up to 8 only: under a minute")
    quick = parser.parse_args().quick
    ok = seed_instance() & below_1p() & large() & many_chunks(quick=quick) & unequal(quick=quick) & grid(quick=quick)
    if not quick:
        unseen()
    ok &= line("schedules over a limit or otherwise unsound", str(len(faults)), "0", good=not faults)
    for text in faults:
        print("     ", text)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
