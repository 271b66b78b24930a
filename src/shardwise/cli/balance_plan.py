"""`balance --plan`: the layers of a plan, balanced under the cost model; or those of a problem, written into it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardwise.cli.output import Output
from shardwise.errors import Fault, InputError
from shardwise.partition.problem import Answer, Problem
from shardwise.plan.file import read_plan, write_plan
from shardwise.plan.plan import Balance, Plan, Recomputed
from shardwise.units import show_percent, show_seconds

if TYPE_CHECKING:
    from shardwise.search.balance_plan import Balanced


def balance_plan(source: str, target: str | None, limit: float | None, output: Output) -> int:
    """Balance a plan, print it beside what it was, and write it, predicted anew."""
    from shardwise.cli.per_op_show import refuse_per_op
    from shardwise.plan.predict import plan_of
    from shardwise.report import estimate as report
    from shardwise.search.balance_plan import balanced

    plan = read_plan(source)
    refuse_per_op(plan, source, "balance")
    found = balanced(plan, limit=limit)
    output.say(f"before   {found.before.strategy}")
    output.say(f"after    {found.after.strategy}")
    output.say()
    output.facts(report.summary(found.after))
    output.facts(list(_facts(found).items()))
    output.say()
    output.table(*report.stages(found.after))
    if target:
        write_plan(plan_of(found.after), target)
        output.note(f"the plan is in {target}")
    output.answer({
        "strategy": str(found.after.strategy), "seconds": found.after.iteration_seconds,
        "before": found.before.iteration_seconds, "bound": found.bound, "gap": found.gap,
        "total_bytes": found.after.total_bytes, "fits": found.after.fits,
    })  # fmt: skip
    return 0


def _facts(found: Balanced) -> dict[str, str]:
    was, now = found.before.iteration_seconds, found.after.iteration_seconds
    said = f"{show_percent(1 - now / was, 2)} less than {show_seconds(was)}" if now < was else "as fast as it was"
    proof = f"no cut that fits takes less than {show_seconds(found.bound)}: gap {show_percent(found.gap, 2)}"
    return {"balanced": said, "proof": f"{proof} (under the cost model in use)" if found.bound else "no bound is known"}


def plan_to_balance(source: str | None, target: str | None, problem: Problem) -> Plan | None:
    """The plan that gets the layers of a problem, checked before anything is solved."""
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
    """The plan with the layers of a balanced problem, predicted anew by the cost model."""
    from shardwise.estimate.estimate import estimate
    from shardwise.plan.predict import plan_of
    from shardwise.report import balance as report

    data, best = report.answer_data(answer), answer.best
    strategy = replace(
        plan.strategy, layers=best.partition.layers, first_layers=0, last_layers=0, count_embedding=False,
        count_head=False, schedule=data["schedule"],
    )  # fmt: skip
    mixed = tuple(
        Recomputed(kind=run["kind"], choices={name: tuple(counts) for name, counts in run["choices"].items()})
        for run in data["counts_by_kind"]
    )
    found = Balance(
        problem=answer.problem.name, recompute=mixed, simulated=answer.simulated, bound=answer.bound, peak=best.peak
    )
    made = plan_of(estimate(plan.model, plan.cluster, strategy))
    write_plan(replace(made, balance=found, run={**(plan.run or {}), "balance_seconds": data["seconds"]}), path)
