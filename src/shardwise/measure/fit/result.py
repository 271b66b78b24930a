"""What a fit found: the calibration, and how well each family of kernels follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from shardwise.inputs.calibration import Calibration


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPoint:
    """One measured kernel beside its prediction."""

    label: str
    measured: float
    predicted: float
    held_out: bool = False
    """Not used for fitting."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedFamily:
    """One kind of kernel: its points, and whether any of its numbers were fitted."""

    name: str
    points: tuple[FitPoint, ...]
    fitted: bool
    """False: predicted with numbers that were fitted on other kernels; a check."""

    @property
    def mean(self) -> float:
        return _mean(self.points)

    @property
    def held_out(self) -> float | None:
        """Mean error of the points that were kept out of the fit."""
        kept = [point for point in self.points if point.held_out]
        return _mean(kept) if kept else None

    @property
    def median(self) -> float:
        return median(abs(point.error) for point in self.points)

    @property
    def bias(self) -> float:
        return fmean(point.error for point in self.points)

    @property
    def worst(self) -> FitPoint:
        return max(self.points, key=lambda point: abs(point.error))


def _mean(points: Sequence[FitPoint]) -> float:
    return fmean(abs(point.error) for point in points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A calibration with the evidence for it."""

    calibration: Calibration
    families: tuple[FittedFamily, ...]
    notes: tuple[str, ...] = ()
    """What could not be fitted and was taken from the base, and why."""
