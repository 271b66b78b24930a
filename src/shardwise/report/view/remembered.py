"""An answer that was found before: its strategies, estimated anew, so that no figure is older than the cost model."""

from __future__ import annotations

import math
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.estimate.predictions import Searched
from shardwise.inputs.load import load_runtime
from shardwise.inputs.serialise import Plain
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.strategy_text import build, parse
from shardwise.measure.nearest import nearest_run
from shardwise.plan.file import plan_table
from shardwise.plan.plan import Plan
from shardwise.plan.renew import renewed
from shardwise.report.data import plans_data
from shardwise.report.view.candidates import candidate_view
from shardwise.report.view.plan import numbers_of
from shardwise.report.view.step import Turning, step_view
from shardwise.search.question import Answer, Candidate, question_about


def words_of(answer: Answer) -> Plain:
    """What is kept of an answer beside its plan: which strategies were looked at, and which of them are its plans."""
    plans = {"fastest": answer.fastest, "simplest": answer.simplest}
    return {
        "plans": {name: str(one.strategy) for name, one in plans.items() if one is not None},
        "top": [str(one.strategy) for one in answer.top],
        "simulated": [str(one.strategy) for one in answer.simulated],
    }


def answered_view(plan: Plan, words: dict[str, Any], tokens: float) -> Plain:
    """The answer as the end of its search showed it, less the timeline, and its plan as a step.

    Bound and gap only where the proof that the plan carries still holds.
    """
    plan = renewed(plan).plan
    told, limit = plan.predictions, plan.memory_limit
    at = Turning(
        model=plan.model, cluster=plan.cluster, runtime=load_runtime(plan.strategy.runtime), memory_limit=limit,
        tokens=tokens,
    )  # fmt: skip
    known = {text: found for text in dict.fromkeys([*words["top"], *words["simulated"]]) if (found := _found(at, text))}
    plans = {name: found for name, text in words["plans"].items() if (found := _found(at, text))}
    best = _found(at, str(plan.strategy))
    proven = told is not None and told.bound is not None
    answer = Answer(
        question=question_about(plan, plan.strategy, limit), recommended=best, fastest=plans.get("fastest"),
        simplest=plans.get("simplest"), nearest=nearest_run(best) if best else None,
        bound=told.bound or 0.0 if told else 0.0,
        counts=told.search if told and told.search else Searched(strategies=0, simulated=0),
    )  # fmt: skip
    shown = {text: candidate_view(_candidate(found, limit), answer) for text, found in known.items()}
    numbers = {"bound": told.bound if proven else None, "gap": told.gap if proven else None} if told else {}
    return {
        "plan": plan_table(plan),
        "view": {
            "title": plan.model.name, "subtitle": f"{plan.cluster.name}, {at.runtime.base}",
            "strategy": str(plan.strategy), "plans": _finite(plans_data(answer)),
            "numbers": {**numbers_of(best, limit), **numbers} if best else {},
        },
        "top": [shown[text] for text in words["top"] if text in shown],
        "points": [shown[text] for text in words["simulated"] if text in shown],
        "step": step_view(at, plan.strategy),
    }  # fmt: skip


def _found(at: Turning, text: str) -> Estimate | None:
    """None: the strategy is no longer possible."""
    strategy: Strategy = build(parse(text))
    try:
        return estimate(at.model, at.cluster, strategy, runtime=at.runtime, memory_limit=at.memory_limit)
    except ShardwiseError:
        return None


def _candidate(found: Estimate, limit: float) -> Candidate:
    return Candidate(
        strategy=found.strategy, seconds=found.iteration_seconds, mfu=found.mfu,
        iteration_seconds_interval=found.iteration_seconds_interval, total_bytes=found.total_bytes,
        allowed=found.total_bytes <= limit, fits=found.fits, fits_probability=found.fits_probability,
    )  # fmt: skip


def _finite(plans: Plain) -> Plain:
    """Without the gaps of plans whose bound is not known."""
    return {
        name: {key: value for key, value in one.items() if not (isinstance(value, float) and math.isinf(value))}
        for name, one in plans.items()
    }
