"""A plan: one way to train one model on one cluster, and what is known about it. Each fact stands in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise.estimate.notebook import html_of
from shardwise.estimate.predictions import Predictions
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.model import Model
from shardwise.inputs.serialise import Plain
from shardwise.inputs.strategy import Strategy
from shardwise.pipeline.action import Schedule
from shardwise.units import show_percent, show_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """A run of equal layers: how many of every chunk each kind of recompute takes."""

    kind: str = ""
    """What the layers are called in the problem."""
    choices: dict[str, tuple[int, ...]] = field(hash=False)
    """Kind of recompute -> layers of every chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What `balance` found for a problem of the user's own, as far as no strategy says it; in the problem's units."""

    problem: str
    """Its name."""
    recompute: tuple[Recomputed, ...]
    """Kinds of recompute, mixed chunk by chunk."""
    simulated: float | None = None
    """The time of all passes."""
    bound: float | None = None
    """No partition that fits takes less."""
    peak: tuple[float, ...] = ()
    """Most that every rank holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStage:
    """One stage of a per-operator plan."""

    ops: int
    """Operators that it has."""
    gpus: int
    layouts: tuple[tuple[int, int, int], ...]
    """Tensor parallel, data parallel and algorithm of every operator."""
    recompute: tuple[int, ...]
    """Operators that are recomputed, counted from the stage's first."""
    seconds: float
    """Of an iteration."""
    memory: float
    """Bytes on each of its GPUs."""
    ideal: float
    """Seconds of a pass if all GPUs shared its work evenly."""
    lost: float
    """What it takes beyond that."""
    spare: float
    """Seconds by which it could be slower at no loss."""
    parts: dict[str, float] = field(hash=False)
    """Seconds and bytes of a pass by part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """A per-operator plan, whose strategy is only the nearest plain one."""

    names: tuple[str, ...]
    """The operators, in order."""
    microbatches: int
    """Of an iteration."""
    stages: tuple[OperatorStage, ...]
    seconds: float
    """Of an iteration."""
    gpu_seconds: float
    bound: float
    """No per-operator plan of the space takes less, under the cost model in use; beside an order that was not searched
    with (zb-h1, auto and the like): in any order of passes."""
    gap: float
    """Value / bound - 1."""
    zeros: tuple[int, ...] = ()
    """ZeRO stages that were searched; empty: the strategy's alone."""
    orders: tuple[Plain, ...] = field(default=(), hash=False)
    """Orders of the passes that were simulated with these stages, best first."""
    profile: Plain = field(hash=False)
    """Where the times of operators come from: name, identity, tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Hashes of all that a proof is about."""

    inputs: str
    """Model, cluster, memory limit, strategy, order, balance and operators."""
    cost_model: str
    """The sources that decide what a strategy takes."""
    calibration: str
    """What the kernel times are calibrated on."""
    runtime: str
    """The runtime's own figures."""
    parts: str
    """What the bound is the least of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPart:
    """One of the lowest bounds: of a strategy, all cuts of it, or of all that was dropped without a simulation."""

    bound: float
    """What it cannot take less than."""
    strategy: str | None = None
    """The strategy; none: all that was dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a plan's bound is the least of, and what it was proven for."""

    of: Subject
    """Hashes of what it was proven for."""
    parts: tuple[ProofPart, ...]
    """What the bound is the least of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What made the numbers."""

    shardwise: str
    """Version that wrote it."""
    costs: str
    """How they were made."""
    calibration: str | None = None
    """What the kernel times are calibrated on."""
    conditions: str | None = None
    """What the strategies of the search had to keep (`--only`, `--fix`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to train one model on one cluster, and what is known about it."""

    model: Model
    """What is trained."""
    cluster: Cluster
    """What it runs on."""
    strategy: Strategy
    """How it is split."""
    order: Schedule | None = None
    """Order of the passes, where it is not the one that the strategy's schedule stands for."""
    balance: Balance | None = None
    """What `balance` found for a problem of the user's own, as far as no strategy says it."""
    operators: Operators | None = None
    """The stages operator by operator, of a plan of `plan-operators`."""
    predictions: Predictions | None = None
    """Time, memory, bubble, bound and gap."""
    proof: Proof | None = None
    """What the bound is the least of, and hashes of what it was proven for."""
    provenance: Provenance | None = None
    """Version, source of the costs, calibration."""
    run: Plain | None = field(default=None, hash=False)
    """What differs from run to run; outside the promise of the same bytes."""

    @property
    def memory_limit(self) -> float:
        """Bytes that a rank may need: what was asked for, else all of the GPU's; never more: files get edited."""
        asked = self.predictions.memory_limit if self.predictions else None
        return min(asked or self.cluster.gpu.memory, self.cluster.gpu.memory)

    @property
    def conditions(self) -> str:
        """What the strategies of its search had to keep; empty: all were allowed."""
        return (self.provenance.conditions if self.provenance else None) or ""

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from shardwise.plan.renew import renewed

        now = renewed(self)
        return plan_html(now.plan, note=now.note)


def proof_sentence(bound: float, gap: float, *, before: str = "", after: str = "") -> str:
    """What a bound proves, and that it proves it of the cost model; `before`, `after`: more to say of it."""
    said = "; ".join(filter(None, (before, "under the cost model in use: about the model, not a run", after)))
    return f"no strategy of the space takes less than {show_seconds(bound)}: gap {show_percent(gap, 2)} ({said})"


def plan_html(plan: Plan, others: Sequence[Sequence[str]] = (), *, note: str = "") -> str:
    """A plan in a notebook; `others` is a table of rivals, its heads first, `note` what should be known of it."""
    told, facts = plan.predictions, [("note", note)] if note else []
    if told and told.bound and told.gap is not None:
        facts += [("proof", proof_sentence(told.bound, told.gap))]
    return html_of(plan.model, plan.cluster, plan.strategy, told, facts, others)
