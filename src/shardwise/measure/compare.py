"""A measured run beside its prediction, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from shardwise.cost.ledger import Ledger
from shardwise.estimate.estimate import Estimate
from shardwise.estimate.intervals import around, launch_bound, width_in
from shardwise.measure.logs.record import BACKWARD, DATA, FORWARD, OPTIMIZER, PASSES, REDUCTION
from shardwise.measure.logs.steady import Steady


class RunLine(NamedTuple):
    """One number of a run beside its prediction."""

    what: str
    unit: Literal["s", "bytes"]
    predicted: float | None
    measured: float | None
    interval: tuple[float, float] | None = None
    """Nine runs in ten lie between these; none: no interval is stated of it."""

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1, where both are known."""
        return self.predicted / self.measured - 1 if self.predicted and self.measured else None

    @property
    def inside(self) -> bool | None:
        """Whether what was measured lies in the interval."""
        if self.interval is None or self.measured is None:
            return None
        return self.interval[0] <= self.measured <= self.interval[1]


def compared(told: Estimate, kept: Steady) -> tuple[RunLine, ...]:
    """What a run took beside what was predicted of it; parts that neither knows are left out."""
    return tuple(_lines(told, kept))


def _lines(told: Estimate, kept: Steady) -> Iterator[RunLine]:
    yield RunLine("iteration", "s", told.iteration_seconds, kept.seconds, told.iteration_seconds_interval)
    parts = {
        FORWARD: told.forward_seconds,
        BACKWARD: told.backward_seconds,
        PASSES: told.makespan,
        OPTIMIZER: told.optimizer_seconds,
        REDUCTION: told.update.reduce_exposed,
    }
    for name, seconds in parts.items():
        if name in kept.parts:
            yield RunLine(name, "s", seconds, kept.parts[name])
    if DATA in kept.parts:
        yield RunLine(DATA, "s", None, kept.parts[DATA])
    host = host_seconds(told.time)
    if host and launch_bound(told.time):
        yield RunLine("of it waiting for the host", "s", host, None)
    fullest = max(told.memory, key=lambda rank: rank.reserved)
    width = width_in(told.total_bytes, told.total_bytes_interval)
    for what, size, measured in (
        ("peak allocated", told.peak_bytes, kept.allocated),
        ("peak reserved", fullest.reserved, kept.reserved),
    ):
        if measured:
            yield RunLine(what, "bytes", size, measured, around(size, width))


def host_seconds(time: Ledger) -> float:
    """Seconds of an iteration that kernels wait for their launches."""
    return sum(part.value for part in time.leaves() if part.name == "waiting for launches")
