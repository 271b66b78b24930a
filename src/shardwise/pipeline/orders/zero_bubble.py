"""The zero-bubble schedules: ZB-H1, ZB-H2 (one chunk) and ZB-V (two chunks, v placement) by hand, ZB-1p and ZB-2p (one
chunk) by the automatic order of the paper under a memory limit.

Sources: Qi et al., "Zero Bubble Pipeline Parallelism" (2023), and "Pipeline Parallelism with Controllable Memory"
(2024), where our I is written B. ZB-V is the fixed pattern that PyTorch's ScheduleZBVZeroBubble runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from shardwise.errors import InputError
from shardwise.pipeline.action import Action, Schedule
from shardwise.pipeline.costs import ROUNDING, Costs

Row = list[Action]


def zb_h1(pp: int, microbatches: int) -> Schedule:
    """1F1B's warm-up and memory; rank r runs its weight gradients r micro batches late."""
    rows = [_one_chunk_row(rank, microbatches, pp - rank, rank) for rank in range(pp)]
    return Schedule.of(rows, name="zb-h1")


def zb_h2(pp: int, microbatches: int) -> Schedule:
    """Twice the warm-up, so that only the shape of a parallelogram is left; 2 pp - 1 micro batches of memory."""
    rows = [_one_chunk_row(rank, microbatches, 2 * (pp - rank) - 1, 2 * rank) for rank in range(pp)]
    return Schedule.of(rows, name="zb-h2")


def _one_chunk_row(rank: int, microbatches: int, warmup: int, delay: int) -> Row:
    """`warmup` forwards, then I, W of `delay` micro batches ago, F in turn; W fills the end."""
    row = [Action(rank, "F", m) for m in range(min(warmup, microbatches))]
    for m in range(microbatches):
        row.append(Action(rank, "I", m))
        if m >= delay:
            row.append(Action(rank, "W", m - delay))
        if m + warmup < microbatches:
            row.append(Action(rank, "F", m + warmup))
    row += [Action(rank, "W", m) for m in range(max(0, microbatches - delay), microbatches)]
    return row


class _Counter:
    """Appends the next micro batch of a kind of a chunk; beyond the last one nothing is appended."""

    def __init__(self, early: int, late: int, microbatches: int) -> None:
        self.row: Row = []
        self.count: dict[tuple[int, str], int] = {}
        self.chunks, self.microbatches = (early, late), microbatches

    def __call__(self, j: int, kinds: str) -> None:
        for kind in kinds:
            m = self.count.get((j, kind), 0)
            self.count[j, kind] = m + 1
            if m < self.microbatches:
                self.row.append(Action(self.chunks[j], kind, m))

    def behind(self, j: int, kind: str, other: tuple[int, str]) -> bool:
        return self.count.get((j, kind), 0) < self.count.get(other, 0)


def zb_v(pp: int, microbatches: int) -> Schedule:
    """The fixed pattern; with fewer than 2 pp - 1 micro batches it is that of 2 pp - 1 with the surplus left out."""
    planned = max(2 * pp - 1, microbatches)
    rows = [_zb_v_row(rank, pp, microbatches, planned) for rank in range(pp)]
    return Schedule.of(rows, name="zb-v")


def _zb_v_row(rank: int, pp: int, microbatches: int, planned: int) -> Row:
    add = _Counter(rank, 2 * pp - 1 - rank, microbatches)
    for _ in range(2 * (pp - rank) - 1):
        add(0, "F")
    for _ in range(rank):
        add(1, "F")
        add(0, "F")
    for _ in range(pp - rank):
        add(1, "FIW")
    while add.behind(1, "F", (0, "F")) or add.count[0, "F"] < planned:
        if add.count[0, "F"] < planned:
            add(0, "F")
        add(0, "IW")
        add(1, "FIW")
    for _ in range(rank):
        add(0, "I")
        add(1, "I")
    for _ in range(pp - rank):
        add(0, "IW")
    for j in (1, 0):
        while add.behind(j, "W", (j, "I")):
            add(j, "W")
    return add.row


@dataclass(frozen=True, slots=True, kw_only=True)
class _Switches:
    short_warmup: bool
    """Leave out the warm-up forward that would delay the first gradient."""
    gradient_first: bool
    """Skip a forward where the next rank's gradient would have to wait for it."""
    fill_short: bool
    """Place W even in a wait that this rank can afford."""


class _Planner:
    def __init__(self, costs: Costs, limits: tuple[float, ...], microbatches: int, switches: _Switches) -> None:
        pp = costs.chunks
        self.costs, self.microbatches, self.switches, self.pp = costs, microbatches, switches, pp
        self.limits = [limit * (1 + ROUNDING) for limit in limits]
        self.hop = [a + b for a, b in zip(costs.hop or [0.0] * pp, costs.transfer or [0.0] * pp, strict=False)]
        self.duration = {"F": costs.f, "I": costs.i, "W": costs.w}
        self.count = [dict.fromkeys("FIW", 0) for _ in range(pp)]
        self.clock, self.held, self.idle = [0.0] * pp, [0.0] * pp, [0.0] * pp
        self.end: dict[tuple[str, int, int], float] = {}
        self.rows: list[list[Action]] = [[] for _ in range(pp)]

    def bytes(self, rank: int, kind: str) -> float:
        held, freed = self.costs.held(rank), self.costs.freed(rank)
        return {"F": held, "I": -freed, "W": -(held - freed)}[kind]

    def ready(self, rank: int, kind: str, m: int) -> float:
        """When the input of an action is there."""
        if kind == "F" and rank > 0:
            return self.end["F", rank - 1, m] + self.hop[rank - 1]
        if kind == "I" and rank + 1 < self.pp:
            return self.end["I", rank + 1, m] + self.hop[rank]
        return 0.0

    def put(self, rank: int, kind: str) -> None:
        m = self.count[rank][kind]
        begin = max(self.clock[rank], self.ready(rank, kind, m))
        if self.count[rank]["F"]:
            self.idle[rank] += begin - self.clock[rank]
        self.clock[rank] = self.end[kind, rank, m] = begin + self.duration[kind][rank]
        self.held[rank] += self.bytes(rank, kind)
        self.count[rank][kind] += 1
        self.rows[rank].append(Action(rank, kind, m))

    def plan(self) -> float:
        """Fill the rows; the longest rank span."""
        self.warm_up()
        for m in range(1, self.microbatches):
            for rank in self.ranks_for_forward():
                self.make_room(rank, "F")
                self.put(rank, "F")
            for rank in reversed(range(self.pp)):
                self.make_room(rank, "I")
                if rank == 0 and self.count[0]["F"] == self.microbatches:
                    self.put_weights(0, m)
                self.put(rank, "I")
        for rank in range(self.pp):
            self.put_weights(rank, self.microbatches)
        first = [self.end["F", rank, 0] - self.costs.f[rank] for rank in range(self.pp)]
        return max(end - begin for begin, end in zip(first, self.clock, strict=True))

    def put_weights(self, rank: int, upto: int) -> None:
        while self.count[rank]["W"] < min(upto, self.count[rank]["I"]):
            self.put(rank, "W")

    def warm_up(self) -> None:
        for rank in range(self.pp):
            self.put(rank, "F")
        more = self.warm_up_forwards()
        for rank in range(self.pp):
            for _ in range(more[rank]):
                self.put(rank, "F")
        for rank in reversed(range(self.pp)):
            self.put(rank, "I")

    def warm_up_forwards(self) -> list[int]:
        """Forwards that fit before the first gradient is back, fewer on every next rank."""
        more, last = [0] * self.pp, self.pp - 1
        back = self.clock[last] + self.costs.i[last]
        for rank in reversed(range(last)):
            clock, held, arrives = self.clock[rank], self.held[rank], back + self.hop[rank]
            while 1 + more[rank] < self.microbatches and held + self.costs.held(rank) <= self.limits[rank]:
                late = clock + self.costs.f[rank] > arrives if self.switches.short_warmup else clock >= arrives
                if late:
                    break
                clock, held, more[rank] = clock + self.costs.f[rank], held + self.costs.held(rank), more[rank] + 1
            back = max(clock, arrives) + self.costs.i[rank]
        for rank in range(1, self.pp):
            more[rank] = min(more[rank], more[rank - 1])  # a forward comes from the rank before
            while 0 < more[rank] >= more[rank - 1] and 1 + more[rank] < self.microbatches:
                more[rank] -= 1
        return more

    def ranks_for_forward(self) -> list[int]:
        """Ranks that run a forward this round; a rank runs one only if all after it do."""
        chosen, going = list[int](), True
        wants = [self.wants_forward(rank) for rank in range(self.pp)]
        for rank in reversed(range(self.pp)):
            going = going and wants[rank]
            if going:
                chosen.append(rank)
        return chosen[::-1]

    def wants_forward(self, rank: int) -> bool:
        done = self.count[rank]["F"]
        if done >= self.microbatches:
            return False
        ahead = rank + 1 < self.pp and done >= self.count[rank + 1]["F"] + 2
        if not (ahead and self.switches.gradient_first):
            return True
        after = rank + 1
        gradient = self.clock[after] + self.costs.f[after] + self.costs.i[after] + self.hop[rank]
        if self.clock[rank] >= gradient:
            return False
        if self.clock[rank] + self.costs.f[rank] + self.time_to_free(rank) <= gradient:
            return True
        return gradient - self.clock[rank] > max(self.idle) - self.idle[rank]

    def time_to_free(self, rank: int) -> float:
        """Time of the W that must run before a forward fits."""
        over = self.held[rank] + self.costs.held(rank) - self.limits[rank]
        time, pending = 0.0, self.count[rank]["I"] - self.count[rank]["W"]
        while over > 0 and pending:
            over, time, pending = over + self.bytes(rank, "W"), time + self.costs.w[rank], pending - 1
        return time

    def make_room(self, rank: int, kind: str) -> None:
        """W that memory needs before the next action, and W that fill the wait for its input."""
        pending = self.count[rank]
        while self.held[rank] + self.bytes(rank, kind) > self.limits[rank]:
            if pending["W"] >= pending["I"]:
                raise InputError(f"rank {rank} cannot make room for {kind}{pending[kind]}: the limit is too small")
            self.put(rank, "W")
        ready = self.ready(rank, kind, pending[kind])
        while pending["W"] < pending["I"] and self.clock[rank] + self.costs.w[rank] <= ready:
            self.put(rank, "W")
        if pending["W"] < pending["I"] and self.clock[rank] < ready:
            affordable = ready - self.clock[rank] <= max(self.idle) - self.idle[rank]
            if self.switches.fill_short or not affordable:
                self.put(rank, "W")


def zb_automatic(costs: Costs, microbatches: int, times: float) -> Schedule:
    """The best of the eight settings, with `times` x 1F1B's memory on every rank."""
    pp = costs.chunks
    limits = tuple(times * pp * costs.held(rank) for rank in range(pp))
    best, rows = float("inf"), list[list[Action]]()
    for switches in product((True, False), repeat=3):
        setting = _Switches(short_warmup=switches[0], gradient_first=switches[1], fill_short=switches[2])
        planner = _Planner(costs, limits, microbatches, setting)
        span = planner.plan()
        if span < best:
            best, rows = span, planner.rows
    return Schedule.of(rows, name=f"zb-{times:g}p")
