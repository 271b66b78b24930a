"""Days, cost and goodput of a training run.

Checkpoints every `interval` seconds cost `save` each; a failure loses half an interval and a restart. Young (1974) and
Daly (2006): the least loss is near interval = sqrt(2 x save x mean time between failures) - save.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

from shardwise.inputs.assumed import ASSUMED

DAY = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """How much of the time makes progress that lasts."""

    share: float
    interval: float
    """Seconds between checkpoints; infinite: none are needed."""
    failures_per_day: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run of so many tokens takes."""

    days: float
    gpu_hours: float
    cost: float
    goodput: float


def goodput(gpus: int, mtbf: float, save: float, restart: float = ASSUMED.restart) -> Goodput:
    """`mtbf`: seconds between failures of one GPU; `save`: seconds that a checkpoint stops training."""
    if mtbf <= 0:
        return Goodput(share=1.0, interval=inf, failures_per_day=0.0)
    mean = mtbf / gpus
    save = max(save, 1e-3)
    interval = max(save, sqrt(2 * save * mean) - save)
    lost = save / (interval + save) + (interval / 2 + save + restart) / mean
    return Goodput(share=max(0.0, 1.0 - lost), interval=interval, failures_per_day=DAY / mean)


def budget(seconds: float, tokens_per_step: float, gpus: int, tokens: float, price: float, share: float) -> Budget:
    """A run of `tokens` at `seconds` a step; `price` per GPU and hour."""
    if share <= 0:
        return Budget(days=inf, gpu_hours=inf, cost=inf, goodput=share)
    total = tokens / tokens_per_step * seconds / share
    hours = total / 3600 * gpus
    return Budget(days=total / DAY, gpu_hours=hours, cost=hours * price, goodput=share)
