"""The server's life: a socket, uvicorn on it, and an end that leaves no child behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from shardwise.errors import Fault, InputError
from shardwise.web.app import App
from shardwise.web.guard import is_loopback
from shardwise.web.lines import BACKLOG, MOST, ConnectionLine, drop_overdue

GRACE = 3
"""Seconds that answers on their way have when the server is stopped."""


def make_token(host: str, token: str) -> str:
    """The token that is asked for: the given one, a new one where others can reach the server, else none."""
    if token and len(token) < 16:
        raise InputError(Fault("--token", f"has {len(token)} characters; give 16 or more, or leave it out"))
    if token and not (token.isascii() and token.replace("-", "").replace("_", "").isalnum()):
        raise InputError(Fault("--token", "may hold letters, digits, - and _ only"))
    return token or ("" if is_loopback(host) else secrets.token_urlsafe(24))


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; where that fails, why, and what to change."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise InputError(Fault("--host", f"{host!r} is no address of this machine; use 127.0.0.1 or 0.0.0.0")) from None
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name != "nt":  # there it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InputError(_why_not(host, port, error)) from None
    listener.setblocking(False)
    return listener


def _why_not(host: str, port: int, error: OSError) -> Fault:
    import errno

    if error.errno == errno.EADDRINUSE:
        return Fault("--port", f"{port} is taken on {host}; stop what uses it, or choose another, such as --port 0")
    if error.errno == errno.EACCES:
        return Fault("--port", f"{port} may not be used without special rights; choose one above 1023")
    return Fault("--host", f"{host}:{port} cannot be used: {error.strerror or error}")


def url_of(host: str, port: int, token: str = "") -> str:
    """The address to open."""
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)  # noqa: S104
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


def run(listener: socket.socket, app: App, ready: Callable[[], None]) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    allow_files(2 * MOST)
    config = uvicorn.Config(
        app.asgi, loop="asyncio", http=ConnectionLine, backlog=BACKLOG, ws="none", lifespan="off", log_config=None,
        log_level="critical", access_log=False, proxy_headers=False, server_header=False,
        timeout_graceful_shutdown=GRACE,
    )  # fmt: skip
    asyncio.run(_serve(_Server(config, app), listener, app, ready))


def allow_files(count: int) -> None:
    """Connections, and what the children need, must not run out of files: some systems begin with 256."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on every system
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(server: _Server, listener: socket.socket, app: App, ready: Callable[[], None]) -> None:
    asyncio.get_running_loop().set_exception_handler(_say)
    warm = asyncio.create_task(app.warm_up())
    ready()
    try:
        await server.serve(sockets=[listener])
    finally:
        app.workers.close()
        warm.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await warm
        await app.workers.ended()


def _say(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What goes wrong beside all requests, such as too many open files: a line, not a traceback."""
    del loop
    error = context.get("exception")
    print(f"unexpected: {context['message']}" + (f" ({type(error).__name__})" if error else ""), file=sys.stderr)


class _Server(uvicorn.Server):
    """uvicorn, whose streams end when it is told to, and which ends by a signal as a server should: in good order."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self.app = app

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second; once a second it is looked who keeps the server waiting."""
        if counter % 10 == 0:
            drop_overdue(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Searches end first, as their streams would not; then what is left has a moment to be sent."""
        self.app.searches.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = {kind: signal.signal(kind, self.handle_exit) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)
