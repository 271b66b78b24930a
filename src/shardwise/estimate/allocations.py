"""What a rank allocates and gives back in one iteration, operator by operator, in the order of its passes.

The sizes are those that the estimate's peak is made of: what lasts, then of every pass what its operators keep and what
they need while they run (estimate/operators.py), then the optimizer step. A backward pass that runs I and W apart gives
back what I frees when I ends, and keeps the rest in one piece for W.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from shardwise.cost.memory import Footprint
from shardwise.estimate.iteration import Iteration
from shardwise.estimate.operators import OpRun, PassTrace, pass_trace
from shardwise.estimate.passes import footprints_of, longest
from shardwise.estimate.setup import Setup

MOST_EVENTS = 200_000
"""Beyond that, a layer's operators are told as one: a viewer would not draw more."""


class Allocation(NamedTuple):
    """Bytes that are taken or given back."""

    time: float
    block: int
    """Number of the piece; it comes once or twice."""
    size: float
    """Above 0: taken, below: given back."""
    name: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """Of one rank, in order."""

    rank: int
    events: tuple[Allocation, ...]
    by_layer: bool
    """The operators of a layer are told as one."""

    @property
    def peak(self) -> float:
        live = peak = 0.0
        for event in self.events:
            live += event.size
            peak = max(peak, live)
        return peak


class _Book:
    """Keeps what is allocated."""

    def __init__(self) -> None:
        self.events: list[Allocation] = []
        self.next = 0

    def take(self, time: float, size: float, name: str, place: str) -> Allocation:
        self.next += 1
        taken = Allocation(time, self.next - 1, size, name, place)
        if size > 0:
            self.events.append(taken)
        return taken

    def give(self, time: float, taken: Allocation) -> None:
        if taken.size > 0:
            self.events.append(taken._replace(time=time, size=-taken.size))


class _Kept:
    """What one pass keeps, oldest first."""

    def __init__(self, book: _Book) -> None:
        self.book, self.pieces, self.size = book, deque[Allocation](), 0.0

    def add(self, time: float, size: float, name: str, place: str) -> None:
        if size > 0:
            self.pieces.append(self.book.take(time, size, name, place))
            self.size += size

    def shrink(self, time: float, size: float, *, oldest: bool = False) -> None:
        """Give back until `size` is left, of a piece its share."""
        while self.pieces and self.size - size > 0.5:
            piece = self.pieces.popleft() if oldest else self.pieces.pop()
            self.book.give(time, piece)
            self.size -= piece.size
            if (rest := size - self.size) > 0.5:
                again = self.book.take(time, rest, piece.name, piece.place)
                self.size += rest
                self.pieces.appendleft(again) if oldest else self.pieces.append(again)


def allocations_of(setup: Setup, whole: Iteration, rank: int) -> Allocations:
    """Of one rank of the iteration that an estimate is of."""
    setup = longest(setup)
    traces, by_layer = _traces(setup, whole, rank)
    footprint, book = footprints_of(setup)[rank], _Book()
    for part in footprint.parts:
        book.take(0.0, part.value, part.name, "lasting")
    around = [book.take(0.0, size, name, "passes") for name, size in _around(footprint)]
    _passes(book, whole, rank, traces, footprint.each - footprint.kept / footprint.chunks)
    end = whole.timeline.makespan
    for one in around[:2]:
        book.give(end, one)
    _step(book, whole, rank, footprint)
    book.give(whole.seconds, around[2])
    return Allocations(rank=rank, events=tuple(book.events), by_layer=by_layer)


def _around(footprint: Footprint) -> tuple[tuple[str, float], ...]:
    """What stands beside all passes; gradients stay for the step."""
    return ("gathered layers", footprint.gathered), ("layer ahead", footprint.ahead), (
        "gradients", footprint.kept_gradients,
    )  # fmt: skip


def _traces(setup: Setup, whole: Iteration, rank: int) -> tuple[dict[int, PassTrace], bool]:
    """The passes of the rank's chunks, told by layer where there are too many operators."""
    pieces = whole.timeline.schedule.microbatches / setup.strategy.microbatches
    made = {chunk: _piece(pass_trace(setup, chunk), pieces) for chunk in setup.rank_indices(rank)}
    each = sum(3 * (len(trace.forward) + len(trace.backward)) for trace in made.values())
    if each * whole.timeline.schedule.microbatches <= MOST_EVENTS:
        return made, False
    return {chunk: _by_layer(trace) for chunk, trace in made.items()}, True


def _piece(trace: PassTrace, pieces: float) -> PassTrace:
    """A pass of one of several pieces of a sample: it keeps its share, and needs as much while it runs."""
    if pieces == 1:
        return trace

    def cut(runs: Sequence[OpRun]) -> tuple[OpRun, ...]:
        less = trace.kept * (1 - 1 / pieces)
        return tuple(
            run._replace(stays=run.stays / pieces, level=max(run.level - less, run.stays / pieces)) for run in runs
        )

    return replace(trace, forward=cut(trace.forward), backward=cut(trace.backward), kept=trace.kept / pieces)


def _by_layer(trace: PassTrace) -> PassTrace:
    return replace(trace, forward=tuple(_folded(trace.forward)), backward=tuple(_folded(trace.backward)))


def _folded(runs: Sequence[OpRun]) -> Iterator[OpRun]:
    for _, group in groupby(runs, key=lambda run: run.place):
        own = list(group)
        highest = max(own, key=lambda run: run.level)
        yield highest._replace(start=own[0].start, end=own[-1].end, stays=own[-1].stays)


def _passes(book: _Book, whole: Iteration, rank: int, traces: dict[int, PassTrace], boundary: float) -> None:
    schedule, line = whole.timeline.schedule, whole.timeline
    kept: dict[tuple[int, int], _Kept] = {}
    sent: dict[tuple[int, int], Allocation] = {}
    for code, start, end in zip(schedule.codes[rank].tolist(), line.start[rank], line.end[rank], strict=True):
        action = schedule.decode(code)
        key, trace, span = (action.chunk, action.microbatch), traces[action.chunk], (float(start), float(end))
        if action.kind == "F":
            kept[key] = _forward(book, trace, span)
            sent[key] = book.take(span[1], boundary, "output for the next stage", "boundary")
            continue
        if action.kind != "W":
            book.give(span[0], sent.pop(key))
            _backward(book, trace, span, kept[key], whole=action.kind == "B")
        if action.kind == "I":
            kept[key].shrink(span[1], 0.0)
            left = line.costs.held(action.chunk) - line.costs.freed(action.chunk)
            share = left / line.costs.held(action.chunk) if line.costs.held(action.chunk) else 0.0
            kept[key].add(span[1], share * trace.kept, "kept for W", "backward")
        if action.kind != "I":
            kept.pop(key).shrink(span[1], 0.0)


def _forward(book: _Book, trace: PassTrace, span: tuple[float, float]) -> _Kept:
    kept = _Kept(book)
    for run, start, end in _timed(trace.forward, span):
        kept.shrink(start, run.stays, oldest=True)  # to host memory
        kept.add(start, run.stays - kept.size, run.name, run.place)
        book.give(end, book.take(start, run.level - kept.size, f"{run.name}, at work", run.place))
    return kept


def _backward(book: _Book, trace: PassTrace, span: tuple[float, float], kept: _Kept, *, whole: bool) -> None:
    """`whole`: with W, operator by operator."""
    runs = [run for run in trace.backward if whole or run.part != "W"]
    for run, start, end in _timed(runs, span):
        book.give(end, book.take(start, run.level - kept.size, f"{run.name}, at work", run.place))
        if whole and run.kind:
            kept.shrink(end, run.stays)


def _timed(runs: Sequence[OpRun], span: tuple[float, float]) -> Iterator[tuple[OpRun, float, float]]:
    """The operators over the time of their action."""
    total = sum(run.end - run.start for run in runs) or 1.0
    scale, clock = (span[1] - span[0]) / total, span[0]
    for run in runs:
        start, clock = clock, clock + scale * (run.end - run.start)
        yield run, start, clock


def _step(book: _Book, whole: Iteration, rank: int, footprint: Footprint) -> None:
    """The optimizer step, when it is its turn."""
    turn = next((part for part in whole.beside[rank] if part.name == "optimizer"), None)
    start, end = (turn.start, turn.end) if turn else (whole.timeline.makespan, whole.seconds)
    sizes = {"gradients": footprint.gradients - footprint.kept_gradients, "optimizer temporaries": footprint.optimizer}
    taken = [book.take(start, size, name, "optimizer step") for name, size in sizes.items()]
    for one in taken:
        book.give(end, one)
