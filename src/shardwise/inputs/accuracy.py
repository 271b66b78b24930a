"""How far predictions are to be trusted: widths fitted to measured runs that were left out, few and named.

The numbers are data (`catalog/accuracy.toml`), written by `benchmarks/intervals.py` from what `validate` predicts.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from shardwise.inputs import lookup
from shardwise.inputs.files import read_mapping

FILE = lookup.CATALOG / "accuracy.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """The error of one quantity. Nine runs in ten lie between figure / exp(width) and figure x exp(width); the square
    of a width is the sum of the squares of its causes'.
    """

    causes: dict[str, float] = field(hash=False)
    """Width that each cause adds."""
    rows: dict[str, int] = field(hash=False)
    """Measured runs behind each cause; of too few to fit one, the cause has no width of its own."""
    sources: dict[str, int] = field(hash=False)
    """Publications or measurements that they come from."""
    runtimes: dict[str, float] = field(hash=False)
    """Width of a runtime's own runs over what the causes say, drawn towards 1 where its runs are few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """How much longer than predicted a layout takes for every kind (`search/simplicity.py`) that another one of its set
    has not, both predicted to be about as fast as the best of the set; logarithms.
    """

    cost: float
    """Of one kind more, never below 0, drawn towards 0 by its error."""
    error: float
    """Its standard error, whole sources left out in turn."""
    rows: dict[str, int] = field(hash=False)
    """Measured runs, by kind, in sets of which some have it and others not: what too few have shown costs the error of
    a difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """What measured runs say about errors."""

    time: Widths
    """Of iteration seconds."""
    memory: Widths
    """Of peak bytes."""
    pairs: dict[str, float] = field(hash=False)
    """Width of the difference of two layouts of one model on one cluster over that of either: where `one` setting
    differs, and `several`."""
    kinds: Kinds
    """What less than plain layouts cost more than predicted."""
    seen: dict[str, dict[str, int]] = field(hash=False)
    """Runtime -> calibration of the GPU -> timed runs."""


@functools.cache
def accuracy() -> Accuracy:
    """The shipped widths."""
    return lookup.build(Accuracy, read_mapping(FILE))
