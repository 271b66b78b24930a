"""Messages that wait for each other: whether costs hold any, and the costs that say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwise.pipeline.costs import Costs


def contends(costs: Costs) -> bool:
    """Whether messages can wait for each other at all."""
    return costs.contention and any(costs.transfer)


def linked(found: Sequence[Costs], transfer: float | None, *, contention: bool) -> tuple[Costs, ...]:
    """The costs with the transfer time of the command line, where there is one; contention as asked, or as they say."""
    return tuple(
        replace(
            one, contention=contention or one.contention,
            transfer=one.transfer if transfer is None else (float(transfer),) * (one.chunks - 1),
        )
        for one in found
    )  # fmt: skip
