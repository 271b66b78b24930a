"""A plan file where one of its inputs is asked for: what a verb writes, every other verb reads."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from shardwise.inputs.cluster import Cluster
from shardwise.inputs.files import read_text
from shardwise.inputs.plan_file import Plan, read_plan
from shardwise.inputs.strategy import Strategy


def plan_at(path: str | Path) -> Plan | None:
    """The plan in a file, None where the file is something else; a newer plan is refused with a sentence."""
    if not Path(path).is_file() or '"shardwise/plan/' not in read_text(path):
        return None
    return read_plan(path)


def resized(cluster: Cluster, gpus: int | None) -> Cluster:
    """`16xplan.json`: a plan's network, so many GPUs of it; its outermost level grows where it must."""
    if gpus is None or gpus == cluster.gpus:
        return cluster
    levels = list(cluster.levels)
    levels[-1] = replace(levels[-1], size=max(levels[-1].size, -(-gpus // levels[0].size) * levels[0].size))
    return replace(cluster, gpus=gpus, levels=tuple(levels), name=f"{gpus}x{cluster.gpu.name}")


def decided(strategy: Strategy) -> frozenset[str]:
    """The fields that a whole strategy decides: its degrees and batch, and what differs from the defaults."""
    always = {"tp", "pp", "vpp", "dp", "cp", "micro_batch", "global_batch", "seq", "schedule"}
    return frozenset(
        item.name for item in fields(Strategy) if item.name in always or getattr(strategy, item.name) != item.default
    )
