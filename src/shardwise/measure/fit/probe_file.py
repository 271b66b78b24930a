"""The file that the probe writes, read and checked as far as fitting needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.errors import FileError
from shardwise.inputs.files import read_json

SCHEMA = "shardwise/probe/1"
Row = dict[str, Any]
LEAST_SECONDS, MOST_SECONDS, MOST_SIZE = 1e-9, 1e3, 2.0**50
MOST_TOLD = 3
MOST_COUNT = {"layers": 1024, "heads": 65536, "kv_heads": 65536, "batch": 2**20, "experts": 2**20, "ranks": 2**20}
# What fitting reads of each family's rows: whole numbers above 0, and words.
_NEEDED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gemm": (("m", "n", "k"), ("dtype", "layout")),
    "grouped": ((), ("kernel",)),
    "grouped_mm": (("experts", "rows", "n", "k"), ("kernel", "layout", "balance")),
    "attention": (("batch", "seq", "heads", "kv_heads", "dim", "v_dim"), ("phase", "backend", "dtype")),
    "memory": (("rows", "width"), ("kernel", "phase", "cache")),
    "launch": ((), ("op", "side")),
    "step": (("hidden", "ffn", "heads", "kv_heads", "layers", "seq", "batch"), ("phase", "norm", "clock")),
    "distributed": (("ranks", "bytes"), ("op",)),
}
# Marks that may be 0 or false; only some of a family's rows have them, and fitting asks all.
_MARKS = {"attention": ("causal", "dropout"), "memory": ("bytes", "kernels"), "step": ("vocabulary", "dim", "autocast")}
_CHOICES = {
    ("gemm", "layout"): ("F", "I", "W"), ("grouped", "layout"): ("F", "I", "W"),
    ("step", "norm"): ("eager", "native"), ("step", "phase"): ("forward", "backward", "both"),
}  # fmt: skip


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
    deaths: tuple[str, ...] = ()
    """Families in which a case killed the process that measured it: a sentence each."""

    @property
    def source(self) -> str:
        """One line for the calibration: where its numbers come from."""
        torch, cuda = self.software.get("torch", "?"), self.software.get("cuda", "?")
        return f"operator probe of one {self.gpu} (torch {torch}, CUDA {cuda})"

    def rows(self, family: str) -> tuple[Row, ...]:
        return self.families.get(family, ())


def read_probe(path: str | Path) -> Probe:
    """Read a probe file; another file, or one of a newer program, is refused with a sentence."""
    data = read_json(path)
    _refuse(data, path)
    families = {name: _timed(name, family, path) for name, family in data["families"].items()}
    deaths = tuple(told for name, family in data["families"].items() if (told := _deaths(name, family)))
    if not any(families.values()):
        why = "".join(f" ({told})" for told in deaths[:MOST_TOLD])
        raise FileError(path, f"holds no measured rows{why}; run the probe again on a machine with a GPU")
    hardware, software = (part if isinstance(part := data.get(name), dict) else {} for name in ("hardware", "software"))
    gpu = str(hardware.get("gpu") or hardware.get("device", "unknown"))
    return Probe(
        gpu=gpu, hardware=hardware, software=software, families=families,
        complete=bool(data.get("complete", True)), deaths=deaths,
    )  # fmt: skip


def _refuse(data: Any, path: str | Path) -> None:  # noqa: ANN401 - a file can hold anything
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, str) or not schema.startswith("shardwise/probe/"):
        raise FileError(path, f"is not a probe's file: its schema is {schema!r}, a probe's says {SCHEMA!r}")
    if schema != SCHEMA:
        raise FileError(path, f"has schema {schema}, this Shardwise reads {SCHEMA}; update the older of the two")
    if not isinstance(data.get("families"), dict):
        raise FileError(path, "has no families of measurements; was it cut short?")


def _timed(name: str, family: object, path: str | Path) -> tuple[Row, ...]:
    """The rows that carry a time; a number that cannot be is told with its place, not fitted."""
    rows = family.get("rows", ()) if isinstance(family, dict) else ()
    if not isinstance(rows, list | tuple):
        raise FileError(path, f"families.{name}.rows is no list; was it edited?")
    timed = [(place, row) for place, row in enumerate(rows) if isinstance(row, dict) and "seconds" in row]
    faults = [f"families.{name}.rows[{place}]: {fault}" for place, row in timed if (fault := _fault(name, row))]
    if faults:
        more = f" and {len(faults) - MOST_TOLD} more" if len(faults) > MOST_TOLD else ""
        raise FileError(path, f"holds what no probe measures: {'; '.join(faults[:MOST_TOLD])}{more}; run it again")
    return tuple(row for _, row in timed)


def _deaths(name: str, family: Row) -> str:
    """How often measuring a family killed the probe's process, and how; empty: never."""
    rows = [row for row in family.get("rows", ()) if isinstance(row, dict)] if isinstance(family, dict) else []
    how = [str(row["died"])[:200] for row in rows if "died" in row]
    return f"{name}: measuring {len(how)} of {len(rows)} cases killed the process, the first {how[0]}" if how else ""


def _fault(name: str, row: Row) -> str:
    """What is wrong with a row; empty: nothing."""
    grouped = name == "grouped" and row.get("kernel") == "grouped_mm"  # others are not fitted
    numbers, words = _NEEDED.get("grouped_mm" if grouped else name, ((), ()))
    missing = [field for field in (*numbers, *words, *_MARKS.get(name, ())) if field not in row]
    if missing:
        return f"lacks {', '.join(missing)}"
    odd = [field for field in numbers if not _size(row[field], MOST_COUNT.get(field, MOST_SIZE))]
    odd += [field for field in words if not isinstance(row[field], str)]
    odd += [field for field in _MARKS.get(name, ()) if not _mark(row[field])]
    odd += [field for field in words if row[field] not in _CHOICES.get((name, field), (row[field],))]
    odd += [field for field in ("how", "load") if not isinstance(row.get(field, ""), str)]
    if odd:
        return f"{odd[0]} is {row[odd[0]]!r}"
    if not _number(row["seconds"]) or not LEAST_SECONDS <= row["seconds"] <= MOST_SECONDS:
        return f"seconds is {row['seconds']!r}, and a kernel takes {LEAST_SECONDS:g} to {MOST_SECONDS:g}"
    return ""


def _size(value: object, most: float) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most


def _mark(value: object) -> bool:
    return isinstance(value, bool) or (isinstance(value, int | float) and 0 <= value <= MOST_SIZE)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
