"""Training that goes through several lengths of samples, each for a share of the tokens: every stage planned by itself,
days and cost in sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwise.errors import Fault, InputError
from shardwise.estimate.goodput import Budget
from shardwise.inputs.gate import counted, typed
from shardwise.inputs.scalars import SCALARS
from shardwise.search.sweep import Cell

_STAGE = re.compile(r"\s*([0-9]{1,10})\s*:\s*([0-9.]{1,12})\s*(%?)\s*")
MOST = 16
EXACT = 1e-3
"""By how much shares may miss 1."""


class LengthStage(NamedTuple):
    """Samples of one length."""

    seq: int
    share: float
    """Of all tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRun:
    """All stages on one cluster."""

    cluster: str
    global_batch: int
    """Samples of the first stage."""
    budget: Budget
    """Of all stages; the goodput is the mean over their time."""


def read_stages(text: str) -> tuple[LengthStage, ...]:
    """`8192:90%,32768:8%,131072:2%`: lengths, and the share of the tokens that each gets."""
    found = tuple(_stage(part) for part in text.split(",")[: MOST + 1])
    lengths, whole = [stage.seq for stage in found], sum(stage.share for stage in found)
    if len(found) > MOST:
        raise InputError(Fault("--stages", f"are more than {MOST}; give fewer"))
    if len(set(lengths)) < len(lengths):
        raise InputError(Fault("--stages", f"name {max(lengths, key=lengths.count):,} twice; add its shares up"))
    if abs(whole - 1) > EXACT:
        raise InputError(Fault("--stages", f"have {whole:.1%} of the tokens in all; make their shares 100%"))
    return found


def _stage(part: str) -> LengthStage:
    found = _STAGE.fullmatch(part)
    if not found:
        raise InputError(Fault("--stages", f"{part.strip()[:40]!r} is no stage; write 8192:90%,32768:8%,131072:2%"))
    share = typed(found[2], SCALARS["any.number"], "--stages") / (100 if found[3] else 1)
    return LengthStage(counted(found[1], SCALARS["Strategy.seq"], "--stages"), share)


def in_sum(cells: Iterable[Cell], stages: Sequence[LengthStage]) -> tuple[StagedRun, ...]:
    """What all stages take together, where every one has a plan; cells are in the order of the stages."""
    found, rows = [], list(cells)
    for begin in range(0, len(rows), len(stages)):
        own = rows[begin : begin + len(stages)]
        budgets = [cell.budget for cell in own if cell.budget]
        if len(budgets) == len(stages):
            days = sum(one.days for one in budgets)
            lasting = sum(one.days * one.goodput for one in budgets) / days
            whole = Budget(
                days=days, gpu_hours=sum(one.gpu_hours for one in budgets), cost=sum(one.cost for one in budgets),
                goodput=lasting,
            )  # fmt: skip
            found.append(StagedRun(cluster=own[0].cluster, global_batch=own[0].global_batch, budget=whole))
    return tuple(found)
