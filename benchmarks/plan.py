"""The figures of the search, each in its own process: python benchmarks/plan.py [case ...].

Prints CPU seconds, the proven gap, how many strategies there are, were screened and simulated, strategies screened per
CPU second, and how far the screen's bounds are from the full path; then what uneven stages win, the regret on measured
layouts, and what the plan claims to win over a measured one.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np

import shardwise
from shardwise.estimate.estimate import estimate
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.layers import is_uneven, with_layers
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.measure.validate.validate import validate
from shardwise.search.api import question_of
from shardwise.search.refine import refine
from shardwise.search.screen import Screen
from shardwise.search.search import WAVE
from shardwise.search.space import Space
from shardwise.search.why import why

SEARCHES = {
    "llama-70b": ("llama-3-70b", "1024xh100", 1024, 8192, 0.01, "10 CPU s, gap 1%; SimuMax 18 CPU s for 169"),
    "deepseek-v3": ("deepseek-v3", "2048xh100", 16384, 4096, 0.02, "20 CPU s, gap 2%; SimuMax 33 CPU s for 169"),
    "gpt-oss-120b": ("gpt-oss-120b", "64xh100", 1024, 4096, 0.005, "10 CPU s"),
    "gpt3-175b": ("gpt-3-175b", "64xa100", 64, 2048, 0.01, "10 CPU s; Calculon 941 CPU s for 138,624"),
}


MEASURED = Strategy.parse("tp8 pp8x3 dp1 mbs1 gbs64 seq2048 zero0 recompute=core-attention noflash")
UNEVEN = (
    ("llama-3.1-405b", "1024xh100", "tp8 pp16 dp8 mbs1 gbs512 seq8192 zero1"),
    ("megatron-530b", "320xa100", "tp8 pp8 dp5 mbs1 gbs320 seq2048 zero1 recompute=full"),
    ("megatron-530b", "640xa100", "tp8 pp16 dp5 mbs1 gbs640 seq2048 zero1 recompute=full"),
    ("gemma-2-27b", "64xh100", "tp4 pp8 dp2 mbs1 gbs128 seq4096 zero1"),
    ("gemma-3-27b", "64xh100", "tp2 pp8 dp4 mbs1 gbs256 seq4096 zero1"),
)


def search(name: str) -> None:
    """One search of the table."""
    model, cluster, batch, seq, gap, goal = SEARCHES[name]
    answer = shardwise.plan(model, cluster, global_batch=batch, seq=seq, gap=gap)
    counts = answer.counts
    print(f"{name}: {answer.cpu_seconds:.1f} CPU s, gap {answer.gap:.2%} (must: {goal})")
    print(f"  {counts.strategies:,} strategies, {counts.screened:,} screened, {counts.simulated:,} simulated")
    print(f"  best {answer.fastest.iteration_seconds:.3f} s, MFU {answer.fastest.mfu:.3f}: {answer.fastest.strategy}")
    for axis, values in counts.axes.items():
        print(f"  {axis}: " + ", ".join(f"{value} {count:,}" for value, count in values.items()))


def screen() -> None:
    """Strategies screened per CPU second, layers priced anew, and the bounds against the full path."""
    for model, cluster, batch, seq, *_ in SEARCHES.values():
        question = question_of(model, cluster, global_batch=batch, seq=seq)
        space = Space(question=question)
        screened = Screen(space=space)
        bases = space.bases[:300]  # in a row, as the search meets them
        _ = screened.recomputes
        began = time.process_time()
        rows = [row for start in range(0, len(bases), WAVE) for row in screened.rows_of(bases[start : start + WAVE])]
        seconds = time.process_time() - began
        count = sum(len(row.seconds) for row in rows)
        print(f"screen {model}: {count / seconds:,.0f} strategies per CPU second (must: 200,000), {count:,} in all")
        against_the_full_path(space, screened, rows)


def against_the_full_path(space, screened, rows, count=200) -> None:
    rng, question = random.Random(0), space.question  # noqa: S311
    bounds, values = [], []
    for _ in range(count):
        row = rng.choice(rows)
        place = rng.randrange(len(row.seconds))
        strategy = space.strategy(screened.point(row.base, place))
        layers = question.model.layers
        strategy = with_layers(layers, strategy) if is_uneven(layers, strategy) else strategy
        found = estimate(question.model, question.cluster, strategy, runtime=question.runtime, checked=True)
        bounds.append(row.seconds[place])
        values.append(found.iteration_seconds)
    ratio = np.array(bounds) / np.array(values)
    ranks = [np.argsort(np.argsort(one)) for one in (bounds, values)]
    print(
        f"  bound over value: highest {ratio.max():.4f}, median {np.median(ratio):.3f}; "
        f"rank correlation {np.corrcoef(*ranks)[0, 1]:.3f}"
    )


def curse() -> None:
    """The measured layout is in the space and honestly predicted: 13.75 s on 64 A100."""
    model, cluster = load_model("gpt-3-175b"), load_cluster("64xa100")
    for runtime in ("megatron-2023", "megatron"):
        found = estimate(model, cluster, replace(MEASURED, runtime=runtime), runtime=load_runtime(runtime))
        print(f"GPT-3 175B tp8 pp8x3 with {runtime}: {found.iteration_seconds:.2f} s, measured 13.75 s")


def gain() -> None:
    """What the plan claims to win over the measured layout, part by part (the optimizer's curse made visible)."""
    model, cluster, runtime = load_model("gpt-3-175b"), load_cluster("64xa100"), "megatron-2023"
    answer = shardwise.plan(model, cluster, global_batch=64, seq=2048, runtime=runtime, gap=0.01)
    other = estimate(model, cluster, replace(MEASURED, runtime=runtime), runtime=load_runtime(runtime))
    found = why(answer.fastest, other, answer.question.memory_limit)
    print(f"plan {answer.fastest.iteration_seconds:.2f} s: {answer.fastest.strategy}")
    print(f"tp8 pp8x3 as measured {other.iteration_seconds:.2f} s; Calculon's search claims 9.83 s for its own choice")
    for part in found.parts[:8]:
        print(f"  {part.name}: {part.best:.3f} s against {part.other:.3f} s ({-part.lost:+.3f} s)")


def uneven() -> None:
    """What cutting layers by the partition solver wins over the even and the best first/last-only cut."""
    print(
        f"{'model':<16}{'pp':>6}{'even':>10}{'ends only':>11}{'solver':>10}{'over even':>11}{'over ends':>11}  layers"
    )
    for name, machines, text in UNEVEN:
        for margin, said in ((-1e15, "memory without limit"), (None, "in the GPU's memory")):
            question = question_of(name, machines, global_batch=1, memory_margin=margin)
            strategy = Strategy.parse(text)
            layers = question.model.layers
            even = _seconds(question, replace(strategy, layers=longer_first(layers, strategy.pp)))
            ends = min((_seconds(question, one) for one in ends_only(layers, strategy)), default=float("inf"))
            best = refine(question, strategy)
            values = [f"{value:.3f} s" if value < float("inf") else "-" for value in (even, ends)]
            found = best.seconds if best.allowed else float("inf")
            gains = [f"{value / found - 1:+.2%}" if max(value, found) < float("inf") else "-" for value in (even, ends)]
            print(
                f"{name:<16}{strategy.pp:>6}{values[0]:>10}{values[1]:>11}"
                f"{f'{found:.3f} s' if best.allowed else '-':>10}{gains[0]:>11}{gains[1]:>11}  "
                f"{','.join(map(str, best.strategy.layers or with_layers(layers, strategy).layers))} ({said})"
            )


def longer_first(layers, pp) -> tuple[int, ...]:
    each, more = divmod(layers, pp)
    return tuple(each + (stage < more) for stage in range(pp))


def ends_only(layers, strategy):
    """Megatron's first and last stage of any length, the stages between alike."""
    for first in range(1, layers):
        for last in range(1, layers - first):
            rest, more = divmod(layers - first - last, strategy.pp - 2)
            if rest and not more and max(first, last) <= 2 * rest:
                yield replace(strategy, layers=(first, *[rest] * (strategy.pp - 2), last))


def _seconds(question, strategy) -> float:
    found = estimate(question.model, question.cluster, strategy, runtime=question.runtime, checked=True)
    return found.iteration_seconds if found.total_bytes <= question.memory_limit else float("inf")


def regret() -> None:
    """Groups of the same model, sequence, GPUs and global batch: how much slower is the layout that we rank first."""
    groups: dict[tuple[object, ...], list[tuple[bool, float, float]]] = {}
    for outcome in validate(()).outcomes:
        case, strategy = outcome.case, outcome.case.strategy
        if case.source == "aleph-layouts" and "fits" in case.measured:
            found = estimate(case.model, case.cluster, strategy, runtime=case.runtime, checked=True)
            row = (found.fits, found.iteration_seconds, case.measured.get("iteration_seconds", float("inf")))
            key = (case.model.name, strategy.seq, case.cluster.gpus, strategy.global_batch)
            groups.setdefault(key, []).append(row)
    for tried, said in (({"yes"}, "surely fits"), ({"yes", "close"}, "fits or may fit, the next one on running out")):
        found = [one for rows in groups.values() if (one := _regret(rows, tried)) is not None]
        print(
            f"regret, choosing what {said}: mean {np.mean([r for r, _ in found]):.2%}, "
            f"highest {max(r for r, _ in found):.2%} over {len(found)} groups, {sum(n for _, n in found)} tries that "
            "ran out of memory (must: mean 3%)"
        )


def _regret(rows, tried) -> tuple[float, int] | None:
    ran = [measured for _, _, measured in rows if measured < float("inf")]
    if len(ran) < 2:
        return None
    ranked = sorted(rows, key=lambda row: (row[0] not in tried, row[1]))
    place = next(index for index, row in enumerate(ranked) if row[2] < float("inf"))
    return ranked[place][2] / min(ran) - 1, place


def main() -> None:
    known = {**{name: (lambda name=name: search(name)) for name in SEARCHES}}
    known |= {"screen": screen, "curse": curse, "gain": gain, "uneven": uneven, "regret": regret}
    if len(sys.argv) == 2 and sys.argv[1] in known:
        known[sys.argv[1]]()
        return
    for name in sys.argv[1:] or known:
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
