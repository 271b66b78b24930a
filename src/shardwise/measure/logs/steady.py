"""What a run takes once it is warm: told by the times themselves, not by a number of first steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from shardwise.errors import InputError
from shardwise.inputs.gate import refusal
from shardwise.inputs.scalars import SCALARS

if TYPE_CHECKING:
    from shardwise.measure.logs.record import RunLog, StepRecord

LEAST = 3
"""Steady steps without which nothing was measured."""
APART = 0.05
"""Share by which a first step must exceed the later ones to be warm-up, where those hardly differ."""
DEVIATIONS = 4.0
"""Or so many of their standard deviations (by the median of deviations, which one odd step does not move)."""
NOISY = 0.10
"""Spread from which on it is said."""
NORMAL_MAD = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """The steps after the warm-up, in a few numbers."""

    seconds: float
    """Median."""
    spread: float
    """(largest - smallest) / median."""
    steps: int
    """How many."""
    warm_up: int
    """First steps that were left out."""
    allocated: float | None = None
    """Highest peak of all steps, in bytes."""
    reserved: float | None = None
    parts: dict[str, float] = field(default_factory=dict, hash=False)
    """Medians of the parts that are printed, seconds."""
    whole: bool = False
    """It is the mean of a whole run, which is all that its log says."""

    @property
    def note(self) -> str:
        """What should be known of a mean, or of a spread that is large; empty: nothing."""
        if self.whole:
            return (
                "a mean of the whole run, warm-up included; Trainer's progress bar (disable_tqdm=False) has every step"
            )
        if self.spread <= NOISY:
            return ""
        return f"iterations differ by {100 * self.spread:.0f}% after the warm-up; the measurement is no better"


def deviation(values: Sequence[float]) -> float:
    """Standard deviation of most of the values."""
    middle = median(values)
    return NORMAL_MAD * median(abs(value - middle) for value in values)


def warm_up(times: Sequence[float]) -> int:
    """First steps that stand out above the later half."""
    later = times[len(times) // 2 :]
    limit = median(later) + max(APART * median(later), DEVIATIONS * deviation(later))
    return next((index for index, time in enumerate(times) if time <= limit), len(times))


def steady(steps: Sequence[StepRecord], name: str) -> Steady:
    """The steady steps of a log; fewer than three are no measurement. `name`: of the log, for the refusal."""
    times = [step.seconds for step in steps]
    first = warm_up(times) if times else 0
    kept = steps[first:]
    if len(kept) < LEAST:
        raise InputError(
            f"{name} holds {len(times)} timed iteration{'' if len(times) == 1 else 's'}, {len(kept)} after the "
            f"warm-up; a measurement needs {LEAST}: run more (STEPS=12), and log every one (--log-interval 1 for "
            "Megatron, metrics.log_freq 1 of torchtitan, steps_per_print 1 of DeepSpeed, disable_tqdm=False of Trainer)"
        )
    middle = median(step.seconds for step in kept)
    if fault := refusal(middle, SCALARS["log.iteration"]):
        raise InputError(f"{name} has iterations of {middle:g} s: {fault}")
    names = {part for step in kept for part, _ in step.parts}
    printed = {part: [found for step in kept if (found := step.part(part)) is not None] for part in sorted(names)}
    return Steady(
        seconds=middle,
        spread=(max(times[first:]) - min(times[first:])) / middle,
        steps=len(kept),
        warm_up=first,
        allocated=max((step.allocated for step in steps if step.allocated), default=None),
        reserved=max((step.reserved for step in steps if step.reserved), default=None),
        parts={part: median(values) for part, values in printed.items() if len(values) >= LEAST},
    )


def steady_of(log: RunLog, name: str) -> Steady:
    """The same of a log; one that has no steps and ends with its rate says the mean."""
    if log.steps or not log.mean:
        return steady(log.steps, name)
    return Steady(
        seconds=log.mean, spread=0.0, steps=round(log.facts.get("train_runtime", 0.0) / log.mean), warm_up=0, whole=True
    )
