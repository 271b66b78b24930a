"""What a plan's partition adds to its strategy: layers of every chunk, and how many of them each kind recomputes.

`balance` counts kinds per chunk: none, select (activations of the feed-forward block), comm (gathered inputs), both of
these, full. A strategy has one kind; where a chunk mixes several, the widest of them stands for all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import Strategy
from shardwise.plan.file import Plan

_MODULES = {"select": ("activation",), "comm": ("comm",), "both": ("activation", "comm")}


def planned(plan: Plan) -> Strategy:
    """The strategy with the layers and the recompute of the plan's partition, where it has one."""
    strategy, layers = plan.strategy, (plan.partition or {}).get("layers")
    if not isinstance(layers, list) or len(layers) != strategy.chunks:
        return strategy
    strategy = replace(
        strategy, layers=tuple(layers), first_layers=0, last_layers=0, count_embedding=False, count_head=False
    )
    return replace(strategy, recompute=_widest(plan)) if _runs(plan) else strategy


def kinds(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Recomputed layers of every chunk by kind, those that are used; a kind without a name of ours counts as full."""
    total: dict[str, list[int]] = {}
    for run in _runs(plan):
        for name, counts in run["choices"].items():
            known = name if name in {"none", *_MODULES} else "full"
            total[known] = [a + b for a, b in zip(total.get(known, [0] * len(counts)), counts, strict=True)]
    return {name: tuple(counts) for name, counts in total.items() if name != "none" and any(counts)}


def _runs(plan: Plan) -> list[dict[str, Any]]:
    """`[{"kind": ..., "choices": {"full": [1, 0], ...}}]`: runs of equal layers, as `balance` writes them."""
    found = (plan.partition or {}).get("recompute")
    return [run for run in found if _is_run(run, plan.strategy.chunks)] if isinstance(found, list) else []


def _is_run(run: object, chunks: int) -> bool:
    choices = run.get("choices") if isinstance(run, dict) else None
    if not isinstance(choices, dict):
        return False
    return all(isinstance(counts, list) and len(counts) == chunks for counts in choices.values())


def _widest(plan: Plan) -> Recompute:
    used = kinds(plan)
    if not used:
        return Recompute()
    layers = tuple(map(sum, zip(*used.values(), strict=True)))
    if "full" in used:
        return Recompute(full=True, layers=layers)
    modules = {module for name in used for module in _MODULES[name]}
    return Recompute(modules=tuple(sorted(modules)), layers=layers)


def mixture(plan: Plan) -> str:
    """How kinds are mixed, in a sentence; empty: one kind says it all."""
    used = kinds(plan)
    if len(used) < 2:
        return ""
    return f"{', '.join(used)} are mixed chunk by chunk; {_widest(plan)} is written, so memory is at most as planned"


def mindformers_lists(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Its three lists: each counts from a chunk's first layer, so layers of the wider kinds come first in all."""
    none = (0,) * plan.strategy.chunks
    full, select, comm, both = (kinds(plan).get(name, none) for name in ("full", "select", "comm", "both"))
    wide = tuple(map(sum, zip(full, both, strict=True)))
    return {
        "recompute": full,
        "select_recompute": tuple(map(sum, zip(wide, select, strict=True))),
        "select_comm_recompute": tuple(map(sum, zip(wide, comm, strict=True))),
    }
