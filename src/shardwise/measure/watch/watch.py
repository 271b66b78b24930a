"""A log held against a plan, whole or while it grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import FileError, InputError
from shardwise.estimate.estimate import Estimate
from shardwise.measure.compare import RunLine, compared
from shardwise.measure.launch.process import Tail
from shardwise.measure.logs.match import Predicted, predicted_for, read_run, reader_of, refuse_other_run
from shardwise.measure.logs.reader import LogReader
from shardwise.measure.logs.record import RunLog, StepRecord
from shardwise.measure.logs.steady import LEAST, Steady, steady, steady_of
from shardwise.measure.watch.drift import Drift, DriftWatch, drifts_of, present
from shardwise.plan.plan import Plan

OFTEN = 0.5
"""Seconds between two looks at a log that grows."""
Tell = Callable[[StepRecord | Drift], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A run by its log."""

    log: RunLog
    predicted: Estimate
    """What the plan takes, on the framework that wrote the log."""
    measured: Steady | None
    """What its steps take once it is warm; none: too few yet."""
    lines: tuple[RunLine, ...]
    """Measured beside predicted."""
    drifts: tuple[Drift, ...]
    """When it was not what it was, and what of it."""
    present: Steady | None = None
    """What they take since the last slow phase began or ended; none: there was none, or it is too short."""
    notes: tuple[str, ...] = ()
    """What should be known of the log, and of what it is held against."""
    interrupted: bool = False
    """Ctrl-C ended a look at a log that grows."""

    @property
    def outside(self) -> bool:
        """Whether its steps take less or more than nine runs in ten would."""
        return any(line.what == "iteration" and line.inside is False for line in self.lines)


def watch(path: str | Path, plan: Plan, *, follow: bool = False, tell: Tell | None = None) -> Watched:
    """Read a log; `follow`: go on while it grows, until its last step or Ctrl-C. `tell` hears of steps and drifts."""
    seen = DriftWatch()

    def step(one: StepRecord, framework: str) -> None:
        seen.framework = framework
        drifts = seen.add(one)
        if tell:
            tell(one)
            for each in drifts:
                tell(each)

    if follow:
        log, found, interrupted = _followed(path, plan, step)
    else:
        (log, found), interrupted = read_run(str(path), plan), False
        for one in log.steps:
            step(one, log.framework)
    kept = _steady(log, str(path), follow=follow)
    return Watched(
        log=log, predicted=found.told, measured=kept, lines=compared(found.told, kept) if kept else (),
        drifts=tuple(seen.drifts), present=_present(log, seen.drifts), interrupted=interrupted,
        notes=(*found.notes, *log.notes, *((kept.note,) if kept and kept.note else ())),
    )  # fmt: skip


def _steady(log: RunLog, name: str, *, follow: bool) -> Steady | None:
    try:
        return steady_of(log, name)
    except InputError:
        if follow:
            return None
        raise


def _present(log: RunLog, drifts: Sequence[Drift]) -> Steady | None:
    now = present(log.steps, drifts if log.starts == 1 else drifts_of(log.steps))
    return steady(now, "the log") if len(now) >= 2 * LEAST else None  # half of them at most are taken for warm-up


def _followed(path: str | Path, plan: Plan, step: Callable[[StepRecord, str], None]) -> tuple[RunLog, Predicted, bool]:
    reader, tail = reader_of(plan.strategy), Tail(Path(path))
    interrupted = False
    if tail.path.exists() and not tail.path.is_file():
        raise FileError(path, "is no plain file; give the log that the job writes")
    if not tail.path.parent.is_dir():
        raise FileError(path, f"the folder {tail.path.parent} does not exist; give the log that the job writes")
    wrote, found = ("", ""), predicted_for(plan, "", "", str(path))
    try:
        while not _is_done(reader):
            piece = tail.read()
            for one in reader.feed(piece):
                step(one, reader.framework)
            if wrote != (reader.framework, reader.runtime):
                wrote = (reader.framework, reader.runtime)
                found = predicted_for(plan, *wrote, str(path))
            refuse_other_run(reader.facts, found.told, str(path))
            if not piece:
                time.sleep(OFTEN)
    except KeyboardInterrupt:
        interrupted = True
    for one in reader.close():
        step(one, reader.framework)
    return reader.log(), found, interrupted


def _is_done(reader: LogReader) -> bool:
    """Whether the last step that the log promises was begun."""
    return bool(reader.facts.get("steps")) and reader.last_step >= reader.facts["steps"]
