"""Memory of a layer, a stage, the head and the tail from measured peaks: least squares without negative memory.

A measured stage s of pp with n layers, of which c_r were run with recompute choice r, holds

    peak = constant + n x parameters + (pp - s) x sum over r of c_r x activation_r   (+ head or tail at the ends)

since 1F1B keeps pp - s micro batches of stage s in flight (dry runs have one chunk a rank). All stages of all rounds
are fitted together, head and tail with the counts of the round they were measured in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwise.errors import Fault, InputError

Floats = npt.NDArray[np.float64]
CHOICES = ("none", "select", "comm", "both", "full")
_NAMES = {"none": "act", "select": "select", "comm": "comm", "both": "both", "full": "full"}
_ODD = 3.5
"""A residual this many robust standard deviations out is pointed at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The peak of one stage in one measuring round."""

    stage: int
    layers: int
    counts: tuple[int, ...]
    """Layers by choice, in the order of CHOICES."""
    peak: float
    round: int = 0
    held: tuple[float, ...] = ()
    """Layers by choice, each as often as micro batches of it are held at the peak: where another order than 1F1B with
    one chunk a rank was run. Empty: pp - stage times the counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """The parts of memory, how sure they are, and how well they explain what was measured."""

    values: dict[str, float]
    """const, par, act, select, comm, both, full, head, tail: those that could be told apart."""
    errors: dict[str, float]
    """Standard error of each; 0 where nothing is left over to judge by."""
    residuals: tuple[float, ...]
    """Measured minus explained, one per measurement."""
    measured: tuple[Measured, ...]
    condition: float
    """Condition number of the equations, columns scaled."""
    notes: tuple[str, ...] = ()

    @property
    def rms(self) -> float:
        """Root mean square of the residuals between head and tail, which are always explained in full."""
        inner = [r for r, m in zip(self.residuals, self.measured, strict=True) if abs(r) > 1e-6 * (1 + m.peak)]
        return float(np.sqrt(np.mean(np.square(inner)))) if inner else 0.0

    @property
    def odd(self) -> tuple[int, ...]:
        """Measurements that do not fit the others, worst first."""
        return _odd(self.residuals)


def unknowns(measured: Sequence[Measured], pp: int) -> list[str]:
    """What is to be found: choices that no stage ran are not."""
    used = [c for c, name in enumerate(CHOICES) if any(m.counts[c] for m in measured)]
    ends = [name for name, stage in (("head", 0), ("tail", pp - 1)) if any(m.stage == stage for m in measured)]
    return ["const", "par", *(_NAMES[CHOICES[c]] for c in used), *ends]


def equations(measured: Sequence[Measured], pp: int, names: Sequence[str]) -> Floats:
    """One row per measurement, one column per unknown."""
    columns = {
        "const": [1.0] * len(measured),
        "par": [float(m.layers) for m in measured],
        "head": [float(m.stage == 0) for m in measured],
        "tail": [float(m.stage == pp - 1) for m in measured],
    }
    columns |= {_NAMES[c]: [_held(m, pp, k) for m in measured] for k, c in enumerate(CHOICES)}
    return np.array([columns[name] for name in names]).T


def _held(measured: Measured, pp: int, choice: int) -> float:
    return float(measured.held[choice] if measured.held else (pp - measured.stage) * measured.counts[choice])


def decompose(measured: Sequence[Measured], pp: int) -> MemoryFit:
    """Fit the parts of memory; unknowns that cannot be told apart are refused by name."""
    names, notes = unknowns(measured, pp), list[str]()
    table = equations(measured, pp, names)
    peaks = np.array([m.peak for m in measured])
    if np.linalg.matrix_rank(_scaled(table)) < len(names) and "const" in names:
        without = [name for name in names if name != "const"]
        if np.linalg.matrix_rank(_scaled(equations(measured, pp, without))) == len(without):
            notes.append(
                "too few different stages to tell the constant of a stage apart: it is counted with the layers"
            )
            names, table = without, equations(measured, pp, without)
    _refuse_unsolvable(table, names)
    values, active = nonnegative(table, peaks)
    zero = [name for name, on in zip(names, active, strict=True) if not on]
    if zero:
        notes.append(f"{', '.join(zero)} would come out negative and is held at 0: check those measurements")
    residuals = peaks - table @ values
    return MemoryFit(
        values=dict(zip(names, values.tolist(), strict=True)), errors=_errors(table, residuals, names, active),
        residuals=tuple(residuals.tolist()), measured=tuple(measured), condition=condition(table),
        notes=(*notes, *_odd_notes(measured, residuals)),
    )  # fmt: skip


def condition(table: Floats) -> float:
    """Condition number with every column scaled to length 1."""
    return float(np.linalg.cond(_scaled(table)))


def _scaled(table: Floats) -> Floats:
    return np.asarray(table / np.maximum(np.linalg.norm(table, axis=0), 1e-300))


def _refuse_unsolvable(table: Floats, names: list[str]) -> None:
    scaled = _scaled(table)
    rank = int(np.linalg.matrix_rank(scaled))
    if rank == len(names):
        return
    _, _, right = np.linalg.svd(scaled)
    mixed = sorted({name for row in right[rank:] for name, x in zip(names, row, strict=True) if abs(x) > 1e-6})
    raise InputError(
        Fault(
            "memory_usage",
            f"{len(table)} peaks cannot tell {len(names)} parts of memory apart (rank {rank}); mixed up: "
            f"{', '.join(mixed)}. Measure more stages with other layer and recompute counts: "
            "`shardwise balance guide` designs such a round",
        )
    )


def nonnegative(table: Floats, peaks: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Least squares with no part below zero: the most negative is held at zero until none is."""
    active = np.ones(table.shape[1], dtype=bool)
    while True:
        values = np.zeros(table.shape[1])
        values[active] = np.linalg.lstsq(table[:, active], peaks, rcond=None)[0]
        if values.min() >= -1e-6 * max(1.0, float(np.abs(peaks).max())) or not active.any():
            return np.maximum(values, 0.0), active
        active[int(values.argmin())] = False


def _errors(table: Floats, residuals: Floats, names: Sequence[str], active: npt.NDArray[np.bool_]) -> dict[str, float]:
    used = table[:, active]
    spare = len(table) - used.shape[1]
    errors = np.zeros(len(names))
    if spare > 0:
        variance = float(residuals @ residuals) / spare
        errors[active] = np.sqrt(variance * np.diag(np.linalg.pinv(used.T @ used)))
    return dict(zip(names, errors.tolist(), strict=True))


def _odd(residuals: Sequence[float]) -> tuple[int, ...]:
    sizes = np.abs(np.array(residuals))
    sizes = np.where(sizes < 1e-6, np.nan, sizes)
    if np.isnan(sizes).all():
        return ()
    usual = 1.4826 * float(np.nanmedian(sizes))
    worst = [k for k in np.argsort(-np.nan_to_num(sizes)).tolist() if np.nan_to_num(sizes)[k] > _ODD * usual]
    return tuple(worst)


def _odd_notes(measured: Sequence[Measured], residuals: Floats) -> list[str]:
    words = []
    for k in _odd(residuals.tolist()):
        m, off = measured[k], float(residuals[k])
        more = "more" if off > 0 else "less"
        where = f"stage {m.stage}" + (f" of round {m.round + 1}" if any(x.round for x in measured) else "")
        words.append(
            f"{where} does not fit: it was measured at {m.peak:,.0f}, {abs(off):,.0f} {more} than the others explain "
            f"({100 * abs(off) / m.peak:.1f}%); measure it again, or keep that much memory free"
        )
    return words
