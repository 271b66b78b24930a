"""A plan as a job: written, looked after before it starts, run, read, compared, and learnt from."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from shardwise.errors import Fault, FileError, InputError
from shardwise.estimate.estimate import Estimate
from shardwise.frameworks.export import export
from shardwise.frameworks.folder import write_export
from shardwise.frameworks.launcher import gpus_per_node
from shardwise.frameworks.operators import lowered
from shardwise.frameworks.target import Export
from shardwise.inputs.serialise import to_json
from shardwise.inputs.write import together, write_now, write_text
from shardwise.measure.calibrate import Calibrated, by_run, learnable, stored
from shardwise.measure.compare import RunLine, compared
from shardwise.measure.launch.failure import failure
from shardwise.measure.launch.machine import UNASKED, FoundMachine, ask_machine
from shardwise.measure.launch.preflight import faults_of, free_port, needs_of, slurm_faults, starter_of
from shardwise.measure.launch.process import Ended, run_batch, run_job
from shardwise.measure.logs.match import as_exported, reader_of, refuse_other_run
from shardwise.measure.logs.reader import LogReader
from shardwise.measure.logs.record import StepRecord
from shardwise.measure.logs.steady import LEAST, Steady, steady
from shardwise.measure.runs import run_row
from shardwise.measure.watch.drift import quiet
from shardwise.plan.plan import Plan

Launcher = Literal["torchrun", "slurm"]
Follow = Callable[[StepRecord], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A job that was started, or would be."""

    export: Export
    """What was written."""
    folder: Path
    """Where the files are."""
    command: tuple[str, ...]
    """What starts it there."""
    machine: dict[str, Any] = field(hash=False)
    """What the machine has: interpreter, torch, driver, GPUs, versions."""
    predicted: Estimate
    """What the files are predicted to take, as they are written."""
    run: Path | None = None
    """Folder of the run, with its log and measured.json; none: it was not started."""
    steps: tuple[StepRecord, ...] = ()
    """The steps that it took."""
    measured: Steady | None = None
    """What they took once it was warm; none: it was not started, or is not comparable."""
    lines: tuple[RunLine, ...] = ()
    """Measured beside predicted."""
    learnt: Calibrated | None = None
    """What was learnt, and stored."""
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    """Ctrl-C ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job before it starts."""

    export: Export
    told: Estimate
    folder: Path
    environment: dict[str, str]
    command: tuple[str, ...]
    machine: FoundMachine
    steps: int
    cpu: bool

    def launched(self, **more: Any) -> Launched:  # noqa: ANN401 - fields of Launched
        return Launched(
            export=self.export, folder=self.folder, command=self.command, machine=_plain(self.machine),
            predicted=self.told, **more,
        )  # fmt: skip


def launch(
    plan: Plan,
    to: str,
    folder: Path,
    *,
    steps: int,
    launcher: Launcher,
    learn: str | None,
    dry_run: bool,
    cpu: bool,
    force: bool,
    follow: Follow | None,
) -> Launched:
    """Write a plan's files for a target and run them; `follow` is given every step as it ends."""
    if learn is not None and (cpu or dry_run):
        raise InputError(Fault("--learn", f"has nothing to learn from {'CPUs' if cpu else 'a dry run'}; leave it out"))
    job = _prepared(plan, to, folder, steps=steps, launcher=launcher, cpu=cpu)
    if learn is not None:
        learnable(job.told, learn)
    if dry_run:
        return job.launched(notes=("nothing was written or started (--dry-run)",))
    write_export(job.export, folder, force=force)
    write_now()
    place = _place(folder)
    reader, ended = _run(job, place, launcher, follow)
    if ended.full:
        raise FileError(place / "train.log", f"cannot be written: {ended.full}; the job was ended, nothing was stored")
    if ended.code and not ended.interrupted:
        last = reader.steps[-1].step if reader.steps else 0
        raise failure(ended.code, last, ended.lines, job.told, str(place / "train.log"))
    return _answered(job, place, reader, ended, learn)


def _prepared(plan: Plan, to: str, folder: Path, *, steps: int, launcher: Launcher, cpu: bool) -> Job:
    """The files, and a machine on which nothing stands in their way; operators with one split are a strategy."""
    plan, lost = (plan, ()) if plan.operators is None else lowered(plan)
    made = export(plan, to, launcher=launcher)
    made = replace(made, losses=(*lost, *made.losses))
    told = as_exported(plan, made)
    programs = [file.name for file in made.files if file.program]
    if not programs:
        raise InputError(f"{made.target} has no program to start; its files are settings for one of your own")
    environment = {**os.environ, "STEPS": str(steps), "PYTHONUNBUFFERED": "1"}
    if cpu:
        environment |= {
            "CUDA_VISIBLE_DEVICES": "",
            "SHARDWISE_DEVICE": "cpu",
            "GPUS_PER_NODE": str(told.strategy.world),
        }
        environment["NUM_NODES"] = "1"
    machine = UNASKED
    command: tuple[str, ...] = ("bash", programs[0])
    if launcher == "slurm":  # the machines that will run it are others
        faults = list(slurm_faults(environment, folder))
        command = ("sbatch", "--wait", "--parsable", f"{Path(programs[0]).stem}.sbatch")
    else:
        where = folder if folder.is_dir() else Path.cwd()
        modules = tuple(need.module for need in needs_of(made, environment, cpu=cpu))
        machine = ask_machine(modules, environment, where, starter_of(made))
        faults = list(faults_of(made, told, machine, environment, folder, cpu=cpu))
    if faults:
        raise InputError(faults, title="nothing was started")
    if launcher == "torchrun" and told.strategy.world // gpus_per_node(told.strategy.world) == 1:
        environment.setdefault("MASTER_PORT", str(free_port()))
    return Job(
        export=made, told=told, folder=folder, environment=environment, command=command, machine=machine, steps=steps,
        cpu=cpu,
    )  # fmt: skip


def _place(folder: Path) -> Path:
    """A folder of its own for every run."""
    number = 1
    while True:
        place = folder / f"run-{number:03}"
        try:
            place.mkdir()
        except FileExistsError:
            number += 1
        else:
            return place.absolute()


def _run(job: Job, place: Path, launcher: Launcher, follow: Follow | None) -> tuple[LogReader, Ended]:
    reader = reader_of(job.told.strategy)

    def read(piece: bytes) -> None:
        for step in reader.feed(piece):
            if follow:
                follow(step)

    log = place / "train.log"
    if launcher == "slurm":
        command = (*job.command[:-1], f"--output={log}", job.command[-1])
        ended = run_batch(command, job.folder, job.environment, log, read)
    else:
        ended = run_job(job.command, job.folder, job.environment, log, read)
    for step in reader.close():
        if follow:
            follow(step)
    return reader, ended


def _answered(job: Job, place: Path, reader: LogReader, ended: Ended, learn: str | None) -> Launched:
    """What came of a job that ended well, or was ended with Ctrl-C."""
    steps, log = tuple(reader.steps), str(place / "train.log")
    refuse_other_run(reader.facts, job.told, log)
    after = f"after step {steps[-1].step} of {job.steps}" if steps else "before its first step"
    if ended.interrupted and (job.cpu or len(steps) < LEAST):
        told = f"interrupted {after}; nothing is compared or learnt"
        return job.launched(run=place, steps=steps, notes=(told,), interrupted=True)
    if not steps and int(job.environment.get("NUM_NODES") or 1) > 1:
        return job.launched(run=place, notes=("another node prints the steps; they are measured there",))
    if not steps:
        raise InputError(f"{log} has no step of any framework that is known: the job printed none; nothing was stored")
    if job.cpu:
        told = f"{len(steps)} step{'' if len(steps) == 1 else 's'} on CPUs: it starts; nothing is compared or learnt"
        return job.launched(run=place, steps=steps, notes=(told, *reader.log().notes))
    kept = steady(steps, log)
    lines = compared(job.told, kept)
    framework = job.export.target
    notes = [*reader.log().notes, *([kept.note] if kept.note else ())]
    if ended.interrupted:
        notes.append(f"interrupted {after}: what was measured until then is shown, and nothing is learnt")
    learnt = None
    with together():
        row = run_row(job.told, kept, framework)
        write_text(place / "measured.json", _measured(job, row, lines, steps))
        if learn is not None and not ended.interrupted:
            calm, left_out = quiet(steps)
            learnt = by_run(job.told, steady(calm, log), framework, learn)
            notes += left_out
            stored(learnt)
    return job.launched(
        run=place, steps=steps, measured=kept, lines=lines, learnt=learnt, notes=tuple(notes),
        interrupted=ended.interrupted,
    )  # fmt: skip


def _measured(job: Job, row: dict[str, Any], lines: tuple[RunLine, ...], steps: tuple[StepRecord, ...]) -> str:
    """A file that `validate --data` reads, with all that was seen."""
    return to_json({
        "what": f"a run of plan {job.export.plan} for {job.export.speaks} by shardwise launch",
        "rows": [{**row, "version": job.export.speaks}],
        "lines": [line._asdict() for line in lines],
        "steps": [step._asdict() for step in steps],
        "machine": _plain(job.machine),
        "command": list(job.command),
    })  # fmt: skip


def _plain(machine: FoundMachine) -> dict[str, Any]:
    return {**machine._asdict(), "gpus": [gpu._asdict() for gpu in machine.gpus]}
