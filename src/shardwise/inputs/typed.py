"""From plain values of a file to our frozen types: all faults at once, each with its path, the value and the fix.

pydantic does the checking, over the dataclasses themselves; it is imported here only, when a file enters.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import types
import typing
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from shardwise.errors import Fault, InputError
from shardwise.inputs.gate import Scalar, held, said, together
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.scalars import row_of, words_of

T = TypeVar("T")


def validated(kind: type[T], data: dict[str, Any], *, title: str = "", at: str = "") -> T:
    """One of our types from plain values, or an InputError with every fault."""
    faults: list[Fault] = []
    plain = _converted(kind, data, at, faults)
    value = _checked(kind, plain, at, faults)
    if faults or value is None:
        raise InputError(_in_order(faults), title=title)
    return value


def _in_order(faults: list[Fault]) -> list[Fault]:
    return list({str(fault): fault for fault in faults}.values())


def _converted(kind: Any, data: dict[str, Any], at: str, faults: list[Fault]) -> dict[str, Any]:  # noqa: ANN401
    """Numbers pass the gate, text with units becomes numbers, a recompute text its parts; the rest is as it was."""
    if not _is_record(kind):
        return data
    found = {}
    for key, value in data.items():
        path, row, words = _join(at, key), row_of(kind, key), words_of(kind, key)
        if row is not None:
            found[key] = _gated(value, row, path, faults)
        elif words:
            found[key] = _known(value, words, path, faults)
        else:
            found[key] = _nested(_inner(kind, key), key, value, path, faults)
    return found


def _gated(value: Any, row: Scalar, at: str, faults: list[Fault]) -> Any:  # noqa: ANN401
    """A number, or a list or a table of them, as the row takes it."""
    if isinstance(value, dict):
        return {key: _gated(inner, row, _join(at, key), faults) for key, inner in value.items()}
    if isinstance(value, list):
        own: list[Fault] = []
        found = [_gated(inner, row, _join(at, index), own) for index, inner in enumerate(value)]
        told = together(own, len(value), at)
        faults += told
        return found if len(told) == len(own) else _MENDED
    return value if value is None else _tried(lambda: held(value, row, at), at, faults)


def _known(value: Any, words: tuple[str, ...], at: str, faults: list[Fault]) -> Any:  # noqa: ANN401
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str) and item not in words:
            faults.append(Fault(at, f"{item!r} is not known; choose {', '.join(words)}"))
            return _MENDED
    return value


def _nested(kind: Any, key: str, value: Any, at: str, faults: list[Fault]) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return _converted(kind, value, at, faults)
    if isinstance(value, list):
        inner = _inner(kind, 0)
        return [_nested(inner, "", item, _join(at, index), faults) for index, item in enumerate(value)]
    if isinstance(value, str) and key == "recompute":
        return _tried(lambda: dataclasses.asdict(Recompute.parse(value)), at, faults)
    return value


def _tried(read: Callable[[], Any], at: str, faults: list[Fault]) -> Any:  # noqa: ANN401
    try:
        return read()
    except InputError as error:
        faults.extend(Fault(at, fault.message) for fault in error.faults)
        return _MENDED


_MENDED = {"mended": True}
"""Stands for a value that was refused already, so that pydantic's second word on it is dropped."""


@functools.cache
def _adapter(kind: Hashable) -> Any:  # noqa: ANN401 - the type of a lazily imported package
    import pydantic

    # A list of one, since a configuration cannot be laid on a dataclass itself but is handed down to it.
    return pydantic.TypeAdapter(list[kind], config=pydantic.ConfigDict(extra="forbid", strict=True))  # type: ignore[valid-type]


def _checked(kind: type[T], data: dict[str, Any], at: str, faults: list[Fault]) -> T | None:
    import pydantic

    try:
        # Through JSON, since strict checking then takes lists for tuples and still refuses "2" and true for 2.
        return typing.cast(
            "T", _adapter(typing.cast("Hashable", kind)).validate_json(json.dumps([data], default=str))[0]
        )
    except pydantic.ValidationError as error:
        refused = {fault.path for fault in faults}
        for item in error.errors(include_url=False):
            fault = _fault(kind, dict(item), at)
            if not any(fault.path == path or fault.path.startswith(f"{path}.") for path in refused):
                faults.append(fault)
        return None


def _fault(kind: type, item: dict[str, Any], at: str) -> Fault:
    loc = tuple(part for part in item["loc"][1:] if not (isinstance(part, str) and _is_type_label(part)))
    path = at
    for part in loc:
        path = _join(path, part)
    return Fault(path, _message(kind, loc, item))


def _is_type_label(part: str) -> bool:
    """Whether pydantic put the name of one of our types, or of a union's branch, into the path."""
    return part[:1].isupper() or "[" in part or part in {"int", "float", "str", "bool", "none"}


def _message(kind: type, loc: tuple[Any, ...], item: dict[str, Any]) -> str:
    error, value = item["type"], item["input"]
    if error in {"missing", "missing_argument", "missing_keyword_only_argument"}:
        return "is missing; add it"
    if error in {"unexpected_keyword_argument", "extra_forbidden"}:
        return _unknown_key(str(loc[-1]), _fields(_type_at(kind, loc[:-1])))
    if value is None:
        return "is null; leave the key out to use the default, or give a value"
    if error == "literal_error":
        return f"{value!r} is none of {item['ctx']['expected']}"
    wanted = _WANTED.get(error)
    return f"must be {wanted}, not {said(value)}" if wanted else str(item["msg"])


_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "dict_type": "a table of keys and values",
    "dataclass_type": "a table of keys and values",
    "finite_number": "a finite number",
}


def _unknown_key(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=2, cutoff=0.6)
    if near:
        return f"is not a known key; did you mean {' or '.join(near)}?"
    return f"is not a known key; known keys: {', '.join(known)}"


def _fields(kind: Any) -> list[str]:  # noqa: ANN401
    return list(typing.get_type_hints(kind)) if _is_record(kind) else []


def _is_record(kind: Any) -> bool:  # noqa: ANN401
    """Whether it is one of our types with named fields: a dataclass or a named tuple."""
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))


def _type_at(kind: Any, loc: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """The declared type at a path of keys and list positions."""
    for part in loc:
        kind = _inner(kind, part)
    return kind


def _inner(kind: Any, part: str | int) -> Any:  # noqa: ANN401
    if isinstance(part, str) and _is_record(kind):
        kind = typing.get_type_hints(kind).get(part)
    elif typing.get_origin(kind) in {tuple, dict}:
        kind = typing.get_args(kind)[0 if isinstance(part, int) else 1]
    if isinstance(kind, types.UnionType):
        kind = next((branch for branch in typing.get_args(kind) if _is_record(branch)), kind)
    return kind


def _join(at: str, part: str | int) -> str:
    return f"{at}.{part}" if at else str(part)
