"""A module that was followed by torch, operator by operator: its blocks as data, whatever its code says.

Numbers of a block are lines over the samples of a micro batch: what is there whatever their number, and what every
sample adds. Shapes, element sizes and the length of a sample are those of the trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardwise.inputs.serialise import later

Line = tuple[float, ...]
"""Two numbers: what stands whatever the samples, and what every sample adds."""
NONE: Line = (0.0, 0.0)
ElementType = Literal["bf16", "fp16", "fp32"]
TracedKind = Literal["gemm", "grouped", "attention", "memory"]


def at(line: Line, samples: float) -> float:
    """A line's value for so many samples; none is below zero."""
    return max(0.0, line[0] + line[1] * samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCut:
    """What tensor parallel divides of an operator's numbers, and what its ranks add up."""

    shape: tuple[Line, ...] = later(())
    """Of its shape."""
    bytes_f: Line = later(NONE)
    """Of its traffic forward."""
    bytes_b: Line = later(NONE)
    """Of that backward."""
    kept: Line = later(NONE)
    """Of what it keeps."""
    extra_f: Line = later(NONE)
    """Of what is live beside it forward."""
    extra_b: Line = later(NONE)
    """The same backward."""
    params: int = later(0)
    """Of its parameters."""
    sums_f: Line = later(NONE)
    """Bytes that the ranks add up behind it."""
    sums_b: Line = later(NONE)
    """Bytes of gradients that they add up in backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedOp:
    """Operators of one module in a row, or one product or attention."""

    name: str
    """The module's path inside the block, and the operator."""
    kind: TracedKind
    """What runs: a matrix product, products of experts, attention, or kernels that memory limits."""
    shape: tuple[Line, ...] = later(())
    """As in an operator of ours: of a product rows, columns and depth; none for kernels that memory limits."""
    bytes_f: Line = later(NONE)
    """Weighted traffic of the forward pass beside a product's own."""
    bytes_b: Line = later(NONE)
    """The same of the backward pass."""
    kernels_f: float = later(0.0)
    """Kernels that forward launches."""
    kernels_b: float = later(0.0)
    """Kernels that backward launches."""
    calls_f: float = later(0.0)
    """Calls of torch's operators forward, weighted by what they take of the host: 1 for one that launches a kernel."""
    calls_b: float = later(0.0)
    """The same backward."""
    kept: Line = later(NONE)
    """Bytes that autograd keeps of it, each tensor's memory counted once, parameters not."""
    extra_f: Line = later(NONE)
    """Bytes live while it runs forward, on top of what is kept so far."""
    extra_b: Line = later(NONE)
    """The same backward."""
    params: int = later(0)
    """Parameters that it is the first to read."""
    single: bool = later(False)
    """A product of 32-bit numbers."""
    masked: bool = later(False)
    """Attention reads a mask."""
    cut: TracedCut | None = None
    """What tensor parallel does to it; none: every rank does the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedBlock:
    """Blocks of one kind cost the same."""

    name: str
    """Its class, and its path where several kinds share one."""
    ops: tuple[TracedOp, ...]
    """Its operators in the order of the forward pass."""
    entry: Line = later(NONE)
    """Bytes that it reads of what others made and that has a gradient: what a recomputed block keeps."""

    @property
    def params(self) -> int:
        return sum(op.params for op in self.ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A traced module: a chain of blocks between what runs before the first and after the last of them."""

    inputs: str
    """The inputs that it was traced with."""
    dtype: ElementType
    """Number format of its parameters."""
    seq: int
    """Tokens of a sample; 1 where its first input has none."""
    kinds: tuple[TracedBlock, ...]
    """Every kind of block once."""
    order: tuple[int, ...]
    """Which kind each block has, in the order in which they run; what runs between two belongs to the later."""
    first: TracedBlock
    """What runs before the first block."""
    last: TracedBlock
    """What runs after the last one, and the loss."""
    border: Line
    """Bytes that have a gradient and cross the widest border between blocks."""
    tables: Line = later(NONE)
    """Bytes without a gradient that blocks share and keep: masks, positions."""
    logits: Line = later(NONE)
    """Bytes of the largest tensor of the last part, in 16 bit."""
    buffers: int = later(0)
    """Bytes of buffers."""
    idle: int = later(0)
    """Parameters that the pass never reads; the first part holds them."""
    tied: int = later(0)
    """Parameters that the last part shares with the first."""
    tied_cut: int = later(0)
    """Those of them that tensor parallel divides."""
    ways: int = later(1)
    """What tensor parallel must divide; 1: it was not found where to cut."""
    whole: str = later("")
    """The first operator that left some product whole; empty: all were cut."""

    @property
    def params(self) -> int:
        """All parameters, each once."""
        return self.idle + self.first.params + sum(self.kinds[kind].params for kind in self.order) + self.last.params
