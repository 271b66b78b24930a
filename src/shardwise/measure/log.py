"""Iteration times from the logs of training frameworks: Megatron's and torchtitan's lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from shardwise.errors import FileError
from shardwise.inputs.gate import refusal
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.streams import blocks

WARM_UP = 2
"""First lines that are left out when there are more: they hold compilation and allocation."""
_MEGATRON = re.compile(rb"elapsed time per iteration \(ms\):[ \t]*([0-9]{1,15}(?:\.[0-9]{0,15})?)(?![0-9.])")
_TORCHTITAN = re.compile(rb"\btps:[ \t]*([0-9,]{1,20}(?:\.[0-9]{1,15})?)(?![0-9.])")
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Seconds per iteration of a run."""

    framework: str
    seconds: float
    """Median over the iterations, the first ones left out."""
    spread: float
    """(largest - smallest) / median."""
    lines: int


def read_log(path: str | Path, *, tokens_per_gpu: float) -> Log:
    """Read a log. `tokens_per_gpu`: tokens of an iteration per GPU, which turn torchtitan's `tps` into seconds."""
    found: dict[str, list[float]] = {"megatron": [], "torchtitan": []}
    for block in map(_plain, blocks(path)):
        found["megatron"] += [float(match[1]) / 1e3 for match in _MEGATRON.finditer(block)]
        rates = [float(match[1].replace(b",", b"") or 0) for match in _TORCHTITAN.finditer(block)]
        found["torchtitan"] += [tokens_per_gpu / rate for rate in rates if rate]
    framework = max(found, key=lambda name: len(found[name]))
    times = found[framework]
    if not times:
        raise FileError(
            path,
            'has no iteration times; Megatron writes "elapsed time per iteration (ms): N", torchtitan "tps: N"',
        )
    kept = times[WARM_UP:] if len(times) > WARM_UP else times
    middle = median(kept)
    if fault := refusal(middle, SCALARS["log.iteration"]):
        raise FileError(path, f"has iterations of {middle:g} s: {fault}")
    return Log(framework=framework, seconds=middle, spread=(max(kept) - min(kept)) / middle, lines=len(kept))


def _plain(block: bytes) -> bytes:
    return _COLOUR.sub(b"", block) if b"\x1b" in block else block
