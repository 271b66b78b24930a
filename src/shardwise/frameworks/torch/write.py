"""A plan's schedule as PyTorch's CSV and the program that runs it."""

from __future__ import annotations

from shardwise.errors import InputError
from shardwise.frameworks.target import Draft, File
from shardwise.frameworks.torch.pipelining import RUNNER, check_torch
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.generate import SHAPES, generate
from shardwise.plan.file import Plan
from shardwise.plan.predict import order_in


def write(draft: Draft) -> tuple[File, ...]:
    """`schedule.csv`, which cannot hold a comment, and `run_pipeline.py`."""
    s = draft.strategy
    if s.pp == 1:
        draft.refuse("strategy.pp", "is 1: there is no pipeline to order")
    draft.settle()
    schedule = schedule_of(draft.plan)
    check_torch(schedule)
    if s.tp > 1 or s.dp > 1 or s.cp > 1:
        draft.by_hand.append("tensor, data and context parallel of each chunk: the runner orders the pipeline only")
    return (
        File(name="schedule.csv", text=schedule.csv()),
        File(name="run_pipeline.py", text=draft.header() + RUNNER.read_text(encoding="utf-8")),
    )


def schedule_of(plan: Plan) -> Schedule:
    """The rows of the plan, else those that its schedule's name stands for."""
    s, order = plan.strategy, order_in(plan)
    if order is not None:
        return order
    if s.schedule not in SHAPES:
        raise InputError(
            f"the plan has no rows of a schedule, and {s.schedule} stands for none; make them with  "
            "shardwise schedule auto --plan PLAN --out FILE"
        )
    return generate(s.schedule, pp=s.pp, vpp=s.vpp, microbatches=s.microbatches, group=s.group)
