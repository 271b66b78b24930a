"""The figures of the search, each in its own process: python benchmarks/plan.py [case ...].

Prints CPU seconds, the proven gap, how many strategies there are, were screened and simulated, strategies screened per
CPU second, and how far the screen's bounds are from the full path.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np

import shardwise
from shardwise.inputs.layers import is_uneven, with_layers
from shardwise.inputs.load import load_cluster, load_model, load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.plan.estimate import estimate
from shardwise.plan.search.api import question_of
from shardwise.plan.search.refine import refine
from shardwise.plan.search.screen import Screen
from shardwise.plan.search.search import WAVE
from shardwise.plan.search.space import Space

SEARCHES = {
    "llama-70b": ("llama-3-70b", "1024xh100", 1024, 8192, 0.01, "10 CPU s, gap 1%; SimuMax 18 CPU s for 169"),
    "deepseek-v3": ("deepseek-v3", "2048xh100", 16384, 4096, 0.02, "20 CPU s, gap 2%; SimuMax 33 CPU s for 169"),
    "gpt3-175b": ("gpt-3-175b", "64xa100", 64, 2048, 0.01, "10 CPU s; Calculon 941 CPU s for 138,624"),
}


def search(name: str) -> None:
    """One search of the table."""
    model, cluster, batch, seq, gap, goal = SEARCHES[name]
    answer = shardwise.plan(model, cluster, global_batch=batch, seq=seq, gap=gap)
    counts = answer.counts
    print(f"{name}: {answer.cpu_seconds:.1f} CPU s, gap {answer.gap:.2%} (must: {goal})")
    print(f"  {counts.space:,} strategies, {counts.screened:,} screened, {counts.points:,} simulated")
    print(f"  best {answer.best.iteration_seconds:.3f} s, MFU {answer.best.mfu:.3f}: {answer.best.strategy}")
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
    measured = Strategy.parse("tp8 pp8x3 dp1 mbs1 gbs64 seq2048 zero0 recompute=core-attention noflash")
    model, cluster = load_model("gpt-3-175b"), load_cluster("64xa100")
    for runtime in ("megatron-2023", "megatron"):
        found = estimate(model, cluster, replace(measured, runtime=runtime), runtime=load_runtime(runtime))
        print(f"GPT-3 175B tp8 pp8x3 with {runtime}: {found.iteration_seconds:.2f} s, measured 13.75 s")


def uneven() -> None:
    """What cutting layers by simulation wins over the even and the first/last-only cut."""
    cases = (
        ("llama-3.1-405b", "1024xh100", "tp8 pp16 dp8 mbs1 gbs256 seq8192 zero1"),
        ("megatron-530b", "280xa100", "tp8 pp7 dp5 mbs1 gbs280 seq2048 zero1"),
        ("megatron-530b", "320xa100", "tp8 pp8 dp5 mbs1 gbs320 seq2048 zero1"),
        ("gemma-2-27b", "64xh100", "tp4 pp8 dp2 mbs1 gbs128 seq4096 zero1"),
    )
    for name, machines, text in cases:
        try:
            question = question_of(name, machines, global_batch=1, memory_margin=-1e15)
        except shardwise.ShardwiseError as error:
            print(f"uneven {name}: {error}")
            continue
        strategy = Strategy.parse(text)
        even = with_layers(question.model.layers, strategy)
        simple = estimate(question.model, question.cluster, even, runtime=question.runtime)
        best = refine(question, strategy)
        won = simple.iteration_seconds / best.seconds - 1
        print(f"uneven {name} pp{strategy.pp}: {won:+.2%} over {','.join(map(str, even.layers))}")
        print(f"  {','.join(map(str, best.strategy.layers))}")


def main() -> None:
    known = {**{name: (lambda name=name: search(name)) for name in SEARCHES}}
    known |= {"screen": screen, "curse": curse, "uneven": uneven}
    if len(sys.argv) == 2 and sys.argv[1] in known:
        known[sys.argv[1]]()
        return
    for name in sys.argv[1:] or known:
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
