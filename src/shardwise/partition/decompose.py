"""Memory of a layer, a stage, the head and the tail from measured peaks: least squares without negative memory.

A measured stage s of pp with n layers, of which c_r were run with recompute choice r, holds

    peak = constant + n x parameters + (pp - s) x sum over r of c_r x activation_r   (+ head or tail at the ends)

since 1F1B keeps pp - s micro batches of stage s in flight (dry runs have one chunk a rank); with several kinds of
layers every kind has parameters and activations of its own. All stages of all rounds are fitted together, head and tail
with the counts of the round they were measured in. How sure that is, `spread` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwise.errors import Fault, InputError

Floats = npt.NDArray[np.float64]
CHOICES = ("none", "select", "comm", "both", "full")
ACTIVATIONS = {"none": "act", "select": "select", "comm": "comm", "both": "both", "full": "full"}
_WORST = 0.1
"""Root mean square of the residuals, as a share of the peaks, above which a fit explains nothing."""
_ALIKE = 1.05
"""Squares of residuals this close tell nothing apart."""
_CLOSE = 1e-10
_TURNS = 10
ALONE = 1e-6
"""A measurement whose residual can be no larger share of its error alone says what one of the parts is."""


class MemoryPart(NamedTuple):
    """An unknown: `const`, `head` or `tail`, or of one kind of layers `par` or the activation under a choice."""

    name: str
    kind: int = -1
    """-1: of no kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The peak of one stage in one measuring round."""

    stage: int
    layers: int
    counts: tuple[int, ...]
    """Layers by choice, in the order of CHOICES; with several kinds of layers, kind after kind."""
    peak: float
    round: int = 0
    held: tuple[float, ...] = ()
    """Layers by choice, each as often as micro batches of it are held at the peak: where another order than 1F1B with
    one chunk a rank was run. Empty: pp - stage times the counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """The parts of memory, and how well they explain what was measured."""

    pp: int
    parts: tuple[MemoryPart, ...]
    """Those that could be told apart, in the order of `values`."""
    values: dict[str, float]
    """const, par, act, select, comm, both, full, head, tail; with several kinds `par moe`."""
    residuals: tuple[float, ...]
    """Measured minus explained, one per measurement."""
    measured: tuple[Measured, ...]
    condition: float
    """Condition number of the equations, columns scaled."""
    kinds: tuple[str, ...] = ("",)
    """Kinds of layers in the order of the model."""
    notes: tuple[str, ...] = ()

    @property
    def spare(self) -> int:
        """Degrees of freedom: peaks beyond those that the parts need; 0: nothing is left over to judge by."""
        return len(self.measured) - len(self.parts)

    @property
    def equations(self) -> Floats:
        return equations(self.measured, self.pp, self.parts)

    @property
    def peaks(self) -> Floats:
        return np.array([m.peak for m in self.measured])

    @property
    def rms(self) -> float:
        """Root mean square of the residuals between head and tail, which are always explained in full."""
        inner = [r for r, m in zip(self.residuals, self.measured, strict=True) if abs(r) > 1e-6 * (1 + m.peak)]
        return float(np.sqrt(np.mean(np.square(inner)))) if inner else 0.0


def unknowns(measured: Sequence[Measured], pp: int) -> list[MemoryPart]:
    """What is to be found: choices that no stage ran are not."""
    counts = np.array([m.counts for m in measured]).reshape(len(measured), -1, len(CHOICES))
    own = [
        part
        for kind in range(counts.shape[1])
        for part in (
            MemoryPart("par", kind),
            *(MemoryPart(ACTIVATIONS[CHOICES[c]], kind) for c in np.flatnonzero(counts[:, kind].any(0))),
        )
    ]
    ends = [
        MemoryPart(name) for name, stage in (("head", 0), ("tail", pp - 1)) if any(m.stage == stage for m in measured)
    ]
    return [MemoryPart("const"), *own, *ends]


def with_ends(measured: Sequence[Measured], pp: int) -> list[tuple[int, str]]:
    """Kinds of a single layer at the first or the last place of the model, and the end that it cannot be told from."""
    counts = np.array([m.counts for m in measured]).reshape(len(measured), -1, len(CHOICES)).sum(axis=2)
    stages, last = np.array([m.stage for m in measured]), counts.shape[1] - 1
    found = []
    for kind, end, stage in ((0, "head", 0), (last, "tail", pp - 1)):
        if last and (stages == stage).any() and (counts[:, kind] == (stages == stage)).all():
            found.append((kind, end))
    return found


def _counted_with(parts: Sequence[MemoryPart], kind: int) -> tuple[MemoryPart, MemoryPart]:
    """What of a kind is one with an end: its parameters, and its activation under the smallest choice."""
    own = [part for part in parts if part.kind == kind]
    return own[0], own[-1]


def parts_of(measured: Sequence[Measured], pp: int) -> list[MemoryPart]:
    """Unknowns that can be told apart if enough is measured."""
    parts = unknowns(measured, pp)
    gone = {part for kind, _ in with_ends(measured, pp) for part in _counted_with(parts, kind)}
    return [part for part in parts if part not in gone]


def equations(measured: Sequence[Measured], pp: int, parts: Sequence[MemoryPart]) -> Floats:
    """One row per measurement, one column per unknown."""
    return np.array([[_coefficient(m, pp, part) for part in parts] for m in measured])


def _coefficient(m: Measured, pp: int, part: MemoryPart) -> float:
    if part.kind < 0:
        return float(m.stage == {"head": 0, "tail": pp - 1}.get(part.name, m.stage))
    first = part.kind * len(CHOICES)
    if part.name == "par":
        return float(sum(m.counts[first : first + len(CHOICES)]))
    at = first + list(ACTIVATIONS.values()).index(part.name)
    return float(m.held[at] if m.held else (pp - m.stage) * m.counts[at])


def decompose(measured: Sequence[Measured], pp: int, kinds: Sequence[str] = ("",)) -> MemoryFit:
    """Fit the parts of memory; unknowns that cannot be told apart are refused by name, and so are peaks that
    contradict each other.
    """
    parts = parts_of(measured, pp)
    notes = [
        f"the one layer of {kinds[kind]} is always with the {end}: what it holds is counted there"
        for kind, end in with_ends(measured, pp)
    ]
    table = equations(measured, pp, parts)
    peaks = np.array([m.peak for m in measured])
    if np.linalg.matrix_rank(_scaled(table)) < len(parts):
        without = parts[1:]
        if np.linalg.matrix_rank(_scaled(equations(measured, pp, without))) == len(without):
            notes.append(
                "too few different stages to tell the constant of a stage apart: it is counted with the layers"
            )
            parts, table = without, equations(measured, pp, without)
    names = [called(part, kinds) for part in parts]
    _refuse_unsolvable(table, names)
    values, active = nonnegative(table, peaks)
    freely = np.linalg.lstsq(table, peaks, rcond=None)[0]
    zero = [name for name, on, free in zip(names, active, freely, strict=True) if not on and free < -1e-6 * peaks.max()]
    if zero:
        notes.append(f"{', '.join(zero)} would come out negative and is held at 0: check those measurements")
    residuals = peaks - table @ values
    fit = MemoryFit(
        pp=pp, parts=tuple(parts), values=dict(zip(names, values.tolist(), strict=True)), kinds=tuple(kinds),
        residuals=tuple(residuals.tolist()), measured=tuple(measured), condition=condition(table), notes=tuple(notes),
    )  # fmt: skip
    if faults := list(_contradictions(fit, np.eye(len(table)) - table @ np.linalg.pinv(table))):
        raise InputError(faults)
    return fit


def called(part: MemoryPart, kinds: Sequence[str]) -> str:
    """A part's name, with its kind where there are several."""
    return f"{part.name} {kinds[part.kind]}" if part.kind >= 0 and len(kinds) > 1 else part.name


def place(m: Measured, fit: MemoryFit) -> str:
    """Where a peak was measured; dry runs of plans, which say what they held, are the loop's rounds."""
    before = 1 + max((x.round for x in fit.measured if not x.held), default=-1)
    if m.held:
        return f"stage {m.stage} of the loop's round {m.round + 1 - before}"
    looped = any(x.held for x in fit.measured)
    if before == 1:
        return f"stage {m.stage}" + " of the init file" * looped
    return f"stage {m.stage} of {'measuring ' * looped}round {m.round + 1}"


def _contradictions(fit: MemoryFit, rest: Floats) -> Iterator[Fault]:
    """Peaks that no parts of memory explain: a plan made of them would say nothing."""
    scale = float(np.sqrt(np.mean(np.square(fit.peaks))))
    held = sum(value == 0 for value in fit.values.values())
    size = float(np.sqrt(np.sum(np.square(fit.residuals)) / max(fit.spare + held, 1)))
    if size <= _WORST * scale:
        return
    furthest = _furthest(fit, rest)
    if np.trace(rest) < 1.5 or len(furthest) > 2:  # with one peak to spare all are off in the same proportions
        yield Fault(
            "memory_usage",
            f"the peaks contradict each other: they are off by {size:,.0f} ({100 * size / scale:.0f}%; sound ones by "
            f"about 1%). {len(fit.measured)} peaks for {len(fit.parts)} parts of memory cannot tell which: check that "
            "all peaks, offsets and recompute counts are those of one run, and in one unit; or measure another round",
        )
        return
    named = " or ".join(
        f"{place(fit.measured[k], fit)} most: it was measured at {fit.measured[k].peak:,.0f}, "
        f"{abs(off):,.0f} {'more' if off > 0 else 'less'} than the others explain"
        for k, off in furthest
    )
    yield Fault(
        "memory_usage",
        f"the peaks contradict each other: they are off by {size:,.0f} ({100 * size / scale:.0f}%; sound ones by about "
        f"1%), {named}. Check that its peak, its offset and its recompute counts are those of one run, and that all "
        "peaks are in one unit; or measure it again",
    )


def _furthest(fit: MemoryFit, rest: Floats) -> list[tuple[int, float]]:
    """The measurements without which the others agree best, and how far each is from what they say: where several
    make equal sense of the others, all of these.
    """
    table, peaks, found = fit.equations, fit.peaks, list[tuple[float, int, float]]()
    for k in np.flatnonzero(np.diag(rest) > ALONE).tolist() if fit.spare else ():
        others = np.arange(len(peaks)) != k
        values, _ = nonnegative(table[others], peaks[others])
        left = float(np.sum((peaks[others] - table[others] @ values) ** 2))
        found.append((left, k, float(peaks[k] - table[k] @ values)))
    if not found:
        worst = int(np.argmax(np.abs(fit.residuals)))
        return [(worst, fit.residuals[worst])]
    least = min(left for left, _, _ in found) * _ALIKE + ALONE * float(np.sum(peaks**2))
    return [(k, off) for left, k, off in found if left <= least]


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
    """Least squares with no part below zero (Lawson and Hanson), and which parts are above."""
    lengths = np.maximum(np.linalg.norm(table, axis=0), 1e-300)
    scaled, near = table / lengths, _CLOSE * max(1.0, float(np.linalg.norm(peaks)))
    values, above = np.zeros(table.shape[1]), np.zeros(table.shape[1], dtype=bool)
    for _ in range(_TURNS * len(values)):
        pull = np.where(above, -np.inf, scaled.T @ (peaks - scaled @ values))
        if pull.max() <= near:
            break
        above[int(pull.argmax())] = True
        while True:
            wanted = np.zeros(len(values))
            wanted[above] = np.linalg.lstsq(scaled[:, above], peaks, rcond=None)[0]
            low = above & (wanted <= 0)
            if not low.any():
                break
            step = float(np.min(values[low] / (values[low] - wanted[low])))
            values = values + step * (wanted - values)
            above &= values > near * 1e-3
            values[~above] = 0.0
        values = wanted
    return values / lengths, above
