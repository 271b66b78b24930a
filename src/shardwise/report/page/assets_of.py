"""The files that the page is made of. Only these are served; a name is never a path."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from shardwise.errors import UnknownNameError

_TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "html": "text/html"}
_INDEX = "index.html"


@cache
def asset_names() -> tuple[str, ...]:
    """What may be asked for below /assets/."""
    folder = files("shardwise.report.page") / "assets"
    names = (item.name for item in folder.iterdir() if item.is_file())
    return tuple(sorted(name for name in names if name.rpartition(".")[2] in _TYPES and name != _INDEX))


def asset_text(name: str) -> str:
    """The text of one asset."""
    if name not in asset_names():
        raise UnknownNameError("asset", name, asset_names())
    return _read(name)


def asset_type(name: str) -> str:
    """Its media type."""
    return _TYPES[name.rpartition(".")[2]]


def index_page() -> str:
    """The page that the server sends; it loads its modules from /assets/."""
    return _read(_INDEX)


@cache
def _read(name: str) -> str:
    return (files("shardwise.report.page") / "assets" / name).read_text(encoding="utf-8")
