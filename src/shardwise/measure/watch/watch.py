"""A log held against a plan, whole or while it grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import FileError, InputError
from shardwise.estimate.estimate import Estimate
from shardwise.measure.compare import RunLine, compared
from shardwise.measure.launch.process import Tail
from shardwise.measure.logs.match import read_run, refuse_other_run
from shardwise.measure.logs.reader import LogReader
from shardwise.measure.logs.record import RunLog, StepRecord
from shardwise.measure.logs.steady import LEAST, Steady, steady
from shardwise.measure.watch.drift import Drift, DriftWatch

OFTEN = 0.5
"""Seconds between two looks at a log that grows."""
Tell = Callable[[StepRecord | Drift], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A run by its log."""

    log: RunLog
    predicted: Estimate
    """What the plan says."""
    measured: Steady | None
    """What its steps take once it is warm; none: too few yet."""
    lines: tuple[RunLine, ...]
    """Measured beside predicted."""
    drifts: tuple[Drift, ...]
    """When it was not what it was, and what of it."""
    interrupted: bool = False
    """Ctrl-C ended a look at a log that grows."""

    @property
    def outside(self) -> bool:
        """Whether its steps take less or more than nine runs in ten would."""
        return any(line.what == "iteration" and line.inside is False for line in self.lines)


def watch(path: str | Path, told: Estimate, *, follow: bool = False, tell: Tell | None = None) -> Watched:
    """Read a log; `follow`: go on while it grows, until its last step or Ctrl-C. `tell` hears of steps and drifts."""
    seen = DriftWatch()

    def step(one: StepRecord) -> None:
        drifts = seen.add(one)
        if tell:
            tell(one)
            for each in drifts:
                tell(each)

    log, interrupted = _followed(path, told, step) if follow else (read_run(str(path), told), False)
    if not follow:
        for one in log.steps:
            step(one)
    kept = _steady(log, str(path), follow=follow)
    lines = compared(told, kept) if kept else ()
    return Watched(
        log=log, predicted=told, measured=kept, lines=lines, drifts=tuple(seen.drifts), interrupted=interrupted
    )


def _steady(log: RunLog, name: str, *, follow: bool) -> Steady | None:
    if len(log.steps) < LEAST and follow:
        return None
    try:
        return steady(log.steps, name)
    except InputError:
        if follow:
            return None
        raise


def _followed(path: str | Path, told: Estimate, step: Callable[[StepRecord], None]) -> tuple[RunLog, bool]:
    strategy = told.strategy
    samples = float(strategy.global_batch)
    reader = LogReader(tokens_per_gpu=samples * strategy.seq / strategy.world, samples=samples)
    tail = Tail(Path(path))
    interrupted = False
    if tail.path.exists() and not tail.path.is_file():
        raise FileError(path, "is no plain file; give the log that the job writes")
    if not tail.path.parent.is_dir():
        raise FileError(path, f"the folder {tail.path.parent} does not exist; give the log that the job writes")
    try:
        while not _is_done(reader):
            piece = tail.read()
            for one in reader.feed(piece):
                step(one)
            refuse_other_run(reader.framework, reader.facts, told, str(path))
            if not piece:
                time.sleep(OFTEN)
    except KeyboardInterrupt:
        interrupted = True
    for one in reader.close():
        step(one)
    return reader.log(), interrupted


def _is_done(reader: LogReader) -> bool:
    """Whether the last step that the log promises was begun."""
    return bool(reader.facts.get("steps")) and reader.last_step >= reader.facts["steps"]
