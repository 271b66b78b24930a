"""Files that are read piece by piece (traces, logs, archives): bounded as all are, unpacked on the way."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from shardwise.errors import FileError
from shardwise.inputs.files import gunzip, opened
from shardwise.units import show_bytes

STREAM_LIMIT = 2 * 2**30
"""Bytes of a trace or a log, unpacked."""
LINE_LIMIT = 2**20


@contextmanager
def streamed(path: str | Path, limit: int = STREAM_LIMIT) -> Iterator[IO[bytes]]:
    """A file to be read piece by piece, unpacked where it is gzip, bzip2 or xz; the limit is of what it unpacks to."""
    with opened(path) as file:
        start = file.read(6)
        file.seek(0)
        source = next((unpack(file) for magic, unpack in _UNPACKERS.items() if start.startswith(magic)), file)
        with io.BufferedReader(_Limited(source, path, limit), 2**20) as limited:
            yield limited


def _bunzip(file: IO[bytes]) -> Any:  # noqa: ANN401
    import bz2

    return bz2.BZ2File(file)


def _unxz(file: IO[bytes]) -> Any:  # noqa: ANN401
    import lzma

    return lzma.LZMAFile(file)


_UNPACKERS = {b"\x1f\x8b": gunzip, b"BZh": _bunzip, b"\xfd7zXZ\x00": _unxz}


class _Limited(io.RawIOBase):
    """Another file, which ends with a refusal where it is too long."""

    def __init__(self, source: IO[bytes], path: str | Path, limit: int) -> None:
        self.source, self.path, self.limit, self.seen = source, path, limit, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - whatever holds bytes
        data = self.source.read(min(len(buffer), 2**20))
        self.seen += len(data)
        if self.seen > self.limit:
            raise FileError(self.path, f"holds over {show_bytes(self.limit)}; give a part of it")
        buffer[: len(data)] = data
        return len(data)


def blocks(path: str | Path) -> Iterator[bytes]:
    """A log in blocks of whole lines: searching blocks is quick even where every line is empty."""
    with streamed(path) as file:
        while block := file.read(LINE_LIMIT):
            yield block + file.readline(LINE_LIMIT)
