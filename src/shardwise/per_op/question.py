"""A per-operator plan, and the question it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from shardwise.inputs.cluster import Cluster
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Zero
from shardwise.per_op.chain import Chain
from shardwise.per_op.profiles.table import Profile

if TYPE_CHECKING:
    from shardwise.per_op.cut import Flow
    from shardwise.per_op.evaluate import PerOpCost
    from shardwise.per_op.tables import Tables
    from shardwise.pipeline.costs import Costs


class OperatorLayout(NamedTuple):
    """How one operator is split over the GPUs of its stage."""

    tp: int
    dp: int
    variant: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStage:
    """Neighbouring operators on a group of GPUs."""

    gpus: int
    """GPUs of the stage; tp x dp of every operator."""
    layouts: tuple[OperatorLayout, ...]
    """One per operator."""
    recompute: tuple[bool, ...]
    """Operators that are recomputed in backward."""

    @property
    def size(self) -> int:
        return len(self.layouts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerOpPlan:
    """Stages in model order and the micro batch that passes through them."""

    stages: tuple[SplitStage, ...]
    samples: int
    """Of one micro batch over all replicas of a stage (`micro_batch`, as everywhere, is of one replica)."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(stage.size for stage in self.stages)

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(stage.gpus for stage in self.stages)


class Pricing(Protocol):
    """A cost model: exact for a plan, and additive for the search, which must not exceed what a plan really costs."""

    @property
    def name(self) -> str:
        """Compatible or full."""

    @property
    def schedule(self) -> str:
        """1f1b, which keeps the micro batches of the stages behind, or gpipe, which keeps all."""

    @property
    def zero(self) -> Zero:
        """1: optimizer states are sharded over replicas; 2: gradients too."""

    def tables(self, question: OperatorQuestion, samples: int, gpus: int) -> Tables:
        """Seconds and bytes of every operator under every layout of a stage."""

    def evaluate(self, question: OperatorQuestion, plan: PerOpPlan) -> PerOpCost:
        """Time and memory of a plan."""

    def in_flight(self, behind: int, passes: int) -> int:
        """Micro batches whose activations a stage holds beside the one at work."""

    def pace(self, passes: int) -> Flow:
        """What stages of so many seconds take together."""

    def beside(self, passes: int) -> float:
        """Seconds of an iteration beside its stages."""

    def whole_plans(self, question: OperatorQuestion) -> tuple[PerOpPlan, ...]:
        """Plans of one layout to begin with."""

    def pass_costs(self, question: OperatorQuestion, plan: PerOpPlan, *, split: bool) -> Costs:
        """A plan's stages as the simulator's ranks. `split`: I and W run apart."""

    def iteration(self, question: OperatorQuestion, plan: PerOpPlan, makespan: float) -> float:
        """Seconds of an iteration whose passes take so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorQuestion:
    """What is to be planned, on what, under which limits and which cost model."""

    profile: Profile
    chain: Chain
    gpus: int
    node: int
    """GPUs per node."""
    memory: float
    """Bytes that one GPU may use."""
    global_batch: int
    pricing: Pricing
    sample_counts: tuple[int, ...] = ()
    """Samples of a micro batch, over all replicas of a stage, to try; empty: as the space allows."""
    stages: tuple[int, int] = (1, 0)
    """Fewest and most stages; most 0: as the space allows."""
    most_tp: int = 0
    """Largest tensor parallel size; 0: what the profile has, at most a node."""
    space: Literal["compatible", "full"] = "compatible"
    """compatible: Aceso's limits (1, 2, 4 or 8 GPUs a stage, none across nodes, at most 16 stages)."""
    memory_factor: float = 1.0
    """Measured over predicted memory of an earlier run: predictions are multiplied by it."""
    model: Model | None = None
    """What is trained, where it is known; a plan file holds it."""
    cluster: Cluster | None = None
    """What it runs on, where it is known."""
    runtime: Runtime | None = None
    """The software that will run it, where it is known."""
    seq: int = 4096
    """Tokens of a sample."""
    also: tuple[OperatorQuestion, ...] = ()
    """The same with the states sharded in other ways: searched too, and the fastest is the answer."""
    zeros: tuple[int, ...] = ()
    """ZeRO stages of it and of those that were searched with it; empty: its own."""
    only: str | None = None
    """Conditions, in the words of `plan`, that whole strategies beside it must keep; none: they are left out."""
    notes: tuple[str, ...] = ()
    """What should be known of it before it is searched."""

    def passes(self, samples: int) -> int:
        """Micro batches per iteration."""
        return max(1, self.global_batch // samples)

    @property
    def limit(self) -> float:
        """Predicted bytes that a stage may have."""
        return self.memory / self.memory_factor

    @property
    def stage_range(self) -> range:
        most = self.stages[1] or self.gpus
        cap = 16 if self.space == "compatible" else 64
        return range(max(1, self.stages[0]), min(most, self.gpus, cap, len(self.chain.rows)) + 1)

    @property
    def tp_limit(self) -> int:
        return min(self.most_tp or self.node, self.node, self.profile.tps[-1])
