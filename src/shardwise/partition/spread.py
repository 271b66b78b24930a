"""How far a peak may lie from what a fit predicts: the fit's covariance, what is assumed of the noise, Student's t.

A fit takes peaks y = A v + noise apart by v = P y, P the pseudoinverse of A. The noise is one number t times a shape:
as large for every peak, or in proportion to each (D, its square, on the diagonal). So the parts have the covariance
t^2 P D P', a peak of parts x that is yet to come the variance t^2 (x P D P' x' + D of x), and the residuals R = I - A P
say t^2 = r'r / tr(R D R), with tr^2 / tr((R D R)^2) degrees of freedom (Satterthwaite). Few residuals say little, none
say nothing: they are joined with what is assumed, worth a few measurements more. The wider of the two shapes counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import atan, cos, pi, sin, sqrt

import numpy as np

from shardwise.errors import InputError
from shardwise.partition.decompose import ALONE, Floats, Measured, MemoryFit, decompose, place

ASSUMED = 0.01
"""Noise of a peak as a share of it: 1.0% to 1.3% by seed 001's sixteen, the only published ones."""
_WORTH = 3
"""Degrees of freedom that the assumed noise counts for."""
_ODD = 0.1
"""How often a sound set of measurements has one that is called odd."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Noise:
    """One shape of noise: its size, and the covariance of the parts under it."""

    size: float
    """Standard deviation of a peak: of all, or as a share of each."""
    relative: bool
    degrees: int
    covariance: Floats

    def deviation(self, rows: Floats, peaks: Floats) -> Floats:
        """Standard deviation of peaks to come, one for each row of parts."""
        own = self.size * peaks if self.relative else self.size
        return np.asarray(np.sqrt(np.einsum("rp,pq,rq->r", rows, self.covariance, rows) + own**2))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeakSpread:
    """How sure a fit is of its parts and of the peaks it predicts."""

    noises: tuple[_Noise, ...]
    errors: dict[str, float]
    """Standard error of every part."""
    odd: tuple[int, ...]
    """Measurements that do not fit the others, worst first."""
    extra: tuple[float, ...]
    """What stages held more than the others explain, where that is odd."""

    @property
    def noise(self) -> float:
        """Standard deviation of a peak, taken as equal for all."""
        return self.noises[0].size

    def margin(self, rows: Floats, peaks: Floats, confidence: float) -> Floats:
        """What is to be kept free above predicted peaks of these parts so that they hold with this probability."""
        wide = [student(confidence, one.degrees) * one.deviation(rows, peaks) for one in self.noises]
        return np.asarray(np.max(wide, axis=0))


def spread_of(fit: MemoryFit) -> PeakSpread:
    """The spread of a fit."""
    table, peaks = fit.equations, fit.peaks
    inverse = np.asarray(np.linalg.pinv(table), dtype=np.float64)
    rest = np.eye(len(peaks)) - table @ inverse
    scale = float(np.sqrt(np.mean(peaks**2)))
    equal: Floats = np.ones(len(peaks)) * scale
    noises = (
        _noise(fit, inverse, rest, equal, relative=False),
        _noise(fit, inverse, rest, peaks, relative=True),
    )
    odd = tuple(_odd(table, peaks, ASSUMED * scale))
    extra = [0.0] * fit.pp
    for k in odd:
        extra[fit.measured[k].stage] = max(extra[fit.measured[k].stage], fit.residuals[k])
    errors = dict(zip(fit.values, np.sqrt(np.diag(noises[0].covariance)).tolist(), strict=True))
    return PeakSpread(noises=noises, errors=errors, odd=odd, extra=tuple(extra))


def noise_of(measured: Sequence[Measured], pp: int, kinds: Sequence[str]) -> float:
    """Standard deviation of a peak of rounds; what is assumed where they are too few to take apart."""
    try:
        return spread_of(decompose(measured, pp, kinds)).noise
    except InputError:
        return ASSUMED * float(np.sqrt(np.mean([m.peak**2 for m in measured])))


def _noise(fit: MemoryFit, inverse: Floats, rest: Floats, shape: Floats, *, relative: bool) -> _Noise:
    left = rest @ np.diag(shape**2) @ rest
    trace = float(np.trace(left))
    own = trace**2 / float(np.sum(left * left)) if fit.spare else 0.0
    squares = float(np.sum(np.square(rest @ fit.peaks))) / trace if fit.spare else 0.0
    square = (own * squares + _WORTH * ASSUMED**2) / (own + _WORTH)
    return _Noise(
        size=sqrt(square) * (1.0 if relative else float(shape[0])), relative=relative, degrees=int(own + _WORTH),
        covariance=square * (inverse * shape**2) @ inverse.T,
    )  # fmt: skip


def _odd(table: Floats, peaks: Floats, assumed: float) -> Iterator[int]:
    """Measurements that are too far off beside what the others leave (externally studentized, Bonferroni), one by one.

    With one degree of freedom all are equally far off: none is called odd then.
    """
    kept = list(range(len(peaks)))
    while (spare := len(kept) - table.shape[1]) > 1:
        own = table[kept]
        rest = np.eye(len(kept)) - own @ np.linalg.pinv(own)
        share, residuals = np.diag(rest), rest @ peaks[kept]
        squares = np.where(share > ALONE, residuals**2 / np.maximum(share, ALONE), 0.0)
        degrees, worst = spare - 1 + _WORTH, int(np.argmax(squares))
        others = max(float(np.sum(residuals**2) - squares[worst]), 0.0) + _WORTH * assumed**2
        if squares[worst] <= others / degrees * student(1 - _ODD / (2 * len(kept)), degrees) ** 2:
            return
        yield kept.pop(worst)


def spread_notes(fit: MemoryFit) -> Iterator[str]:
    """How thin the measurements are, and what does not fit."""
    if fit.spare == 0:
        yield (
            f"{len(fit.measured)} peaks for {len(fit.parts)} parts of memory leave nothing to judge the fit by: peaks "
            f"are assumed to be off by {100 * ASSUMED:g}%; one more round (`balance guide --after`) would say"
        )
    elif fit.spare < _WORTH:
        yield (
            f"{len(fit.measured)} peaks for {len(fit.parts)} parts of memory: only {fit.spare} more than needed; that "
            f"peaks are off by {100 * ASSUMED:g}% is assumed beside them (`balance guide --after` designs a round more)"
        )
    for k in spread_of(fit).odd:
        m, off = fit.measured[k], fit.residuals[k]
        yield (
            f"{place(m, fit)} does not fit: it was measured at {m.peak:,.0f}, {abs(off):,.0f} "
            f"{'more' if off > 0 else 'less'} than all together explain ({100 * abs(off) / m.peak:.1f}%); measure it "
            f"again{'; that much more is kept free on it' if off > 0 else ''}"
        )


@lru_cache(maxsize=256)
def student(probability: float, degrees: int) -> float:
    """The quantile of Student's t: a value stays below it with this probability."""
    return _root(lambda t: _below(t, degrees) - probability)


def _root(f: Callable[[float], float]) -> float:
    """Where a rising function that is negative at 0 is 0."""
    low, high = 0.0, 1.0
    while f(high) < 0 and high < 1e9:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return high


def _below(t: float, degrees: int) -> float:
    """The distribution of Student's t for t >= 0 (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(degrees))
    odd, power = degrees % 2, cos(angle)
    term, total = (power, 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, degrees, 2):
        total += term
        term *= power**2 * k / (k + 1)
    share = 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
    return (1 + share) / 2
