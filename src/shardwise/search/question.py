"""The words of the search: what is asked, what a point of the space is made of, and what the answer holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from shardwise.cost.ledger import Ledger
from shardwise.cost.memory import Fits
from shardwise.estimate.estimate import Estimate
from shardwise.estimate.intervals import layout_distance, likeness
from shardwise.estimate.predictions import Searched
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import (
    CpKind,
    CudaGraphs,
    Dispatcher,
    GradDtype,
    Offload,
    Optimizer,
    RankOrder,
    Strategy,
    Zero,
)
from shardwise.plan.plan import Plan, ProofPart
from shardwise.search.wishes import Wishes

GAP = 0.005
"""How near the bound the best must be before the search stops of itself."""
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
    conditions: str = ""
    """The same as they were typed, with the words that fix something beside the axes."""
    memory_limit: float
    """Bytes that a rank may need in all."""


def question_about(plan: Plan, strategy: Strategy, memory_limit: float) -> Question:
    """One strategy for the model and the cluster of a plan: how is it best cut?"""
    return Question(
        model=plan.model, cluster=plan.cluster, runtime=load_runtime(strategy.runtime), base=strategy,
        memory_limit=memory_limit,
    )  # fmt: skip


class Base(NamedTuple):
    """The axes that decide what one layer costs; everything else only stacks layers."""

    tp: int
    sp: bool
    cp: int
    cp_kind: CpKind
    ep: int
    etp: int
    micro_batch: int
    compile: bool
    single: bool
    """One micro batch per iteration, where the runtime then accumulates no gradients."""
    dispatcher: Dispatcher
    ep_overlap: bool
    cuda_graphs: CudaGraphs
    offload: Offload
    grad_dtype: GradDtype
    optimizer: Optimizer
    rank_order: RankOrder


class Layout(NamedTuple):
    """The pipeline over one base."""

    pp: int
    vpp: int
    schedule: str
    dp: int
    microbatches: int
    group: int = 0
    """Micro batches that run through a chunk before the next; 0: pp."""


class ShardingChoice(NamedTuple):
    """ZeRO stage, and ranks that one copy is spread over (0: all)."""

    zero: Zero
    group: int


class Point(NamedTuple):
    """One strategy of the space, up to where its layers are cut."""

    base: Base
    layout: Layout
    sharding: ShardingChoice
    recompute: Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A simulated strategy, its best cut into stages."""

    strategy: Strategy
    seconds: float
    iteration_seconds_interval: tuple[float, float]
    """Nine runs in ten take between these."""
    total_bytes: float
    mfu: float
    allowed: bool = True
    """It needs no more memory than may be used."""
    fits: Fits = "yes"
    """As its estimate says: yes, no, or close."""
    fits_probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A way out where nothing fits: a change, and the fastest strategy that then fits."""

    change: str
    """What to change, in words."""
    conditions: str
    """Conditions to plan with."""
    cluster: str
    """What to plan for."""
    gpus: int
    gpu: str
    strategy: Strategy
    seconds: float
    """Of an iteration, at most: it was searched to a gap of 5%, and planning it again may find a faster strategy."""
    total_bytes: float
    """What its fullest rank needs."""
    memory: float
    """What the GPU has."""
    slower: float
    """Its time over that of the strategy that comes nearest, less 1; at most, too."""
    dearer: float
    """The same of GPU-seconds, which tells what more GPUs cost; at most, too."""
    unlimited: bool = False
    """The limit of memory that was asked for is lifted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closest:
    """What is said when nothing fits."""

    strategy: Strategy
    """The strategy that comes nearest."""
    seconds: float
    """What its iteration would take."""
    missing: float
    """Bytes that it lacks on its fullest rank."""
    ledger: Ledger
    """What that rank holds at its peak, by part."""
    gpus: int
    """Smallest number of these GPUs for which a strategy fits; 0: none was found."""
    at_gpus: Strategy | None = None
    """A strategy that fits there."""
    ladder: tuple[Rung, ...] = ()
    """Ways out, those on the same cluster first, each kind cheapest first; `api.plan` makes it."""
    ladder_finished: bool = False
    """All ways out were looked at."""


class Alone(NamedTuple):
    """What one kind of GPU of a mixed cluster reaches by itself."""

    cluster: str
    strategy: Strategy
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A layout that could be recommended."""

    candidate: Candidate
    kinds: tuple[str, ...]
    """What makes it less than plain (`search/simplicity.py`)."""
    surcharge: float
    """How much longer than predicted layouts of its kinds take beside plain ones, as a share."""
    regret: float
    """Expected regret: how much longer it takes than whichever of the proposals really is the fastest, as a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestRun:
    """The shipped measured run that is nearest to an answer, and what we predict of it."""

    id: str
    source: str
    """Where it was published."""
    model: str
    cluster: str
    strategy: Strategy
    seconds: float
    """Of an iteration, measured."""
    mfu: float
    """What that is, operations counted as everywhere here (causal attention)."""
    predicted_seconds: float
    predicted_interval: tuple[float, float]
    """Nine runs in ten take between these."""
    distance: float
    """How far it is from the answer (`measure/nearest.py`); 0: the same layout of the same model and cluster."""
    differs: tuple[str, ...]
    """What is not the same, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Three plans: the fastest strategy of the space, with what is proven about it, the simplest that is as fast as far
    as can be told, and the measured run that is nearest; and which one to run.
    """

    question: Question
    fastest: Estimate | None
    """None: nothing fits."""
    recommended: Estimate | None = None
    """The proposal of least expected regret; the fastest where that was asked for."""
    simplest: Estimate | None = None
    """The simplest that is expected to be equal to the recommended plan; none: the search was not finished."""
    proposals: tuple[Proposal, ...] = ()
    """From the fastest to the simplest, with those between that are worth a thought, each with its expected regret."""
    nearest: NearestRun | None = None
    """None: it was not looked for (`api.plan` does), or nothing fits."""
    bound: float
    """No strategy of the space that fits takes less, under the cost model in use."""
    counts: Searched
    """How many strategies were looked at, and how."""
    lowest: tuple[ProofPart, ...] = ()
    """What the bound is the least of."""
    top: tuple[Candidate, ...] = ()
    """The best simulated strategies, one for every layout, best first."""
    simulated: tuple[Candidate, ...] = ()
    """What was simulated, up to MOST_SHOWN: those that fit first, fastest first, then the others, leanest first."""
    closest: Closest | None = None
    alone: tuple[Alone, ...] = ()
    """Of a mixed cluster, the best plan of each kind without the others, as far as the batch goes; a kind that is
    missing has none that fits."""
    interrupted: bool = False
    """Ctrl-C was pressed."""
    cpu_seconds: float = 0.0
    screen_seconds: float = 0.0
    """CPU time of the bounds, the cost model's included."""

    @property
    def finished(self) -> bool:
        """False: the time was up, or the search was told to stop; the answer is the best so far."""
        return self.counts.finished

    @property
    def best(self) -> Estimate | None:
        """What to run: the recommended plan. It is what `plan` writes and what other verbs call the best."""
        return self.recommended or self.fastest

    @property
    def gap(self) -> float:
        """Fastest over bound, less 1."""
        return self.gap_of(self.fastest)

    def gap_of(self, one: Estimate | None) -> float:
        """How far a plan is from the bound: its time over it, less 1."""
        if one is None or self.bound <= 0:
            return float("inf")
        return max(0.0, one.iteration_seconds / self.bound - 1.0)

    def within_error(self, one: Candidate) -> bool:
        """Whether a layout is as fast as the fastest, as far as can be told."""
        return self.distance(one) <= 1

    def distance(self, one: Candidate) -> float:
        """How far a layout is from the fastest, in errors of the difference."""
        return float("inf") if self.fastest is None else layout_distance(self.fastest, one.strategy, one.seconds)

    def shown(self, top: int) -> list[Candidate]:
        """So many of the best layouts, and the answer's own plans in any case."""
        return [one for at, one in enumerate(self.top) if at < top or self.roles(one.strategy)]

    def roles(self, strategy: Strategy) -> tuple[str, ...]:
        """Which of the answer's plans a strategy is: `recommended`, `fastest`, `simplest`."""
        plans = {"recommended": self.best, "fastest": self.fastest, "simplest": self.simplest}
        return tuple(name for name, one in plans.items() if one is not None and one.strategy == strategy)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from shardwise.search.api import answer_html

        return answer_html(self)


def covered(axes: dict[str, dict[str, int]]) -> str:
    """What the bound is about: which cuts, and where micro batches end."""
    cuts = "every cut of the layers into chunks of one layer or more, where the runtime cuts unevenly"
    most = max(map(int, axes["mbs"]), default=0)
    return f"{cuts}; micro batches of up to {most} sample{'s' if most > 1 else ''}" if most else cuts


def merged(best: Answer, answers: Sequence[Answer], unseen: float) -> Answer:
    """The best of several answers, with what all of them prove and counted: kinds of GPU in every order. `unseen`: what
    none that is missing can beat.
    """
    if len(answers) == 1 and unseen == float("inf"):
        return best
    counts = [one.counts for one in answers]
    summed = {name: sum(getattr(one, name) for one in counts) for name in _SUMMED}
    axes = {axis: dict(sum((Counter(one.axes[axis]) for one in counts), Counter())) for axis in counts[0].axes}
    finished = all(one.finished for one in counts)
    return replace(
        best,
        bound=min(unseen, *(one.bound for one in answers)),
        counts=replace(best.counts, **summed, axes=axes, finished=finished),
        # strategies are named for one order of kinds alone
        lowest=(
            *best.lowest,
            *(ProofPart(bound=one.bound) for one in answers if one.question != best.question),
            *([ProofPart(bound=unseen)] if unseen < float("inf") else []),
        ),
        interrupted=any(one.interrupted for one in answers),
        cpu_seconds=sum(one.cpu_seconds for one in answers),
        screen_seconds=sum(one.screen_seconds for one in answers),
    )


_SUMMED = ("strategies", "simulated", "simulations", "screened", "too_large", "pruned", "left_open")


def slower(answer: Answer, one: Candidate) -> str:
    """How much longer a layout takes than the fastest, and whether that is more than the error."""
    share = f"{one.seconds / answer.top[0].seconds - 1:+.1%}"
    words = "" if one is answer.top[0] else likeness(answer.distance(one), slower=True)
    return f"{share} ({words})" if words else share


def top_of(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    """The best of every layout, of those that fit."""
    seen: dict[tuple[object, ...], Candidate] = {}
    for one in candidates:
        s = one.strategy
        key = (s.tp, s.cp, s.pp, s.vpp, s.ep, s.etp, s.micro_batch, s.schedule)
        if one.allowed:
            seen.setdefault(key, one)
    return tuple(seen.values())
