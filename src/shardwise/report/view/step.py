"""One strategy at a glance, and one step in every direction: a few kB that the page draws while a hand turns a knob."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from shardwise.check.check import check
from shardwise.estimate.advice import advise
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.estimate.intervals import distance, likely
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.load import load_runtime
from shardwise.inputs.mixed import Mixed
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.serialise import Plain
from shardwise.inputs.strategy import Strategy
from shardwise.plan.plan import Plan
from shardwise.plan.predict import asked_limit
from shardwise.report.view.plan import numbers_of
from shardwise.report.view.stages import memory_parts
from shardwise.search.in_time import in_time, run_of
from shardwise.search.knobs import Knob, KnobChoice, knobs, said, turned
from shardwise.search.question import Answer
from shardwise.search.why import beside, why

TOKENS = 1e12
"""Of the whole run, where nobody says otherwise."""
_LOST = 3
"""Parts of the time that are named where a strategy loses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turning:
    """What stays while knobs are turned."""

    model: Model
    cluster: Cluster
    runtime: Runtime
    memory_limit: float | None = None
    """Bytes that a rank may need, if not all of its GPU's."""
    tokens: float = 0.0
    """Of the whole run; 0: days and money are not asked for."""
    price: float = 0.0
    """Of a GPU and hour."""
    days: float = 0.0
    """That the run should take at most; 0: not asked for."""


def step_view(at: Turning, strategy: Strategy, *, best: Strategy | None = None, ways: bool = False) -> Plain:
    """A strategy that may not be possible: then its faults, else its numbers; and its knobs either way.

    `best`: the best that is known, for what this one loses against it; `ways`: the changes that help most.
    """
    faults = [said(fault) for fault in check(at.model, at.cluster, strategy, at.runtime)]
    told: Plain = {"strategy": str(strategy), "cluster": at.cluster.name, "faults": faults}
    if not faults:
        told |= _told(at, _estimate(at, strategy), best, ways=ways)
    # of what cannot be run no step is refused: several may lead out
    turns = knobs(at.model, at.cluster, strategy, at.runtime, judged=not faults)
    return told | {"knobs": [_knob(knob) for knob in turns]}


def _told(at: Turning, found: Estimate, best: Strategy | None, *, ways: bool) -> Plain:
    """The numbers of a strategy."""
    told: Plain = {"numbers": numbers_of(found, at.memory_limit), "stages": _stages(found)}
    if at.tokens:
        run = run_of(found, at.tokens, at.price)
        told["budget"] = {"days": run.days, "gpu_hours": run.gpu_hours, "cost": run.cost}
    if best is not None and best != found.strategy and not check(at.model, at.cluster, best, at.runtime):
        told["beside"] = _lost(_estimate(at, best), found)
    if ways:
        told["ways"] = _ways(at, found)
    if at.days and at.tokens:
        told["enough"] = _enough(at, found)
    return told


def _ways(at: Turning, found: Estimate) -> list[Plain]:
    """The changes after which it fits; where none surely does, those after which it may."""
    changes = [one for one in advise(found, runtime=at.runtime) if one.fits != "no"]
    sure = [one for one in changes if one.fits == "yes"]
    return [
        {"change": one.text, "strategy": str(one.strategy), "seconds": found.iteration_seconds - one.seconds,
         "bytes": found.total_bytes - one.bytes, "fits": one.fits}
        for one in sure or changes
    ]  # fmt: skip


def _enough(at: Turning, found: Estimate) -> Plain:
    """The fewest GPUs that end the run in time, or how soon any number of them would; empty: it fits at none."""
    one = in_time(found, at.days, at.tokens, at.price, runtime=at.runtime)
    if one is None:
        return {}
    return {
        "gpus": one.cluster.gpus, "strategy": str(one.strategy), "days": one.run.days, "cost": one.run.cost,
        "reached": one.reached,
    }  # fmt: skip


def _estimate(at: Turning, strategy: Strategy) -> Estimate:
    return estimate(
        at.model, at.cluster, strategy, runtime=at.runtime, checked=True, memory_limit=at.memory_limit
    )  # fmt: skip


def _stages(found: Estimate) -> list[Plain]:
    """The memory of every pipeline rank, in whole bytes."""
    return [
        {"rank": one.rank, "total": one.total, "memory": {name: round(n) for name, n in memory_parts(one).items() if n}}
        for one in found.memory
    ]


def _lost(best: Estimate, found: Estimate) -> Plain:
    """What a strategy loses against the best: per token, so that batches need not be the same, and by which parts."""
    sums: dict[str, float] = {}
    for part in why(best, found, found.limit).parts:
        name = part.name.rpartition(": ")[2]
        sums[name] = sums.get(name, 0.0) + part.lost
    tokens = [one.strategy.global_batch * one.strategy.seq for one in (best, found)]
    slower = found.iteration_seconds / best.iteration_seconds * tokens[0] / tokens[1] - 1
    apart = distance(best, found)
    parts = sorted(sums.items(), key=lambda part: -part[1] if slower > 0 else part[1])
    return {
        "strategy": str(best.strategy),
        "slower": slower,
        "within_error": apart <= 1,
        "likely": likely(apart, slower=slower > 0),
        "parts": [{"name": name, "lost": lost} for name, lost in parts[:_LOST]] if tokens[0] == tokens[1] else [],
    }


def _knob(knob: Knob) -> Plain:
    """The words of a choice are left out where they are its name and value, as most are."""
    return {"name": knob.name, "value": knob.value, "choices": [_choice(knob, one) for one in knob.choices]}


def _choice(knob: Knob, one: KnobChoice) -> Plain:
    words = {} if one.words == f"{knob.name}{one.value}" else {"words": one.words}
    cluster = {"cluster": one.cluster} if one.cluster else {}
    fault = {"fault": one.fault} if one.fault else {}
    return {"value": one.value, **words, **cluster, **fault}


def stepped(strategy: Strategy, words: str, cluster: Cluster) -> Strategy:
    """The strategy after words were laid over it, on a cluster that may be another one."""
    return beside(words, strategy, cluster.gpus)


def around(at: Turning, strategy: Strategy, others: Iterable[Strategy]) -> Plain:
    """What a file carries: a strategy, every single step from it and `others`, so that it can be turned without us.

    `knobs` are the strategy's, their choices with the place of the step that they lead to; a step names the knob that
    it is a step of, whose other choices are single steps as well.
    """
    steps: list[Plain] = []
    known: dict[str, int] = {}

    def place(where: Turning, one: Strategy, knob: str = "") -> int:
        key = f"{where.cluster.name} {one}"
        if key not in known:
            known[key] = len(steps)
            steps.append(_carried(where, one, knob, strategy if where is at else None))
        return known[key]

    place(at, strategy)
    told = [
        {
            "name": knob.name,
            "value": knob.value,
            "choices": [_led(at, strategy, knob, one, place) for one in knob.choices],
        }
        for knob in knobs(at.model, at.cluster, strategy, at.runtime)
    ]
    for one in others:
        place(at, one)
    return {"knobs": told, "steps": steps}


Place = Callable[[Turning, Strategy, str], int]


def _led(at: Turning, strategy: Strategy, knob: Knob, choice: KnobChoice, place: Place) -> Plain:
    """A choice of a file's knob, with the step that it leads to or why there is none."""
    if choice.fault:
        return {"value": choice.value, "fault": choice.fault}
    if choice.value == knob.value:
        return {"value": choice.value, "at": 0}
    after, cluster = turned(strategy, at.cluster, choice)
    where = replace(at, cluster=cluster) if choice.cluster else at
    return {"value": choice.value, "at": place(where, after, knob.name)}


def _carried(at: Turning, strategy: Strategy, knob: str, best: Strategy | None) -> Plain:
    values = {one.name: one.value for one in knobs(at.model, at.cluster, strategy, at.runtime, judged=False)}
    told = _told(at, _estimate(at, strategy), best, ways=False)
    return {"strategy": str(strategy), "cluster": at.cluster.name, "faults": [], **told, "knob": knob, "values": values}


def plan_around(plan: Plan, answer: Answer | None = None) -> Plain | None:
    """The same of a plan; none where its order, its cluster or its operators are ones that no line says."""
    if plan.order is not None or plan.operators is not None or isinstance(plan.cluster, Mixed):
        return None
    at = Turning(
        model=plan.model, cluster=plan.cluster, runtime=load_runtime(plan.strategy.runtime),
        memory_limit=asked_limit(plan), tokens=TOKENS,
    )  # fmt: skip
    return around(at, plan.strategy, [one.strategy for one in answer.simulated] if answer else ())
