"""One measured run as a question that `estimate` can answer, with what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwise.inputs.cluster import Cluster
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A measured run."""

    id: str
    source: str
    """Where it was published, or which measurement it belongs to."""
    gpu: str
    """GPU family as the source names it."""
    precision: str
    complete: bool
    """All inputs that matter are known; the others serve as a range check."""
    model: Model
    cluster: Cluster
    strategy: Strategy
    runtime: Runtime
    measured: dict[str, float | bool] = field(default_factory=dict)
    """iteration_seconds, peak_bytes, fits and, where measured, their parts."""
    rank: int | None = None
    """The one pipeline rank that was measured, the others faked: compute only, no waiting."""
    memory_kind: str = "allocated"
    """allocated, reserved, or device (with context)."""
    group: str = ""
    """Runs of one group differ only in layout."""
    notes: tuple[str, ...] = ()
    """What was assumed where the source is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A row that cannot be predicted, and why."""

    id: str
    source: str
    reason: str
