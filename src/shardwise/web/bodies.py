"""Reading what a request carries: JSON only, so large at most, and not for ever."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from shardwise.units import show_bytes
from shardwise.web.refusal import Refusal

LARGEST = 4 * 2**20
LARGEST_MODEL = 2**20
DRAINED = 64 * 2**20
"""More than this is not even read to its end."""
PATIENCE = 20.0
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
        async with asyncio.timeout(PATIENCE):
            return await _collected(request, limit)
    except TimeoutError:
        message = f"the request did not arrive within {PATIENCE:g} s; send it again"
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
