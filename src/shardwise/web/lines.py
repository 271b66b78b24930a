"""Connections: how many, from whom, and how long one may keep the server waiting.

uvicorn has a limit of time for a connection that is silent between two requests, and none for one that sends its next
request, or takes its answer, a byte at a time; its limit of connections refuses whoever comes last, who may hold the
token. So a few hundred strangers that each keep half a request back would shut out everybody. Here

- a connection that is not being answered must bring a whole request within `PATIENCE`, its first as well as any later;
- one that takes nothing of its answer for as long is dropped, while an answer may take as long as it needs;
- until a request of a connection has passed the guard it is a stranger's. Strangers have so many places, in all and
  from one address, and where they are taken the oldest stranger goes, not the newest: who holds the token and asks at
  once is always heard (see `MOST_FROM_ONE`). A request that the guard refuses ends its connection.

All of it is a subclass of uvicorn's own protocol: parsing, buffers and closing stay where they have been proven.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 10.0
"""Seconds for the head of a request, or without taking a byte of an answer."""
BACKLOG = 128
"""Connections that the loop takes in one go."""
MOST = 600
"""Connections at a time, fewer than the files that a process may have open."""
MOST_STRANGERS = 450
"""Of them strangers', so that those who are known keep room."""
MOST_FROM_ONE = 300
"""Strangers from one address. Between a connection and the reading of what it sent at once, the loop takes two goes of
others at most: with more places than that, none that asks at once can be the oldest."""
_ADMITTED = "shardwise.admitted"


def admit(scope: Scope) -> None:
    """Said by the guard of a request that may pass: its connection is no stranger's."""
    scope.setdefault("state", {})[_ADMITTED] = True


class ConnectionLine(H11Protocol):
    """One connection."""

    address = ""
    known = False
    born = 0.0
    since = 0.0
    """Since when, by the loop's clock, it keeps the server waiting."""
    left = 0
    """Bytes of its answer that it had not taken when it was last looked at."""

    @property
    def stranger(self) -> bool:
        """Whether no request of it has passed the guard."""
        return not (self.known or (self.scope and self.scope["state"].get(_ADMITTED)))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.born = self.loop.time()
        self.address = self.client[0] if self.client else ""
        if len(self.connections) > MOST_FROM_ONE:
            self._make_room()

    def _make_room(self) -> None:
        """Drop the oldest stranger where there are too many, from here or in all; the newest is one itself."""
        lines = [line for line in _lines(self.connections) if not line.transport.is_closing()]
        strangers = [line for line in lines if line.stranger]
        from_here = [line for line in strangers if line.address == self.address]
        if len(from_here) > MOST_FROM_ONE:
            _oldest(from_here).transport.abort()
        elif len(strangers) > MOST_STRANGERS or len(lines) > MOST:
            _oldest(strangers).transport.abort()

    def on_response_complete(self) -> None:
        """The next request may come; this one's scope is its connection's last word until then."""
        self.known = not self.stranger
        self.since = self.loop.time()
        super().on_response_complete()

    def overdue(self, now: float) -> bool:
        """Whether it has kept the server waiting for too long; to be asked about once a second."""
        left = self.transport.get_write_buffer_size()
        answering = self.cycle is not None and not self.cycle.response_complete and not self.transport.is_closing()
        if left < self.left or (answering and not left):
            self.since = now
        self.left = left
        return now - self.since > PATIENCE


def drop_overdue(connections: Iterable[object], now: float) -> None:
    """Drop who keeps the server waiting: at once, as a polite end would wait for what is not taken."""
    for line in _lines(connections):
        if line.overdue(now):
            line.transport.abort()


def _oldest(lines: list[ConnectionLine]) -> ConnectionLine:
    return min(lines, key=lambda line: line.born)


def _lines(connections: Iterable[object]) -> list[ConnectionLine]:
    return [line for line in connections if isinstance(line, ConnectionLine)]
