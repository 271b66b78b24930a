"""Which layers and recompute counts to measure so that memory can be taken apart: a D-optimal experiment.

The equations are those of `decompose`. A round of measuring gives one equation per stage; the first and the last stage
pay for head and tail. Among designs whose stages stay near the mean number of layers and whose activations stay well
below those of an even split without recomputing (the round must run, too), the one with the largest determinant of the
information matrix is looked for by exchange from seeded starts: it has the least joint uncertainty of all parts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from shardwise.errors import Fault, InputError
from shardwise.partition.decompose import CHOICES, Floats, Measured, condition, equations, unknowns

KINDS = CHOICES[1:]
_WEIGHT = {"none": 1.0, "select": 0.8, "comm": 0.7, "both": 0.45, "full": 0.05}
"""Activation that is kept, roughly: only to keep the measuring round small."""
_LOAD = 0.6
"""Most activations of a measuring stage, as a share of the first stage of an even split without recompute."""
_SPREAD = 0.4
"""Layers of a stage differ from the mean by at most this share."""
_MOST = 2000
_STARTS = 16
_SINGULAR = -45.0
"""Log determinants (columns scaled to 1 at most) below this cannot be solved."""
_NEAR = 0.5
"""Starts whose log determinant is this close to the best one compete by their condition number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One measuring run: layers per stage and, per choice, how many of them are run so."""

    layers: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]
    """Per stage, in the order of CHOICES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The rounds, and how well they will tell the parts of memory apart."""

    pp: int
    layers: int
    rounds: tuple[Round, ...]
    unknowns: tuple[str, ...]
    rank: int
    condition: float
    """Of the equations of the stages between head and tail, columns scaled."""
    errors: dict[str, float]
    """Standard error of each part when every peak is off by 100 (one standard deviation)."""
    largest: float
    """Layers of the largest stage over the mean."""

    def lists(self, one: Round) -> dict[str, list[int]]:
        """A round in MindFormers' words."""
        base = self.layers // self.pp
        _, select, comm, both, full = zip(*one.counts, strict=True)
        return {
            "offset": [n - base for n in one.layers],
            "recompute": list(full),
            "select_recompute": [a + b + c for a, b, c in zip(select, both, full, strict=True)],
            "select_comm_recompute": [a + b + c for a, b, c in zip(comm, both, full, strict=True)],
        }


def design(pp: int, layers: int, kinds: Sequence[str], *, seed: int = 1, rounds: int = 0) -> Design:
    """A measuring plan for these recompute kinds; refuses what cannot be solved and says why."""
    _refuse(pp, layers, kinds)
    needed = -(-(3 + len(kinds)) // (pp - 2))
    count = rounds or needed
    if count < needed:
        raise InputError(
            f"{count} round(s) of {pp} stages give {count * (pp - 2)} equations between head and tail; "
            f"{3 + len(kinds)} are needed: use {needed} rounds"
        )
    chance = random.Random(seed)  # noqa: S311 - a design, not a secret
    made = [_Exchange(pp, layers, kinds, count, chance).run() for _ in range(_STARTS)]
    best = max(value for value, _ in made)
    if best == -np.inf:
        raise InputError(f"no measuring plan for pp {pp} and {layers} layers was found; use more rounds")
    near = [_described(pp, layers, rounds) for value, rounds in made if value >= best - _NEAR * len(kinds)]
    return min(near, key=lambda found: found.condition)


def _refuse(pp: int, layers: int, kinds: Sequence[str]) -> None:
    faults = []
    if pp < 3:
        faults.append(Fault("stages", f"{pp} stages leave none between head and tail; use `shardwise balance quick`"))
    elif pp == 3:
        faults.append(
            Fault("stages", "3 stages have one between head and tail, which always holds two micro batches: parameters "
                  "and activations of a layer cannot be told apart; measure with 4 stages or more")
        )  # fmt: skip
    if layers == pp:
        faults.append(
            Fault("layers", f"{layers} layers on {pp} stages: every stage has one, so what a layer holds and what "
                  "a stage holds anyway cannot be told apart; measure with fewer stages")
        )  # fmt: skip
    elif layers < pp:
        faults.append(Fault("layers", f"{layers} layers cannot fill {pp} stages; use fewer stages"))
    elif layers > _MOST:
        faults.append(Fault("layers", f"{layers:,} layers; up to {_MOST:,} are taken: measure a part of the model"))
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        faults.append(Fault("kinds", f"{', '.join(unknown)} is no recompute kind; use {', '.join(KINDS)}"))
    if faults:
        raise InputError(faults)


class _Exchange:
    """One start: random rounds, bettered stage by stage until nothing helps."""

    def __init__(self, pp: int, layers: int, kinds: Sequence[str], rounds: int, chance: random.Random) -> None:
        self.pp, self.layers, self.rounds, self.chance = pp, layers, rounds, chance
        self.used = [CHOICES.index(kind) for kind in ("none", *kinds)]
        mean = layers / pp
        self.low, self.high = max(1, int(mean * (1 - _SPREAD))), max(int(np.ceil(mean * (1 + _SPREAD))), int(mean) + 1)
        self.load = _LOAD * layers
        self.sizes = [self._sizes() for _ in range(rounds)]
        self.counts = [[self._mixes(s, n)[0] for s, n in enumerate(sizes)] for sizes in self.sizes]

    def _sizes(self) -> list[int]:
        sizes = [self.layers // self.pp + (k < self.layers % self.pp) for k in range(self.pp)]
        for _ in range(4 * self.pp):
            a, b = self.chance.sample(range(self.pp), 2)
            if sizes[a] > self.low and sizes[b] < self.high:
                sizes[a], sizes[b] = sizes[a] - 1, sizes[b] + 1
        return sizes

    def _mixes(self, stage: int, n: int) -> list[tuple[int, ...]]:
        """Ways to recompute n layers of a stage that keep it small, in a random order; the smallest if none does."""
        flight = self.pp - stage
        made = list(_mixes(n, self.used))
        kept = [m for m in made if flight * _kept(m) <= self.load] or [min(made, key=_kept)]
        self.chance.shuffle(kept)
        return kept

    def value(self) -> float:
        """Log determinant of the information on the parts between head and tail."""
        table = _inner(self.pp, self.sizes, self.counts, self.used)
        sign, size = np.linalg.slogdet(table.T @ table)
        return float(size) if sign > 0 and size > _SINGULAR else -np.inf

    def run(self) -> tuple[float, tuple[Round, ...]]:
        best = self.value()
        while True:
            before = best
            for k in range(self.rounds):
                for stage in range(self.pp):
                    best = self._better_mix(k, stage, best)
                best = self._better_sizes(k, best)
            if best <= before + 1e-9:
                break
        made = tuple(Round(layers=tuple(n), counts=tuple(c)) for n, c in zip(self.sizes, self.counts, strict=True))
        return best, made

    def _better_mix(self, k: int, stage: int, best: float) -> float:
        if stage in {0, self.pp - 1}:  # head and tail pay for themselves: keep them small
            self.counts[k][stage] = min(_mixes(self.sizes[k][stage], self.used), key=_kept)
            return best
        kept = self.counts[k][stage]
        for mix in self._mixes(stage, self.sizes[k][stage]):
            self.counts[k][stage] = mix
            value = self.value()
            if value > best + 1e-9:
                best, kept = value, mix
        self.counts[k][stage] = kept
        return best

    def _better_sizes(self, k: int, best: float) -> float:
        for a, b in self.chance.sample(
            list(combinations(range(self.pp), 2)), min(2 * self.pp, self.pp * (self.pp - 1) // 2)
        ):
            for give, take in ((a, b), (b, a)):
                best = self._shifted(k, give, take, best)
        return best

    def _shifted(self, k: int, give: int, take: int, best: float) -> float:
        sizes = self.sizes[k]
        if sizes[give] <= self.low or sizes[take] >= self.high:
            return best
        before = (sizes[give], sizes[take], self.counts[k][give], self.counts[k][take])
        sizes[give], sizes[take] = sizes[give] - 1, sizes[take] + 1
        for stage in (give, take):
            self.counts[k][stage] = self._mixes(stage, sizes[stage])[0]
        value = self.value()
        for stage in (give, take):
            value = self._better_mix(k, stage, value)
        if value > best + 1e-9:
            return value
        sizes[give], sizes[take], self.counts[k][give], self.counts[k][take] = before
        return best


def _kept(mix: Sequence[int]) -> float:
    return sum(_WEIGHT[CHOICES[c]] * count for c, count in enumerate(mix))


def _mixes(n: int, used: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All layers one way, or half one way and half another: what an optimal design is made of.

    Select alone and comm alone never meet in a stage: MindFormers' lists would make them both together.
    """
    for one in used:
        yield tuple(n if c == one else 0 for c in range(len(CHOICES)))
    for one, other in combinations(used, 2):
        if n > 1 and {CHOICES[one], CHOICES[other]} != {"select", "comm"}:
            yield tuple({one: n - n // 2, other: n // 2}.get(c, 0) for c in range(len(CHOICES)))


def _inner(pp: int, sizes: list[list[int]], counts: list[list[tuple[int, ...]]], used: Sequence[int]) -> Floats:
    rows = [
        [1.0, float(sizes[k][s]), *(float((pp - s) * counts[k][s][c]) for c in used)]
        for k in range(len(sizes))
        for s in range(1, pp - 1)
    ]
    table = np.array(rows)
    return np.asarray(table / np.maximum(np.abs(table).max(axis=0), 1.0))


def measurements(pp: int, rounds: Sequence[Round], peak: float = 0.0) -> list[Measured]:
    """The stages that the init file asks for: all inner ones of every round, head and tail of the first."""
    return [
        Measured(stage=s, layers=made.layers[s], counts=made.counts[s], peak=peak, round=k)
        for k, made in enumerate(rounds)
        for s in range(pp)
        if k == 0 or 0 < s < pp - 1
    ]


def _described(pp: int, layers: int, rounds: tuple[Round, ...]) -> Design:
    measured = measurements(pp, rounds)
    parts = unknowns(measured, pp)
    names = [part.name for part in parts]
    table = equations(measured, pp, parts)
    inner = equations(
        [m for m in measured if 0 < m.stage < pp - 1], pp, [part for part in parts if part.name not in {"head", "tail"}]
    )
    spread = 100.0 * np.sqrt(np.diag(np.linalg.inv(table.T @ table)))
    largest = max(max(made.layers) for made in rounds) * pp / layers
    return Design(
        pp=pp, layers=layers, rounds=rounds, unknowns=tuple(names), rank=int(np.linalg.matrix_rank(table)),
        condition=condition(inner), errors=dict(zip(names, spread.tolist(), strict=True)), largest=largest,
    )  # fmt: skip
