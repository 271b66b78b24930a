"""Solve a partition problem: something that fits, improvement on the simulated time, a bound, the proof where it ends.

One chunk a rank: the dynamic programme first, which mostly proves itself. Otherwise a portfolio (portfolio.py):
annealing on the simulated time from several starts, the linear programme with path cuts for the bound, annealing again
from roundings of its optimum; then, in turns, more annealing and the programme made whole step by step. What is proven
stops it, and else the time limit; with a given effort all work is counted in steps and nodes instead, and the same
problem gives the same answer on every machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np

from shardwise.errors import InputError
from shardwise.partition import dynamic
from shardwise.partition.bound import Bounder
from shardwise.partition.graph import Floats, Ints, Ready
from shardwise.partition.improve import improve, roundings, starts
from shardwise.partition.least_memory import refuse, tightest
from shardwise.partition.portfolio import Attempt, endless, guided, opening
from shardwise.partition.problem import CLOSE, BalanceAnswer, Evaluation, Partition, Problem, check_problem
from shardwise.partition.seams import SeamSearch

Report = Callable[[float, float, int], None]
"""Called with the best time, the bound and the number of evaluations."""
_COLD = 3e-5
"""Last temperature, as a share of the time."""
_GUIDED = 4
"""Roundings of the relaxed optimum that are annealed."""
_UNTIL = (0.1, 0.2, 0.3, 0.7)
"""Shares of the time limit at which the first look, the relaxation, the search before the proof and the proof end at
the latest; the search goes on to the end. What overruns takes from it, so that the limit itself holds."""
_RUNS = 60
"""Shortest runs that go into the time limit at least."""
_COUNTED = 10
"""Runs from the relaxation to the proof; where an effort is given also after it."""
_FAR = 4e9
"""Actions that one run looks at at most: Ctrl-C waits for its end."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Search:
    """State of one solve: the best so far and what is proven."""

    ready: Ready
    seed: int
    began: float
    seconds: float
    effort: float | None
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
    pace: float = 0.0
    """CPU seconds of a step of annealing, of the slowest run so far."""

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

    def run(self, attempts: Iterable[Attempt], share: float) -> None:
        """Anneal until something is proven, or until a share of the time limit is over."""
        for attempt in attempts:
            if self.proven or self.late(share):
                return
            self._anneal(attempt, share)

    def _anneal(self, attempt: Attempt, share: float) -> None:
        """One run; its best joins the pool."""
        start, number, began = attempt.start, len(self.pool), time.process_time()
        value, steps = float(self.ready.times(start[None])[0]), self._steps(attempt.length, share)
        run = improve(
            self.ready, start, steps=steps, hot=attempt.heat * value, cold=_COLD * value, seed=self.seed + number,
            goal=self.bound * (1 + CLOSE / 2), fine=attempt.fine, until=self.at(share),
        )  # fmt: skip
        self.pace = max(self.pace, (time.process_time() - began) / steps)
        self.evaluations += run.evaluations - 1
        self.pool.append((run.time, number, run.counts))
        self.offer(run.counts)

    def _steps(self, length: int, share: float) -> int:
        """Of a run: what a problem of this size repays; no more than there is time for, where time decides."""
        steps, far = length * _shortest(self.ready), int(_FAR / len(self.ready.before)) + 100
        if self.effort is not None:
            return max(int(self.effort * min(steps, far)), 100)
        if not self.pace:
            return min(steps, far) // _RUNS + 100  # how long a step takes is not known yet
        left = self.at(share) - time.process_time()
        fair = length * self.seconds / _RUNS
        return max(int(min(steps, far, fair / self.pace, left / self.pace)), 100)

    def best(self, count: int) -> list[Ints]:
        """The fastest partitions of the pool, no two with the same layers."""
        found: dict[bytes, Ints] = {}
        for _, _, counts in sorted(self.pool, key=lambda one: one[:2]):
            found.setdefault(counts.sum(axis=1).tobytes(), counts)
        return list(found.values())[:count]

    @property
    def deadline(self) -> float:
        return self.began + self.seconds

    def at(self, share: float) -> float:
        """When a share of the time limit is over; where work is counted, the limit is but a backstop."""
        return self.deadline if self.effort is not None else self.began + share * self.seconds

    def late(self, share: float = 1.0) -> bool:
        now = time.process_time()
        self.out_of_time = self.out_of_time or now > self.deadline
        return now > self.at(share)


def solve(
    problem: Problem,
    *,
    seconds: float = 60.0,
    effort: float | None = None,
    seed: int = 1,
    prove: bool = True,
    report: Report = lambda *_: None,
) -> BalanceAnswer:
    """The best partition found, its bound and gap. Raises InfeasibleError where nothing fits.

    `seconds` is CPU time, which is used up where nothing is proven; `effort` stops after so many steps instead (0.1: a
    glance); `prove` False leaves the programme out where the dynamic one does not apply, and gives the relaxation's
    bound only.
    """
    check_problem(problem)
    if not (seconds > 0 and 0 < (1.0 if effort is None else effort) < float("inf")):
        raise InputError(f"seconds {seconds:g} and effort {effort} must be above 0, effort finite")
    began = time.process_time()
    search = _Search(
        ready=Ready(problem), seed=seed, began=began, seconds=seconds, effort=effort, report=report
    )  # fmt: skip
    search.bound = _least_work(search.ready)
    try:
        _start(search)
        _search(search, prove=prove)
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


def _search(search: _Search, *, prove: bool) -> None:
    """Annealing and bounds in turns; annealing has the first word and the last."""
    if search.proven:
        return
    first, relaxed, searched, _ = _UNTIL
    fresh = [search.counts.copy(), *starts(search.ready)]
    search.run(opening(fresh), first)
    if search.proven or search.late():
        return
    bounder = Bounder(
        ready=search.ready, incumbent=search.counts, deadline=search.at(relaxed), found=search.told, rank_cuts=True
    )  # fmt: skip
    seams = SeamSearch(ready=search.ready, found=search.told) if len(search.ready.run_counts) > 1 else None
    fractions = _relax(search, bounder, seams)
    near = [] if fractions is None else list(roundings(search.ready, fractions, _GUIDED))
    attempts = endless([*fresh, *near], search.best)
    search.run(chain(guided(near), islice(attempts, _COUNTED)), searched)
    if prove:
        _prove(search, bounder, seams)
    search.run(attempts if search.effort is None else islice(attempts, _COUNTED), 1.0)


def _relax(search: _Search, bounder: Bounder, seams: SeamSearch | None) -> Floats | None:
    """The first bound, and the relaxed optimum."""
    if seams is None:
        _bounded(search, bounder.relax)
        return bounder.fractions
    _bounded(search, lambda: seams.run(search.counts, search.time, bounder.deadline, whole=False))
    return seams.fractions


def _prove(search: _Search, bounder: Bounder, seams: SeamSearch | None) -> None:
    """Better bounds, until nothing is left to prove."""
    bounder.deadline = search.at(_UNTIL[3])
    if seams is not None and not search.proven:
        _bounded(search, lambda: seams.run(search.counts, search.time, bounder.deadline, whole=True))
    if search.proven or search.late():
        return
    bounder.incumbent = search.counts
    if seams is not None:
        _bounded(search, bounder.relax)
    _bounded(search, bounder.tighten)
    search.out_of_time = search.out_of_time or bounder.out_of_time


def _bounded(search: _Search, work: Callable[[], None]) -> None:
    before = search.bound
    work()
    if search.bound > before:
        search.method = "linear programme with path cuts"


def _shortest(ready: Ready) -> int:
    """Steps of the shortest run: as many as a problem of this size repays, within about a CPU second."""
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
