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
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

from shardwise.errors import Fault, InputError
from shardwise.inputs.recompute import Recompute
from shardwise.units import parse_bytes, parse_flops, parse_rate, parse_seconds

T = TypeVar("T")

UNITS: dict[str, Callable[[str | float], float]] = {
    "memory": parse_bytes,
    "l2": parse_bytes,
    "reserved": parse_bytes,
    "host_memory": parse_bytes,
    "bandwidth": parse_rate,
    "host_bandwidth": parse_rate,
    "flops": parse_flops,
    "workspace": parse_bytes,
    "context": parse_bytes,
    "bucket": parse_bytes,
    "reduce_staging": parse_bytes,
    "latency": parse_seconds,
    "launch": parse_seconds,
    "launch_backward": parse_seconds,
    "iteration": parse_seconds,
    "microbatch": parse_seconds,
}
"""Fields that may be written as text with a unit, by name (one meaning for a name everywhere)."""


def validated(kind: type[T], data: dict[str, Any], *, title: str = "", at: str = "") -> T:
    """One of our types from plain values, or an InputError with every fault."""
    faults: list[Fault] = []
    plain = _converted(data, at, faults)
    value = _checked(kind, plain, at, faults)
    faults += _negative(plain, at) if value is None else _out_of_range(value, at)
    if faults or value is None:
        raise InputError(_in_order(faults), title=title)
    return value


def _in_order(faults: list[Fault]) -> list[Fault]:
    return list({str(fault): fault for fault in faults}.values())


def _converted(data: dict[str, Any], at: str, faults: list[Fault]) -> dict[str, Any]:
    """Text with units becomes numbers, a recompute text its parts; the rest is as it was."""
    return {key: _converted_value(key, value, _join(at, key), faults) for key, value in data.items()}


def _converted_value(key: str, value: Any, at: str, faults: list[Fault]) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        if key == "flops":
            return {name: _parsed(UNITS[key], inner, _join(at, name), faults) for name, inner in value.items()}
        return _converted(value, at, faults)
    if isinstance(value, list):
        return [_converted_value("", item, _join(at, index), faults) for index, item in enumerate(value)]
    if isinstance(value, str) and key == "recompute":
        return _parsed(lambda text: dataclasses.asdict(Recompute.parse(str(text))), value, at, faults)
    return _parsed(UNITS[key], value, at, faults) if key in UNITS else value


def _parsed(parse: Callable[[str | float], Any], value: Any, at: str, faults: list[Fault]) -> Any:  # noqa: ANN401
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except InputError as error:
        faults.extend(Fault(at, fault.message) for fault in error.faults)
        return _MENDED


_MENDED = {"mended": True}
"""Stands for a text that was refused already, so that pydantic's second word on it is dropped."""


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
    return f"must be {wanted}, not {_said(value, error)}" if wanted else str(item["msg"])


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


def _said(value: object, error: str) -> str:
    if isinstance(value, bool):
        return f"the truth value {str(value).lower()}"
    if isinstance(value, str) and error in {"int_type", "float_type"}:
        bare = value.strip()
        return f"the text {value!r}" + (f"; write {bare} without quotes" if bare.replace(".", "", 1).isdigit() else "")
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return repr(value)


def _unknown_key(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=2, cutoff=0.6)
    if near:
        return f"is not a known key; did you mean {' or '.join(near)}?"
    return f"is not a known key; known keys: {', '.join(known)}"


def _fields(kind: Any) -> list[str]:  # noqa: ANN401
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def _type_at(kind: Any, loc: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """The declared type at a path of keys and list positions."""
    for part in loc:
        kind = _inner(kind, part)
    return kind


def _inner(kind: Any, part: str | int) -> Any:  # noqa: ANN401
    if isinstance(part, str) and dataclasses.is_dataclass(kind) and isinstance(kind, type):
        kind = typing.get_type_hints(kind).get(part)
    elif typing.get_origin(kind) in {tuple, dict}:
        kind = typing.get_args(kind)[0 if isinstance(part, int) else 1]
    if isinstance(kind, types.UnionType):
        kind = next((branch for branch in typing.get_args(kind) if dataclasses.is_dataclass(branch)), kind)
    return kind


def _out_of_range(value: Any, at: str) -> Iterator[Fault]:  # noqa: ANN401
    """No number is negative; a whole number is zero only where that is its default ("none")."""
    for field in dataclasses.fields(value):
        inner, path = getattr(value, field.name), _join(at, field.name)
        if dataclasses.is_dataclass(inner):
            yield from _out_of_range(inner, path)
        elif isinstance(inner, tuple | dict):
            pairs = inner.items() if isinstance(inner, dict) else enumerate(inner)
            for key, item in pairs:
                if dataclasses.is_dataclass(item):
                    yield from _out_of_range(item, _join(path, key))
                else:
                    yield from _too_small(item, _join(path, key), lowest=int(isinstance(inner, dict)))
        else:
            yield from _too_small(inner, path, lowest=0 if _may_be_zero(field) else 1)


def _may_be_zero(field: dataclasses.Field[Any]) -> bool:
    if field.name in {"ffn", "latency", "zero", "rope_size"}:
        return True
    if field.default is dataclasses.MISSING or field.name in {"straggler", "imbalance", "capacity", "oversubscription"}:
        return False
    return isinstance(field.default, float) or field.default == 0


def _negative(data: dict[str, Any], at: str) -> Iterator[Fault]:
    """As `_out_of_range`, for values that did not become one of our types."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _negative(value, _join(at, key))
        else:
            yield from _too_small(value, _join(at, key), lowest=0)


def _too_small(number: object, at: str, *, lowest: int) -> Iterator[Fault]:
    if isinstance(number, bool) or not isinstance(number, int | float):
        return
    if number < 0:
        yield Fault(at, f"is {number}; it cannot be negative")
    elif lowest == 1 and number == 0:
        yield Fault(at, "is 0; it must be more")


def _join(at: str, part: str | int) -> str:
    return f"{at}.{part}" if at else str(part)
