"""A log as data: its steps, and what it says of the run beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

FORWARD, BACKWARD, OPTIMIZER, DATA = "forward", "backward", "optimizer", "data"
PASSES, REDUCTION, GATHERING, EXCHANGE = "passes", "gradient reduction", "weight gathering", "pipeline exchange"
"""Parts of a step that logs print, under one name whatever the framework calls them; `passes` holds forward and
backward where they are timed together."""
COMPUTE = (FORWARD, BACKWARD, PASSES, OPTIMIZER)
COMMUNICATION = (REDUCTION, GATHERING, EXCHANGE)


class StepRecord(NamedTuple):
    """One line of a log, or what several ranks say of the same step: the slowest, the fullest."""

    step: int
    seconds: float
    loss: float | None = None
    allocated: float | None = None
    """Peak bytes that tensors took."""
    reserved: float | None = None
    """Peak bytes that the allocator held."""
    parts: tuple[tuple[str, float], ...] = ()
    """Seconds of its parts, where they are printed."""

    def part(self, name: str) -> float | None:
        return dict(self.parts).get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """A log that was read."""

    framework: str
    """megatron, torchtitan, deepspeed, trainer, or shardwise (the programs that we write)."""
    steps: tuple[StepRecord, ...]
    """Of its last start."""
    facts: dict[str, float] = field(default_factory=dict, hash=False)
    """What the log says of the run: global_batch, seq, world, parameters, steps; `parameters pp0` of one rank."""
    starts: int = 1
    """How often a run begins in it."""
