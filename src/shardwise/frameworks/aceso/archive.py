"""The texts of a folder, a zip or a tar of profile files, with limits: an archive may lie about its size."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from shardwise.errors import Fault, FileError, InputError
from shardwise.inputs.files import opened
from shardwise.inputs.streams import streamed
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
