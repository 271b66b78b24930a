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
    runtime: str = ""
    """The framework that a program of ours says that it runs on."""
    unreadable: int = 0
    """Lines of steps whose time cannot be read."""
    not_finite: tuple[int, ...] = ()
    """Steps whose loss is nan or infinite."""

    @property
    def mean(self) -> float | None:
        """Seconds of a step of the whole run, warm-up included, where the log ends with its rate."""
        rate = self.facts.get("train_steps_per_second")
        return 1 / rate if rate else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be known of it beside its times."""
        found = []
        if self.starts > 1:
            found.append(f"the run begins {self.starts} times in it; the last is shown")
        if self.not_finite:
            many = f"{len(self.not_finite)} of {len(self.steps)} steps"
            found.append(
                f"the loss is nan or infinite in {many}, first in step {self.not_finite[0]}: it does not train"
            )
        if self.unreadable:
            lines = "1 line" if self.unreadable == 1 else f"{self.unreadable} lines"
            found.append(f"{lines} of steps without a time that can be read left out")
        return tuple(found)
