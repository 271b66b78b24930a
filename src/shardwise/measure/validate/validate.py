"""Every row of files of measured runs, predicted and held against what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.measure.validate.case import Case, Skipped
from shardwise.measure.validate.predict import Outcome, predict
from shardwise.measure.validate.rows import read_file, shipped_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Predictions beside their measurements, in the order of the rows."""

    results: tuple[Outcome | Skipped, ...]

    @property
    def outcomes(self) -> list[Outcome]:
        return [one for one in self.results if isinstance(one, Outcome)]

    @property
    def skipped(self) -> list[Skipped]:
        return [one for one in self.results if isinstance(one, Skipped)]


def validate(files: Iterable[str | Path] = ()) -> Validation:
    """Predict every row of the files; without files, of the data that come with the package."""
    rows = [row for path in (tuple(files) or shipped_files()) for row in read_file(path)]
    return Validation(results=tuple(_predicted(row) for row in rows))


def _predicted(row: Case | Skipped) -> Outcome | Skipped:
    if isinstance(row, Skipped):
        return row
    try:
        return predict(row)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        reason = f"cannot be estimated: its values do not go together ({row.strategy} on {row.cluster.name})"
        return Skipped(id=row.id, source=row.source, reason=reason)


def row_of(result: Outcome | Skipped) -> dict[str, Any]:
    """A result as a row of the JSON answer."""
    if isinstance(result, Skipped):
        return {"id": result.id, "source": result.source, "skipped": result.reason}
    case = result.case
    row: dict[str, Any] = {
        "id": case.id,
        "source": case.source,
        "gpu": case.gpu,
        "precision": case.precision,
        "complete": case.complete,
        "strategy": str(case.strategy),
        "runtime": case.runtime.name,
        "predicted": result.predicted,
        "measured": case.measured,
        "error": result.error,
    }
    return {**row, "assumed": list(case.notes)} if case.notes else row
