"""Iteration times from the logs of training frameworks: Megatron's and torchtitan's lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from shardwise.errors import FileError

WARM_UP = 2
"""First lines that are left out when there are more: they hold compilation and allocation."""
_MEGATRON = re.compile(r"elapsed time per iteration \(ms\):\s*([0-9.]+)")
_TORCHTITAN = re.compile(r"\btps:\s*([0-9,]+(?:\.[0-9]+)?)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


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
    for line in _lines(path):
        if match := _MEGATRON.search(line):
            found["megatron"].append(float(match[1]) / 1e3)
        elif match := _TORCHTITAN.search(line):
            rate = float(match[1].replace(",", ""))
            found["torchtitan"] += [tokens_per_gpu / rate] if rate else []
    framework = max(found, key=lambda name: len(found[name]))
    times = found[framework]
    if not times:
        raise FileError(
            path,
            'has no iteration times; Megatron writes "elapsed time per iteration (ms): N", torchtitan "tps: N"',
        )
    kept = times[WARM_UP:] if len(times) > WARM_UP else times
    middle = median(kept)
    return Log(framework=framework, seconds=middle, spread=(max(kept) - min(kept)) / middle, lines=len(kept))


def _lines(path: str | Path) -> Iterator[str]:
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            for line in file:
                yield _COLOUR.sub("", line)
    except FileNotFoundError:
        raise FileError(path, "there is no such file") from None
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror}") from None
