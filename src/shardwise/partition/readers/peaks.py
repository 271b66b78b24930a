"""Peak memory from the logs of a dry run: `stage_<s>_rank_<r>/...log`, the last peak line of each counts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from shardwise.errors import FileError, InputError
from shardwise.inputs.gate import refusal
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.streams import blocks

Which = Literal["actual", "used"]
_LINE = {
    "actual": re.compile(
        rb"Actual peak memory usage[^:\n]*:[ \t]*([0-9]{1,15}(?:\.[0-9]{0,15})?)(?![0-9.])[ \t]*([KMG]?)"
    ),
    "used": re.compile(rb"Used peak memory usage[^:\n]*:[ \t]*([0-9]{1,15}(?:\.[0-9]{0,15})?)(?![0-9.])[ \t]*([KMG]?)"),
}
_SCALE = {b"": 1.0, b"K": 1 / 1024, b"M": 1.0, b"G": 1024.0}
_STAGE = re.compile(r"stage[_-]?(\d+)")


def read_peaks(folder: str | Path, *, which: Which = "actual") -> dict[int, float]:
    """Stage -> peak in MB, of every stage that the folder holds logs of; files are read line by line."""
    root = Path(folder)
    if not root.is_dir():
        raise FileError(folder, "is not a folder; give the output folder of the dry run")
    found: dict[int, float] = {}
    for path in sorted(root.rglob("*")):
        stage = _STAGE.search(str(path.relative_to(root)))
        if stage and path.is_file():
            peak = _last_peak(path, which)
            if peak is not None:
                found[int(stage[1])] = max(peak, found.get(int(stage[1]), 0.0))
    if not found:
        raise InputError(
            f"{folder}: no log named stage_<number> holds a line '{which.title()} peak memory usage ... M'; "
            "was MS_MEMORY_STATISTIC=1 set, and did the run end?"
        )
    missing = sorted(set(range(max(found) + 1)) - found.keys())
    if missing:
        raise InputError(f"{folder}: stage {', '.join(map(str, missing))} has no peak line; run those stages again")
    return dict(sorted(found.items()))


def _last_peak(path: Path, which: Which) -> float | None:
    last = None
    for block in blocks(path):
        for match in _LINE[which].finditer(block):
            last = float(match[1]) * _SCALE[match[2]]
    if last is not None and (fault := refusal(last, SCALARS["log.peak"])):
        raise FileError(path, f"has a peak of {last:g} MB: {fault}")
    return last
