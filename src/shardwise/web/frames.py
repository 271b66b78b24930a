"""What the server and its child processes say to each other: a line of a word and a length, then so many bytes.

Lengths are told first since a view may hold megabytes on one line.
"""

from __future__ import annotations

from asyncio import IncompleteReadError, LimitOverrunError, StreamReader
from typing import BinaryIO, NamedTuple

FINAL = frozenset({"done", "failed"})
"""Events after which a search says nothing more; an answer's word is its HTTP status."""


class Frame(NamedTuple):
    """One message."""

    word: str
    """The task that is asked for, an event, or the status of an answer."""
    body: bytes = b""

    @property
    def last(self) -> bool:
        return self.word in FINAL or self.word.isdigit()

    def encode(self) -> bytes:
        return f"{self.word} {len(self.body)}\n".encode() + self.body


def read_frame(stream: BinaryIO) -> Frame | None:
    """The next message; None at the end."""
    head = stream.readline()
    if not head.endswith(b"\n"):
        return None
    word, length = head.split()
    body = stream.read(int(length))
    return Frame(word.decode(), body) if len(body) == int(length) else None


async def next_frame(stream: StreamReader) -> Frame | None:
    """The next message; None where the other side has ended or speaks something else."""
    try:
        word, length = (await stream.readuntil(b"\n")).split()
        return Frame(word.decode(), await stream.readexactly(int(length)))
    except (IncompleteReadError, LimitOverrunError, ValueError, ConnectionError):
        return None
