"""The file that the probe writes, read and checked as far as fitting needs it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.errors import FileError
from shardwise.inputs.files import read_text

SCHEMA = "shardwise/probe/1"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What one machine measured."""

    gpu: str
    """The device as its driver names it."""
    hardware: Row = field(hash=False)
    software: Row = field(hash=False)
    families: dict[str, tuple[Row, ...]] = field(hash=False)
    """Rows that carry a time, by family."""
    complete: bool = True
    """The program came to its end."""

    @property
    def source(self) -> str:
        """One line for the calibration: where its numbers come from."""
        torch, cuda = self.software.get("torch", "?"), self.software.get("cuda", "?")
        return f"operator probe of one {self.gpu} (torch {torch}, CUDA {cuda})"

    def rows(self, family: str) -> tuple[Row, ...]:
        return self.families.get(family, ())


def read_probe(path: str | Path) -> Probe:
    """Read a probe file; another file, or one of a newer program, is refused with a sentence."""
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise FileError(path, f"is not valid JSON: {error.msg} at line {error.lineno}") from None
    _refuse(data, path)
    families = {name: _timed(family) for name, family in data["families"].items()}
    if not any(families.values()):
        raise FileError(path, "holds no measured rows; run the probe again on a machine with a GPU")
    hardware = data.get("hardware", {})
    gpu = str(hardware.get("gpu") or hardware.get("device", "unknown"))
    return Probe(
        gpu=gpu, hardware=hardware, software=data.get("software", {}), families=families,
        complete=bool(data.get("complete", True)),
    )  # fmt: skip


def _refuse(data: Any, path: str | Path) -> None:  # noqa: ANN401 - a file can hold anything
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, str) or not schema.startswith("shardwise/probe/"):
        raise FileError(path, f"is not a probe's file: its schema is {schema!r}, a probe's says {SCHEMA!r}")
    if schema != SCHEMA:
        raise FileError(path, f"has schema {schema}, this Shardwise reads {SCHEMA}; update the older of the two")
    if not isinstance(data.get("families"), dict):
        raise FileError(path, "has no families of measurements; was it cut short?")


def _timed(family: object) -> tuple[Row, ...]:
    rows = family.get("rows", ()) if isinstance(family, dict) else ()
    return tuple(row for row in rows if isinstance(row, dict) and (row.get("seconds") or "allocated" in row))
