"""What a GPU's kernels really reach: a few physical numbers per GPU family, with where they come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shardwise.inputs.serialise import later

CollectiveKind = Literal["ring", "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "send"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What one kind of collective was measured to take in one kind of group: a line of a cluster's table of rates.

    SimuMax's system files, logs of nccl-tests, the probe and the catalog all fill this table; the first line that fits
    a group counts. `share`, `latency` and `fixed` hold for any message; where messages of several
    sizes were measured and the group is of the line's size, they count instead.
    """

    level: str
    """Name of the level."""
    kind: CollectiveKind
    """ring: both all-gather and reduce-scatter; send: a message between pipeline stages."""
    within: int = 0
    """Only for groups that lie within so many neighbouring ranks; 0: any."""
    size: int = 0
    """Only for groups of so many ranks; 0: any."""
    stride: int = 0
    """Only for groups whose members are so many ranks apart; 0: any."""
    nodes: int = 0
    """Only for groups that lie on so many nodes (domains of the first level); 0: any."""
    share: float
    """Share of the level's bandwidth."""
    latency: float
    """Seconds per step."""
    fixed: float = 0.0
    """Seconds once."""
    sizes: tuple[float, ...] = ()
    """Messages that were measured, in bytes as nccl-tests counts them, the smallest first."""
    seconds: tuple[float, ...] = ()
    """What each of them took. Between two sizes the logarithms are interpolated; below the first a message takes as
    long as it, above the last the rate stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What whole runs of one runtime showed beside the calibration; other runtimes' kernels and hosts are their own."""

    runtime: str
    """Its name, without values that are laid over it."""
    corrections: dict[str, float] = field(default_factory=dict, hash=False)
    """Measured over predicted time by kind: gemm, attention, memory, host (launches and framework code), and experts,
    which counts for all kernels of a model that has them."""
    runs: tuple[str, ...] = ()
    """What it was learnt on."""
    nodes: bool = False
    """One of them ran on several nodes."""
    time_error: float = 0.0
    """Mean absolute error of step times of runs that were left out; 0: too few runs to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Efficiencies of one family of GPUs. Shares are of the GPU's own peaks, so that sister models can use them."""

    name: str
    """Catalog name."""
    source: str
    """What the numbers were measured or fitted on."""
    gemm: dict[str, float] = field(hash=False)
    """Share of the dense peak that large matrix products sustain in training, per number format."""
    gemm_depth: float = 64.0
    """Depth at which starting and draining a tile costs as much as computing it, in elements."""
    gemm_fixed: float = 4e-6
    """Seconds per matrix kernel whatever its size."""
    wave: float = 0.25
    """Share of a last, partly filled wave of tiles that is lost; 0: work is split to fill it."""
    misaligned: float = 6.5
    """Slowdown of a product one of whose widths is odd (8 bytes' alignment lost); even but not a multiple of 8: its
    square root."""
    grouped: float = 1.0
    """Speed of grouped products over plain ones of the same shape."""
    bandwidth: float = 0.87
    """Share of memory bandwidth that streaming kernels reach."""
    kernel_fixed: float = 2.5e-6
    """Seconds per memory-bound kernel whatever its size."""
    attention: tuple[float, float] = (0.60, 0.56)
    """Share of the 16-bit peak that attention reaches at long sequences, many heads, head size 128: both passes."""
    attention_half: tuple[float, float] = (450.0, 900.0)
    """Sequence length at which a causal kernel reaches half of that."""
    flash2: tuple[float, float] = (0.60, 0.56)
    """The same for the FlashAttention-2 kernels that older runtimes use."""
    flash1: tuple[float, float] = (0.33, 0.26)
    """The same for the first FlashAttention kernels and their Triton kin."""
    narrow_head: float = 0.8
    """Speed at head size 64 over that at 128."""
    host: float = 1.0
    """Speed of the host's processor: launch costs are divided by it."""
    network: dict[str, float] = field(default_factory=dict, hash=False)
    """Share of a level's bandwidth that collectives reach, by level name; `default` for the rest."""
    collective_fixed: float = 8e-6
    """Seconds that starting a collective takes, whatever its size."""
    contended: tuple[float, float] = later((0.22, 0.11))
    """Share of the kernels' speed that is lost while a collective runs beside them, inside a node and between nodes.
    NCCL starts a block for each of its channels, each of which holds a compute unit: 24 inside a node of H100s, and
    between nodes 8 to 16, the fewer of its GPUs take part, as its logs say. Of an A100's 108 units that is so much."""
    collectives: tuple[Reach, ...] = ()
    """Measured collectives, in place of `network`, `collective_fixed` and the levels' latencies; the first that fits a
    group counts, and those of one size, stride or number of nodes stand before those for all."""
    average: bool = False
    """The shares are means over all shapes (SimuMax's): nothing more is lost to depth, waves, alignment, few blocks."""
    shapes: dict[str, float] = field(default_factory=dict, hash=False)
    """Shares of the peak of shapes that were measured one by one, in place of the shares above; a shape that was not
    takes that of the nearest."""
    operators: dict[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    """Memory-bound operators that were measured one by one: what a streaming kernel (`bandwidth`) would move in their
    time, both passes. Bytes a logit for a loss by its kind (`fused loss`, `in-place loss`), bytes a byte of the routed
    tokens for `permute` and `combine`."""
    corrections: dict[str, float] = field(default_factory=dict, hash=False)
    """Measured over predicted time by kind of kernel (gemm, attention, memory), from a user's own trace or log; 1: as
    calibrated. Ledgers name them."""
    learnt: tuple[Learnt, ...] = ()
    """The same of single runtimes, from runs of theirs (`launch --learn`, `calibrate --log`); estimates that use it
    name it."""
    probed: dict[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    """Smallest and largest size that was measured, by kind and dimension (`gemm_rows` ...); far outside, estimates say
    so. Empty: not known."""
    measured: bool = True
    """A measured run or probe supports the numbers; false: data sheets and published kernels alone, and estimates say
    so."""
    kernels: str = ""
    """The calibration whose kernels these still are, where only collectives or memory were measured; empty: its own."""
    time_error: float = 0.0
    """Mean absolute error of step times on the user's own GPUs, as the fit measured it: intervals are made from it. 0:
    not measured; what published runs say (`accuracy.toml`) counts."""
    memory_error: float = 0.0
    """The same of peak memory."""
