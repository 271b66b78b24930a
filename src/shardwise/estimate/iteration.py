"""One whole iteration: its passes, the traffic inside and behind them, and what follows until the next one.

Passes have their times from the simulator; all else stands where the estimate counts it. Collectives of a pass are told
as two numbers, what shows and what hides behind kernels, and drawn together: hidden ones from the pass's start, those
that show at its end. Gradients are reduced behind the last backward passes and after them, new weights gathered behind
the first forward passes of the next iteration, drawn at the start of this one, and before them. What shows adds up to
the parts of the estimate's ledger of time: `exposed` is that sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwise.cost.chunk import Chunk, combined
from shardwise.cost.overlap import Behind, pass_seconds
from shardwise.cost.traffic import AXES, chunk_traffic
from shardwise.cost.update import Update, hidden
from shardwise.estimate.estimate import Estimate, rank_update
from shardwise.estimate.imbalance import NAME as WAITING
from shardwise.estimate.passes import behind_passes, longest, timeline_of
from shardwise.estimate.setup import Setup, layer_groups
from shardwise.pipeline.timeline import Timeline

SHARDING = "parameter sharding"
"""Parameters gathered and gradients scattered inside the passes (ZeRO 3)."""
LANES = ("tp communication", "cp communication", "ep communication", SHARDING, "gradient reduction", "weight gathering")
"""Traffic that has a lane of its own beside the passes, by its name in the ledger."""

INSIDE = (*LANES[:4], "hidden communication", "stragglers")
"""Parts of the ledger that lie inside the passes; those without a lane make kernels take longer."""

Floats = npt.NDArray[np.float64]
Pair = tuple[float, float]
"""Seconds that show, and seconds that hide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTraffic:
    """Traffic of one kind inside the passes: seconds of one pass, one entry a stream (kind x chunks + chunk)."""

    name: str
    """Its name in the ledger."""
    exposed: tuple[float, ...]
    hidden: tuple[float, ...]


class Stretch(NamedTuple):
    """A piece of a rank's iteration behind its passes, or after them."""

    name: str
    """Its name in the ledger."""
    start: float
    end: float
    exposed: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lane:
    """Traffic of one kind on one rank, in the order of time."""

    name: str
    start: Floats
    end: Floats
    exposed: npt.NDArray[np.bool_]
    codes: npt.NDArray[np.int64]
    """The pass that each belongs to; -1: none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Iteration:
    """Everything between the starts of two iterations, rank by rank."""

    timeline: Timeline
    """The passes."""
    seconds: float
    """Of the whole iteration."""
    traffic: tuple[PassTraffic, ...]
    """Inside the passes."""
    beside: tuple[tuple[Stretch, ...], ...]
    """Of every rank: what hides behind its passes, and what follows them."""

    def exposed(self, rank: int) -> dict[str, float]:
        """Seconds of a rank's iteration that show, by part of the ledger."""
        found = {one.name: float(self._of(rank, one.exposed).sum()) for one in self.traffic}
        for part in self.beside[rank]:
            found[part.name] = found.get(part.name, 0.0) + (part.end - part.start if part.exposed else 0.0)
        return found

    def hidden(self, rank: int) -> dict[str, float]:
        """Seconds of a rank's traffic that hide behind its passes, by part of the ledger."""
        found = {one.name: float(self._of(rank, one.hidden).sum()) for one in self.traffic}
        for part in self.beside[rank]:
            if part.name in LANES:
                found[part.name] = found.get(part.name, 0.0) + (0.0 if part.exposed else part.end - part.start)
        return found

    def lanes(self, rank: int) -> tuple[Lane, ...]:
        """The lanes of a rank that hold anything on any rank."""
        inside = {one.name: one for one in self.traffic if one.name in LANES}
        names = [name for name in LANES if name in inside or any(p.name == name for r in self.beside for p in r)]
        return tuple(self._inside(rank, inside[name]) if name in inside else self._beside(rank, name) for name in names)

    def after(self, rank: int) -> tuple[Stretch, ...]:
        """What keeps a rank itself busy after its passes: the optimizer, and what is no traffic."""
        return tuple(part for part in self.beside[rank] if part.name not in LANES)

    def _of(self, rank: int, by_stream: tuple[float, ...]) -> Floats:
        streams = self.timeline.schedule.codes[rank] // self.timeline.schedule.microbatches
        return np.asarray(by_stream)[streams]

    def _inside(self, rank: int, own: PassTraffic) -> Lane:
        """Hidden seconds from the start of every pass as far as there is room, exposed ones at its end."""
        codes, start, end = self.timeline.schedule.codes[rank], self.timeline.start[rank], self.timeline.end[rank]
        later = [one.exposed for one in self.traffic[self.traffic.index(own) + 1 :] if one.name in LANES]
        shown, stop = self._of(rank, own.exposed), end - sum((self._of(rank, one) for one in later), np.zeros(len(end)))
        behind = np.minimum(self._of(rank, own.hidden), np.maximum(0.0, stop - shown - start))
        starts, ends = np.stack((start, stop - shown), axis=1), np.stack((start + behind, stop), axis=1)
        exposed = np.tile([False, True], len(codes))
        kept = (ends - starts).ravel() > 0
        return Lane(
            name=own.name, start=starts.ravel()[kept], end=ends.ravel()[kept], exposed=exposed[kept],
            codes=np.repeat(codes, 2)[kept],
        )  # fmt: skip

    def _beside(self, rank: int, name: str) -> Lane:
        parts = sorted((part for part in self.beside[rank] if part.name == name), key=lambda part: part.start)
        return Lane(
            name=name, start=np.array([part.start for part in parts]), end=np.array([part.end for part in parts]),
            exposed=np.array([part.exposed for part in parts], dtype=bool),
            codes=np.full(len(parts), -1, dtype=np.int64),
        )  # fmt: skip


def iteration_of(setup: Setup, found: Estimate, timeline: Timeline | None = None) -> Iteration:
    """The iteration that an estimate is of; `setup`: what it was made from."""
    setup = longest(setup)
    timeline = timeline or timeline_of(setup, found.order)
    strategy = setup.strategy
    updates = [
        hidden(*rank_update(setup, rank), strategy, setup.runtime, found.makespan + found.time.part(WAITING))
        for rank in range(strategy.pp)
    ]
    return Iteration(
        timeline=timeline,
        seconds=found.iteration_seconds,
        traffic=tuple(_traffic(setup, timeline)),
        beside=tuple(tuple(_stretches(one, found, timeline.makespan)) for one in updates),
    )


def _stretches(update: Update, found: Estimate, makespan: float) -> Iterator[Stretch]:
    """What one rank has beside its passes; after it, it waits for the rank with the longest update."""
    waiting, fixed = found.time.part(WAITING), found.time.part("framework")
    late = (makespan + waiting) * (found.strategy.straggler - 1)
    behind = {"weight gathering": update.gather - update.gather_exposed,
              "gradient reduction": update.reduce - update.reduce_exposed}  # fmt: skip
    for name, seconds in behind.items():
        if seconds > 0:
            start = 0.0 if name == "weight gathering" else max(0.0, makespan - seconds)
            yield Stretch(name, start, start + seconds, exposed=False)
    shown = {
        "stragglers": late, WAITING: waiting, "hidden communication": update.slowed,
        "gradient reduction": update.reduce_exposed, "optimizer": update.optimizer,
        "weight gathering": update.gather_exposed,
    }  # fmt: skip
    clock = makespan
    for name, seconds in shown.items():
        if seconds > 0:
            yield Stretch(name, clock, clock + seconds, exposed=True)
        clock += seconds
    if fixed > 0:
        yield Stretch("framework", found.iteration_seconds - fixed, found.iteration_seconds, exposed=True)


def _traffic(setup: Setup, timeline: Timeline) -> Iterator[PassTraffic]:
    """Every kind of traffic that the passes have, by stream."""
    ranks = timeline.schedule.rank_of
    # of seq-1f1b a pass is one of several pieces of a micro batch
    share = setup.strategy.microbatches / timeline.schedule.microbatches
    owners = [setup.at(rank) for rank in ranks]
    pairs = [_chunk_pairs(chunk, own) for chunk, own in zip(setup.chunks, owners, strict=True)]
    for name in INSIDE:
        streams = [by[name][kind] for kind in range(4) for by in pairs]
        if any(map(any, streams)):
            shown, behind = (tuple(share * one for one in column) for column in zip(*streams, strict=True))
            yield PassTraffic(name=name, exposed=shown, hidden=behind)


def _chunk_pairs(chunk: Chunk, setup: Setup) -> dict[str, tuple[Pair, Pair, Pair, Pair]]:
    """By name, what one pass of a chunk shows and hides: of F, I (with what is computed again), W and B."""
    whole = chunk_traffic(chunk, layer_groups(setup.network, setup.strategy, setup.runtime))
    again = combined(chunk.i, chunk.recompute)
    seconds = (chunk.f, again, chunk.w, combined(again, chunk.w))
    inputs = whole.i.plus(whole.recompute)
    all_of = (whole.f, inputs, whole.w, inputs.plus(whole.w))
    behind, late = behind_passes(setup), 1 - 1 / setup.cluster.site.slowest(setup.cluster.gpus)
    slowed = _sharding_slowed(chunk, behind)
    found = {SHARDING: _sharding_pairs(chunk, behind), "stragglers": _shown(late * one.compute for one in seconds)}
    found["hidden communication"] = _shown(one.slowed + more for one, more in zip(seconds, slowed, strict=True))
    for axis in AXES:
        pairs = [(getattr(own, axis), getattr(total, axis)) for own, total in zip(seconds, all_of, strict=True)]
        f, i, w, b = ((shown, max(0.0, total - shown)) for shown, total in pairs)
        found[f"{axis} communication"] = (f, i, w, b)
    return found


def _shown(seconds: Iterable[float]) -> tuple[Pair, Pair, Pair, Pair]:
    """Of what has nothing to hide."""
    f, i, w, b = ((one, 0.0) for one in seconds)
    return f, i, w, b


def _sharding_slowed(chunk: Chunk, behind: Behind) -> tuple[float, float, float, float]:
    """What the passes of a chunk take longer beside ZeRO 3's traffic; a backward that runs apart has it in I."""
    if not behind.gathered:
        return 0.0, 0.0, 0.0, 0.0
    slow, free = pass_seconds(chunk, behind), pass_seconds(chunk, behind._replace(taken=0.0))
    return slow[0] - free[0], slow[1] - free[1], 0.0, slow[1] - free[1]


def _sharding_pairs(chunk: Chunk, behind: Behind) -> tuple[Pair, Pair, Pair, Pair]:
    """Of ZeRO 3's traffic; where I and W run apart, each has the share of what it moves."""
    traffic = [behind.traffic(block) for block, _ in chunk.runs]
    gather, scatter = (sum(run.repeat * one[k] for run, one in zip(chunk.runs, traffic, strict=True)) for k in (0, 1))
    plain = chunk.forward_seconds, chunk.backward_seconds
    free = pass_seconds(chunk, behind._replace(taken=0.0))  # what it slows down is hidden communication
    shown = [one - own for one, own in zip(free, plain, strict=True)] if gather else [0.0, 0.0]
    share = gather / (gather + scatter) if gather else 0.0
    parts = (
        (shown[0], gather),
        (shown[1] * share, gather),
        (shown[1] * (1 - share), scatter),
        (shown[1], gather + scatter),
    )
    f, i, w, b = ((one, max(0.0, total - one)) for one, total in parts)
    return f, i, w, b
