"""The software that runs the plan: what it can do, which kernels it fuses, what it keeps and what it overlaps.

A runtime is data (`catalog/runtimes/*.toml`), not branches in the code: the cost model reads these switches.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.inputs.strategy import SCHEDULES


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a runtime can run at all; `check` refuses the rest with a sentence."""

    zero: tuple[int, ...] = (0, 1)
    """ZeRO stages."""
    hsdp: bool = False
    """Sharded states may be spread over fewer ranks than dp x cp."""
    tp: bool = True
    """Tensor parallel."""
    pp: bool = True
    """Pipeline parallel."""
    cp: tuple[str, ...] = ("ring", "all-gather", "all-to-all")
    """Kinds of context parallel; empty: none."""
    ep: bool = True
    """Expert parallel."""
    etp: bool = True
    """Expert tensor parallel other than 1."""
    schedules: tuple[str, ...] = SCHEDULES
    """Pipeline schedules."""
    zero_with_pp: tuple[int, ...] = (0, 1)
    """ZeRO stages that go with pipeline parallel."""
    uneven_layers: bool = True
    """Stages may hold different numbers of layers."""
    recompute: tuple[str, ...] = ("full", "block", "uniform", "modules", "per-stage")
    """Kinds of recompute: full, block (first N of each stage), uniform groups, modules, per-stage lists."""
    dtypes: tuple[str, ...] = ("fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4")
    """Number formats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """One training framework, as far as time and memory are concerned."""

    name: str
    """Catalog name."""
    title: str = ""
    """One line about it."""
    can: Abilities = Abilities()
    """What it can run."""
