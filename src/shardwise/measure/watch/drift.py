"""When a run becomes slower than it was, and what of it: told step by step, by medians, which odd steps do not move.

A run is slow where six of its last eight steps take longer than steps of its own first part do, or where the median of
its last sixteen does by more than chance would move it; so a clear change is told within eight steps and a faint one
within sixteen, a single checkpoint or pause is none, and neither is noise, however heavy its tail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import sqrt
from statistics import median
from typing import NamedTuple

from shardwise.measure.logs.record import COMMUNICATION, DATA, PASSES, StepRecord
from shardwise.measure.logs.steady import deviation, warm_up
from shardwise.units import show_bytes, show_seconds

WINDOW, SLOW = 8, 6
"""Last steps that are looked at, and how many of them must be slow."""
LONG = 16
"""Last steps whose median is looked at."""
CERTAIN, OF_MEDIAN = 5.0, 1.25
"""Standard deviations of a median beyond which chance is out, and its own over that of one step (normal noise)."""
FEW = 2.0
"""A deviation that was told by few steps may be larger: by so much over the root of their number."""
LEAST_BASE, MOST_BASE = 8, 100
"""Steps, once warm, that later ones are held against."""
APART, DEVIATIONS = 0.025, 3.0
"""Share, and standard deviations, above which a step is slow."""
SPIKE = 0.5
"""Share above which a single step is told apart as one."""
ALIKE = 0.35
"""Parts grew alike where the least grew by at least 1 - so much of the most."""
MOSTLY = 0.5
"""Share of what the steps grew that a part must explain to be named."""
RECENT = 2000
"""Last steps that are looked at for what returns or creeps."""
CREEP = 0.005
"""Share by which memory must have grown, and still grow, to be told."""


class Drift(NamedTuple):
    """A phase in which a run is not what it was."""

    kind: str
    """data loader, compute, communication, outside, part, or unknown; memory and periodic for what is no slow phase."""
    first: int
    """Step with which it begins."""
    told: int
    """Step with which it was told."""
    factor: float
    """Times that steps take as long as before; of memory, that it takes as much."""
    text: str
    """What was seen, and what it mostly means."""
    last: int | None = None
    """Step with which it ended; none: it lasts."""


class DriftWatch:
    """Takes steps one by one; `drifts` holds what was told so far. `framework`: whose steps, if it is known."""

    def __init__(self, framework: str = "") -> None:
        self.framework = framework
        self.steps: list[StepRecord] = []
        self.drifts: list[Drift] = []
        self._base: list[StepRecord] = []
        self._open = False
        self._between = 0.0
        self._since = 0

    def add(self, step: StepRecord) -> list[Drift]:
        """Take a step; the drifts that are told, or ended, with it."""
        if self.steps and step.step <= self.steps[-1].step:  # started anew: what was is no measure for it
            self.steps, self._base, self._open, self._since = [], [], False, 0
        self.steps.append(step)
        return [*self._slow(), *self._once("periodic", periodic), *self._once("memory", creeping)]

    def _usual(self) -> list[StepRecord]:
        """The steps that later ones are held against, none while there are too few; during a drift they stay."""
        if not self._open and len(self._base) < MOST_BASE:
            first = warm_up([step.seconds for step in self.steps])
            recent = LONG if len(self.steps) - first >= LONG + LEAST_BASE else WINDOW
            end = min(len(self.steps) - recent, first + MOST_BASE)
            self._base = self.steps[first:end] if end - first >= LEAST_BASE else []
        return self._base

    def _slow(self) -> Iterator[Drift]:
        base = self._usual()
        if not base:
            return
        if not self._open and (slow := slow_steps(base, self.steps[self._since :][-LONG:])):
            found = _named(base, slow, self.steps[-1].step, PRINTED.get(self.framework, ""))
            self._open, self._between = True, _middle(base) * (1 + found.factor) / 2
            self.drifts.append(found)
            yield found
        elif self._open:
            usual = [step for step in self.steps[-WINDOW:] if step.seconds <= self._between]
            if len(usual) >= SLOW:
                self._open, self._since = False, self.steps.index(usual[0])
                index = max(i for i, one in enumerate(self.drifts) if one.last is None and one.kind not in ONCE)
                self.drifts[index] = self.drifts[index]._replace(last=usual[0].step - 1)
                yield self.drifts[index]

    def _once(self, kind: str, look: Callable[[Sequence[StepRecord]], Drift | None]) -> Iterator[Drift]:
        if len(self.steps) % WINDOW or any(one.kind == kind for one in self.drifts):
            return
        if found := look(self.steps[-RECENT:]):
            self.drifts.append(found)
            yield found


ONCE = ("periodic", "memory")
PRINTED = {
    "megatron": "--timing-log-level 2 prints them",
    "deepspeed": "wall_clock_breakdown prints fwd, bwd and step; times of micro steps alone are of no step",
    "torchtitan": "torchtitan prints none; its profiler has them",
    "trainer": "Trainer prints none; the loop that export --to huggingface writes does",
}
"""What prints the times of parts."""


def drifts_of(steps: Sequence[StepRecord]) -> list[Drift]:
    """All drifts of a run that is over."""
    seen = DriftWatch()
    for step in steps:
        seen.add(step)
    return seen.drifts


def quiet(steps: Sequence[StepRecord]) -> tuple[list[StepRecord], tuple[str, ...]]:
    """The steps outside of slow phases, which are what a run teaches, and what was left out."""
    slow = [one for one in drifts_of(steps) if one.kind not in ONCE]
    kept = [step for step in steps if not any(one.first <= step.step <= (one.last or step.step) for one in slow)]
    notes = (
        f"steps {one.first} to {one.last or steps[-1].step} took x{one.factor:.2f} as long: left out" for one in slow
    )
    return kept, tuple(notes)


def present(steps: Sequence[StepRecord], drifts: Sequence[Drift]) -> list[StepRecord]:
    """The steps since the last slow phase began, or ended; none where there was no slow phase."""
    began = [one.first if one.last is None else one.last + 1 for one in drifts if one.kind not in ONCE]
    return [step for step in steps if step.step >= max(began)] if began else []


def slow_steps(base: Sequence[StepRecord], recent: Sequence[StepRecord]) -> list[StepRecord]:
    """The slow ones among the last steps, where there are enough of them to call it a phase; else none."""
    usual = _middle(base)
    noise = deviation([step.seconds for step in base]) * (1 + FEW / sqrt(len(base)))
    limit = usual + max(APART * usual, DEVIATIONS * noise)
    above = [step for step in recent[-WINDOW:] if step.seconds > limit]
    if len(above) >= SLOW:
        return above
    if len(recent) < LONG or len(base) < LONG:
        return []
    chance = OF_MEDIAN * noise * sqrt(1 / LONG + 1 / len(base))
    now = _middle(recent)
    if now - usual <= max(APART * usual, CERTAIN * chance):
        return []
    return [step for step in recent if step.seconds > (usual + now) / 2]


def _middle(steps: Sequence[StepRecord]) -> float:
    return median(step.seconds for step in steps)


def _named(base: Sequence[StepRecord], slow: Sequence[StepRecord], told: int, way: str) -> Drift:
    """Which part of a step grew, as far as the log says; `way`: to have it said."""
    before, after = _middle(base), _middle(slow)
    grown = after - before
    lead = f"from step {slow[0].step} on iterations take {show_seconds(after)} in place of {show_seconds(before)}"
    kind, why = _blamed(_growth(base, slow), before, grown, way)
    return Drift(kind, slow[0].step, told, after / before, f"{lead} (x{after / before:.2f}): {why}")


def _growth(base: Sequence[StepRecord], slow: Sequence[StepRecord]) -> dict[str, tuple[float, float]]:
    """Seconds of every part that both print, before and after; `outside`: what no part holds."""
    names = sorted({name for step in (*base, *slow) for name, _ in step.parts})
    found: dict[str, tuple[float, float]] = {}
    for name in names:
        both = [[value for step in steps if (value := step.part(name)) is not None] for steps in (base, slow)]
        if all(both):
            found[name] = (median(both[0]), median(both[1]))
    if found:
        rest = [[step.seconds - _inside(step) for step in steps] for steps in (base, slow)]
        found["outside"] = (max(0.0, median(rest[0])), max(0.0, median(rest[1])))
    return found


def _inside(step: StepRecord) -> float:
    """Seconds that the parts of a step hold; forward and backward are inside `passes` where that is timed."""
    parts = dict(step.parts)
    if PASSES in parts:
        return sum(parts.get(name, 0.0) for name in (PASSES, "optimizer"))
    return sum(parts.get(name, 0.0) for name in ("forward", "backward", "optimizer", DATA))


def _blamed(parts: dict[str, tuple[float, float]], before: float, grown: float, way: str) -> tuple[str, str]:
    if not parts:
        return "unknown", (
            "the log has no times of parts that would say which; a slow or throttled GPU, the loader and the network "
            f"look alike{f' ({way})' if way else ''}"
        )
    more = {name: after - old for name, (old, after) in parts.items()}
    if more.get(DATA, 0.0) >= MOSTLY * grown:
        return "data loader", f"the data loader takes {_from_to(parts[DATA])}; the GPUs wait for it"
    sent = [name for name in COMMUNICATION if more.get(name, 0.0) > 0]
    if sum(more[name] for name in sent) >= MOSTLY * grown:
        names = ", ".join(f"{name} {_from_to(parts[name])}" for name in sent)
        return "communication", f"only what waits for other ranks grew ({names}): a slow link, or one slow node"
    if more["outside"] >= MOSTLY * grown:
        held = f"{_from_to(parts['outside'])} lie outside the timed parts"
        return (
            "outside",
            f"{held}: the data loader, the host, or what runs between steps; passes take as long as before",
        )
    compute = {name: after / old for name, (old, after) in parts.items() if name in _COMPUTE and old > 0.02 * before}
    if len(compute) > 1 and (min(compute.values()) - 1) >= (1 - ALIKE) * (max(compute.values()) - 1) > 0:
        told = ", ".join(f"{name} x{factor:.2f}" for name, factor in compute.items())
        return (
            "compute",
            f"all compute grew alike ({told}): a throttled or shared GPU, or a slow node that all wait for",
        )
    name = max((one for one in more if one != "outside"), key=lambda one: more[one])
    waits = "; a slower rank is waited for there, too" if name in {"backward", PASSES} else ""
    return "part", f"mostly {name} grew, {_from_to(parts[name])}{waits}"


_COMPUTE = ("forward", "backward", "optimizer", PASSES)


def _from_to(pair: tuple[float, float]) -> str:
    return f"{show_seconds(pair[1])} in place of {show_seconds(pair[0])}"


def periodic(steps: Sequence[StepRecord]) -> Drift | None:
    """Single slow steps at equal distances."""
    times = [step.seconds for step in steps]
    warm = steps[warm_up(times) :]
    middle = median(step.seconds for step in warm) if warm else 0.0
    spikes = [step for step in warm if step.seconds > (1 + SPIKE) * middle]
    gaps = [after.step - one.step for one, after in pairwise(spikes)]
    if len(gaps) < 2 or min(gaps) < 3 or max(gaps) - min(gaps) > 1:
        return None
    longer = median(step.seconds for step in spikes) - middle
    every = round(median(gaps))
    text = (
        f"every {every} steps one takes {show_seconds(longer)} more, {100 * longer / every / middle:.1f}% in the mean: "
        "a checkpoint, an evaluation or garbage collection"
    )
    return Drift("periodic", spikes[0].step, steps[-1].step, 1 + longer / every / middle, text)


def creeping(steps: Sequence[StepRecord]) -> Drift | None:
    """Reserved memory that grows and grows: in each of four quarters beyond the one before."""
    sizes = [(step.step, step.reserved) for step in steps if step.reserved is not None]
    if len(sizes) < 4 * WINDOW:
        return None
    quarter = len(sizes) // 4
    tops = [max(size for _, size in sizes[i * quarter : (i + 1) * quarter]) for i in range(4)]
    if any(after < before * (1 + CREEP) for before, after in pairwise(tops[1:])):
        return None
    each = (tops[3] - tops[1]) / (2 * quarter)
    text = (
        f"reserved memory grows without end, {show_bytes(tops[1])} to {show_bytes(tops[3])}, {show_bytes(100 * each)} "
        "in 100 steps: fragmentation (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), or tensors that are kept"
    )
    return Drift("memory", sizes[quarter][0], sizes[-1][0], tops[3] / tops[1], text)
