"""One CSV text of a profile into numbers; every fault is collected with its file and line."""

from __future__ import annotations

import math
from itertools import pairwise

from shardwise.errors import Fault
from shardwise.per_op.profiles.table import COLUMNS, MB, MS, US, Band, Samples

MOST_SECONDS = 1e5
MOST_BYTES = 1e15
MOST_NEGATIVE = 2.0**30  # allocators that give back more than they took are seen in real files
_HEADS = ("op_name", "forward-compute", "backward-compute", "input_size", "output_size", "weights", "activations",
          "fwd_reserved", "bwd_reserved")  # fmt: skip
_FACTORS = (US, US, MB, MB, MB, MB, MB, MB)

OpRows = dict[str, tuple[float, ...]]


def op_rows(name: str, text: str, faults: list[Fault], notes: list[str]) -> OpRows:
    """Operator -> its eight values in SI."""
    lines = _lines(text)
    if not lines:
        faults.append(Fault(name, "is empty; profile it again"))
        return {}
    if tuple(lines[0][1]) != _HEADS:
        faults.append(Fault(name, f"its first line must be {','.join(_HEADS)}"))
        return {}
    found: OpRows = {}
    for number, cells in lines[1:]:
        row = _op_row(name, number, cells, faults, notes)
        if row is None:
            continue
        if cells[0] in found:
            faults.append(Fault(name, f"line {number}: {cells[0]} is there twice; keep one"))
        found[cells[0]] = row
    if found and not any(row[0] + row[1] for row in found.values()):
        faults.append(Fault(name, "all its times are 0; profile it again"))
    return found


def _op_row(
    name: str, number: int, cells: list[str], faults: list[Fault], notes: list[str]
) -> tuple[float, ...] | None:
    if len(cells) != len(_HEADS):
        said = f"line {number} has {len(cells)} of {len(_HEADS)} values; the file was cut or edited"
        faults.append(Fault(name, said))
        return None
    values = [_number(cell) for cell in cells[1:]]
    wrong = [f"{head} is {cell!r}" for head, cell, value in zip(_HEADS[1:], cells[1:], values, strict=True)
             if value is None]  # fmt: skip
    scaled = [factor * (value or 0.0) for factor, value in zip(_FACTORS, values, strict=True)]
    wrong += [f"{column} of {cell} is negative or absurd"
              for column, cell, value in zip(_HEADS[1:3], cells[1:3], scaled[:2], strict=True)
              if not 0 <= value <= MOST_SECONDS]  # fmt: skip
    wrong += [f"{column} of {cell} MB is absurd"
              for column, cell, value in zip(_HEADS[3:], cells[3:], scaled[2:], strict=True)
              if not -MOST_NEGATIVE <= value <= MOST_BYTES]  # fmt: skip
    if wrong:
        faults.append(Fault(name, f"line {number} ({cells[0]}): {'; '.join(wrong)}; write finite numbers"))
        return None
    negative = [column for column, value in zip(COLUMNS, scaled, strict=True) if value < 0]
    if negative:
        notes.append(f"{name}: {cells[0]} has a negative size ({', '.join(negative)})")
    return tuple(scaled)


def samples(name: str, text: str, faults: list[Fault]) -> Samples | None:
    """Times of one collective."""
    lines = _lines(text)
    if len(lines) < 2:
        faults.append(Fault(name, "holds no times; profile it again"))
        return None
    pairs: dict[float, float] = {}
    for number, cells in lines[1:]:
        values = [_number(cell) for cell in cells]
        if len(values) != 2 or None in values or min(v for v in values if v is not None) < 0:
            faults.append(Fault(name, f"line {number} is {','.join(cells)!r}; write MB,ms as two numbers"))
            continue
        pairs[(values[0] or 0.0) * MB] = (values[1] or 0.0) * MS
    return Samples(sizes=tuple(sorted(pairs)), seconds=tuple(pairs[size] for size in sorted(pairs)))


def band(name: str, text: str, faults: list[Fault]) -> Band | None:
    """Point-to-point bandwidths: a line of MB, a line of GB/s."""
    lines = _lines(text)
    rows = [[_number(cell) for cell in cells] for _, cells in lines]
    if len(rows) != 2 or len(rows[0]) != len(rows[1]) or not rows[0]:
        faults.append(Fault(name, "must hold two lines of as many numbers: sizes in MB, bandwidths in GB/s"))
        return None
    flat = [value for row in rows for value in row]
    if any(value is None or value <= 0 for value in flat):
        faults.append(Fault(name, "every size and bandwidth must be a number above 0"))
        return None
    sizes, rates = ([value or 0.0 for value in row] for row in rows)
    if any(high <= low for low, high in pairwise(sizes)):
        faults.append(Fault(name, f"its sizes must rise: {', '.join(f'{size:g}' for size in sizes)} MB"))
        return None
    return Band(sizes=tuple(MB * size for size in sizes), rates=tuple(1000 * MB * rate for rate in rates))


def _lines(text: str) -> list[tuple[int, list[str]]]:
    """Line number and cells of every line that is not blank."""
    split = enumerate(text.splitlines(), start=1)
    return [(number, [cell.strip() for cell in line.split(",")]) for number, line in split if line.strip()]


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
