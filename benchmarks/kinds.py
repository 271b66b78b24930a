"""Models of many kinds, traced, against their training steps on one H200: `python benchmarks/kinds.py [NAME ...]`.

Rows whose operators were looked at when kernels were weighted are told apart from those that were kept out. Where the
host is what takes time, the step is a fifth longer than its kernels: such rows are marked, and count on their own.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import shardwise
from shardwise.inputs.load import load_site

HERE = Path(__file__).parent
ROWS = json.loads((HERE / "data" / "h200_kinds.json").read_text(encoding="utf-8"))["rows"]
HOST_BOUND = 1.2
GIB = 2**30


class Held(NamedTuple):
    """A row beside its prediction."""

    name: str
    group: str
    seconds: float
    step: float
    bytes: float
    peak: float


@functools.cache
def traced(name: str, inputs: str):
    """With one sample; a row's number of them comes with the strategy."""
    return shardwise.trace_module(f"{HERE / 'h200_kinds.py'}:{name}", re.sub(r"=(\d+)", "=1", inputs))


def held(row) -> Held:
    model = traced(row["id"], row["inputs"])
    samples = re.search(r"=(\d+)", row["inputs"])[1]
    cluster = replace(shardwise.load_cluster("1xh200"), site=load_site("virtual-h200"))
    text = f"dp1 mbs{samples} gbs{samples} seq{model.traced.seq} master=pure runtime=huggingface"
    found = shardwise.estimate(model, cluster, shardwise.load_strategy(text, cluster))
    if model.traced.params != row["params"]:
        raise ValueError(f"{row['id']}: {model.traced.params:,} parameters traced, {row['params']:,} measured")
    group = "used" if row["used"] else "kept out"
    if row["step_ms"] > HOST_BOUND * row["device_ms"]:
        group += ", host-bound"
    peak = row["peak_allocated"] - row["inputs_bytes"]
    return Held(row["id"], group, found.iteration_seconds, row["step_ms"] / 1e3, found.peak_bytes, peak)


def main(names: list[str]) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    rows = [row for row in ROWS if "pictures" not in row["inputs"] and (not names or row["id"] in names)]
    found = sorted(map(held, rows), key=lambda one: (one.group, one.name))
    tell(found)


def tell(found: list[Held]) -> None:
    """Every row, then the mean and the worst of every group."""
    for one in found:
        time, memory = one.seconds / one.step - 1, one.bytes / one.peak - 1
        print(
            f"{one.group:21s} {one.name:13s} {one.seconds * 1e3:8.1f} / {one.step * 1e3:8.1f} ms {time:+6.1%}   "
            f"{one.bytes / GIB:6.2f} / {one.peak / GIB:6.2f} GiB {memory:+6.2%}"
        )
    for group in sorted({one.group for one in found}):
        rows = [one for one in found if one.group == group]
        times = [abs(one.seconds / one.step - 1) for one in rows]
        memory = [abs(one.bytes / one.peak - 1) for one in rows]
        print(
            f"{group}: {len(rows)} steps, time {sum(times) / len(rows):.1%} (max {max(times):.1%}), "
            f"peak memory {sum(memory) / len(rows):.2%} (max {max(memory):.2%})"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
