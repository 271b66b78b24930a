"""The partition problem and its answer: which layers, recomputed how, sit in which chunk.

Numbers are taken as given: times share one unit, memory another. A layer kind offers choices (keep everything,
recompute this or that), each with its own times and memory; the model is a sequence of runs of equal layers between a
head and a tail that stay on the first and the last chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardwise.errors import Fault, InputError
from shardwise.inputs.gate import wrong
from shardwise.inputs.scalars import SCALARS
from shardwise.partition.decompose import MemoryFit, MemoryPart
from shardwise.pipeline.action import Schedule, placed
from shardwise.pipeline.generate import SHAPES
from shardwise.pipeline.timeline import Timeline

CLOSE = 1e-6
CONFIDENCE = 0.95
MOST_LAYERS, MOST_CHUNKS, MOST_PASSES = 20_000, 4096, 1_000_000
PIECES = ("seq-1f1b", "interleaved", "low-memory")
"""Schedules that sequences may be cut for."""
Counts = tuple[tuple[int, ...], ...]
"""Layers of one chunk: per run, per choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to run a layer: what is kept and what is recomputed."""

    name: str
    """none, select, comm, both, full, or any other word."""
    f: float
    """Forward time."""
    i: float
    """Time of the backward for inputs, recomputation included."""
    w: float
    """Time of the backward for weights."""
    activation: float
    """Memory held from the forward to the end of the backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Layers that are alike."""

    name: str
    choices: tuple[Choice, ...]
    static: float = 0.0
    """Memory that one layer holds all the time: parameters, gradients, optimizer states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRun:
    """Equal layers that follow each other in the model."""

    kind: Kind
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The head (on the first chunk) or the tail (on the last): never moved, never recomputed."""

    f: float = 0.0
    i: float = 0.0
    w: float = 0.0
    static: float = 0.0
    activation: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Layers to be spread over pp x vpp chunks so that the simulated iteration is shortest and every rank fits."""

    pp: int
    vpp: int = 1
    microbatches: int
    runs: tuple[KindRun, ...]
    head: End = End()
    tail: End = End()
    limits: tuple[float, ...] = ()
    """Memory of every rank; one number stands for all, empty: no limit."""
    static: tuple[float, ...] = ()
    """Memory that a rank holds whatever its layers; one number stands for all, empty: none."""
    schedule: str = "1f1b"
    """A name of `shardwise.pipeline`."""
    order: Schedule | None = None
    """The order of work itself, in place of a name."""
    splits: int = 1
    """Pieces of a sequence: times and activations of a layer are those of the whole sequence.

    With several chunks a rank the schedule is interleaved or low-memory, over pieces in place of micro batches.
    """
    hop: float = 0.0
    """Time of the message between chunks on different ranks."""
    empty: tuple[int, ...] = ()
    """Chunks that may be without layers."""
    free_at_input_grad: float = 0.5
    """Share of the activation that I frees, where backwards are split."""
    name: str = ""
    fit: MemoryFit | None = field(default=None, repr=False, compare=False)
    """Of the measurements that the memory comes from; None: numbers are exact."""
    confidence: float = CONFIDENCE
    """With which every rank is to stay within its limit, where there is a fit."""

    @property
    def chunks(self) -> int:
        return self.pp * self.vpp

    @property
    def layers(self) -> int:
        return sum(run.count for run in self.runs)

    @property
    def rank_of(self) -> tuple[int, ...]:
        """The rank of every chunk."""
        if self.order is not None:
            return self.order.rank_of
        return placed(self.pp, self.vpp, SHAPES[self.schedule].placement)

    @property
    def rank_limits(self) -> tuple[float, ...]:
        return _per_rank(self.limits, self.pp, float("inf"))

    @property
    def rank_static(self) -> tuple[float, ...]:
        return _per_rank(self.static, self.pp, 0.0)

    @property
    def least(self) -> tuple[int, ...]:
        """Fewest layers of every chunk."""
        return tuple(int(chunk not in self.empty) for chunk in range(self.chunks))


def _per_rank(values: Sequence[float], pp: int, default: float) -> tuple[float, ...]:
    return tuple(values) * pp if len(values) == 1 else tuple(values) or (default,) * pp


def check_problem(problem: Problem) -> None:
    """Raise InputError with everything that is wrong."""
    faults = tuple(_faults(problem))
    if faults:
        raise InputError(faults, title=problem.name)


def _faults(p: Problem) -> Iterator[Fault]:
    for name, value in (("pp", p.pp), ("vpp", p.vpp), ("microbatches", p.microbatches), ("splits", p.splits)):
        if value < 1:
            yield Fault(name, f"is {value}; it must be at least 1")
    if p.chunks > MOST_CHUNKS or p.layers > MOST_LAYERS:
        said = f"{p.layers:,} layers on {p.chunks:,} chunks; up to {MOST_LAYERS:,} and {MOST_CHUNKS:,} are balanced"
        yield Fault("layers", f"{said}; write groups of layers as one")
        return
    passes = p.chunks * p.microbatches * p.splits
    if passes > MOST_PASSES:
        said = f"{p.microbatches:,} on {p.chunks:,} chunks are {passes:,} forward passes; up to {MOST_PASSES:,} are"
        yield Fault("microbatches", f"{said} simulated; balance fewer: the best split hardly changes with many")
    if p.order is None:
        yield from _schedule_faults(p)
    yield from _run_faults(p)
    yield from _fit_faults(p)
    for name, values in (("limits", p.limits), ("static", p.static)):
        if len(values) not in {0, 1, p.pp}:
            yield Fault(name, f"has {len(values)} numbers; give one, or one for each of {p.pp} ranks")
    if any(not limit > 0 for limit in p.limits):
        yield Fault("limits", f"holds {min(p.limits):g}; the memory of a rank must be above 0")
    if any(not 0 <= chunk < p.chunks for chunk in p.empty):
        yield Fault("empty", f"holds {max(p.empty)}; chunks are 0 to {p.chunks - 1}")
    if not 0 <= p.hop < float("inf"):
        yield Fault("hop", f"is {p.hop:g}; a time is finite and not negative")
    needed = sum(p.least)
    if not p.layers >= needed:
        yield Fault(
            "layers",
            f"{p.layers} layers cannot fill pp {p.pp} x vpp {p.vpp} = {p.chunks} chunks; "
            f"lower pp or vpp, or allow empty chunks (at least {needed - p.layers} more of them)",
        )


def _schedule_faults(p: Problem) -> Iterator[Fault]:
    if p.schedule not in SHAPES:
        yield Fault("schedule", f"there is no schedule {p.schedule!r}; known: {', '.join(SHAPES)}")
    if p.splits > 1 and p.schedule not in PIECES:
        yield Fault("splits", f"is {p.splits}, but {p.schedule} does not cut sequences; use {', '.join(PIECES)}, or 1")
    if p.vpp > 1 and p.schedule == "seq-1f1b":
        said = f"seq-1f1b has 1 chunk a rank, vpp is {p.vpp}; with several, {' or '.join(PIECES[1:])} cuts sequences"
        yield Fault("schedule", said)


def _run_faults(p: Problem) -> Iterator[Fault]:
    if not p.runs:
        yield Fault("runs", "there are no layers to spread")
    for index, run in enumerate(p.runs):
        if run.count < 1:
            yield Fault(f"runs.{index}.count", f"is {run.count}; it must be at least 1")
        if not run.kind.choices:
            yield Fault(f"runs.{index}.kind", f"{run.kind.name!r} has no choice of how to run it")
        for choice in run.kind.choices:
            numbers = (choice.f, choice.i, choice.w, choice.activation, run.kind.static)
            if any(not 0 <= number < float("inf") for number in numbers):
                yield Fault(f"runs.{index}.kind.{choice.name}", "times and memory must be finite and not negative")


def _fit_faults(p: Problem) -> Iterator[Fault]:
    if message := wrong(p.confidence, SCALARS["option.confidence"]):
        yield Fault("confidence", message)
    if p.fit is not None and len(p.fit.kinds) != len(p.runs):
        said = f"are of {len(p.fit.kinds)} kinds of layers, the model has {len(p.runs)}"
        yield Fault("measured", f"{said}; balance with the init file again")
    elif p.fit is not None:
        yield from _end_faults(p, p.fit)


def _end_faults(p: Problem, fit: MemoryFit) -> Iterator[Fault]:
    """A layer whose memory is counted with the head or the tail stays there, as often in flight as it was measured."""
    alone = [kind for kind in range(len(fit.kinds)) if MemoryPart("par", kind) not in fit.parts]
    for kind, chunk, end in ((0, 0, "head"), (len(fit.kinds) - 1, p.chunks - 1, "tail")):
        if kind in alone and chunk in p.empty:
            said = f"holds {chunk}, but the one layer of {fit.kinds[kind]} was measured with the {end} and stays there"
            yield Fault("empty", f"{said}: leave {chunk} out")
    if 0 in alone and (p.vpp > 1 or p.pp > fit.pp):
        said = f"the one layer of {fit.kinds[0]} was measured with the head, {fit.pp} micro batches in flight"
        yield Fault("vpp", f"{said}; balance it with one chunk a stage and at most {fit.pp} stages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """An answer's layers: per chunk in model order, per run, per choice."""

    counts: tuple[Counts, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of every chunk."""
        return tuple(sum(sum(run) for run in chunk) for chunk in self.counts)

    def chosen(self, problem: Problem) -> dict[str, tuple[int, ...]]:
        """Layers of every chunk by the name of their choice."""
        names = dict.fromkeys(choice.name for run in problem.runs for choice in run.kind.choices)
        found = {name: [0] * len(self.counts) for name in names}
        for chunk, runs in enumerate(self.counts):
            for run, counts in zip(problem.runs, runs, strict=True):
                for choice, count in zip(run.kind.choices, counts, strict=True):
                    found[choice.name][chunk] += count
        return {name: tuple(numbers) for name, numbers in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What the simulator says of one partition."""

    partition: Partition
    simulated: float
    """First start to last end."""
    peak: tuple[float, ...]
    """Most memory that each rank holds, event by event."""
    margin: tuple[float, ...]
    """What is kept free above each peak so that it holds with the problem's confidence; 0 where numbers are exact."""
    over: tuple[float, ...]
    """How far each rank, with its margin, is above its limit; 0 where it fits."""
    timeline: Timeline = field(repr=False, compare=False)

    @property
    def fits(self) -> bool:
        return not any(self.over)


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceAnswer:
    """The best partition found, and what is proven about it under the given costs and order."""

    problem: Problem
    best: Evaluation
    bound: float
    """No partition that fits is faster than this."""
    seconds: float
    """CPU seconds taken."""
    evaluations: int
    """Partitions judged by their time: computed, or known from a path to be too long."""
    method: str
    """How the bound was proven."""
    interrupted: bool = False
    """Stopped by Ctrl-C: the best so far."""
    out_of_time: bool = False
    """Stopped by the time limit; another machine may give another answer."""
    if_known: float | None = None
    """The time that was found with no margins; None: there are none."""

    @property
    def simulated(self) -> float:
        return self.best.simulated

    @property
    def gap(self) -> float:
        return self.simulated / self.bound - 1 if self.bound > 0 else 0.0  # without any work nothing is left to gain

    @property
    def proven(self) -> bool:
        """Whether nothing can be faster (to 1 in a million, the accuracy of the solver)."""
        return self.simulated <= self.bound * (1 + CLOSE)
