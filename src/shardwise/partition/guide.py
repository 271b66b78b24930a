"""Which layers and recompute counts to measure so that memory can be taken apart: a D-optimal experiment.

The equations are those of `decompose`. A round of measuring gives one equation per stage. Among designs whose stages
stay near the mean number of layers (with several kinds of layers a stage may have as few as one, so that they part) and
whose activations stay well below those of an even split without recomputing (the round must run, too), the one with the
largest determinant of the information matrix is looked for by exchange from seeded starts: it has the least joint
uncertainty of all parts. Rounds that were measured before add what they said; of the designs that then are nearly as
good the one is taken whose worst stage is predicted best (G-optimality).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from shardwise.errors import Fault, InputError
from shardwise.partition.decompose import (
    CHOICES,
    Floats,
    Measured,
    called,
    condition,
    equations,
    parts_of,
)
from shardwise.partition.lists import counted, kinds_of_chunks
from shardwise.partition.to_measure import Lists3, Round, ToMeasure, measurements, mixes_table, one_way

KINDS = CHOICES[1:]
_WEIGHT = {"none": 1.0, "select": 0.8, "comm": 0.7, "both": 0.45, "full": 0.05}
"""Activation that is kept, roughly: only to keep the measuring round small."""
_LOAD = 0.6
"""Most activations of a measuring stage, as a share of the first stage of an even split without recompute."""
_SPREAD = 0.4
"""Layers of a stage differ from the mean by at most this share."""
_MOST = 2000
_ROUNDS = 8
"""Rounds that are tried where fewer cannot tell the parts apart."""
_STARTS, _STARTED = 16, 64
"""Starts, and rounds that all of them design together at most: of many rounds few starts do."""
_MOST_ROUNDS = 64
_RIDGE = 1e-6
"""What is known of every part without measuring (columns scaled to about 1): so singular starts are bettered, too."""
_NEAR = 0.5
"""Starts whose log determinant is this close to the best one compete by their condition number, or worst stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The rounds, and how well they will tell the parts of memory apart."""

    pp: int
    layers: int
    rounds: tuple[Round, ...]
    unknowns: tuple[str, ...]
    rank: int
    condition: float
    """Of the equations, head and tail taken out, columns scaled."""
    errors: dict[str, float]
    """Standard error of each part when every peak is off by 100 (one standard deviation)."""
    largest: float
    """Layers of the largest stage over the mean."""
    spare: int
    """Degrees of freedom that are left to judge the fit by."""
    worst: float
    """Standard error of the worst predicted stage of an even split, when every peak is off by 100."""
    before: float | None = None
    """The same after the rounds that were measured before alone; infinite: they do not suffice."""
    noise: float | None = None
    """MB that a peak is off by (one standard deviation), as rounds before say; none: nothing was measured."""

    def lists(self, one: Round) -> dict[str, list[int]]:
        """A round in MindFormers' words."""
        base = self.layers // self.pp
        full, select, comm = zip(*one.lists, strict=True)
        return {
            "offset": [n - base for n in one.layers], "recompute": list(full), "select_recompute": list(select),
            "select_comm_recompute": list(comm),
        }  # fmt: skip


def design(
    pp: int,
    layers: int,
    kinds: Sequence[str],
    *,
    seed: int = 1,
    rounds: int = 0,
    of: Sequence[tuple[str, int]] = (),
    after: Sequence[Measured] = (),
) -> Design:
    """A measuring plan for these recompute kinds; refuses what cannot be solved and says why.

    `of`: kinds of layers in the order of the model; `after`: peaks of rounds before.
    """
    _refuse(pp, layers, kinds, of)
    if rounds > _MOST_ROUNDS:
        raise InputError(Fault("rounds", f"is {rounds:,}; up to {_MOST_ROUNDS} are designed, and a few do"))
    shape = ToMeasure(pp=pp, kinds=tuple(of) or (("BODY", layers),), choices=("none", *kinds), after=tuple(after))
    least = 1 if after else -(-(3 + len(kinds)) // (pp - 2))
    if not rounds:
        tries: Iterable[int] = range(least, max(least, _ROUNDS) + 1)
    elif rounds < least:
        raise InputError(
            f"{rounds} round(s) of {pp} stages give {rounds * (pp - 2)} equations between head and tail; "
            f"{3 + len(kinds)} are needed: use {least} rounds"
        )
    else:
        tries = (rounds,)
    for count in tries:
        chance = random.Random(seed)  # noqa: S311 - a design, not a secret
        starts = max(min(_STARTS, _STARTED // count), 1)
        made = [_Exchange(shape, count, chance).run() for _ in range(starts)]
        best = max(value for value, _ in made)
        near = [described(shape, found) for value, found in made if value >= best - _NEAR * len(kinds)]
        solvable = [one for one in near if one.worst < float("inf") and _with_ends_once(shape, one.rounds)]
        if solvable:
            return min(solvable, key=lambda one: one.worst if after else one.condition)
    raise InputError(_none_found(shape, rounds))


def _none_found(shape: ToMeasure, rounds: int) -> str:
    of = (
        f"{shape.layers} layers"
        if len(shape.kinds) == 1
        else ", ".join(f"{count} {name}" for name, count in shape.kinds)
    )
    more = "use more rounds" if rounds else "measure with other stages, or count kinds that are alike as one"
    return f"no measuring plan for pp {shape.pp} and {of} was found that tells all parts of memory apart; {more}"


def _refuse(pp: int, layers: int, kinds: Sequence[str], of: Sequence[tuple[str, int]]) -> None:
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
    if of and sum(count for _, count in of) != layers:
        together = sum(count for _, count in of)
        faults.append(Fault("layer-kinds", f"are {together} layers together, --layers is {layers}; make them equal"))
    if faults:
        raise InputError(faults)


class _Exchange:
    """One start: random rounds, bettered stage by stage until nothing helps."""

    def __init__(self, shape: ToMeasure, rounds: int, chance: random.Random) -> None:
        self.shape, self.pp, self.rounds, self.chance = shape, shape.pp, rounds, chance
        mean = shape.layers / self.pp
        self.low = max(1, int(mean * (1 - _SPREAD))) if len(shape.kinds) == 1 else 1
        self.high = max(int(np.ceil(mean * (1 + _SPREAD))), int(mean) + 1)
        self.load = _LOAD * shape.layers
        self.known = sum((_information(shape, [m]) for m in shape.after), _RIDGE * np.eye(len(shape.parts)))
        self.known_mixes: dict[tuple[int, int], list[Lists3]] = {}
        self.sizes = [self._sizes() for _ in range(rounds)]
        self.lists = [[self._first(s, n) for s, n in enumerate(sizes)] for sizes in self.sizes]
        self.rows = [self._rows(k) for k in range(rounds)]
        self.matrix = np.asarray(self.known + sum(rows.T @ rows for rows in self.rows))
        """The information of all rounds."""

    def _sizes(self) -> list[int]:
        pp, layers = self.pp, self.shape.layers
        sizes = [layers // pp + (k < layers % pp) for k in range(pp)]
        for _ in range(4 * pp):
            a, b = self.chance.sample(range(pp), 2)
            if sizes[a] > self.low and sizes[b] < self.high:
                sizes[a], sizes[b] = sizes[a] - 1, sizes[b] + 1
        return sizes

    def _first(self, stage: int, n: int) -> Lists3:
        """A random mix; head and tail start small, since a single measurement of them says nothing else."""
        mixes = self._mixes(stage, n)
        ends = stage in {0, self.pp - 1}
        return min(mixes, key=lambda mix: _kept(n, mix)) if ends else self.chance.choice(mixes)

    def _mixes(self, stage: int, n: int) -> list[Lists3]:
        """Ways to recompute n layers of a stage that keep it small; the smallest if none does."""
        if (stage, n) not in self.known_mixes:
            made = [mix for mix in self.shape.mixes(n) if self.shape.keeps_ends(stage, n, mix)]
            flight = self.pp - stage
            kept = [mix for mix in made if flight * _kept(n, mix) <= self.load]
            self.known_mixes[stage, n] = kept or [min(made, key=lambda mix: _kept(n, mix))]
        return self.known_mixes[stage, n]

    def _rows(self, k: int) -> Floats:
        counts = np.array(self.shape.counts(self.sizes[k], self.lists[k]), dtype=float)
        return self.shape.rows(np.arange(self.pp, dtype=float), counts)

    def _take(self, k: int, rows: Floats) -> None:
        """The equations of a round, in place of those it had."""
        self.matrix = self.matrix - self.rows[k].T @ self.rows[k] + rows.T @ rows
        self.rows[k] = rows

    def value(self) -> float:
        """Log determinant of the information."""
        return float(np.linalg.slogdet(self.matrix)[1])

    def run(self) -> tuple[float, tuple[Round, ...]]:
        best = self.value()
        while True:
            before = best
            for k in range(self.rounds):
                for stage in range(self.pp):
                    best = self._better_mix(k, stage, best)
                best = self._better_sizes(k, best)
            if best <= before + 1e-9:
                return best, tuple(self.shape.round(*made) for made in zip(self.sizes, self.lists, strict=True))

    def _better_mix(self, k: int, stage: int, best: float) -> float:
        """The best way to run one stage, all timed abreast."""
        mixes = self._mixes(stage, self.sizes[k][stage])
        held = kinds_of_chunks(self.sizes[k], [count for _, count in self.shape.kinds])[stage]
        rows = self.shape.rows(np.full(len(mixes), float(stage)), mixes_table(tuple(held), tuple(mixes)))
        old = self.rows[k][stage]
        values = np.linalg.slogdet(self.matrix - np.outer(old, old) + rows[:, :, None] * rows[:, None, :])[1]
        most = int(np.argmax(values))
        if values[most] > best + 1e-9:
            self.lists[k][stage] = mixes[most]
            self._take(k, np.concatenate((self.rows[k][:stage], rows[most : most + 1], self.rows[k][stage + 1 :])))
            return float(values[most])
        return best

    def _better_sizes(self, k: int, best: float) -> float:
        pairs = list(combinations(range(self.pp), 2))
        for a, b in self.chance.sample(pairs, min(2 * self.pp, len(pairs))):
            for give, take in ((a, b), (b, a)):
                best = self._shifted(k, give, take, best)
        return best

    def _shifted(self, k: int, give: int, take: int, best: float) -> float:
        sizes, lists = self.sizes[k], self.lists[k]
        if sizes[give] <= self.low or sizes[take] >= self.high:
            return best
        before = (list(sizes), list(lists), self.rows[k], self.matrix)
        sizes[give], sizes[take] = sizes[give] - 1, sizes[take] + 1
        for stage in (give, take):
            lists[stage] = self._first(stage, sizes[stage])
        self._take(k, self._rows(k))
        value = self.value()
        for stage in (give, take):
            value = self._better_mix(k, stage, value)
        if value > best + 1e-9:
            return value
        self.sizes[k], self.lists[k], self.rows[k], self.matrix = before
        return best


def _information(shape: ToMeasure, measured: Sequence[Measured]) -> Floats:
    rows = equations(measured, shape.pp, shape.parts) / shape.scale
    return np.asarray(rows.T @ rows)


def _kept(n: int, mix: Lists3) -> float:
    return sum(_WEIGHT[name] * count for name, count in zip(CHOICES, counted(n, *mix), strict=True))


def described(shape: ToMeasure, rounds: tuple[Round, ...]) -> Design:
    measured = [*shape.after, *measurements(shape.pp, rounds)]
    parts = parts_of(measured, shape.pp)
    table = equations(measured, shape.pp, parts)
    inner = [k for k, part in enumerate(parts) if part.name not in {"head", "tail"}]
    ends = np.delete(table, inner, axis=1)
    inverse = np.linalg.pinv(table.T @ table)
    names = [called(part, shape.names) for part in parts]
    errors = 100.0 * np.sqrt(np.diag(inverse))
    return Design(
        pp=shape.pp, layers=shape.layers, rounds=rounds, unknowns=tuple(names), spare=len(table) - len(parts),
        rank=int(np.linalg.matrix_rank(table / np.maximum(np.linalg.norm(table, axis=0), 1e-300))),
        condition=condition(table[:, inner] - ends @ np.linalg.pinv(ends) @ table[:, inner]),
        errors=dict(zip(names, errors.tolist(), strict=True)),
        largest=max(max(made.layers) for made in rounds) * shape.pp / shape.layers,
        worst=_worst(shape, measured), before=_worst(shape, shape.after) if shape.after else None,
    )  # fmt: skip


def _with_ends_once(shape: ToMeasure, rounds: Sequence[Round]) -> bool:
    """Whether a design of one kind does where head and tail are measured in the first round alone, as SAPP does."""
    if len(shape.kinds) > 1 or shape.after:
        return True
    ends = {0, shape.pp - 1}
    measured = [m for m in measurements(shape.pp, rounds) if m.round == 0 or m.stage not in ends]
    return _worst(shape, measured) < float("inf")


def _worst(shape: ToMeasure, measured: Sequence[Measured]) -> float:
    """Standard error of the worst predicted stage of even splits, all layers run one way; infinite: not predicted."""
    parts = shape.parts
    table = equations(measured, shape.pp, parts) / shape.scale
    if np.linalg.matrix_rank(table) < len(parts):
        return float("inf")
    sizes = [shape.layers // shape.pp + (k < shape.layers % shape.pp) for k in range(shape.pp)]
    plans = [shape.counts(sizes, [one_way(choice, n) for n in sizes]) for choice in shape.choices]
    stages = np.tile(np.arange(shape.pp, dtype=float), len(plans))
    rows = shape.rows(stages, np.concatenate(plans).astype(float))
    return 100.0 * float(np.sqrt(np.einsum("rp,pq,rq->r", rows, np.linalg.inv(table.T @ table), rows).max()))
