"""Around everything: what every answer says to the browser, and an unexpected error as a sentence."""

from __future__ import annotations

import sys

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardwise.web.refusal import error_data

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
