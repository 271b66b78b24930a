"""Expected regret: how much longer a layout is expected to take than whichever of several really is the fastest.

Errors of two layouts of one question are correlated. What is unknown of the model, the GPU, the software and the site
is common to both and cancels. What is left is drawn, the same for all that share it:

- a part for how layers are split, one for how the pipeline is made and one for what a pass holds. Layouts that differ
  in one of the three err apart by what measured layouts do that differ in one setting, in two by what those do that
  differ in several (`pairs` of `accuracy.toml`);
- a surcharge for every kind that makes a layout less than plain. It is what runs of measured sets took more than
  predicted, near the best of their set, for every kind that others of the set had not (`kinds` of `accuracy.toml`). An
  unusual kind of layout that no such set shows is expected to cost the error of a difference: it must gain more than
  that. Settings of the software (a dispatcher, CUDA graphs) make a plan less simple, and no more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from math import exp, sqrt
from typing import NamedTuple
from zlib import crc32

import numpy as np

from shardwise.estimate.intervals import ALIKE, NORMAL
from shardwise.inputs.accuracy import accuracy
from shardwise.inputs.strategy import Strategy
from shardwise.search.simplicity import UNUSUAL, kinds_of, simplicity
from shardwise.search.table import Floats

SHOWN = 10
"""Measured runs, in sets of which some have a kind and others not, that show what it costs."""
DRAWS = 2048
MOST = 8
"""Layouts whose regret is weighed at most."""


class Rival(NamedTuple):
    """A layout that is weighed against others, and its predicted seconds."""

    strategy: Strategy
    seconds: float
    experts: bool
    """The model has some."""

    @property
    def kinds(self) -> tuple[str, ...]:
        return kinds_of(self.strategy, experts=self.experts)

    @property
    def simplicity(self) -> tuple[object, ...]:
        return simplicity(self.strategy, self.seconds, experts=self.experts)

    def expected(self, width: float) -> float:
        """Its seconds with what its kinds are expected to cost beyond them."""
        return self.seconds * exp(surcharge(self.kinds, width))


class Weighed(NamedTuple):
    """Layouts that could be recommended, from the fastest to the simplest, and which one is."""

    layouts: list[Rival]
    regrets: list[float]
    chosen: Rival
    simplest: Rival


def weighed(near: Iterable[Rival], width: float, gap: float) -> Weighed:
    """Layouts that are as fast as the fastest, as far as can be told, and which of them to run: that of least expected
    regret; of those that are no worse than it by more than `gap`, which the search cannot tell apart, the simplest.

    `width`: of one prediction (`layout_width`).
    """
    every = list(near)
    most = _most_likely(every, width)
    likely = [one for one in every if one.expected(width) <= most]
    layouts = _front(every, min(likely, key=lambda one: one.simplicity), width)
    found = regrets(layouts, width)
    least = (1 + min(found)) * (1 + gap) - 1
    equal = [one for one, regret in zip(layouts, found, strict=True) if regret <= least]
    return Weighed(layouts, found, min(equal, key=lambda one: one.simplicity), layouts[-1])


def _most_likely(near: list[Rival], width: float) -> float:
    """Seconds that a layout may be expected to take and still be called equal to the best of what is expected."""
    return min(one.expected(width) for one in near) * exp(ALIKE * accuracy().pairs["several"] * width)


def _front(near: list[Rival], simplest: Rival, width: float) -> list[Rival]:
    """From the fastest to the simplest, with those between that are expected to be faster than all that are simpler;
    of many, those that are expected to be fastest.
    """
    ranked, between = sorted(near, key=lambda one: one.simplicity), list[Rival]()
    ends = {min(near, key=lambda one: (one.seconds, one.simplicity)), simplest}
    for one in ranked[ranked.index(simplest) :]:
        if not between or one.expected(width) < between[-1].expected(width):
            between.append(one)
    kept = sorted(between, key=lambda one: one.expected(width))[: MOST - len(ends)]
    return sorted({*ends, *kept}, key=lambda one: (one == simplest, one.seconds, one.simplicity))


def surcharge(kinds: tuple[str, ...], width: float) -> float:
    """What kinds are expected to cost a layout beyond its prediction, log."""
    return accuracy().kinds.cost * len(kinds) + _unshown_cost(width) * len(unshown(kinds))


def regrets(layouts: Sequence[Rival], width: float) -> list[float]:
    """The expected regret of each, as a share."""
    logs = np.array([_drawn(one, width) for one in layouts])
    return [float(one) for one in np.exp(logs - logs.min(axis=0)).mean(axis=1) - 1]


def _drawn(layout: Rival, width: float) -> Floats:
    """The logarithm of what a layout may really take."""
    kinds = layout.kinds
    part = accuracy().pairs["one"] * width / NORMAL / sqrt(2)
    off = accuracy().kinds.error * len(kinds) * _draws("kind") + sum(
        part * _draws(name) for name in _parts(layout.strategy)
    )
    off = off + sum(_unshown_cost(width) / NORMAL * _draws(kind) for kind in unshown(kinds))
    return np.asarray(np.log(layout.expected(width)) + off)


@lru_cache(maxsize=256)
def _draws(name: Hashable) -> Floats:
    """Normal draws that belong to a name: the same wherever it is met, so that no order of layouts matters."""
    stream = np.random.RandomState(crc32(repr(name).encode()))  # its numbers never change from one numpy to the next
    half = stream.standard_normal(DRAWS // 2)
    return np.concatenate((half, -half))


def unshown(kinds: Sequence[str]) -> list[str]:
    """Unusual kinds of which no measured set says what they cost."""
    rows = accuracy().kinds.rows
    return [kind for kind in kinds if kind in UNUSUAL and rows.get(kind, 0) < SHOWN]


def _unshown_cost(width: float) -> float:
    return accuracy().pairs["several"] * width


def _parts(s: Strategy) -> tuple[Hashable, ...]:
    """How layers are split, how the pipeline is made, what a pass holds."""
    return (
        ("split", s.tp, s.sp, s.cp, s.cp_kind, s.ep, s.etp),
        ("pipeline", s.pp, s.vpp, s.schedule),
        ("pass", s.micro_batch, s.recompute.full, s.recompute.modules, s.zero, s.zero_group),
    )
