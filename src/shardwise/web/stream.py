"""Server-sent events over one response; the work behind it is cancelled when the reader goes away."""

from __future__ import annotations

import asyncio
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader
from collections.abc import Awaitable, Callable
from typing import BinaryIO, NamedTuple

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from shardwise.web.guard import Refusal, error_data

FINAL = frozenset({"done", "failed"})
"""Events after which a search says nothing more; an answer's word is its HTTP status."""


class Event(NamedTuple):
    """One message."""

    word: str
    """The task that is asked for, an event, or the status of an answer."""
    body: bytes = b""

    @property
    def last(self) -> bool:
        return self.word in FINAL or self.word.isdigit()

    def encode(self) -> bytes:
        return f"{self.word} {len(self.body)}\n".encode() + self.body


def read_frame(stream: BinaryIO) -> Event | None:
    """The next message; None at the end."""
    head = stream.readline()
    if not head.endswith(b"\n"):
        return None
    word, length = head.split()
    body = stream.read(int(length))
    return Event(word.decode(), body) if len(body) == int(length) else None


async def next_frame(stream: StreamReader) -> Event | None:
    """The next message; None where the other side has ended or speaks something else."""
    try:
        word, length = (await stream.readuntil(b"\n")).split()
        return Event(word.decode(), await stream.readexactly(int(length)))
    except (IncompleteReadError, LimitOverrunError, ValueError, ConnectionError):
        return None


PATIENCE = 30.0
"""Seconds that a reader may take to accept one event."""
Work = Callable[[Callable[[Event | None], Awaitable[None]]], Awaitable[None]]


class EventStream(Response):
    """Runs `work` with a function that sends events; a Refusal before the first event is an answer of its own."""

    def __init__(self, work: Work) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        del self.headers["content-length"]
        self.work = work
        self.begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Work until it ends or the reader goes."""
        work = asyncio.create_task(self._work(scope, receive, send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, gone):
                task.cancel()
            results = await asyncio.gather(work, gone, return_exceptions=True)
        failure = results[0]
        if isinstance(failure, Exception) and not isinstance(failure, (TimeoutError, OSError)):
            raise failure

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def emit(frame: Event | None) -> None:
            async with asyncio.timeout(PATIENCE):
                await self._begin(send)
                await send({"type": "http.response.body", "body": _event(frame), "more_body": True})

        try:
            await self.work(emit)
        except Refusal as refusal:
            if self.begun:
                raise
            answer = JSONResponse(error_data(refusal.message), refusal.status, headers=refusal.headers)
            await answer(scope, receive, send)
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, send: Send) -> None:
        if not self.begun:
            self.begun = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(frame: Event | None) -> bytes:
    """JSON holds no line breaks, so one data line is enough."""
    return b": still here\n\n" if frame is None else b"event: %s\ndata: %s\n\n" % (frame.word.encode(), frame.body)
