"""Plan distributed training of large models: the fastest layout that fits, its time, its memory, and why."""

from __future__ import annotations

# Three rooms have the names of verbs. Loaded here first (they are empty), they cannot take the verbs' places later.
import shardwise.check
import shardwise.estimate
import shardwise.plan  # noqa: F401
from shardwise.api import (
    advise,
    balance,
    balance_plan,
    calibrate,
    check,
    detail,
    diff,
    diff_orders,
    estimate,
    export,
    iteration,
    launch,
    load_cluster,
    load_model,
    load_problem,
    load_runtime,
    load_strategy,
    plan,
    plan_of,
    plan_operators,
    rank_allocations,
    rank_passes,
    read_plan,
    read_problem,
    rehearse,
    schedule,
    simulate,
    store_calibration,
    sweep,
    targets,
    timeline,
    trace_module,
    validate,
    validate_advice,
    watch,
    what_if,
    why,
    write_export,
    write_plan,
)
from shardwise.version import __version__

__all__ = [
    "Advice", "Answer", "BalanceAnswer", "Balanced", "Calibrated", "Cluster", "Costs", "Estimate", "Export",
    "InfeasibleError", "InputError", "Iteration", "Launched", "Model", "OperatorAnswer", "OrderDiff", "Plan", "Problem",
    "Rehearsal", "Replay", "Runtime", "Schedule", "Scheduled", "ShardwiseError", "Strategy", "Timeline", "Validation",
    "Watched", "WhatIf", "Why", "__version__", "advise", "balance", "balance_plan", "calibrate", "check", "detail",
    "diff", "diff_orders", "estimate", "export", "iteration", "launch", "load_cluster", "load_model", "load_problem",
    "load_runtime", "load_strategy", "plan", "plan_of", "plan_operators", "rank_allocations", "rank_passes",
    "read_plan", "read_problem", "rehearse", "schedule", "simulate", "store_calibration", "sweep", "targets",
    "timeline", "trace_module", "validate", "validate_advice", "watch", "what_if", "why", "write_export", "write_plan",
]  # fmt: skip

TYPE_CHECKING = False  # not from typing: who presses Ctrl-C while that loads would see a traceback of Python's
if TYPE_CHECKING:
    from shardwise.errors import InfeasibleError, InputError, ShardwiseError
    from shardwise.estimate.estimate import Estimate
    from shardwise.estimate.iteration import Iteration
    from shardwise.frameworks.target import Export
    from shardwise.inputs.cluster import Cluster
    from shardwise.inputs.model import Model
    from shardwise.inputs.runtime import Runtime
    from shardwise.inputs.strategy import Strategy
    from shardwise.measure.calibrate import Calibrated
    from shardwise.measure.launch.launch import Launched
    from shardwise.measure.rehearse.rehearse import Rehearsal
    from shardwise.measure.validate.advice import Advice
    from shardwise.measure.validate.validate import Validation
    from shardwise.measure.watch.watch import Watched
    from shardwise.partition.problem import BalanceAnswer, Problem
    from shardwise.per_op.answer import OperatorAnswer
    from shardwise.pipeline.action import Schedule
    from shardwise.pipeline.costs import Costs
    from shardwise.pipeline.replay import Replay
    from shardwise.pipeline.timeline import Timeline
    from shardwise.plan.order_diff import OrderDiff
    from shardwise.plan.plan import Plan
    from shardwise.search.balance_plan import Balanced
    from shardwise.search.question import Answer
    from shardwise.search.schedule import Scheduled
    from shardwise.search.what_if import WhatIf
    from shardwise.search.why import Why

# Loaded when first asked for, so that `shardwise --help` and a script that needs one name pay for nothing else.
_HOMES = {
    "Advice": "measure.validate.advice",
    "Answer": "search.question",
    "BalanceAnswer": "partition.problem",
    "Balanced": "search.balance_plan",
    "Calibrated": "measure.calibrate",
    "Cluster": "inputs.cluster",
    "Costs": "pipeline.costs",
    "Estimate": "estimate.estimate",
    "Export": "frameworks.target",
    "InfeasibleError": "errors",
    "InputError": "errors",
    "Iteration": "estimate.iteration",
    "Launched": "measure.launch.launch",
    "Model": "inputs.model",
    "OperatorAnswer": "per_op.answer",
    "OrderDiff": "plan.order_diff",
    "Plan": "plan.plan",
    "Problem": "partition.problem",
    "Rehearsal": "measure.rehearse.rehearse",
    "Replay": "pipeline.replay",
    "Runtime": "inputs.runtime",
    "Schedule": "pipeline.action",
    "Scheduled": "search.schedule",
    "ShardwiseError": "errors",
    "Strategy": "inputs.strategy",
    "Timeline": "pipeline.timeline",
    "Validation": "measure.validate.validate",
    "Watched": "measure.watch.watch",
    "WhatIf": "search.what_if",
    "Why": "search.why",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, _, own = _HOMES[name].partition(":")
    return getattr(import_module(f"shardwise.{module}"), own or name)


def __dir__() -> list[str]:
    return sorted(__all__)
