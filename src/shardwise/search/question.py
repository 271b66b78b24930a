"""The words of the search: what is asked, what a point of the space is made of, and what the answer holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shardwise.estimate.estimate import Estimate
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.model import Model
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import CpKind, Strategy, Zero
from shardwise.search.wishes import Wishes

GAP = 0.005
"""How near the bound the best must be before the search stops of itself."""
COVERED = "every cut of the layers into chunks of one layer or more, where the runtime cuts unevenly"
"""Which cuts the bound is about."""
MOST_SHOWN = 2000
"""Simulated strategies that an answer lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model, a cluster, a runtime, and what every strategy of the space shares."""

    model: Model
    cluster: Cluster
    runtime: Runtime
    base: Strategy
    """Batch, sequence, number format, optimizer: whatever is not searched."""
    wishes: Wishes = Wishes()
    """Which values of the axes are allowed."""
    memory_limit: float
    """Bytes that a rank may need in all."""


class Base(NamedTuple):
    """The axes that decide what one layer costs; everything else only stacks layers."""

    tp: int
    sp: bool
    cp: int
    cp_kind: CpKind
    ep: int
    etp: int
    micro_batch: int
    single: bool
    """One micro batch per iteration, where the runtime then accumulates no gradients."""


class Layout(NamedTuple):
    """The pipeline over one base."""

    pp: int
    vpp: int
    schedule: str
    dp: int
    microbatches: int


class Sharding(NamedTuple):
    """ZeRO stage, and ranks that one copy is spread over (0: all)."""

    zero: Zero
    group: int


class Point(NamedTuple):
    """One strategy of the space, up to where its layers are cut."""

    base: Base
    layout: Layout
    sharding: Sharding
    recompute: Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many strategies were looked at, and how."""

    space: int
    """Distinct valid strategies."""
    axes: Mapping[str, Mapping[str, int]] = field(hash=False)
    """Axis -> value -> how many strategies have it."""
    screened: int = 0
    """Bounded one by one."""
    too_large: int = 0
    """Of those, proven not to fit by the bound on memory."""
    simulated: int = 0
    """Estimated in full, pipeline replayed; every cut into stages counts."""
    points: int = 0
    """Strategies simulated, all cuts into stages of one together."""
    pruned: int = 0
    """Proven to be slower or too large without a simulation."""

    @property
    def left_open(self) -> int:
        """Neither simulated nor pruned when the search was stopped; 0 of one that came to its end."""
        return self.space - self.points - self.pruned


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A simulated strategy, its best cut into stages."""

    strategy: Strategy
    seconds: float
    total_bytes: float
    mfu: float
    fits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Closest:
    """What is said when nothing fits."""

    strategy: Strategy
    """The strategy that comes nearest."""
    missing: float
    """Bytes that it lacks on its fullest rank."""
    gpus: int
    """Smallest number of these GPUs for which a strategy fits; 0: none was found."""
    at_gpus: Strategy | None = None
    """A strategy that fits there."""


class Lowest(NamedTuple):
    """One of the lowest bounds: of a strategy, all cuts of it, or of all that was dropped without a simulation."""

    bound: float
    strategy: Strategy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The best strategy of the space, and what is proven about it."""

    question: Question
    best: Estimate | None
    """None: nothing fits."""
    bound: float
    """No strategy of the space that fits takes less, under the cost model in use."""
    counts: Counts
    lowest: tuple[Lowest, ...] = ()
    """What the bound is the least of."""
    top: tuple[Candidate, ...] = ()
    """The best simulated strategies, one for every layout, best first."""
    simulated: tuple[Candidate, ...] = ()
    """What was simulated, up to MOST_SHOWN: those that fit first, fastest first, then the others, leanest first."""
    closest: Closest | None = None
    finished: bool = True
    """False: the time was up, or the search was told to stop; the answer is the best so far."""
    interrupted: bool = False
    """Ctrl-C was pressed."""
    cpu_seconds: float = 0.0
    screen_seconds: float = 0.0
    """CPU time of the bounds, the cost model's included."""

    @property
    def gap(self) -> float:
        """Best over bound, less 1."""
        if self.best is None or self.bound <= 0:
            return float("inf")
        return max(0.0, self.best.iteration_seconds / self.bound - 1.0)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from shardwise.search.api import answer_html

        return answer_html(self)
