"""Our frozen values as plain ones for JSON, and JSON with the same bytes for the same values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any

from shardwise.errors import InputError

Plain = dict[str, Any]


def later(default: Any, *, hashed: bool = True) -> Any:  # noqa: ANN401 - as `field` itself
    """A field that our values did not always have: files leave its default out, so that older plans keep their id.

    `hashed`: part of the hash; one that few values set need not be, and a hash is taken for every look into a cache.
    """
    return field(default=default, hash=None if hashed else False, metadata={"quiet": True})


DERIVED = {"derived": True}
"""Metadata of a field that follows from the others: files leave it out."""


def to_dict(value: object) -> Plain:
    """A dataclass as a dict: fields in order, tuples as lists; a field that is None is an absent key, and so are the
    default of a quiet field and a derived one.
    """
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"{value!r} is not one of our values")
    parts = [(one, getattr(value, one.name)) for one in fields(value) if not one.metadata.get("derived")]
    said = [(one.name, part) for one, part in parts if not (one.metadata.get("quiet") and part == one.default)]
    return {name: to_plain(part) for name, part in said if part is not None}


def to_plain(value: object) -> Any:  # noqa: ANN401 - any JSON value; one return a kind
    """Any value of ours as what JSON has: dicts, lists, texts, finite numbers, true, false."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return _finite(value)
    if is_dataclass(value):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(part) for part in value]
    if hasattr(value, "tolist"):  # numpy's numbers and arrays, without importing numpy
        return to_plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise InputError(f"{value} is not a number that JSON has; this is a fault of ours, please report it")
    return value


def to_json(value: object) -> str:
    """JSON text: two spaces, one newline at the end, the same bytes for the same value."""
    return json.dumps(to_plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
