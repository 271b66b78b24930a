"""Laws of the cost model on drawn strategies: python benchmarks/laws.py [--count N] [--seed N] [--src FOLDER].

The laws and where each ends stand in tests/estimate/drawn.py, a sample of the strategies in test_laws.py there.
`--src`: hold another version's sources against them. Exit code 1 where a law is broken.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parents[1]
QUESTIONS = (
    ("llama-3-8b", "8xh100", 64, 4096, "megatron"),
    ("gpt-3-13b", "16xa100-40", 32, 2048, "megatron-2023"),
    ("deepseek-v2-lite", "16xh100", 128, 4096, "torchtitan"),
    ("qwen3-30b-a3b", "16xh100", 64, 4096, "megatron"),
)
"""Small enough for an exact answer: for the one law of `plan`."""


def main() -> int:
    asked = arguments()
    sys.path[:0] = [asked.src, str(HERE / "tests" / "estimate")]
    rows = of_estimates(asked)
    rows.append(of_plans())
    print(f"\n{'law':42}{'checked':>8}{'broken':>8}{'worst':>11}")
    for name, excesses in rows:
        broken = [excess for excess in excesses if excess > 1e-9]
        print(f"{name:42}{len(excesses):8,}{len(broken):8,}{100 * max(broken, default=0.0):10.4f}%")
    return int(any(excess > 1e-9 for _, excesses in rows for excess in excesses))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=4000, help="strategies to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=3, help="broken pairs to show of each law")
    parser.add_argument("--src", default=str(HERE / "src"), help="folder that holds the package")
    return parser.parse_args()


def of_estimates(asked: argparse.Namespace) -> list[tuple[str, list[float]]]:
    from drawn import LAWS, Found, drawn, held

    found: dict[str, list[Found]] = defaultdict(list)
    cases = []
    for case in drawn(asked.seed, asked.count):
        cases.append(case)
        try:
            pairs = list(held(case))
        except (KeyError, ValueError) as error:
            pairs = []
            found["an estimate is made"].append(Found("", case, case, float("inf")))
            print(f"no estimate: {case}: {error!r}")
        for one in pairs:
            found[one.law].append(one)
    say_reach(cases)
    for law in LAWS:
        worst = sorted((one for one in found[law.name] if one.broken), key=lambda one: -one.excess)
        for one in worst[: asked.show]:
            print(f"broken by {100 * one.excess:.3g}%: {law.name}\n    {one.less}\n    {one.more}")
    return [(name, [one.excess for one in pairs]) for name, pairs in found.items()]


def say_reach(cases: list) -> None:
    """What the drawn strategies cover."""
    kinds = {
        "models": {case.model.name for case in cases},
        "GPUs": {case.cluster.gpu.name for case in cases},
        "runtimes": {case.runtime.name for case in cases},
        "schedules": {case.strategy.schedule for case in cases if case.strategy.pp > 1},
        "ZeRO levels": {case.strategy.zero for case in cases},
    }
    sizes = [case.cluster.gpus for case in cases]
    counts = ", ".join(f"{len(names)} {kind}" for kind, names in kinds.items())
    print(f"{len(cases):,} strategies on {min(sizes)} to {max(sizes):,} GPUs: {counts}")


def of_plans() -> tuple[str, list[float]]:
    """More memory of every GPU never makes the best plan slower."""
    from shardwise import plan
    from shardwise.frameworks.load import load_cluster

    excesses = []
    for model, name, batch, seq, runtime in QUESTIONS:
        cluster, before = load_cluster(name), float("inf")
        for times in (1.0, 1.2, 1.5, 2.0):
            more = replace(cluster, gpu=replace(cluster.gpu, memory=times * cluster.gpu.memory))
            best = plan(model, more, global_batch=batch, seq=seq, runtime=runtime, gap=0.0, time_limit=120).fastest
            if best is not None:
                excesses.append(best.iteration_seconds / before - 1)
                before = best.iteration_seconds
    return "more memory: the best plan is never slower", excesses


if __name__ == "__main__":
    sys.exit(main())
