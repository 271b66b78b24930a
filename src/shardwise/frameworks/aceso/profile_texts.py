"""The texts of a folder, a zip or a tar of profile files, with limits (an archive may lie about its size), and the
numbers in each: every fault is collected with its file and line.
"""

from __future__ import annotations

import math
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO

from shardwise.errors import Fault, FileError, InputError
from shardwise.inputs.files import opened
from shardwise.inputs.streams import streamed
from shardwise.per_op.profiles.table import COLUMNS, MB, MS, US, Band, CollectiveSamples
from shardwise.units import show_bytes

MOST_BYTES = 64 * 2**20
MOST_UNPACKED = 256 * 2**20
"""Of an archive with all that it holds beside profiles."""
MOST_FILES = 20_000
ENDINGS = (".csv", ".toml")


def read_texts(path: str | Path) -> dict[str, str]:
    """File name -> text of every CSV and TOML file, sorted by name; folders inside an archive are dropped."""
    path = Path(path)
    if path.is_dir():
        found = dict(_folder(path))
    elif not path.exists():
        raise FileError(path, "there is no such folder or archive; give the folder that holds the profile's CSV files")
    else:
        found = _once(path, _archived(path))
    if not found:
        raise FileError(path, "holds no CSV files; a profile has files such as gpt_1_3B_mbs1_tp1_algo0.csv")
    return dict(sorted(found.items()))


def _archived(path: Path) -> Iterator[tuple[str, str]]:
    with opened(path) as file:
        if file.seek(0, 2) > MOST_UNPACKED:
            raise FileError(path, f"is larger than {show_bytes(MOST_UNPACKED)}; that is no archive of profiles")
        if zipfile.is_zipfile(file):
            yield from _zip(path, file)
            return
    yield from _tar(path)


def _once(path: Path, texts: Iterator[tuple[str, str]]) -> dict[str, str]:
    """Names to texts; a name that comes again with another text is a fault."""
    found: dict[str, str] = {}
    for name, text in texts:
        if found.setdefault(name, text) != text:
            raise FileError(path, f"holds {name} twice, in different folders and with different text; keep one")
    return found


def _folder(path: Path) -> Iterator[tuple[str, str]]:
    left, faults = MOST_BYTES, []
    try:
        entries = sorted(item for item in path.iterdir() if item.name.endswith(ENDINGS))
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None
    for item in entries:
        try:
            with opened(item) as file:
                text = _text(file, path, item.name, left)
        except FileError as error:
            faults.append(Fault(item.name, error.faults[0].message.removeprefix(f"{item}: ")))
            continue
        left -= len(text)
        yield item.name, text
    if faults:
        raise InputError(faults, title=str(path))


def _zip(path: Path, packed: IO[bytes]) -> Iterator[tuple[str, str]]:
    left = MOST_BYTES
    try:
        with zipfile.ZipFile(packed) as archive:
            infos = [info for info in archive.infolist() if info.filename.endswith(ENDINGS)]
            _refuse_many(path, len(infos), sum(info.file_size for info in infos))
            for info in infos:
                with archive.open(info) as file:
                    text = _text(file, path, info.filename, left)
                left -= len(text)
                yield Path(info.filename).name, text
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, zlib.error) as error:
        raise FileError(path, f"is a broken zip archive: {error}") from None


def _tar(path: Path) -> Iterator[tuple[str, str]]:
    left = MOST_BYTES
    try:
        with streamed(path, MOST_UNPACKED) as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
            for index, info in enumerate(archive):
                _refuse_many(path, index, info.size if info.name.endswith(ENDINGS) else 0)
                file = archive.extractfile(info) if info.isfile() and info.name.endswith(ENDINGS) else None
                if file is None:
                    continue
                with file:
                    text = _text(file, path, info.name, left)
                left -= len(text)
                yield Path(info.name).name, text
    except tarfile.ReadError:
        raise FileError(path, "is neither a folder nor a sound zip or tar archive of CSV files") from None
    except (tarfile.TarError, OverflowError, ValueError) as error:
        raise FileError(path, f"is a broken tar archive: {error}") from None


def _refuse_many(path: Path, files: int, size: int) -> None:
    if files > MOST_FILES or size > MOST_BYTES:
        raise FileError(
            path,
            f"unpacks to {files:,} files and {show_bytes(size)} or more; profiles of up to {MOST_FILES:,} files and "
            f"{show_bytes(MOST_BYTES)} are read",
        )


def _text(file: IO[bytes], path: Path, name: str, left: int) -> str:
    """Read no more than what is left of the limit, whatever the archive says about the size."""
    data = file.read(left + 1)
    if len(data) > left:
        raise FileError(path, f"unpacks to more than {show_bytes(MOST_BYTES)} (at {name}); that is no profile")
    return data.decode("utf-8-sig", errors="replace")


MOST_SECONDS = 1e5
MOST_SAID = 1e15
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
              if not -MOST_NEGATIVE <= value <= MOST_SAID]  # fmt: skip
    if wrong:
        faults.append(Fault(name, f"line {number} ({cells[0]}): {'; '.join(wrong)}; write finite numbers"))
        return None
    negative = [column for column, value in zip(COLUMNS, scaled, strict=True) if value < 0]
    if negative:
        notes.append(f"{name}: {cells[0]} has a negative size ({', '.join(negative)})")
    return tuple(scaled)


def samples(name: str, text: str, faults: list[Fault]) -> CollectiveSamples | None:
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
    return CollectiveSamples(sizes=tuple(sorted(pairs)), seconds=tuple(pairs[size] for size in sorted(pairs)))


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
