"""The shipped catalog: names to models, GPUs and runtimes.

One TOML file holds a family. A name is found by looking for it as quoted text, so that only the files that
hold it are parsed; catalog entries are trusted (the tests check them) and built without pydantic, which is
slow to import.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import tomllib
import types
import typing
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from shardwise.errors import FileError, UnknownNameError
from shardwise.inputs.files import parse_mapping, read_text
from shardwise.inputs.gate import typed
from shardwise.inputs.scalars import row_of

T = TypeVar("T")

CATALOG = Path(__file__).parent / "catalog"
_LISTED = re.compile(r'^\[(?:models|gpus|sites)\."([^"]+)"\]', re.MULTILINE)


def home() -> Path:
    """The user's own folder of calibrated GPUs: SHARDWISE_HOME, else ~/.config/shardwise."""
    return Path(os.environ.get("SHARDWISE_HOME") or Path.home() / ".config" / "shardwise")


def normal(name: str) -> str:
    """How names are compared: lower case, hyphens, without the owner of a Hugging Face name."""
    return re.sub(r"[\s_]+", "-", name.strip().lower()).rsplit("/", maxsplit=1)[-1]


@functools.cache
def _shelf(folder: Path) -> tuple[tuple[Path, str], ...]:
    return tuple((path, read_text(path)) for path in sorted(folder.glob("*.toml")))


def forget() -> None:
    """Read shelves anew: something was stored on one."""
    _shelf.cache_clear()


@functools.cache
def _parsed(path: Path, text: str) -> dict[str, Any]:
    if path.is_relative_to(CATALOG):
        return tomllib.loads(text)
    data = parse_mapping(text, path)
    _refuse_shapes(data, path)
    return data


def _refuse_shapes(data: dict[str, Any], path: Path) -> None:
    """A user's own shelf: tables of entries, each a table with a text for its base and texts for its aliases."""
    entries = data.get("gpus", {})
    for name, fields in entries.items() if isinstance(entries, dict) else [("gpus", None)]:
        if not isinstance(fields, dict):
            raise FileError(path, f"{name} must be a table of keys and values")
        if not isinstance(fields.get("base", ""), str):
            raise FileError(path, f"gpus.{name}.base must be the name of a GPU, such as h100")
        aliases = fields.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            raise FileError(path, f"gpus.{name}.aliases must be a list of names")
    if not isinstance(data.get("defaults", {}), dict):
        raise FileError(path, "defaults must be a table of keys and values")


def names(folder: Path) -> tuple[str, ...]:
    """All canonical names on a shelf, in the order of the files; names are always quoted in their headings."""
    return tuple(name for _, text in _shelf(folder) for name in _LISTED.findall(text))


def entry(section: str, folder: Path, name: str) -> tuple[str, dict[str, Any]] | None:
    """The canonical name and the fields of an entry, its base and its family's defaults laid under it."""
    wanted = normal(name)
    for path, text in _shelf(folder):
        if wanted not in text:
            continue
        data = _parsed(path, text)
        for canonical, fields in data.get(section, {}).items():
            if wanted == canonical or wanted in fields.get("aliases", ()):
                return canonical, _completed(section, folder, data, fields)
    return None


def _completed(section: str, folder: Path, data: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    base: dict[str, Any] = dict(data.get("defaults", {}))
    if "base" in fields:
        found = entry(section, folder, fields["base"]) or entry(section, CATALOG / "clusters", fields["base"])
        if found is None:
            raise UnknownNameError("base", fields["base"], data.get(section, {}))
        base = found[1]
    own = {key: value for key, value in fields.items() if key not in {"aliases", "base"}}
    return {**base, **own}


def merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A base with what differs laid over it, tables inside likewise: `[moe] imbalance = 1.5` changes that alone."""
    both = {
        key: merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in own.items()
    }
    return {**base, **both}


def aliases(section: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Every other name of every entry, with the canonical one."""
    for path, text in _shelf(folder):
        for canonical, fields in _parsed(path, text).get(section, {}).items():
            for alias in fields.get("aliases", ()):
                yield alias, canonical


def known(section: str, folder: Path) -> list[str]:
    return [*names(folder), *(alias for alias, _ in aliases(section, folder))]


def build(kind: type[T], fields: dict[str, Any]) -> T:
    """One of our types from trusted catalog fields: lists become tuples, tables types, texts numbers."""
    hints = _hints(typing.cast("Hashable", kind))
    return kind(**{key: _built(kind, hints[key], key, value) for key, value in fields.items()})


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:  # noqa: ANN401 - one of our types
    return typing.get_type_hints(kind)


def _built(kind: type, hint: Any, key: str, value: Any) -> Any:  # noqa: ANN401
    inner = _dataclass_in(hint)
    if isinstance(value, dict):
        return build(inner, value) if inner else {name: _built(kind, None, key, item) for name, item in value.items()}
    if isinstance(value, list):
        return tuple(build(inner, item) if inner is not None else item for item in value)
    row = row_of(kind, key) if isinstance(value, str) else None
    return value if row is None else typed(value, row, key)


def _dataclass_in(hint: Any) -> Any:  # noqa: ANN401
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is tuple:
        return next((part for part in typing.get_args(hint) if dataclasses.is_dataclass(part)), None)
    return hint if dataclasses.is_dataclass(hint) else None
