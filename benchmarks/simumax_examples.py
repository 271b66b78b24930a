"""Our peaks and times beside SimuMax's for its 14 examples: python benchmarks/simumax_examples.py [SYSTEM.json].

SYSTEM.json is SimuMax's own system file (its a100_pcie); without it, our A100 behind PCIe of 30 GB/s. Times differ by
what each side assumes: it charges every collective in full with its own fitted PCIe rates, never overlaps gradient
reduction, pays whole buckets, and adds the rotary embedding and residual additions at no cost.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "estimate"))

from simumax_cases import EXAMPLES, Example

from shardwise.estimate.estimate import Estimate, estimate
from shardwise.frameworks.load import load_cluster, read_cluster
from shardwise.frameworks.simumax.read import read_model, read_strategy
from shardwise.inputs.cluster import Cluster, Level

GIB = 2**30
PCIE = Level(name="pcie", size=8, bandwidth=30e9, latency=10e-6, topology="pcie")


def cluster(arguments: list[str]) -> Cluster:
    if arguments:
        return read_cluster(f"8x{arguments[0]}").value
    return replace(load_cluster("8xa100"), levels=(PCIE,))


def line(example: Example, found: Estimate) -> str:
    ours = [found.memory[0].peak.value / GIB, found.memory[-1].peak.value / GIB][: len(example.peaks)]
    peaks = ", ".join(f"{o:.2f}/{t:.2f} {100 * (o / t - 1):+.2f}%" for o, t in zip(ours, example.peaks, strict=True))
    first, count = found.stages[0], found.strategy.microbatches
    compute = count * (first.forward + first.backward - first.communication)
    data = found.update.reduce_exposed + found.update.gather_exposed
    parts = (
        ("time", found.iteration_seconds, example.seconds),
        ("compute", compute, example.compute),
        ("layer comm", count * first.communication, example.layers),
        ("data comm", data, example.data),
    )
    times = "  ".join(f"{name} {o:.2f}/{t:.2f} s" for name, o, t in parts)
    return f"{example.name:<33} {peaks:<44} {times}"


def main() -> None:
    where = cluster(sys.argv[1:])
    print("ours / SimuMax: peak GiB per stage (first, last), and seconds")
    for example in EXAMPLES:
        model, strategy = read_model(example.model).model, read_strategy(example.strategy).strategy
        print(line(example, estimate(model, where, strategy)))


if __name__ == "__main__":
    main()
