"""What stands before every request: who may ask, from where, how much may be sent, and what a refusal looks like.

Host: must name this machine as the user does, so that no other site's name can be turned to it (DNS rebinding).
Origin: where a browser tells it, must be our own page, so that no other page can ask in the user's name.
Token: where others can reach the server; in the URL once, then in a cookie that no script can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardwise.units import show_bytes
from shardwise.web.lines import admit

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
PATIENCE = 5.0
"""Seconds to send the body of a request that is refused."""
_WILD = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
_SAFE = frozenset({"GET", "HEAD"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(text: str) -> str:
    """`localhost:8765` -> `localhost`, `[::1]:8765` -> `::1`."""
    if text.startswith("["):
        return text[1:].partition("]")[0].lower()
    return text.rpartition(":")[0].lower() if ":" in text else text.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The middleware."""

    app: ASGIApp
    host: str
    """What the server listens on."""
    port: int
    token: str = ""
    """Empty: none is asked for."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        answer = self._answer(scope, headers)
        if answer is None or answer.status_code < 400:
            admit(scope)
        elif "expect" not in headers:  # else it waits for our word before it sends more
            await _heard_out(receive)
        await (answer or self.app)(scope, receive, send)

    def _answer(self, scope: Scope, headers: Headers) -> Response | None:
        """A refusal, or the way in with a token; None: the request may pass."""
        host = headers.get("host", "")
        if not self._known(host_name(host)):
            return _no(421, f"this server is not {host[:100]!r}; open it as it was printed when it was started")
        if scope["method"] not in _SAFE and not _own_page(headers, host):
            return _no(403, "another site's page may not ask this server; open its own page")
        entry = self._entry(scope)
        if entry is None and self.token and not self._may(headers):
            return _no(401, "the token is missing or wrong; open the URL that `shardwise serve` printed")
        return entry

    def _known(self, name: str) -> bool:
        if self.host in _WILD:  # any name may be ours; the token, which other names' pages have not, stands in
            return bool(name)
        return name == self.host.lower() or (is_loopback(self.host) and name in LOOPBACK)

    @property
    def _cookie(self) -> str:
        return f"shardwise-{self.port}"  # cookies are shared by all ports of a machine

    def _may(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(given.strip(), self.token):
            return True
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return found is not None and _same(found.value, self.token)

    def _entry(self, scope: Scope) -> Response | None:
        """`/?token=...`: the token moves into a cookie and out of the address."""
        if not self.token or scope["method"] != "GET" or scope["path"] != "/":
            return None
        try:
            query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=100)
        except ValueError:  # more fields than anybody means
            return None
        given = query.pop("token", [""])[0]
        if not _same(given, self.token):
            return None
        answer = RedirectResponse("/" + (f"?{urlencode(query, doseq=True)}" if query else ""), 303)
        # Lax, not strict: a link to the page in a mail must open; what another site posts still comes without it.
        answer.set_cookie(self._cookie, self.token, httponly=True, samesite="lax", path="/")
        answer.headers["Cache-Control"] = "no-store"
        return answer


def _own_page(headers: Headers, host: str) -> bool:
    """Programs tell no origin; browsers tell it with everything but plain reading."""
    if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return False
    origin = headers.get("origin")
    return origin is None or origin.lower() in {f"http://{host}".lower(), f"https://{host}".lower()}


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())


def _no(status: int, message: str) -> Response:
    """A refusal ends the connection: it takes a place that somebody may need who is known."""
    return JSONResponse(error_data(message), status, headers={"Cache-Control": "no-store", "Connection": "close"})


async def _heard_out(receive: Receive) -> None:
    """Take the body of a refused request, not for long and not all: a client that still sends hears no answer."""
    size, more = 0, True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while more and size <= LARGEST:
                message = await receive()
                size, more = size + len(message.get("body", b"")), message.get("more_body", False)


HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_FAULT = "an unexpected error: this is a fault of Shardwise, please report it with what you asked"


class Shield:
    """The last line of defence: an unexpected error is a line in the log, and the server goes on."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begun = False

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, receive, with_headers)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the others must not notice
            print(f"unexpected: {type(error).__name__} at {scope['method']} {scope['path'][:200]!r}", file=sys.stderr)
            if not begun:
                await JSONResponse(error_data(_FAULT), 500)(scope, receive, with_headers)


LARGEST = 4 * 2**20
LARGEST_MODEL = 2**20
DRAINED = 64 * 2**20
"""More than this is not even read to its end."""
BODY_PATIENCE = 20.0
"""Seconds that a client may take to send it."""


async def read(request: Request, limit: int = LARGEST) -> bytes:
    """The body of a request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(
            415, f"send JSON with the header Content-Type: application/json, not {kind[:80] or 'without one'!r}"
        )
    told = request.headers.get("content-length", "0")
    if told.isdigit() and int(told[:20]) > DRAINED:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(BODY_PATIENCE):
            return await _collected(request, limit)
    except TimeoutError:
        message = f"the request did not arrive within {BODY_PATIENCE:g} s; send it again"
        raise Refusal(408, message, {"Connection": "close"}) from None


async def _collected(request: Request, limit: int) -> bytes:
    """All of it; what is too large is read to its end, but not kept, as a client that still sends hears no answer."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= limit:
            parts.append(part)
        elif size > DRAINED:
            break
        else:
            parts.clear()
    if size > limit:
        raise _too_large(limit)
    return b"".join(parts)


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"the request is larger than {show_bytes(limit)}; send less", {"Connection": "close"})


class Refusal(Exception):  # noqa: N818 - an answer, not a fault of the program
    """Raised anywhere under a request; becomes `{"error": {"message", "faults"}}`."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.message = message
        self.headers = dict(headers or {})
        super().__init__(message)


def error_data(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "faults": []}}
