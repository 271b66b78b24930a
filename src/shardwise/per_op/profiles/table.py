"""A profile: seconds and bytes of every operator by micro batch, tp and split variant; collectives; point to point.

SI inside. Aceso's files say us, ms and MB (2^20 bytes): the factors below are the only place that knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

US, MS, MB = 1e-6, 1e-3, 2.0**20
COLUMNS = ("forward", "backward", "input", "output", "weights", "activations", "reserved_f", "reserved_b")
"""Columns of a profile, in the order of Aceso's files: two times, then sizes."""
COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Bandwidth of point-to-point messages at sizes that double from 1 MB."""

    sizes: tuple[float, ...]
    """Bytes."""
    rates: tuple[float, ...]
    """Bytes per second, a GB of 1000 MB as Aceso reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSamples:
    """Seconds of one collective over one number of GPUs, by bytes, in ascending order."""

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]


class LayerRun(NamedTuple):
    """Equal layers in a row, or a pattern of several that repeats."""

    spans: tuple[tuple[int, int], ...]
    """First and last row of every layer of the pattern."""
    repeats: int

    @property
    def rows(self) -> list[int]:
        return [row for first, last in self.spans for row in range(first, last + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What every operator of one model costs on one machine."""

    name: str
    """Model and size as its files say it, such as `gpt_1_3B`."""
    ops: tuple[str, ...]
    """Distinct operators in model order: those before the layers, one layer, those after."""
    micro_batches: tuple[int, ...]
    """Samples per replica that were measured, ascending."""
    tps: tuple[int, ...]
    """Tensor parallel sizes that were measured, ascending."""
    variants: tuple[int, ...]
    """Ways to split an operator's matrix."""
    values: np.ndarray = field(hash=False, compare=False, repr=False)
    """[column, micro batch, tp, variant, operator], SI."""
    collectives: dict[tuple[str, int], CollectiveSamples] = field(hash=False, repr=False)
    """Kind and number of GPUs -> measured times."""
    intra: Band
    """Between GPUs of one node."""
    inter: Band | None = None
    """Between nodes; none: that within a node is used."""
    tags: dict[str, str] = field(default_factory=dict, hash=False)
    """What was measured: attention kernel, dtype, framework, device, seq ..."""
    layer_ops: tuple[str, str] | None = None
    """First and last operator of the layer, where the profile says so itself."""
    runs: tuple[LayerRun, ...] = ()
    """How the layers follow one another, where the profile says so itself; all other rows stand once."""
    whole: bool = False
    """Whether its rows are the whole model: no layer repeats."""
    operators: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    """Facts of operators that the profile says itself (`facts.OperatorFacts`), by operator."""
    identity: str = ""
    """Short hash of everything that was read."""
    notes: tuple[str, ...] = ()
    """What is odd in the files, a sentence each."""

    def column(self, name: str) -> np.ndarray:
        """[micro batch, tp, variant, operator] of one column."""
        found: np.ndarray = self.values[COLUMNS.index(name)]
        return found
