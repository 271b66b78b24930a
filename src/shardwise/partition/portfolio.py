"""What balance anneals, run after run: one list to begin with, and one without end for the time that is left.

Many runs of middle length beat one long run of the same steps, and short ones too, but which length is best differs
from problem to problem (measured): so lengths follow Luby's sequence, in which every length gets an equal share of all
steps. Fresh starts find other valleys, runs from the best so far go on where that led; neither is enough alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, cycle
from typing import NamedTuple

from shardwise.partition.graph import Ints

_LENIENT, _STRICT = 0.3, 10.0
"""What memory over a limit costs at first (see improve): neither is better everywhere."""
_WARM = 1.5e-3
"""Start temperature, as a share of the time."""
_FRESH = ((_WARM, _STRICT), (5e-3, _STRICT), (_WARM, _LENIENT), (3e-3, _STRICT))
"""Temperature and fine of runs from a start."""
_FURTHER = ((3e-3, _LENIENT), (_WARM, _STRICT), (3e-3, _STRICT), (_WARM, _LENIENT), (3e-4, _STRICT))
"""The same of runs from the best so far."""
_KEPT = 4
"""Partitions that are worked on further."""
_LONGEST = 8
"""Times the length of the shortest run."""


class Attempt(NamedTuple):
    """A run of annealing."""

    start: Ints
    heat: float
    fine: float
    length: int = 1
    """Of the run, in the shortest ones."""


def opening(fresh: Sequence[Ints]) -> Iterator[Attempt]:
    """A look from every start, and more from the first, which is something that fits."""
    yield from (Attempt(start, _WARM, _LENIENT) for start in fresh)
    yield from (Attempt(fresh[0], heat, _STRICT) for heat in (3e-3, _WARM))


def guided(near: Sequence[Ints]) -> Iterator[Attempt]:
    """From roundings of the relaxed optimum, which lie where annealing alone seldom gets to."""
    yield from (Attempt(start, _WARM, _STRICT) for start in near)
    yield from (Attempt(start, _WARM, _LENIENT) for start in near[:2])


def endless(fresh: Sequence[Ints], best: Callable[[int], list[Ints]]) -> Iterator[Attempt]:
    """Every other run from a start, the others from one of the best so far; the first of each is what fits."""
    starts, ways = chain.from_iterable(zip(cycle(fresh[:1]), cycle(fresh[1:] or fresh))), cycle(_FRESH)
    lengths, further = luby(), luby()
    for k in count():
        heat, fine = next(ways)
        yield Attempt(next(starts), heat, fine, next(lengths))
        heat, fine = _FURTHER[k % len(_FURTHER)]
        kept = best(_KEPT)
        yield Attempt(kept[k % len(kept)], heat, fine, next(further))


def luby() -> Iterator[int]:
    """1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ..., no longer than _LONGEST."""
    for k in count(1):
        low = k
        while low & (low + 1):  # until it is 2^n - 1
            low -= (1 << (low.bit_length() - 1)) - 1
        yield min((low + 1) // 2, _LONGEST)
