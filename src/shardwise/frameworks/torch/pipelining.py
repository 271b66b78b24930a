"""Hands a schedule to PyTorch: the compute-only CSV and a short program that runs it.

What PyTorch 2.13 does without a word, and what is done about it here (each was tried):

- losses are read by micro batch but stored in the order they are computed: refused unless the last chunk runs its
  micro batches in order
- stages must be given in ascending order: the runner does so
- I of chunk 0 does nothing, its W does the whole backward: `torch_costs` moves the time, so that a plan made for
  PyTorch is timed as PyTorch runs it
- `defer_pp_recv` mixes up messages: the runner does not set it
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from shardwise.errors import InputError
from shardwise.frameworks.export import SPEAKS, TORCH
from shardwise.frameworks.folder import write_export
from shardwise.frameworks.target import Bundle, File
from shardwise.pipeline.action import F, Schedule
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.faults import validate

RUNNER = Path(__file__).with_name("torch_runner.py")


def export_torch(schedule: Schedule, folder: str | Path, *, force: bool = False) -> tuple[Path, Path]:
    """Write `schedule.csv` and `run_pipeline.py` into a folder; what PyTorch would train wrongly is refused."""
    table, runner, *_ = write_export(schedule_export(schedule), folder, force=force)
    return table, runner


def schedule_export(schedule: Schedule) -> Bundle:
    """A schedule without a plan, as files."""
    check_torch(schedule)
    text = schedule.csv()
    return Bundle(
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
