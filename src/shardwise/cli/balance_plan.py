"""`balance --plan --write-plan`: a plan file with the layers that were balanced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.inputs.plan_file import Plan, read_plan, write_plan
from shardwise.partition.problem import Answer, Problem
from shardwise.report import balance as report


def plan_to_balance(source: str | None, target: str | None, problem: Problem) -> Plan | None:
    """The plan that gets the new layers, checked before anything is solved."""
    if not (source or target):
        return None
    if not (source and target):
        raise InputError(Fault("--write-plan", "goes with --plan FILE, the plan whose layers are balanced; give both"))
    plan = read_plan(source)
    faults = [
        Fault(name, f"is {theirs} in the plan, but {ours} in what is to be balanced; they must be the same")
        for name, theirs, ours in (
            ("pp", plan.strategy.pp, problem.pp),
            ("vpp", plan.strategy.vpp, problem.vpp),
            ("layers", plan.model.layers, problem.layers),
        )
        if theirs != ours
    ]
    if faults:
        raise InputError(faults, title=source)
    return plan


def write_balanced(plan: Plan, path: str, answer: Answer) -> None:
    """The plan with the new layers; what was predicted for the old ones no longer holds and is left out."""
    data: dict[str, Any] = report.answer_data(answer)
    seconds = data.pop("seconds")
    made = replace(
        plan, partition={"layers": data["layers"], "recompute": data["counts_by_kind"]},
        strategy=replace(plan.strategy, layers=answer.best.partition.layers, schedule=data["schedule"]),
        schedule={"generator": data["schedule"]}, predictions={"balance": data},
        run={**(plan.run or {}), "balance_seconds": seconds},
    )  # fmt: skip
    write_plan(made, path)
