"""Predictions beside the ranks that were rehearsed on an H200: `python benchmarks/rehearse_ranks.py`.

By our own program, by Megatron-Core's modules without and with Transformer Engine, and by torchtitan's trainer.

To measure again: `shardwise rehearse plan.json --rank ppN --write rank.py` for each, run it on the GPU, and put the
results into data/h200_rehearsals.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

from shardwise.estimate.estimate import estimate
from shardwise.estimate.predictions import RehearsedLine
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.strategy_text import complete, parse
from shardwise.measure.rehearse.compare import compare
from shardwise.plan.predict import plan_of

DATA = Path(__file__).parent / "data" / "h200_rehearsals.json"
SHOWN = {"peak": "memory", "all passes": "passes", "optimizer step": "step", "iteration of the rank alone": "iteration"}


def rows(builder: str, engine: bool) -> list[tuple[str, dict[str, RehearsedLine]]]:
    """One entry a rank: its name and its lines."""
    found = []
    every = json.loads(DATA.read_text(encoding="utf-8"))["rows"]
    for row in every:
        if (row["result"].get("with", ""), row["result"].get("engine", False)) != (builder, engine):
            continue
        cluster = load_cluster(row["cluster"])
        strategy = complete(parse(row["strategy"]), cluster)
        plan = plan_of(estimate(load_model(row["model"]), cluster, strategy))
        lines = {line.what: line for line in compare(plan, row["result"])}
        found.append((f"{row['model']} {row['strategy']}, pp{row['result']['rank']}", lines))
    return found


def main() -> None:
    for builder in (("", False), ("megatron", False), ("megatron", True), ("torchtitan", False)):
        print_table(rows(*builder))


def print_table(table: list[tuple[str, dict[str, RehearsedLine]]]) -> None:
    print("| rank | " + " | ".join(SHOWN.values()) + " |")
    print("|---|" + "---|" * len(SHOWN))
    for name, lines in table:
        print(f"| {name} | " + " | ".join(_cell(lines[what]) for what in SHOWN) + " |")
    means = (fmean(abs(lines[what].error) for _, lines in table) for what in SHOWN)
    print("| mean | " + " | ".join(f"{100 * mean:.1f}%" for mean in means) + " |\n")


def _cell(line: RehearsedLine) -> str:
    size = f"{line.measured / 2**30:.2f} GiB" if line.unit == "bytes" else f"{1e3 * line.measured:.1f} ms"
    return f"{size}, {100 * line.error:+.1f}%"


if __name__ == "__main__":
    main()
