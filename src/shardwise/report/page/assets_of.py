"""The files that the page is made of. Only these are read; a name is never a path."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from shardwise.errors import UnknownNameError

_KINDS = {"js", "css", "svg", "html"}


@cache
def asset_names() -> tuple[str, ...]:
    """All of them, sorted."""
    folder = files("shardwise.report.page") / "assets"
    names = (item.name for item in folder.iterdir() if item.is_file())
    return tuple(sorted(name for name in names if name.rpartition(".")[2] in _KINDS))


@cache
def asset_text(name: str) -> str:
    """The text of one asset."""
    if name not in asset_names():
        raise UnknownNameError("asset", name, asset_names())
    return (files("shardwise.report.page") / "assets" / name).read_text(encoding="utf-8")
