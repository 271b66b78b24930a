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
    which: re.compile(which.title().encode() + rb" peak memory usage[^:\n]*:[ \t]*(\S[^\n]{0,200})")
    for which in ("actual", "used")
}
_PEAK = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?)(?:[ \t]*([KMG])i?B?)?(?![A-Za-z0-9]|\.[0-9])")
_SCALE = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0}
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
            last = match[1].decode(errors="replace").strip()
    if last is None:
        return None
    peak = _PEAK.match(last)
    if peak is None:
        raise FileError(path, f"has a peak line that says {last[:40]!r}, where a number of MB belongs; run it again")
    value = float(peak[1]) * _SCALE[peak[2] or ""]
    if fault := refusal(value, SCALARS["log.peak"]):
        raise FileError(path, f"has a peak of {value:g} MB: {fault}")
    return value
