"""What a simulation gives: times of every action, memory of every rank, bubbles and the critical path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwise.pipeline.action import Action, B, F, I, Schedule, W
from shardwise.pipeline.costs import Costs

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedAction:
    """One action on the critical path."""

    rank: int
    action: Action
    start: float
    end: float
    waited_for: str
    """`rank`: the action before it on the rank; `data`: a message; `host`: activations under way;
    `start`: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """A schedule with the times of its actions."""

    schedule: Schedule
    costs: Costs
    start: tuple[Floats, ...]
    """Per rank, in the order of its row."""
    end: tuple[Floats, ...]
    cause: tuple[npt.NDArray[np.int8], ...]
    """Why an action did not start earlier: 0 nothing, 1 its rank was busy, 2 its input was not there, 3 activations
    were on their way to host memory or back."""
    host: tuple[Floats, ...] = ()
    """By rank, when each of its `Schedule.offloads` leaves, has left, comes back and is back: a row each."""

    @property
    def makespan(self) -> float:
        """First start to last end on any rank, without the optimizer."""
        begins = min(float(row[0]) for row in self.start if len(row))
        return max(float(row[-1]) for row in self.end if len(row)) - begins

    @property
    def spans(self) -> tuple[float, ...]:
        """Own first start to own last end of every rank."""
        return tuple(float(e[-1] - s[0]) for s, e in zip(self.start, self.end, strict=True))

    @property
    def period(self) -> float:
        """The longest rank span: the time of one iteration when iterations are stacked without a barrier."""
        return max(self.spans)

    @property
    def work(self) -> tuple[float, ...]:
        """Busy time of every rank."""
        return tuple(float((e - s).sum()) for s, e in zip(self.start, self.end, strict=True))

    @property
    def bubble(self) -> float:
        """Synchronous bubble: 1 - work / makespan, the mean over ranks."""
        return 1.0 - sum(self.work) / len(self.work) / self.makespan

    @property
    def period_bubble(self) -> float:
        """Period bubble: 1 - work / longest rank span, the mean over ranks."""
        return 1.0 - sum(self.work) / len(self.work) / self.period

    @property
    def seed_rate(self) -> float:
        """The zero-bubble planners' rate: largest idle of a rank after its first action, over its work."""
        return max((span - work) / work for span, work in zip(self.spans, self.work, strict=True))

    @property
    def iteration(self) -> float:
        """Time of one iteration: compute, gradient reduction after each chunk's last W, optimizer.

        With a barrier the optimizer waits for the slowest rank; without, the longest rank span counts.
        """
        ends = [self._reduced(rank) for rank in range(self.schedule.pp)]
        starts = [float(row[0]) for row in self.start]
        if self.costs.barrier:
            return max(ends) - min(starts) + self.costs.optimizer
        return max(e - s for s, e in zip(starts, ends, strict=True)) + self.costs.optimizer

    @property
    def peak(self) -> tuple[float, ...]:
        """Most bytes that each rank holds, the optimizer step included."""
        step = self.costs.step or (0.0,) * self.schedule.pp
        if not self.host:
            return tuple(max(float(self.levels(rank).max()), step[rank]) for rank in range(self.schedule.pp))
        return tuple(max(float(self.memory(rank)[1].max()), step[rank]) for rank in range(self.schedule.pp))

    def sent(self, rank: int) -> Floats:
        """When every result of a rank leaves: as its action ends, or the one that runs together with it."""
        places = list(self.schedule.pairs[rank]) if self.schedule.pairs else []
        if not places:
            return self.end[rank]
        done = self.end[rank].copy()
        done[places] = done[np.array(places) + 1]
        return done

    def kinds(self, rank: int) -> npt.NDArray[np.int64]:
        return self.schedule.codes[rank] // (self.schedule.chunks * self.schedule.microbatches)

    def levels(self, rank: int) -> Floats:
        """Bytes held at most while each action of a rank runs: a forward's are taken at its start, freed ones at the
        end; those of offloads are gone from the first action that waited for that.
        """
        return place_bytes(self.schedule, rank, self.costs) + self._static(rank)

    def memory(self, rank: int) -> tuple[Floats, Floats]:
        """The memory curve of a rank: times, and the bytes held from each on."""
        taken = action_bytes(self.schedule.codes[rank], self.schedule, self.costs)
        times = np.where(taken > 0, self.start[rank], self.end[rank])
        if self.host and len(self.host[rank]):
            moved = offload_bytes(self.schedule, rank, self.costs)
            times = np.concatenate((times, self.host[rank][:, 1], self.host[rank][:, 2]))
            taken = np.concatenate((taken, -moved, moved))
            order = np.lexsort((taken, times))  # what leaves at a time makes room for what comes then
            times, taken = times[order], taken[order]
        begin = np.array([self._static(rank)])
        return np.concatenate(([0.0], times)), np.concatenate((begin, begin + np.cumsum(taken)))

    def critical_path(self) -> tuple[TimedAction, ...]:
        """The chain of actions, each starting when the one before it lets it, that ends last."""
        from shardwise.pipeline.critical_path import critical_path

        return critical_path(self)

    def bubbles(self) -> dict[str, float]:
        """The synchronous bubble by cause, as shares of ranks x makespan; they sum to `bubble`."""
        from shardwise.pipeline.bubbles import bubble_parts

        return bubble_parts(self)

    def period_bubbles(self) -> dict[str, float]:
        """The period bubble by cause, as shares of ranks x period; they sum to `period_bubble`."""
        from shardwise.pipeline.bubbles import period_parts

        return period_parts(self)

    def _static(self, rank: int) -> float:
        return self.costs.static[rank] if self.costs.static else 0.0

    def _reduced(self, rank: int) -> float:
        """When a rank has reduced the gradients of its chunks."""
        end = float(self.end[rank][-1])
        if not self.costs.reduce:
            return end
        chunk = self.schedule.codes[rank] // self.schedule.microbatches % self.schedule.chunks
        last = {int(c): float(t) for c, t in zip(chunk, self.end[rank], strict=True)}
        clock = 0.0
        for c, ready in sorted(last.items(), key=lambda item: (item[1], item[0])):
            clock = max(clock, ready) + self.costs.reduce[c]
        return max(end, clock)


def place_bytes(schedule: Schedule, rank: int, costs: Costs) -> Floats:
    """Bytes of activations that a rank holds at most while each action of its row runs, whatever the times are."""
    taken = action_bytes(schedule.codes[rank], schedule, costs)
    held = np.cumsum(taken) - np.minimum(taken, 0.0)
    if schedule.offloads and schedule.offloads[rank]:
        moved, places = offload_bytes(schedule, rank, costs), np.array(schedule.offloads[rank])
        change = np.zeros(len(taken) + 1)
        np.add.at(change, places[:, 1], -moved)
        np.add.at(change, places[:, 2], moved)
        held += np.cumsum(change)[:-1]
    return np.asarray(held)


def offload_bytes(schedule: Schedule, rank: int, costs: Costs) -> Floats:
    """Bytes of every offload of a rank."""
    places = [one.forward for one in schedule.offloads[rank]]
    chunks = schedule.codes[rank][places] // schedule.microbatches % schedule.chunks
    return np.array([costs.held(int(c)) for c in chunks])


def action_bytes(codes: npt.NDArray[np.int64], schedule: Schedule, costs: Costs) -> Floats:
    """Bytes that each action takes (positive) or gives back."""
    held = np.array(costs.activation) if costs.activation else np.ones(schedule.chunks)
    freed = held * np.asarray(costs.free_at_input_grad)
    table = np.empty((4, schedule.chunks))
    table[F], table[I], table[W], table[B] = held, -freed, -(held - freed), -held
    return np.asarray(table.ravel()[codes // schedule.microbatches])
