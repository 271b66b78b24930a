"""Searches: so many at a time, the others in a queue, each as a stream of events that ends when its reader goes."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from shardwise.web.guard import Refusal, error_data
from shardwise.web.stream import Event
from shardwise.web.workers import Worker, Workers

MOST_WAITING = 100
"""Searches that wait for their turn."""
LONGEST = 180.0
"""Seconds after which a child is ended, whatever it says: the time limit, and time to write the answer."""
GRACE = 10.0
"""Seconds that a search has to hand in its best after it was told to stop."""
BEAT = 5.0
"""Seconds of silence after which a line is sent, so that a reader that is gone is noticed."""


_STOPPED = "the server was stopped"
_NOTHING = "stopped before any strategy was found that fits"
_ENDED = f"the process that searched ended, or was ended after {LONGEST:g} s; ask for something smaller"
Emit = Callable[[Event | None], Awaitable[None]]
"""Sends an event to the reader; None: a line that says nothing."""


@dataclass(eq=False)
class RunningSearch:
    """One search from its question to its end."""

    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    worker: Worker | None = None
    stopped: bool = False
    heard: bool = False
    """Whether its child has said anything."""
    end: float = math.inf
    """When its child is ended, by the loop's clock."""
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever its place in the queue changes."""


@dataclass(eq=False)
class Searches:
    """All searches of a server."""

    workers: Workers
    most: int
    running: dict[str, RunningSearch] = field(default_factory=dict)
    waiting: deque[RunningSearch] = field(default_factory=deque)
    closed: bool = False

    def position(self, search: RunningSearch) -> int:
        """0: it may run; else its place in the queue."""
        return 0 if search.id in self.running else self.waiting.index(search) + 1

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[RunningSearch]:
        """A place among those that run or wait; refused where the queue is full."""
        if self.closed:
            raise Refusal(503, "the server is stopping")
        if len(self.waiting) >= MOST_WAITING:
            message = f"{len(self.running)} searches run and {len(self.waiting)} wait already; try again in a minute"
            raise Refusal(429, message, {"Retry-After": "60"})
        search = RunningSearch()
        self.waiting.append(search)
        self._admit()
        try:
            yield search
        finally:
            self._leave(search)

    def _leave(self, search: RunningSearch) -> None:
        if self.running.pop(search.id, None) is None:
            self.waiting.remove(search)
        self._admit()
        for other in self.waiting:
            other.turn.set()

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.most:
            first = self.waiting.popleft()
            self.running[first.id] = first
            first.turn.set()

    async def stop(self, name: str) -> bool:
        """End a search with the best so far; False: there is none of that name."""
        search = self.running.get(name) or next((one for one in self.waiting if one.id == name), None)
        if search is None:
            return False
        search.stopped = True
        search.turn.set()
        if search.worker:
            search.end = min(search.end, asyncio.get_running_loop().time() + GRACE)
            await search.worker.send(Event("stop"))
        return True

    def close(self) -> None:
        """End all: those that run and those that wait."""
        self.closed = True
        for search in [*self.running.values(), *self.waiting]:
            search.turn.set()
            if search.worker:
                search.worker.kill()

    async def follow(self, search: RunningSearch, question: bytes, emit: Emit) -> None:
        """Wait for its turn, run it, and tell everything that happens; the last event is `done` or `failed`."""
        told = 0
        while position := self.position(search):
            if search.stopped or self.closed:
                await emit(_failed(_STOPPED if self.closed else "stopped before it began"))
                return
            search.turn.clear()
            if position != told:
                await emit(Event("queued", _json({"position": position, "id": search.id})))
                told = position
            await self._wait(search, emit)
        await emit(Event("started", _json({"id": search.id})))
        last = await self._with_child(search, question, emit)
        if last is None and not (search.heard or search.stopped or self.closed):  # an idle child that had been ended
            last = await self._with_child(search, question, emit)
        if last is None:
            await emit(_failed(_STOPPED if self.closed else _NOTHING if search.stopped else _ENDED))

    async def _with_child(self, search: RunningSearch, question: bytes, emit: Emit) -> Event | None:
        worker, last = await self.workers.take(), None
        try:
            search.worker = worker
            last = await self._run(search, worker, question, emit)
        finally:
            search.worker = None
            self.workers.give_back(worker, sound=last is not None)
        return last

    async def _wait(self, search: RunningSearch, emit: Emit) -> None:
        while not search.turn.is_set():
            try:
                async with asyncio.timeout(BEAT):
                    await search.turn.wait()
            except TimeoutError:
                await emit(None)

    async def _run(self, search: RunningSearch, worker: Worker, question: bytes, emit: Emit) -> Event | None:
        """The last message of the child; None where it ended without one, or took too long."""
        if search.stopped or self.closed:  # while the child was started
            return await _told(emit, _failed(_STOPPED if self.closed else "stopped before it began"))
        await worker.ask(Event("plan", question))
        clock = asyncio.get_running_loop().time
        search.end = min(search.end, clock() + LONGEST)
        while (left := search.end - clock()) > 0:
            try:
                frame = await worker.hear(min(BEAT, left))
            except TimeoutError:
                await emit(None)
                continue
            if frame is None:
                return None
            search.heard = True
            await emit(frame)
            if frame.last:
                return frame
        return None


async def _told(emit: Emit, frame: Event) -> Event:
    await emit(frame)
    return frame


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _failed(message: str) -> Event:
    return Event("failed", _json(error_data(message)))
