"""What is wrong with a schedule: the first fault, and the grid around it with the place marked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.errors import InputError
from shardwise.pipeline.action import B, F, I, Schedule, W
from shardwise.pipeline.costs import ROUNDING, Costs
from shardwise.pipeline.engine import Prepared, replay
from shardwise.pipeline.timeline import place_bytes

_WINDOW = 6
"""Actions shown on either side of a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFault:
    """One fault; `rank` and `index` say where the row goes wrong, index -1: the whole row."""

    kind: str
    """missing, duplicate, wrong-rank, order, deadlock or limit."""
    message: str
    rank: int = 0
    index: int = -1

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class ScheduleError(InputError):
    """A schedule is not sound; the grid in the message marks the place."""

    def __init__(self, fault: ScheduleFault, schedule: Schedule) -> None:
        super().__init__(f"{fault}\n{show_grid(schedule, fault)}")
        self.fault = fault


def validate(schedule: Schedule, costs: Costs | None = None, rank_of: tuple[int, ...] | None = None) -> None:
    """Raise ScheduleError with the first fault. With costs the memory limit is checked, with ranks the placement."""
    fault = find_fault(schedule, costs, rank_of)
    if fault is not None:
        raise ScheduleError(fault, schedule)


def find_fault(
    schedule: Schedule, costs: Costs | None = None, rank_of: tuple[int, ...] | None = None
) -> ScheduleFault | None:
    """The first fault, or None."""
    fault = _duplicate(schedule) or _wrong_rank(schedule, rank_of) or _missing(schedule)
    fault = fault or _order(schedule) or _deadlock(schedule)
    return _limit(schedule, costs) if fault is None and costs is not None else fault


def _places(schedule: Schedule, code: int) -> list[tuple[int, int]]:
    return [(rank, int(k)) for rank, row in enumerate(schedule.codes) for k in np.flatnonzero(row == code)]


def _duplicate(schedule: Schedule) -> ScheduleFault | None:
    codes = np.concatenate(schedule.codes)
    values, counts = np.unique(codes, return_counts=True)
    if (counts == 1).all():
        return _fused_twice(schedule, values)
    code = int(values[counts > 1][0])
    places = _places(schedule, code)
    ranks = " and ".join(f"rank {rank}" for rank, _ in places[:2])
    return ScheduleFault(
        kind="duplicate", rank=places[1][0], index=places[1][1],
        message=f"{schedule.decode(code)} runs {len(places)} times, on {ranks}; leave one",
    )  # fmt: skip


def _fused_twice(schedule: Schedule, values: np.ndarray) -> ScheduleFault | None:
    """A full backward beside an I or W of the same chunk and micro batch."""
    cells = schedule.chunks * schedule.microbatches
    fused = values[values >= B * cells] - B * cells
    for kind in (I, W):
        both = np.intersect1d(fused, values[(values >= kind * cells) & (values < (kind + 1) * cells)] - kind * cells)
        if len(both):
            code = int(both[0]) + kind * cells
            rank, index = _places(schedule, code)[0]
            full = schedule.decode(int(both[0]) + B * cells)
            return ScheduleFault(
                kind="duplicate", rank=rank, index=index,
                message=f"{schedule.decode(code)} and {full}: a full backward holds it already; leave one",
            )  # fmt: skip
    return None


def _wrong_rank(schedule: Schedule, rank_of: tuple[int, ...] | None) -> ScheduleFault | None:
    ranks = rank_of or schedule.rank_of
    for rank, row in enumerate(schedule.codes):
        home = np.array(ranks)[row // schedule.microbatches % schedule.chunks]
        wrong = np.flatnonzero(home != rank)
        if len(wrong):
            k = int(wrong[0])
            action = schedule.decode(int(row[k]))
            return ScheduleFault(
                kind="wrong-rank", rank=rank, index=k,
                message=f"{action} is on rank {rank}; chunk {action.chunk} belongs to rank {home[k]}",
            )  # fmt: skip
    return None


def _missing(schedule: Schedule) -> ScheduleFault | None:
    cells = schedule.chunks * schedule.microbatches
    there = np.zeros(4 * cells, dtype=bool)
    there[np.concatenate(schedule.codes)] = True
    fused = there[B * cells :]
    for kind in (F, I, W):
        have = there[kind * cells : (kind + 1) * cells] | (fused if kind != F else False)
        if not have.all():
            code = kind * cells + int(np.flatnonzero(~have)[0])
            action, ranks = schedule.decode(code), schedule.rank_of
            return ScheduleFault(
                kind="missing", rank=max(0, ranks[action.chunk]),
                message=f"{action} is in no row; add it to rank {ranks[action.chunk]}",
            )  # fmt: skip
    return None


def _order(schedule: Schedule) -> ScheduleFault | None:
    """On its own rank F comes before I or B, and I before W."""
    cells = schedule.chunks * schedule.microbatches
    at = np.full(4 * cells, -1)
    for row in schedule.codes:
        at[row] = np.arange(len(row))
    for before, after in ((F, I), (F, B), (I, W)):
        first, second = at[before * cells : (before + 1) * cells], at[after * cells : (after + 1) * cells]
        wrong = np.flatnonzero((second >= 0) & (first >= 0) & (second < first))
        if len(wrong):
            code = after * cells + int(wrong[0])
            rank, index = _places(schedule, code)[0]
            needed = schedule.decode(before * cells + int(wrong[0]))
            return ScheduleFault(
                kind="order", rank=rank, index=index,
                message=f"{schedule.decode(code)} comes before {needed} on rank {rank}; it needs its result",
            )  # fmt: skip
    return None


def _deadlock(schedule: Schedule) -> ScheduleFault | None:
    ones = (1.0,) * schedule.chunks
    data = Prepared(schedule, Costs(f=ones, i=ones, w=ones))
    if replay(data) == len(data.codes):
        return None
    stuck = [r for r in range(schedule.pp) if data.next[r] < data.offset[r + 1]]
    waits = ", ".join(f"rank {r} at {schedule.decode(int(data.codes[data.next[r]]))}" for r in stuck[:8])
    return ScheduleFault(
        kind="deadlock", rank=stuck[0], index=int(data.next[stuck[0]] - data.offset[stuck[0]]),
        message=f"{len(stuck)} ranks wait for each other ({waits}); an action comes before what it needs",
    )  # fmt: skip


def _limit(schedule: Schedule, costs: Costs) -> ScheduleFault | None:
    for rank, room in enumerate(costs.limits(schedule.pp)):
        held = place_bytes(schedule, rank, costs)
        over = np.flatnonzero(held > room * (1 + ROUNDING))
        if len(over):
            k = int(over[0])
            extra = costs.memory_limit[rank] - room
            return ScheduleFault(
                kind="limit", rank=rank, index=k,
                message=f"{schedule.decode(int(schedule.codes[rank][k]))} takes rank {rank} to "
                f"{costs.shown(held[k] + extra)} of {costs.shown(costs.memory_limit[rank])}",
            )  # fmt: skip
    return None


def show_grid(schedule: Schedule, fault: ScheduleFault) -> str:
    """The rows near the fault, with its place between > and <."""
    around = max(fault.index, 0)
    low, lines = max(0, around - _WINDOW), list[str]()
    for rank in range(max(0, fault.rank - 4), min(schedule.pp, fault.rank + 5)):
        row = schedule.codes[rank][low : around + _WINDOW + 1].tolist()
        cells = [str(schedule.decode(code)) for code in row]
        if rank == fault.rank and fault.index >= 0:
            cells[fault.index - low] = f">{cells[fault.index - low]}<"
        mark = "->" if rank == fault.rank else "  "
        lines.append(f"{mark} rank {rank:>3}: {'... ' if low else ''}" + " ".join(f"{cell:>6}" for cell in cells))
    return "\n".join(lines)
