"""The page of worked examples of memory: ledgers of a model cut to 4 layers on 4 GPUs."""

from __future__ import annotations

from making import DOCS, MARK, row
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.strategy import Strategy
from shardwise.report.estimate import memory

EXAMPLES = {
    "pp4, 8 micro batches of 1, with recompute": "pp4 mbs1 gbs8 seq4096 recompute=full runtime=paddle",
    "pp4, 8 micro batches of 1, without recompute": "pp4 mbs1 gbs8 seq4096 runtime=paddle",
    "pp2 tp2, 8 micro batches of 2, without recompute": "tp2 pp2 mbs2 gbs16 seq4096 runtime=paddle",
}
"""Title -> strategy of the worked examples of memory: the settings of a report on memory estimation for Paddle."""


def memory_examples() -> str:
    """The text of the page."""
    lead = """Llama 2 7B cut to 4 layers (`docs/explain/four-layers.toml`) on 4 A100 with Paddle's static graph, in
sequences of 4096: three settings that a report on memory estimation measured. GiB per pipeline rank; how each part
comes about is said in [where the memory goes](memory.md)."""
    parts = ["# Memory, worked out", MARK, lead]
    model, cluster = load_model(str(DOCS / "explain" / "four-layers.toml")), load_cluster("4xa100")
    for title, text in EXAMPLES.items():
        found = estimate(model, cluster, Strategy.parse(text))
        heads, rows = memory(found)
        lines = [row(heads), row(["---"] + ["---:"] * (len(heads) - 1)), *map(row, rows)]
        parts += [f"## {title}", f'`--strategy "{text}"`', "\n".join(lines), _reading(found)]
    return "\n\n".join(parts) + "\n"


def _reading(found: Estimate) -> str:
    """The backward peak of the fullest rank in words."""
    rank = max(found.memory, key=lambda one: one.peak.value)
    stays, kept, peak = (f"{value / 2.0**30:.2f}" for value in (rank.static, rank.kept_per_microbatch, rank.backward))
    others = rank.in_flight - 1
    working = (rank.backward - rank.static - others * rank.kept_per_microbatch) / 2.0**30
    held = (
        f"{others:.0f} other micro batches keep {kept} each, and the one at work" if others else "the one micro batch"
    )
    return (
        f"Rank {rank.rank} is the fullest. Backward peaks at {peak} GiB: {stays} always stay, {held} needs "
        f"{working:.2f} at its highest point ({rank.at})."
    )
