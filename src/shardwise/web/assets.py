"""The page's files: read once, served from memory under the names that they have, and no other."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from shardwise.web.guard import Refusal

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}


class Asset(NamedTuple):
    """One file of the page."""

    content: bytes
    kind: str
    mark: str
    """Its ETag."""


@cache
def assets() -> dict[str, Asset]:
    """Name -> file, for everything in the page's folder."""
    import shardwise.report

    folder = Path(shardwise.report.__file__).parent / "page" / "assets"
    return {
        path.relative_to(folder).as_posix(): _read(path)
        for path in sorted(folder.rglob("*"))
        if path.suffix in TYPES and path.is_file()
    }


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    return Asset(content, TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:20]}"')


def serve(request: Request, name: str) -> Response:
    """A file, or "not modified" where the browser has it already."""
    found = assets().get(name)
    if found is None:
        if name == "index.html":
            raise Refusal(503, "the page's files are missing from this installation; install Shardwise again")
        raise Refusal(404, "there is no such file; the page is at /")
    headers = {"ETag": found.mark, "Cache-Control": "no-cache"}
    if found.mark in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.kind, headers=headers)
