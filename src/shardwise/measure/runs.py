"""Runs that were measured by the user, as rows: `validate --data` reads them, and `learn` learns from them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardwise.errors import FileError, InputError
from shardwise.estimate.estimate import Estimate
from shardwise.inputs import lookup
from shardwise.inputs.cluster import Gpu
from shardwise.inputs.files import read_mapping
from shardwise.inputs.serialise import to_json, to_plain
from shardwise.inputs.write import write_text
from shardwise.measure.logs.record import BACKWARD, FORWARD, OPTIMIZER
from shardwise.measure.logs.steady import NOISY, Steady
from shardwise.measure.validate.case import MeasuredRun, Skipped
from shardwise.measure.validate.rows import read_rows

Row = dict[str, Any]
MOST = 64
"""Runs that a name keeps; the oldest go."""
WHOLE = (0.8, 1.05)
"""Share of a step that its passes and its update hold, where they were timed on the device."""


def run_row(told: Estimate, kept: Steady, framework: str, gpu: Gpu | None = None) -> Row:
    """A measured run as a row. `gpu`: what it corrects, where the plan's own is learnt itself."""
    when = datetime.now(UTC).isoformat(timespec="milliseconds")
    cluster = told.cluster if gpu is None else replace(told.cluster, gpu=gpu)
    parts = {f"{name}_s": kept.parts[name] for name in (FORWARD, BACKWARD, OPTIMIZER) if name in kept.parts}
    if not WHOLE[0] <= sum(parts.values()) / kept.seconds <= WHOLE[1]:  # the host's times of passes, or of some alone
        parts = {}
    return {
        "id": f"{framework} {told.model.name} {when}",
        "framework": framework,
        "when": when,
        "model": to_plain(told.model),
        "strategy": to_plain(told.strategy),
        "cluster": to_plain(cluster),
        "iteration_s": kept.seconds,
        "spread": kept.spread,
        "noisy": kept.spread > NOISY,
        "steps": kept.steps,
        **parts,
        **{name: size for name, size in (("peak_allocated", kept.allocated), ("peak_reserved", kept.reserved)) if size},
    }


def runs_file(name: str) -> Path:
    """Where the runs that a name was learnt from are kept."""
    return lookup.home() / "runs" / f"{name}.json"


def known_rows(name: str) -> list[Row]:
    path = runs_file(name)
    if not path.is_file():
        return []
    rows = read_mapping(path).get("rows")
    if not isinstance(rows, list):
        raise FileError(path, 'holds no list "rows" of runs; move it away, and learn anew')
    return rows


def keep_rows(name: str, rows: list[Row]) -> Path:
    path = runs_file(name)
    write_text(path, to_json({"what": f"runs that {name} was learnt from", "rows": rows[-MOST:]}), folder=True)
    return path


def joined(rows: list[Row], new: Row) -> list[Row]:
    """The rows with a new one; the same run, read once more, is no second one."""
    same = ("model", "strategy", "iteration_s", "spread", "peak_reserved")
    return [*(row for row in rows if any(row.get(name) != new.get(name) for name in same)), new]


def cases(rows: list[Row], runtime: str) -> list[MeasuredRun]:
    """The rows of a runtime, by its name, that can be predicted; the last, which is new, must be."""
    found = read_rows(rows, Path("runs"))
    if isinstance(last := found[-1], Skipped):
        raise InputError(f"nothing can be learnt: {last.reason}; is it a run of this plan?")
    runs = [run for run in found if isinstance(run, MeasuredRun)]
    return [run for run in runs if run.runtime.base == runtime.partition("+")[0]]
