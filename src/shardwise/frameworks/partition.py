"""Kinds of recompute that `balance` mixed chunk by chunk, as far as a target can say them.

`balance` counts kinds per chunk: none, select (activations of the feed-forward block), comm (gathered inputs), both of
these, full. A strategy has one kind; where a chunk mixes several, the widest of them stands for all.
"""

from __future__ import annotations

from dataclasses import replace

from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import Strategy
from shardwise.plan.plan import Plan

_MODULES = {"select": ("activation",), "comm": ("comm",), "both": ("activation", "comm")}


def planned(plan: Plan) -> Strategy:
    """The strategy with the recompute of the plan's balance, where it has one."""
    return replace(plan.strategy, recompute=_widest(plan)) if plan.balance else plan.strategy


def kinds(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Recomputed layers of every chunk by kind, those that are used; a kind without a name of ours counts as full."""
    total: dict[str, list[int]] = {}
    for run in plan.balance.recompute if plan.balance else ():
        for name, counts in run.choices.items():
            known = name if name in {"none", *_MODULES} else "full"
            total[known] = [a + b for a, b in zip(total.get(known, [0] * len(counts)), counts, strict=True)]
    return {name: tuple(counts) for name, counts in total.items() if name != "none" and any(counts)}


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
