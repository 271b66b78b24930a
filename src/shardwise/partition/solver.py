"""Solve a partition problem: something that fits, improvement on the simulated time, a bound, the proof where it ends.

One chunk a rank: the dynamic programme first, which mostly proves itself. Otherwise: annealing on the simulated time
from several starts, the linear programme with path cuts for the bound, annealing again from roundings of its optimum,
which lie where annealing alone seldom gets to, and from the best so far; then the programme made whole step by step
while time lasts.
All work is counted in steps and nodes, so the same problem gives the same answer; a time limit that binds is said.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shardwise.errors import InputError
from shardwise.partition import dynamic
from shardwise.partition.bound import Bounder
from shardwise.partition.graph import Ints, Ready
from shardwise.partition.improve import improve, roundings, starts
from shardwise.partition.least_memory import refuse, tightest
from shardwise.partition.problem import CLOSE, BalanceAnswer, Evaluation, Partition, Problem, check_problem

Report = Callable[[float, float, int], None]
"""Called with the best time, the bound and the number of evaluations."""
_LENIENT, _STRICT = 0.3, 10.0
"""What memory over a limit costs at first (see improve): neither is better everywhere."""
_WARM = 1.5e-3
"""Start temperature, as a share of the time: many short runs beat few long ones (measured)."""
_COLD = 3e-5
_FRESH = ((3e-3, _STRICT), (_WARM, _STRICT))
_AGAIN = ((3e-3, _STRICT), (5e-4, _STRICT))
"""Temperature and fine of runs from the first partition, before and after the relaxation."""
_FURTHER = ((3e-3, _LENIENT), (_WARM, _STRICT), (3e-3, _STRICT), (_WARM, _LENIENT), (3e-4, _STRICT))
"""The same of runs from the best so far."""
_KEPT = 2
"""Partitions that are worked on further."""
_GUIDED = 4
"""Roundings of the relaxed optimum that are annealed."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Search:
    """State of one solve: the best so far and what is proven."""

    ready: Ready
    seed: int
    deadline: float
    report: Report
    counts: Ints = field(init=False)
    time: float = float("inf")
    bound: float = 0.0
    evaluations: int = 0
    method: str = ""
    interrupted: bool = False
    out_of_time: bool = False
    pool: list[tuple[float, int, Ints]] = field(default_factory=list)
    """Where annealing ended: time, number and counts."""

    @property
    def proven(self) -> bool:
        return self.time <= self.bound * (1 + CLOSE)

    def offer(self, counts: Ints) -> None:
        """Take over counts that fit and are faster."""
        if not self.sound(counts) or not bool(self.ready.fits(counts)):
            return
        self.evaluations += 1
        value = float(self.ready.times(counts[None])[0])
        if value < self.time:
            self.counts, self.time = counts, value
        self.report(self.time, self.bound, self.evaluations)

    def sound(self, counts: Ints) -> bool:
        """A solver's word is not taken for it: totals, signs, least layers."""
        totals = np.bincount(self.ready.run_of, weights=counts.sum(axis=0), minlength=len(self.ready.run_counts))
        return bool(
            (counts >= 0).all()
            and (totals == self.ready.run_counts).all()
            and (counts.sum(axis=1) >= self.ready.least).all()
            and self.ready.in_order(counts[None]).all()
        )

    def told(self, bound: float, counts: Ints | None) -> bool:
        """A bound from the programme, and perhaps a partition; true: nothing is left to prove."""
        # What is slower than the best known may have been cut off, so the bound never goes beyond it.
        self.bound = max(self.bound, min(bound, self.time))
        if counts is not None:
            self.offer(counts)
        self.report(self.time, self.bound, self.evaluations)
        return self.proven

    def anneal(self, start: Ints, steps: int, heat: float, salt: int, fine: float = _LENIENT) -> None:
        """One run; its best joins the pool."""
        if self.proven or self.late():
            return
        value = float(self.ready.times(start[None])[0])
        run = improve(
            self.ready, start, steps=steps, hot=heat * value, cold=_COLD * value, seed=self.seed + salt,
            goal=self.bound * (1 + CLOSE / 2), fine=fine,
        )  # fmt: skip
        self.evaluations += run.evaluations - 1
        self.pool.append((run.time, len(self.pool), run.counts))
        self.offer(run.counts)

    def best(self, count: int) -> list[Ints]:
        """The fastest partitions of the pool, no two with the same layers."""
        found: dict[bytes, Ints] = {}
        for _, _, counts in sorted(self.pool, key=lambda one: one[:2]):
            found.setdefault(counts.sum(axis=1).tobytes(), counts)
        return list(found.values())[:count]

    def late(self) -> bool:
        if time.process_time() > self.deadline:
            self.out_of_time = True
        return self.out_of_time


def solve(
    problem: Problem,
    *,
    seconds: float = 60.0,
    effort: float = 1.0,
    seed: int = 1,
    prove: bool = True,
    report: Report = lambda *_: None,
) -> BalanceAnswer:
    """The best partition found, its bound and gap. Raises InfeasibleError where nothing fits.

    `seconds` is CPU time; `effort` scales the steps of the search (0.1: a glance, for many candidates); `prove` False
    leaves the programme out where the dynamic one does not apply, and gives the relaxation's bound only.
    """
    check_problem(problem)
    if not (seconds > 0 and 0 < effort < float("inf")):
        raise InputError(f"seconds {seconds:g} and effort {effort:g} must be above 0, effort finite")
    began = time.process_time()
    search = _Search(ready=Ready(problem), seed=seed, deadline=began + seconds, report=report)
    search.bound = _least_work(search.ready)
    try:
        _start(search)
        _search(search, effort, prove=prove)
    except KeyboardInterrupt:
        if search.time == float("inf"):
            raise
        search.interrupted = True
    return _answer(search, time.process_time() - began)


def _least_work(ready: Ready) -> float:
    """A bound that needs no search: the work of all ranks without recomputing, spread evenly."""
    layer = ready.option_time[0] + ready.option_time[3]
    fastest = [float(layer[ready.run_of == run].min()) for run in range(len(ready.run_counts))]
    work = float(ready.run_counts @ np.array(fastest)) + float(ready.fixed_time[0].sum() + ready.fixed_time[3].sum())
    return ready.schedule.microbatches * work / ready.problem.pp


def _start(search: _Search) -> None:
    """Something that fits; the dynamic programme's answer where it applies."""
    ready = search.ready
    if dynamic.applies(ready):
        cut = dynamic.best_cut(ready)
        if cut is not None:
            search.bound, search.method = max(search.bound, cut.bound), "dynamic programme over cuts"
            search.offer(cut.counts)
    if search.time == float("inf"):
        found = tightest(ready, seconds=max(search.deadline - time.process_time(), 0.1))
        if not bool(ready.fits(found.counts)):
            raise refuse(ready, found)
        search.offer(found.counts)


def _search(search: _Search, effort: float, *, prove: bool) -> None:
    """Annealing from many starts, then from where that led best; then the proof."""
    if search.proven:
        return
    start, steps = search.counts.copy(), int(effort * _steps(search.ready))
    for salt, other in enumerate((start, *starts(search.ready))):
        search.anneal(other, steps, _WARM, salt)
    for salt, (heat, fine) in enumerate(_FRESH, start=100):
        search.anneal(start, steps, heat, salt, fine)
    if search.proven or search.late():
        return
    bounder = Bounder(ready=search.ready, incumbent=search.counts, deadline=search.deadline, found=search.told)
    _bounded(search, bounder.relax)
    guided = [] if bounder.fractions is None else list(roundings(search.ready, bounder.fractions, _GUIDED))
    for salt, near in enumerate((*guided, *guided[:2]), start=200):
        search.anneal(near, steps, _WARM, salt, _STRICT if salt < 200 + len(guided) else _LENIENT)
    for salt, (heat, fine) in enumerate(_AGAIN, start=300):
        search.anneal(start, steps, heat, salt, fine)
    for salt, (heat, fine) in enumerate(_FURTHER, start=400):
        for rank, counts in enumerate(search.best(_KEPT)):
            search.anneal(counts, steps, heat, salt + 10 * rank, fine)
    if prove and not search.proven and not search.late():
        bounder.incumbent = search.counts
        _bounded(search, bounder.tighten)
        search.out_of_time = search.out_of_time or bounder.out_of_time


def _bounded(search: _Search, work: Callable[[], None]) -> None:
    before = search.bound
    work()
    if search.bound > before:
        search.method = "linear programme with path cuts"


def _steps(ready: Ready) -> int:
    """Steps of one annealing run: as many as a problem of this size repays, within about a CPU second."""
    cells = ready.chunks * ready.options
    return int(min(150_000 + 1000 * cells, 1e9 / len(ready.before)) + 100)


def _answer(search: _Search, seconds: float) -> BalanceAnswer:
    """The simulator has the last word on time and memory."""
    best = search.ready.evaluate(search.counts)
    bound = min(search.bound, best.simulated)
    return BalanceAnswer(
        problem=search.ready.problem, best=best, bound=bound, seconds=seconds, evaluations=search.evaluations,
        method=search.method or "the work spread evenly", interrupted=search.interrupted,
        out_of_time=search.out_of_time,
    )  # fmt: skip


def evaluate(problem: Problem, partition: Partition) -> Evaluation:
    """What the simulator says of a given partition."""
    check_problem(problem)
    ready = Ready(problem)
    return ready.evaluate(ready.matrix(partition))
