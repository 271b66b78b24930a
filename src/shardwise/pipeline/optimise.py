"""`schedule auto`: the best order of work for given costs, placement and memory limit, with a proven gap."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from shardwise.errors import Fault, InputError
from shardwise.pipeline.action import Schedule, placed
from shardwise.pipeline.arrays import Objective, OrderArrays, make_problem
from shardwise.pipeline.bounds import Bound, lower_bound
from shardwise.pipeline.build import Built
from shardwise.pipeline.contention import contends
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.order_search import OrderSearch, Report
from shardwise.pipeline.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderAnswer:
    """A schedule, what it reaches, and how far from the bound that is at most."""

    timeline: Timeline
    objective: Objective
    value: float
    bound: Bound
    evaluated: int
    """Schedules looked at; an annealing run counts as one."""
    seconds: float
    """CPU time taken; not part of what is the same from run to run."""
    interrupted: bool = False
    """Ctrl-C: the best so far."""
    out_of_time: bool = False
    """A time limit cut in, so another run may give another schedule."""
    choice: tuple[int, ...] = ()
    """Alternative taken for each chunk, where there were any."""
    cases: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """With alternatives: the cases that prove the bound, by chunk what may be taken; they hold every choice once."""

    @property
    def schedule(self) -> Schedule:
        return self.timeline.schedule

    @property
    def gap(self) -> float:
        """Value over bound, less 1: under the cost model in use the optimum is no further away."""
        return max(0.0, self.value / self.bound.value - 1.0)

    @property
    def proven(self) -> bool:
        """The value equals the bound: optimal under the cost model in use."""
        return self.value <= self.bound.value * (1 + 1e-9)


def optimise(
    costs: Costs,
    *,
    pp: int,
    vpp: int,
    microbatches: int,
    placement: str = "v",
    objective: Objective = "makespan",
    effort: float = 1.0,
    time_limit: float | None = None,
    report: Report | None = None,
    known: Sequence[Schedule] = (),
) -> OrderAnswer:
    """The best schedule found. `costs.memory_limit` is never exceeded; InfeasibleError names the smallest that is.

    `effort` scales the number of tries, `time_limit` is in CPU seconds; `known` are schedules to start from.
    """
    if objective not in {"makespan", "period"}:
        raise InputError(f"objective {objective!r} is unknown; use makespan or period")
    if costs.offloads or costs.pairs or contends(costs):
        return _beyond(costs)(
            costs, pp=pp, vpp=vpp, microbatches=microbatches, placement=placement, objective=objective, effort=effort,
            time_limit=time_limit, report=report, known=known,
        )  # fmt: skip
    began = time.process_time()
    problem = make_problem(costs, placed(pp, vpp, placement), microbatches)
    bound = lower_bound(problem, objective)
    search = OrderSearch(problem=problem, objective=objective, bound=bound.value, effort=effort)
    search.report = report or search.report
    search.deadline = began + time_limit if time_limit else float("inf")
    for schedule in known:
        _offer(search, schedule, costs)
    _solve(search, costs, placement)
    return _answer(search, bound, costs, began)


def _beyond(costs: Costs) -> Callable[..., OrderAnswer]:
    """Who searches what this search knows nothing of: host memory, messages that wait, passes that run together."""
    if costs.offloads and costs.pairs:
        told = "and which of both pays is not searched; leave one of them out"
        raise InputError(
            Fault("offload", f"stands beside what passes take together (traffic_f, traffic_b, together), {told}")
        )
    if costs.offloads:
        from shardwise.pipeline.offload_search import optimise_offloaded

        return optimise_offloaded
    from shardwise.pipeline.retimed import optimise_retimed

    return optimise_retimed


def _solve(search: OrderSearch, costs: Costs, placement: str) -> None:
    """Rules first; where they leave a gap, the published schedules of the same placement are offered as starts.

    So the answer is never slower than they are, and annealing may begin from the patterns for little memory.
    """
    try:
        search.first()
        shape = {"pp": search.problem.pp, "vpp": search.problem.vpp, "microbatches": search.problem.microbatches}
        for schedule in () if search.finished else published(costs, **shape, placement=placement):
            _offer(search, schedule, costs)
        search.refine()
    except KeyboardInterrupt:  # the best so far is an answer; without one there is none to give
        if search.best.value == float("inf"):
            raise
        search.interrupted = True


def published(costs: Costs, *, pp: int, vpp: int, microbatches: int, placement: str) -> Iterator[Schedule]:
    """Every named order of the same chunks on the same ranks, pieces of sequences left out."""
    from shardwise.pipeline.generate import SHAPES, generate

    for name, shape in SHAPES.items():
        if (shape.vpp or max(2, vpp)) != vpp or (vpp > 1 and shape.placement != placement) or name == "seq-1f1b":
            continue
        with suppress(InputError):  # not for this number of micro batches
            yield generate(name, pp=pp, vpp=vpp, microbatches=microbatches, costs=costs)


def _answer(search: OrderSearch, bound: Bound, costs: Costs, began: float) -> OrderAnswer:
    if search.best.value == float("inf"):
        raise InputError("no schedule was found in the time given; allow more")
    timeline = simulate(search.problem.schedule(search.best.rows, "auto"), costs)
    return OrderAnswer(
        timeline=timeline,
        objective=search.objective,
        value=value_of(timeline, search.objective),
        bound=bound,
        evaluated=search.looked,
        seconds=time.process_time() - began,
        interrupted=search.interrupted,
        out_of_time=search.out_of_time,
    )


def value_of(timeline: Timeline, objective: Objective) -> float:
    return timeline.makespan if objective == "makespan" else timeline.period


def bound_of(costs: Costs, *, schedule: Schedule, objective: Objective = "makespan") -> Bound:
    """The lower bound for any order of a schedule's chunks on its ranks, whatever its own order is."""
    return lower_bound(_split_problem(costs, schedule), objective)


def _split_problem(costs: Costs, schedule: Schedule) -> OrderArrays:
    return make_problem(costs, schedule.rank_of, schedule.microbatches)


def _offer(search: OrderSearch, schedule: Schedule, costs: Costs) -> None:
    """Take a known schedule as a start if it has the same ranks and fits; I, then W end no later than both in one."""
    from shardwise.pipeline.faults import find_fault

    problem, schedule = search.problem, schedule.split()
    same = schedule.rank_of == tuple(problem.rank_of) and schedule.microbatches == problem.microbatches
    if not same or schedule.actions != problem.actions or find_fault(schedule, costs) is not None:
        return
    value = value_of(simulate(schedule, costs), search.objective)
    search.offer(Built(value=value, rows=problem.rows(schedule)))
