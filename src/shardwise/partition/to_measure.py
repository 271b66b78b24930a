"""What a measuring round may be: stages, kinds of layers, ways to recompute the layers of a stage, and its equations.

The guide chooses among such rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, combinations

import numpy as np

from shardwise.partition.decompose import ACTIVATIONS, CHOICES, Floats, Measured, MemoryPart
from shardwise.partition.lists import counted_by_kind, kinds_of_chunks

Lists3 = tuple[int, int, int]
"""MindFormers' recompute, select_recompute and select_comm_recompute of a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One measuring run: layers per stage, and how many of them are run how."""

    layers: tuple[int, ...]
    lists: tuple[Lists3, ...]
    """Per stage: MindFormers' recompute, select_recompute and select_comm_recompute."""
    counts: tuple[tuple[int, ...], ...]
    """Per stage, in the order of CHOICES, kind of layers after kind."""


@dataclass(frozen=True, kw_only=True)
class ToMeasure:
    """What is to be measured."""

    pp: int
    kinds: tuple[tuple[str, int], ...]
    """Kinds of layers in the order of the model, and how many there are."""
    choices: tuple[str, ...]
    """Recompute choices, none first."""
    after: tuple[Measured, ...] = field(default=(), repr=False)
    """What was measured before."""

    @property
    def layers(self) -> int:
        return sum(count for _, count in self.kinds)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.kinds]

    @cached_property
    def ends(self) -> dict[int, str]:
        """Kinds of one layer that is always with the head or the tail: their memory is counted there."""
        last = len(self.kinds) - 1
        found = {0: "head", last: "tail"} if last else {}
        return {kind: end for kind, end in found.items() if self.kinds[kind][1] == 1}

    @cached_property
    def parts(self) -> list[MemoryPart]:
        """What is to be told apart."""
        own = [
            MemoryPart(name, kind)
            for kind in range(len(self.kinds))
            if kind not in self.ends
            for name in ("par", *(ACTIVATIONS[choice] for choice in self.choices))
        ]
        return [MemoryPart("const"), *own, MemoryPart("head"), MemoryPart("tail")]

    @cached_property
    def scale(self) -> Floats:
        """About the largest coefficient of every part."""
        mean = self.layers / self.pp
        most = [1.0 if part.kind < 0 else min(mean, self.kinds[part.kind][1]) for part in self.parts]
        flight = [1.0 if part.kind < 0 or part.name == "par" else float(self.pp) for part in self.parts]
        return np.asarray(np.array(most) * np.array(flight), dtype=float)

    def rows(self, stages: Floats, counts: Floats) -> Floats:
        """The equations of stages, scaled; `counts`: one row each."""
        layers = counts.reshape(len(counts), -1, len(CHOICES)).sum(axis=2)
        ends = np.stack((np.ones(len(stages)), stages == 0, stages == self.pp - 1), axis=1)
        whole = np.concatenate((ends, layers, (self.pp - stages)[:, None] * counts), axis=1)
        return np.asarray(whole[:, self._places] / self.scale)

    @cached_property
    def _places(self) -> list[int]:
        """Where every part stands among const, head, tail, the layers of every kind and what they hold."""
        ends, acts = {"const": 0, "head": 1, "tail": 2}, list(ACTIVATIONS.values())
        first = len(ends) + len(self.kinds)
        return [
            ends[name] if kind < 0 else len(ends) + kind if name == "par"
            else first + kind * len(CHOICES) + acts.index(name)
            for name, kind in self.parts
        ]  # fmt: skip

    def counts(self, layers: Sequence[int], lists: Sequence[Lists3]) -> list[tuple[int, ...]]:
        """Per stage: layers by choice, kind after kind."""
        held = kinds_of_chunks(layers, [count for _, count in self.kinds])
        return [chained(tuple(own), mix) for own, mix in zip(held, lists, strict=True)]

    def round(self, layers: Sequence[int], lists: Sequence[Lists3]) -> Round:
        return Round(layers=tuple(layers), lists=tuple(lists), counts=tuple(self.counts(layers, lists)))

    def mixes(self, n: int) -> list[Lists3]:
        """All layers one way, or half one way and half another: what an optimal design is made of.

        With several kinds also the first or the first two layers, so that few of a kind are run by themselves. Select
        alone and comm alone never meet in a stage: MindFormers' lists would make them both together.
        """
        firsts = {n // 2} if len(self.kinds) == 1 else {1, 2, n // 2}
        halves = [
            {one: n - first, other: first}
            for one, other in combinations(self.choices, 2)
            for first in sorted(firsts)
            if 0 < first < n and {one, other} != {"select", "comm"}
        ]
        return [one_way(choice, n) for choice in self.choices] + [_listed(counts) for counts in halves]

    def keeps_ends(self, stage: int, n: int, mix: Lists3) -> bool:
        """Whether a layer that is counted with an end runs as in every round: the first recomputed, the last not."""
        first = 0 not in self.ends or stage > 0 or min(mix) >= 1 or "full" not in self.choices
        return first and (len(self.kinds) - 1 not in self.ends or stage < self.pp - 1 or max(mix) < n)


@lru_cache(maxsize=16384)
def mixes_table(kinds: tuple[int, ...], mixes: tuple[Lists3, ...]) -> Floats:
    return np.array([chained(kinds, mix) for mix in mixes], dtype=float)


@lru_cache(maxsize=65536)
def chained(kinds: tuple[int, ...], mix: Lists3) -> tuple[int, ...]:
    """Layers by choice, kind after kind."""
    return tuple(chain.from_iterable(counted_by_kind(kinds, *mix)))


def measurements(pp: int, rounds: Sequence[Round], peak: float = 0.0) -> list[Measured]:
    """All stages of every round."""
    return [
        Measured(stage=s, layers=made.layers[s], counts=made.counts[s], peak=peak, round=k)
        for k, made in enumerate(rounds)
        for s in range(pp)
    ]


def one_way(choice: str, n: int) -> Lists3:
    return _listed({choice: n})


def _listed(counts: Mapping[str, int]) -> Lists3:
    """Counts of a stage as its numbers of MindFormers' lists."""
    full, both = counts.get("full", 0), counts.get("both", 0)
    return full, full + both + counts.get("select", 0), full + both + counts.get("comm", 0)
