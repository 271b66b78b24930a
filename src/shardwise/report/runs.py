"""Runs in words and as plain values: measured beside predicted, and drifts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shardwise.inputs.serialise import Plain, to_plain
from shardwise.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from shardwise.estimate.estimate import Estimate
    from shardwise.measure.compare import RunLine
    from shardwise.measure.launch.launch import Launched
    from shardwise.measure.logs.record import StepRecord
    from shardwise.measure.logs.steady import Steady
    from shardwise.measure.watch.drift import Drift
    from shardwise.measure.watch.watch import Watched

HEADS = ("", "predicted", "measured", "error", "nine runs in ten", "inside")


def rows(lines: Iterable[RunLine]) -> list[tuple[str, ...]]:
    """The table of a run."""
    return [_row(line) for line in lines]


def _row(line: RunLine) -> tuple[str, ...]:
    show = show_bytes if line.unit == "bytes" else show_seconds
    interval = "" if line.interval is None else f"{show(line.interval[0])} to {show(line.interval[1])}"
    return (
        line.what,
        "-" if line.predicted is None else show(line.predicted),
        "-" if line.measured is None else show(line.measured),
        "" if line.error is None else f"{100 * line.error:+.1f}%",
        interval,
        {True: "yes", False: "no", None: ""}[line.inside],
    )


def lines_data(lines: Iterable[RunLine]) -> list[Plain]:
    return [{**line._asdict(), "error": line.error, "inside": line.inside} for line in lines]


def step_line(step: StepRecord, of: int | None, told: Estimate | None = None) -> str:
    """Where a run is, in one line."""
    loss = "" if step.loss is None else f", loss {step.loss:.4g}"
    predicted = "" if told is None else f" (predicted {show_seconds(told.iteration_seconds)})"
    return f"step {step.step}{f' of {of}' if of else ''}: {show_seconds(step.seconds)}{predicted}{loss}"


def measured_line(kept: Steady) -> str:
    """What a run's steps were, in a line."""
    if kept.whole:
        return f"{kept.steps} steps, {show_seconds(kept.seconds)} each in the mean"
    first = f" after {kept.warm_up} of warm-up" if kept.warm_up else ""
    return f"{kept.steps} steps{first}, {show_seconds(kept.seconds)} each (spread {100 * kept.spread:.0f}%)"


def drift_line(drift: Drift) -> str:
    ended = "" if drift.last is None else f"; it ended with step {drift.last}"
    return f"{drift.text}{ended}"


def against_plan(seconds: float, told: Estimate, who: str = "the run") -> str:
    """How far a run is from its plan, in a line."""
    off, (low, high) = seconds / told.iteration_seconds - 1, told.iteration_seconds_interval
    than = f"{100 * abs(off):.1f}% {'slower' if off > 0 else 'faster'} than the plan"
    where = "inside" if low <= seconds <= high else "outside"
    return f"{who} is {than}, {where} what nine runs in ten take ({show_seconds(low)} to {show_seconds(high)})"


def present_line(found: Watched) -> str:
    """The present phase of a run that had a slow one, in a line; empty: it is too short, or had none."""
    if found.present is None:
        return ""
    said = against_plan(found.present.seconds, found.predicted, "it")
    return f"now: {show_seconds(found.present.seconds)} an iteration (median of the last {found.present.steps}); {said}"


def launched_data(found: Launched) -> Plain:
    """A launch as JSON."""
    return {
        "target": found.export.target, "plan": found.export.plan, "folder": str(found.folder),
        "command": list(found.command), "run": None if found.run is None else str(found.run),
        "strategy": str(found.predicted.strategy), "steps": [step._asdict() for step in found.steps],
        "measured": to_plain(found.measured), "lines": lines_data(found.lines),
        "learnt": None if found.learnt is None else to_plain(found.learnt.calibration.learnt),
        "name": None if found.learnt is None else found.learnt.calibration.name,
        "machine": found.machine, "notes": list(found.notes), "interrupted": found.interrupted,
    }  # fmt: skip


def watched_data(found: Watched) -> Plain:
    """A watched run as JSON."""
    return {
        "framework": found.log.framework, "steps": len(found.log.steps), "starts": found.log.starts,
        "facts": found.log.facts, "measured": to_plain(found.measured), "lines": lines_data(found.lines),
        "drifts": [drift._asdict() for drift in found.drifts], "present": to_plain(found.present),
        "notes": list(found.notes), "interrupted": found.interrupted,
    }  # fmt: skip
