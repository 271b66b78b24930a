"""A schedule, of a plan or alone, as PyTorch's CSV and the program that runs it; what would run wrongly is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from shardwise.errors import InputError
from shardwise.frameworks.export import SPEAKS, TORCH
from shardwise.frameworks.folder import write_export
from shardwise.frameworks.target import Export, ExportDraft, File
from shardwise.pipeline.action import F, Schedule
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.faults import validate
from shardwise.pipeline.generate import SHAPES, generate
from shardwise.plan.plan import Plan

RUNNER = Path(__file__).with_name("runner.py")


def write(draft: ExportDraft) -> tuple[File, ...]:
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
    s = plan.strategy
    if plan.order is not None:
        return plan.order
    if s.schedule not in SHAPES:
        raise InputError(
            f"the plan has no rows of a schedule, and {s.schedule} stands for none; make them with  "
            "shardwise schedule auto --plan PLAN --out FILE"
        )
    return generate(s.schedule, pp=s.pp, vpp=s.vpp, microbatches=s.microbatches, group=s.group)


def export_torch(schedule: Schedule, folder: str | Path, *, force: bool = False) -> tuple[Path, Path]:
    """Write `schedule.csv` and `run_pipeline.py` into a folder; what PyTorch would train wrongly is refused."""
    table, runner, *_ = write_export(schedule_export(schedule), folder, force=force)
    return table, runner


def schedule_export(schedule: Schedule) -> Export:
    """A schedule without a plan, as files."""
    check_torch(schedule)
    text = schedule.csv()
    return Export(
        target=TORCH,
        speaks=SPEAKS,
        plan="none; the schedule " + hashlib.sha256(text.encode()).hexdigest()[:12],
        files=(
            File(name="schedule.csv", text=text),
            File(name="run_pipeline.py", text=RUNNER.read_text(encoding="utf-8")),
        ),
    )


def check_torch(schedule: Schedule) -> None:
    """Raise InputError where PyTorch would not run the schedule, or would run it wrongly."""
    validate(schedule)
    last = schedule.chunks - 1
    rank = schedule.rank_of[last]
    row = schedule.codes[rank]
    order = row[row // schedule.microbatches == F * schedule.chunks + last] % schedule.microbatches
    back = np.flatnonzero(np.diff(order) < 0)
    if len(back):
        first, second = order[back[0]], order[back[0] + 1]
        raise InputError(
            f"rank {rank} runs {last}F{first} before {last}F{second}: PyTorch stores the losses of the last chunk in "
            "the order they are computed and would train on the wrong ones; keep them in order"
        )


def torch_costs(costs: Costs) -> Costs:
    """The costs as PyTorch runs them: chunk 0 has no input to differentiate, so its W does all of the backward."""
    return replace(costs, i=(0.0, *costs.i[1:]), w=(costs.i[0] + costs.w[0], *costs.w[1:]))
