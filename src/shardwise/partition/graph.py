"""A problem made ready for many evaluations: the order as a graph, times and memory as linear functions of counts.

An *option* is a run with one of its choices; a partition is a matrix of counts, chunks x options. The time of an
action and the memory of a chunk are linear in it, a rank's peak is the largest of a few linear functions (one per
largest combination of micro batches in flight), and the simulated time is the longest path. So whatever moves layers
needs no simulator in its loop, and the tests hold both to the same numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from shardwise.kernels import library
from shardwise.partition.margin import margins
from shardwise.partition.orders import order_of
from shardwise.partition.problem import Evaluation, Partition, Problem
from shardwise.partition.spread import PeakSpread, spread_of
from shardwise.pipeline.action import B, F, I, Schedule, W
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.timeline import action_bytes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
_ROOM = 1e-9
"""Share of a limit by which rounding may exceed it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Path:
    """A path through the actions: how often it runs each kind of each chunk, and its messages."""

    time: float
    times: Floats
    lag: float

    def under(self, durations: Floats) -> float:
        """Its length under other times: no partition with those times is faster."""
        return float((self.times * durations).sum()) + self.lag


class GraphView(ctypes.Structure):
    """`Graph` of evaluate.c."""

    _fields_ = (
        ("actions", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("before", "input", "stream", "hop")),
    )


class Ready:
    """A problem with its order, its options and its memory rows as arrays."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.schedule = problem, order_of(problem)
        self.chunks, self.rank_of = problem.chunks, np.array(problem.rank_of, dtype=np.int32)
        self.run_of = np.repeat(np.arange(len(problem.runs)), [len(r.kind.choices) for r in problem.runs])
        self.least = np.array(problem.least, dtype=np.int32)
        self.run_counts = np.array([run.count for run in problem.runs], dtype=np.int32)
        self._set_options()
        self._set_fixed()
        self.before, self.input, self.stream, self.hop = graph_of(self.schedule, problem.hop)
        self.hops = (problem.hop,) * (self.chunks - 1) if problem.hop else ()
        self.rows, self.row_rank = memory_rows(self.schedule, problem.free_at_input_grad)
        self.set_limits(np.array(problem.rank_limits) * (1 + _ROOM))

    def set_limits(self, limits: Floats) -> None:
        self.limits = limits

    def set_hops(self, hops: Sequence[float]) -> None:
        """Messages that take different times, from every chunk to the next."""
        self.hops = tuple(hops[: self.chunks - 1])
        crosses, (phase, chunk) = graph_of(self.schedule, 1.0)[3], np.divmod(self.stream, self.chunks)
        at = np.where(phase == F, chunk - 1, np.minimum(chunk, self.chunks - 2))
        self.hop = crosses * np.array([*self.hops, 0.0])[at]

    def _set_options(self) -> None:
        choices = [choice for run in self.problem.runs for choice in run.kind.choices]
        pieces = self.problem.splits
        self.option_time = np.array([[c.f, c.i, c.w, c.i + c.w] for c in choices]).T / pieces
        self.option_held = np.array([c.activation for c in choices]) / pieces
        static = [run.kind.static for run in self.problem.runs for _ in run.kind.choices]
        self.option_static = np.array(static, dtype=float)  # C reads it, and whole numbers may be ints

    def _set_fixed(self) -> None:
        """Times (by kind and chunk), activations (by chunk) and memory (by rank) that do not move."""
        self.fixed_time, self.fixed_held = np.zeros((4, self.chunks)), np.zeros(self.chunks)
        self.fixed_static = np.array(self.problem.rank_static, dtype=float)
        for chunk, end in ((0, self.problem.head), (self.chunks - 1, self.problem.tail)):
            self.fixed_time[:, chunk] += np.array([end.f, end.i, end.w, end.i + end.w]) / self.problem.splits
            self.fixed_held[chunk] += end.activation / self.problem.splits
            self.fixed_static[self.rank_of[chunk]] += end.static

    @property
    def options(self) -> int:
        return len(self.run_of)

    @cached_property
    def on_rank(self) -> Floats:
        """Ranks x chunks: 1 where the rank holds the chunk."""
        table = np.zeros((self.problem.pp, self.chunks))
        table[self.rank_of, np.arange(self.chunks)] = 1.0
        return table

    @cached_property
    def smallest(self) -> list[int]:
        """The option of every run that holds least, the fastest of those."""
        order = np.lexsort((self.option_time[3], self.option_held))
        return [int(order[self.run_of[order] == run][0]) for run in range(len(self.run_counts))]

    @cached_property
    def leanest(self) -> Ints:
        """The smallest option of every layer, in model order."""
        return np.repeat(self.smallest, self.run_counts)

    @cached_property
    def view(self) -> GraphView:
        arrays = (self.before, self.input, self.stream, self.hop)
        return GraphView(len(self.before) - 1, *(array.ctypes.data for array in arrays))

    @cached_property
    def steps(self) -> list[tuple[int, int, int, float]]:
        """The graph for Python, without the nothing at its head: per action before, input, stream and hop."""
        lists = (array[1:].tolist() for array in (self.before, self.input, self.stream, self.hop))
        return list(zip(*lists, strict=True))

    def durations(self, counts: Ints | Floats) -> Floats:
        """Times by kind and chunk of one matrix of counts, or of many."""
        times = np.einsum("...co,ko->...kc", counts.astype(float), self.option_time)
        return np.ascontiguousarray(times + self.fixed_time)

    def times(self, counts: Ints) -> Floats:
        """The simulated time of many matrices of counts."""
        return self.longest(self.durations(counts).reshape(len(counts), -1))

    def longest(self, durations: Floats) -> Floats:
        kernel = library()
        if kernel is None:
            return longest_slowly(self, durations)
        out, end = np.empty(len(durations)), np.empty(len(self.before))
        durations = np.ascontiguousarray(durations)
        run = kernel.longest_many
        run.restype, run.argtypes = None, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, *[ctypes.c_void_p] * 3]
        pointers = (durations.ctypes.data, end.ctypes.data, out.ctypes.data)
        run(ctypes.addressof(self.view), len(durations), durations.shape[1], *pointers)
        return out

    def critical(self, durations: Floats) -> Path:
        """The longest path under some times, as a linear function of times: valid for every other partition too."""
        kernel = library()
        if kernel is None:
            return critical_slowly(self, durations)
        flat, on_path = np.ascontiguousarray(durations, dtype=float).ravel(), np.zeros(4 * self.chunks)
        end, lag = np.empty(len(self.before)), ctypes.c_double(0.0)
        run = kernel.critical
        run.restype, run.argtypes = ctypes.c_double, [ctypes.c_void_p] * 5
        pointers = (flat.ctypes.data, end.ctypes.data, on_path.ctypes.data, ctypes.addressof(lag))
        time = run(ctypes.addressof(self.view), *pointers)
        return Path(time=float(time), times=on_path.reshape(4, -1), lag=float(lag.value))

    def peaks(self, counts: Ints) -> Floats:
        """Most memory of every rank, for one matrix of counts or many."""
        return self.highest(counts @ self.option_held + self.fixed_held, counts @ self.option_static)

    def highest(self, held: Floats, static: Floats) -> Floats:
        """Most memory of every rank, of what every chunk holds for a micro batch and all the time."""
        static = static @ self.on_rank.T + self.fixed_static
        levels = held @ self.rows.T
        most = np.maximum.reduceat(levels, np.searchsorted(self.row_rank, np.arange(self.problem.pp)), axis=-1)
        return np.asarray(static + most)

    def fits(self, counts: Ints) -> Bools:
        return np.asarray((self.peaks(counts) <= self.limits).all(axis=-1))

    def in_order(self, counts: Ints) -> Bools:
        """Of many matrices of counts, where no layer comes before one of an earlier run."""
        runs = np.stack([counts[:, :, self.run_of == run].any(axis=2) for run in range(len(self.run_counts))])
        first, last = runs.argmax(axis=2), self.chunks - 1 - runs[:, :, ::-1].argmax(axis=2)
        return np.asarray((last[:-1] <= first[1:]).all(axis=0))

    def costs(self, counts: Ints) -> Costs:
        """What the simulator reads."""
        time = self.durations(counts)
        static = (counts @ self.option_static) @ self.on_rank.T + self.fixed_static
        limits = self.problem.rank_limits
        return Costs(
            f=tuple(time[F].tolist()), i=tuple(time[I].tolist()), w=tuple(time[W].tolist()), hop=self.hops,
            activation=tuple((counts @ self.option_held + self.fixed_held).tolist()), static=tuple(static.tolist()),
            free_at_input_grad=self.problem.free_at_input_grad,
            memory_limit=limits if all(np.isfinite(limits)) else (),
        )  # fmt: skip

    def evaluate(self, counts: Ints) -> Evaluation:
        """The simulator's word on one matrix of counts."""
        timeline = simulate(self.schedule, self.costs(counts))
        peak, margin, limits = timeline.peak, self.margins(counts), self.problem.rank_limits
        needed = map(sum, zip(peak, margin, strict=True))
        over = tuple(p - limit if p > limit * (1 + _ROOM) else 0.0 for p, limit in zip(needed, limits, strict=True))
        return Evaluation(
            partition=self.partition(counts), simulated=timeline.makespan, peak=peak, margin=margin, over=over,
            timeline=timeline,
        )  # fmt: skip

    def margins(self, counts: Ints) -> tuple[float, ...]:
        """What is kept free of every rank because its memory was measured, not known."""
        fit = self.problem.fit
        if fit is None:
            return (0.0,) * self.problem.pp
        return margins(self, counts, fit, self.spread, self.problem.confidence)

    @cached_property
    def spread(self) -> PeakSpread:
        """How sure the problem's fit is."""
        assert self.problem.fit is not None  # noqa: S101 - asked for where there is one
        return spread_of(self.problem.fit)

    def partition(self, counts: Ints) -> Partition:
        cuts = np.cumsum([len(run.kind.choices) for run in self.problem.runs])[:-1]
        return Partition(counts=tuple(tuple(tuple(map(int, part)) for part in np.split(row, cuts)) for row in counts))

    def matrix(self, partition: Partition) -> Ints:
        rows = [[count for run in chunk for count in run] for chunk in partition.counts]
        return np.array(rows, dtype=np.int32).reshape(self.chunks, self.options)


def graph_of(schedule: Schedule, hop: float) -> tuple[Ints, Ints, Ints, Floats]:
    """Per action, producers first: the one before it on its rank, its producer, its stream and the hop between."""
    before, needs, stream, crosses = _links(schedule)
    return before, needs, stream, np.where(crosses, hop, 0.0)


@lru_cache(maxsize=64)  # a search asks for many problems over one order
def _links(schedule: Schedule) -> tuple[Ints, Ints, Ints, Bools]:
    """The graph without times, and which messages cross ranks; read only.

    With equal times an action starts after what it needs has ended, so the order of starts is an order to work in.
    """
    ones = (1.0,) * schedule.chunks
    timeline = simulate(schedule, Costs(f=ones, i=ones, w=ones))
    codes, start = np.concatenate(schedule.codes), np.concatenate(timeline.start)
    order = np.argsort(start, kind="stable")
    place = np.empty(len(codes), dtype=np.int64)
    place[order] = np.arange(1, len(codes) + 1)
    first = np.concatenate(([0], np.cumsum([len(row) for row in schedule.codes])[:-1]))
    previous = np.concatenate(([0], place[:-1]))
    previous[first] = 0
    where = np.zeros(4 * schedule.chunks * schedule.microbatches, dtype=np.int64)
    where[codes] = place
    needs, crosses = _inputs(schedule, codes, where)
    head = np.zeros(1, dtype=np.int32)
    return (
        np.concatenate((head, previous[order])).astype(np.int32),
        np.concatenate((head, needs[order])).astype(np.int32),
        np.concatenate((head, (codes // schedule.microbatches)[order])).astype(np.int32),
        np.concatenate((head > 0, crosses[order])),
    )


def _inputs(schedule: Schedule, codes: np.ndarray, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per action: the place of its producer (0: none), and whether the message crosses ranks."""
    m, chunks, ranks = schedule.microbatches, schedule.chunks, np.array(schedule.rank_of)
    kind, chunk, batch = codes // (m * chunks), codes // m % chunks, codes % m
    ahead = np.minimum(chunk + 1, chunks - 1)
    gradient = np.maximum(where[(I * chunks + ahead) * m + batch], where[(B * chunks + ahead) * m + batch])
    back = np.where(chunk == chunks - 1, where[chunk * m + batch], gradient)
    forward = np.where(chunk > 0, where[np.maximum(chunk - 1, 0) * m + batch], 0)
    own = where[np.minimum(I * chunks + chunk, 4 * chunks - 1) * m + batch]
    needs = np.where(kind == F, forward, np.where(kind == W, own, back))
    source = np.where(kind == F, np.maximum(chunk - 1, 0), np.where(kind == W, chunk, ahead))
    return needs, ranks[source] != ranks[chunk]


def memory_rows(schedule: Schedule, share: float) -> tuple[Floats, Ints]:
    """Micro batches that each chunk holds at the moments when a rank may hold most, and the rank of each row."""
    return _moments(schedule, 0.0 if schedule.fused else share)


@lru_cache(maxsize=64)
def _moments(schedule: Schedule, share: float) -> tuple[Floats, Ints]:
    rows, ranks = list[Floats](), list[int]()
    m, chunks, rank_of = schedule.microbatches, schedule.chunks, np.array(schedule.rank_of)
    ones = (1.0,) * chunks
    costs = Costs(f=ones, i=ones, w=ones, free_at_input_grad=share)
    for rank, codes in enumerate(schedule.codes):
        taken, own = action_bytes(codes, schedule, costs), np.flatnonzero(rank_of == rank)
        levels = np.cumsum((codes[:, None] // m % chunks == own) * taken[:, None], axis=0)[taken > 0]
        kept = _largest(np.round(levels, 12))
        rows.append(np.zeros((len(kept), chunks)))
        rows[-1][:, own] = kept
        ranks += [rank] * len(kept)
    return np.ascontiguousarray(np.concatenate(rows)), np.array(ranks, dtype=np.int32)


def _largest(levels: Floats) -> Floats:
    """Rows that no other row covers in every chunk; those that hold most in all first."""
    left = levels[np.argsort(-levels.sum(axis=1), kind="stable")]
    kept = list[Floats]()
    while len(left):
        kept.append(left[0])
        left = left[(left > left[0]).any(axis=1)]
    return np.array(kept)


def longest_slowly(ready: Ready, durations: Floats) -> Floats:
    """The twin of evaluate.c, all partitions abreast: one numpy step an action."""
    end = np.zeros((len(ready.before), len(durations)))
    by_stream = np.ascontiguousarray(durations.T)
    for k, (before, source, stream, hop) in enumerate(ready.steps, start=1):
        np.maximum(end[before], end[source] + hop if hop else end[source], out=end[k])
        end[k] += by_stream[stream]
    return np.asarray(end.max(axis=0))


def critical_slowly(ready: Ready, durations: Floats) -> Path:
    """The twin of `critical` in evaluate.c."""
    flat, end = np.asarray(durations, dtype=float).ravel().tolist(), [0.0]
    for before, source, stream, hop in ready.steps:
        begin, arrival = end[before], end[source] + hop
        end.append((arrival if arrival > begin else begin) + flat[stream])  # noqa: FURB136 - max() takes twice as long
    last = max(end)
    k, times, lag = len(end) - 1 - end[::-1].index(last), np.zeros(len(flat)), 0.0
    while k > 0:
        before, source, stream, hop = ready.steps[k - 1]
        times[stream] += 1
        crosses = end[source] + hop > end[before]
        lag += hop if crosses else 0.0
        k = source if crosses else before
    return Path(time=last, times=times.reshape(4, -1), lag=lag)
