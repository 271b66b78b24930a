"""What is predicted of one strategy: the figures of an estimate, and what a plan keeps of them beside its search."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import sqrt
from typing import Any, NamedTuple

from shardwise.cost.ledger import Ledger
from shardwise.cost.memory import Fits, RankMemory
from shardwise.cost.update import Update
from shardwise.inputs.cluster import Cluster, Gpu
from shardwise.inputs.mixed import Mixed, by_replica, kinds_of, stage_kinds
from shardwise.inputs.serialise import Plain, later, to_dict
from shardwise.inputs.strategy import Strategy
from shardwise.pipeline.costs import ROUNDING
from shardwise.units import show_bytes


class Stage(NamedTuple):
    """One pipeline rank's share of one micro batch (all its chunks), seconds."""

    rank: int
    layers: tuple[int, ...]
    """Layers of its chunks."""
    forward: float
    backward: float
    """Gradients of inputs and weights, recompute included."""
    recompute: float
    communication: float
    """Exposed tensor, context and expert parallel communication of both passes."""
    alone: float
    """Both passes without any communication: what the rank would take if all others answered at once."""
    parameters: float
    """Parameters on one of its GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Every number that is predicted, each with its parts."""

    iteration_seconds: float
    """Seconds of one iteration."""
    iteration_seconds_interval: tuple[float, float]
    """Nine runs in ten take between these, by the errors on measured runs like it that were left out of the fit."""
    forward_seconds: float
    """Forward passes of one rank, the busiest."""
    backward_seconds: float
    """Backward passes of that rank, recompute included."""
    optimizer_seconds: float
    """The optimizer's step."""
    tokens_per_second_per_gpu: float
    """Throughput."""
    tflops_per_gpu: float
    """Model operations (causal attention) per second and GPU, in units of 1e12."""
    mfu: float
    """Model operations with causal attention over the dense peak of the compute format."""
    mfu_full_attention: float
    """The same with attention counted as a full square, as most reports do."""
    hfu: float
    """As mfu, with recomputed operations counted."""
    makespan: float
    """Seconds of all passes: first start to last end on any pipeline rank."""
    bubble: float
    """Synchronous bubble: 1 - work / makespan of the passes, over all pipeline ranks."""
    peak_bytes: float
    """Highest allocated bytes of any rank."""
    total_bytes: float
    """What the device of the fullest rank must have: reserved bytes, context, communicators. In a mixed cluster the
    rank with the largest share of its own device."""
    fits: Fits
    """yes, no, or close (the device's memory, or the limit that was asked for, lies within `total_bytes_interval`); no
    as well where the host is too small."""
    total_bytes_interval: tuple[float, float]
    """Nine runs in ten need between these, likewise."""
    fits_probability: float
    """That what is really needed is no more than the device has, or was asked for, under the error that the interval
    stands for; 0 where the host is too small."""
    host_bytes: float
    """What offloading needs of one node's memory."""
    fullest: int = later(0)
    """Place in a mixed cluster of the kind of GPU that `total_bytes` is of: the one that it leaves least room on."""
    slowest: int = later(0)
    """Place in a mixed cluster of the kind of GPU that the time ledger is of: that of the busiest rank, or of the
    replicas that the others wait for."""
    time: Ledger
    """Where the iteration's seconds go, on the pipeline rank that is busiest."""
    update: Update
    """Reduction, step and gathering on the pipeline rank where they take longest."""
    stages: tuple[Stage, ...]
    """One entry a pipeline rank, seconds of one micro batch."""
    memory: tuple[RankMemory, ...]
    """One ledger per pipeline rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """How many strategies there were, and what became of them."""

    strategies: int
    """Distinct valid strategies."""
    simulated: int
    """Strategies estimated in full."""
    simulations: int = 0
    """Estimates in full; every cut into stages counts."""
    screened: int = 0
    """Bounded one by one."""
    too_large: int = 0
    """Of those, proven not to fit by the bound on memory."""
    pruned: int = 0
    """Proven slower or too large without a simulation."""
    left_open: int | None = None
    """Neither simulated nor pruned when the search was stopped; 0 of one that ended. None: among `pruned`."""
    finished: bool = True
    """false: stopped early, the best so far."""
    covers: str = ""
    """What the space holds, in words."""
    axes: dict[str, dict[str, int]] = field(default_factory=dict, hash=False)
    """Axis -> value -> how many strategies have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedLine:
    """One number of a rehearsal beside its prediction."""

    what: str
    predicted: float
    measured: float
    unit: str = ""
    """`s` or `bytes`; none in plans of schema 1."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1 if self.measured else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What a rehearsal of one pipeline rank measured, and the plan's own figures corrected by it."""

    rank: int
    device: str
    """What it ran on."""
    lines: tuple[RehearsedLine, ...]
    peak_bytes: float | None = None
    total_bytes: float | None = None
    alone_seconds: float | None = None
    """Of one micro batch on the rank alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions(Figures):
    """The figures of a plan, with what its search proved and what rehearsals measured."""

    bound: float | None = None
    """Nothing takes less, under the cost model in use."""
    gap: float | None = None
    """Value / bound - 1."""
    memory_limit: float | None = None
    """Bytes that a rank may need in all."""
    search: Searched | None = None
    """How many strategies there were, and what became of them."""
    rehearsed: tuple[Rehearsed, ...] = ()
    """Ranks that ran, in the order in which they did."""


def device_of(cluster: Cluster, figures: Figures | None) -> Gpu:
    """The GPU whose memory `total_bytes` is held against."""
    return kinds_of(cluster)[figures.fullest].gpu if figures else cluster.gpu


def rank_gpus(cluster: Cluster, strategy: Strategy, figures: Figures) -> tuple[Gpu, ...]:
    """The GPU of every entry of `memory`."""
    if by_replica(strategy) or not isinstance(cluster, Mixed):
        return (device_of(cluster, figures),) * strategy.pp
    return tuple(cluster.kinds[kind].gpu for kind in stage_kinds(cluster, strategy))


def yardstick(memory: float, limit: float | None, needed: tuple[float, float]) -> float:
    """Bytes that `fits` is said against: the limit that was asked for, else all that a GPU has. `needed`: the interval.

    A limit no further from the GPU's memory than the memory model errs is what `close` stands for already.
    """
    low, high = needed
    return limit if limit is not None and limit < memory * sqrt(low / high) * (1 - ROUNDING) else memory


def show_limit(limit: float, memory: float) -> str:
    """The yardstick in words: a GPU's memory, or what was asked for of it."""
    return show_bytes(memory) if limit == memory else f"{show_bytes(limit)} asked for (GPU: {show_bytes(memory)})"


def predictions_of(figures: Figures, **more: Any) -> Predictions:  # noqa: ANN401 - the fields beside the figures
    """The predictions of a plan from those of an estimate."""
    return Predictions(**{one.name: getattr(figures, one.name) for one in fields(Figures)}, **more)


def predictions_table(predictions: Predictions) -> Plain:
    """As plain values for JSON."""
    plain = to_dict(predictions)
    plain |= {
        "time": ledger_table(predictions.time),
        "update": predictions.update._asdict(),
        "stages": [stage._asdict() for stage in predictions.stages],
        "memory": [{**rank._asdict(), "peak": ledger_table(rank.peak)} for rank in predictions.memory],
    }
    return plain if predictions.rehearsed else {name: part for name, part in plain.items() if name != "rehearsed"}


def ledger_table(ledger: Ledger) -> Plain:
    """A ledger as a table; parts and note only where there are any."""
    found: Plain = {"name": ledger.name, "value": ledger.value}
    if ledger.note:
        found["note"] = ledger.note
    if ledger.parts:
        found["parts"] = [ledger_table(part) for part in ledger.parts]
    return found
