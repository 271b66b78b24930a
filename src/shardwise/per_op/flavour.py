"""The two cost models as data: what Aceso's leaves out or gets wrong is a switch, not an `if` spread over the code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from shardwise.per_op.rules import Rule, compatible_rule, full_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """How a profile is turned into seconds and bytes."""

    name: Literal["compatible", "full"]
    rule: Callable[[str], Rule]
    """What is known about an operator."""
    exact_lookups: bool
    """Aceso's look-ups: bandwidth bins one too low, collectives by exact size or 100 s; else interpolated."""
    first_tp_leaves: bool
    """The size of a stage's output is read at the tp of its first operator (a slip of Aceso's)."""
    reserve_skips_last: bool
    """The reserve of a stage does not look at its last operator (a slip of Aceso's)."""
    open_run_counts: bool
    """A recomputed run that reaches a stage's end counts for the peak even where sharing hid its last operator."""
    both_ways: bool
    """Activations and gradients are both sent, as slices that are gathered on arrival; the ends send nothing."""
    update: bool
    """Gradients are reduced over replicas and the optimizer steps, spread over the micro batches."""
    clamp_sizes: bool
    """Negative sizes of a profile count as 0."""
    zero: int = 0
    """1: fp32 weights and optimizer states are sharded over replicas."""
    master: float = 2.0
    """Bytes of fp32 weights per byte of weights."""
    moments: float = 4.0
    """Bytes of optimizer states per byte of weights."""
    overlap: float = 0.0
    """Share of sends between stages that is hidden."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """1f1b keeps the micro batches of the stages behind; gpipe keeps all."""
    reserve: Literal["sum", "largest"] = "sum"
    """Allocator reserve: largest of forward plus largest of backward, or the larger of the two (Aceso's MIN)."""
    update_rate: float = 6e11
    """Bytes per second of an optimizer step."""


COMPATIBLE = Flavour(
    name="compatible",
    rule=compatible_rule,
    exact_lookups=True,
    first_tp_leaves=True,
    reserve_skips_last=True,
    open_run_counts=False,
    both_ways=False,
    update=False,
    clamp_sizes=False,
)
FULL = Flavour(
    name="full",
    rule=full_rule,
    exact_lookups=False,
    first_tp_leaves=False,
    reserve_skips_last=False,
    open_run_counts=True,
    both_ways=True,
    update=True,
    clamp_sizes=True,
    zero=1,
)
