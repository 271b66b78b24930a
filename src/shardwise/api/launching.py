"""Plans as jobs: launched, and watched by their logs."""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: who presses Ctrl-C while that loads would see a traceback of Python's
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from shardwise.api.reading import Source
    from shardwise.measure.launch.launch import Launched
    from shardwise.measure.logs.record import StepRecord
    from shardwise.measure.watch.drift import Drift
    from shardwise.measure.watch.watch import Watched
    from shardwise.plan.plan import Plan


def launch(
    plan: Plan | Source,
    target: str,
    *,
    steps: int = 12,
    launcher: Literal["torchrun", "slurm"] = "torchrun",
    out: Source | None = None,
    learn: str | None = None,
    dry_run: bool = False,
    cpu: bool = False,
    force: bool = False,
    follow: Callable[[StepRecord], object] | None = None,
) -> Launched:
    """A plan started as a job of a training framework, and held against its prediction.

    `plan`: a plan or its file; `target`: as `export` takes it; `steps`: iterations; `launcher`: torchrun starts it on
    this machine, slurm hands it to sbatch and waits; `out`: the folder of its files, by default beside the plan;
    `learn`: store what the run teaches under this name (`8xNAME`), an empty text chooses one; `dry_run`: look only
    whether it could start; `cpu`: start it on CPUs to see that it starts, nothing is compared; `force`: write over
    files that were edited; `follow`: is given every step as it ends.
    """
    from pathlib import Path

    from shardwise.api.reading import as_plan
    from shardwise.inputs.gate import held
    from shardwise.inputs.scalars import SCALARS
    from shardwise.measure.launch.launch import launch
    from shardwise.plan.file import plan_id
    from shardwise.plan.plan import Plan

    whole = as_plan(plan, "launch", operators=True)
    name = target.partition("@")[0]
    beside = Path(f"plan-{plan_id(whole)}.{name}") if isinstance(plan, Plan) else Path(plan).with_suffix(f".{name}")
    called = (
        (whole.cluster.gpu.name if _is_learnt(whole) else f"our-{whole.cluster.gpu.name}") if learn == "" else learn
    )
    count = int(held(steps, SCALARS["option.steps"], "--steps"))
    return launch(
        whole, target, beside if out is None else Path(out), steps=count, launcher=launcher, learn=called,
        dry_run=dry_run, cpu=cpu, force=force, follow=follow,
    )  # fmt: skip


def _is_learnt(plan: Plan) -> bool:
    from shardwise.inputs.calibrations import calibration_of

    return bool(calibration_of(plan.cluster.gpu).learnt)


def watch(
    log: Source,
    plan: Plan | Source,
    *,
    follow: bool = False,
    tell: Callable[[StepRecord | Drift], object] | None = None,
) -> Watched:
    """A job that runs elsewhere, by its log: held against its plan, and when it drifts.

    `log`: of Megatron, torchtitan, DeepSpeed, Hugging Face's Trainer or a program of ours; `plan`: the one that it
    follows; `follow`: go on while the log grows, until its last step or Ctrl-C; `tell`: is given every step, and
    every drift as it is noticed.
    """
    from shardwise.api.reading import as_plan
    from shardwise.measure.watch.watch import watch

    return watch(log, as_plan(plan, "watch"), follow=follow, tell=tell)
