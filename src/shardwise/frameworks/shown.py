"""Exports as plain values, as the page shows them: the server's answers and the files inside a mailed page."""

from __future__ import annotations

from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.frameworks.export import TARGETS, export
from shardwise.plan.file import Plan

LARGEST = 200_000
"""Characters that the files of one target may have inside a page; larger ones are left to `shardwise export`."""


def target_names() -> tuple[str, ...]:
    """Every target with every version: `torchtitan@0.3`."""
    return tuple(f"{name}@{version}" for name, target in TARGETS.items() for version in target.versions)


def export_data(plan: Plan, target: str) -> dict[str, Any]:
    """A plan in the words of a target; raises as `export` does."""
    made = export(plan, target)
    return {
        "target": made.target, "speaks": made.speaks, "strategy": str(made.strategy),
        "predicted": made.prediction, "as_written": made.as_written,
        "losses": [str(fault) for fault in made.losses], "by_hand": list(made.by_hand),
        "files": [{"name": file.name, "text": file.text} for file in made.files],
    }  # fmt: skip


def every_export(plan: Plan) -> list[dict[str, Any]]:
    """All targets, as far as their files are small; one that cannot say the plan has its refusal as `error`."""
    return [found for target in target_names() if (found := _small(plan, target)) is not None]


def _small(plan: Plan, target: str) -> dict[str, Any] | None:
    try:
        found = export_data(plan, target)
    except ShardwiseError as error:
        return {"target": target, "error": str(error)}
    return found if sum(len(file["text"]) for file in found["files"]) <= LARGEST else None
