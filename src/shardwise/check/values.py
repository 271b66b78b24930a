"""Checks of one input by itself: the type of every value, and its row of the one table (`scalars.py`)."""

from __future__ import annotations

import typing
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from types import UnionType
from typing import Literal, get_args, get_origin

from shardwise.check.rule import either
from shardwise.errors import Fault, InputError
from shardwise.inputs.gate import Scalar, held, said, together
from shardwise.inputs.scalars import row_of, words_of

Test = Callable[[object], bool]


def value_faults(value: object, path: str) -> tuple[Fault, ...]:
    """Wrong types and ranges of a dataclass of ours and of those inside it."""
    try:
        return _remembered(value, path)
    except TypeError:  # a list where a tuple belongs cannot be hashed, and is a fault
        return tuple(_faults(value, path))


@lru_cache(maxsize=512)
def _remembered(value: Hashable, path: str) -> tuple[Fault, ...]:
    """A search asks thousands of times about one model on one cluster."""
    return tuple(_faults(value, path))


@dataclass(frozen=True, slots=True)
class _Field:
    """What a field must be, worked out once for a type."""

    name: str
    hint: object
    row: Scalar | None
    words: tuple[str, ...]
    fits: Test
    nests: bool


@cache
def _fields(kind: Hashable) -> tuple[_Field, ...]:
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise TypeError(f"{kind} is not one of our types")
    hints = typing.get_type_hints(kind)
    found = []
    for one in fields(kind):
        hint, row, words = hints[one.name], row_of(kind, one.name), words_of(kind, one.name)
        fits = _test(hint, row, words)
        found.append(_Field(name=one.name, hint=hint, row=row, words=words, fits=fits, nests=_nests(hint)))
    return tuple(found)


def _faults(value: object, path: str) -> Iterator[Fault]:
    for field in _fields(typing.cast("Hashable", type(value))):
        item = getattr(value, field.name)
        if not field.fits(item):
            yield from _misfits(item, field.hint, field, f"{path}.{field.name}")
        elif field.nests:
            yield from _inside(item, f"{path}.{field.name}")


def _inside(item: object, path: str) -> Iterator[Fault]:
    if isinstance(item, tuple):
        for index, part in enumerate(item):
            yield from _faults(part, f"{path}.{index}")
    elif is_dataclass(item):
        yield from _faults(item, path)


def _nests(hint: object) -> bool:
    return is_dataclass(hint) or any(_nests(part) for part in get_args(hint))


def _test(hint: object, row: Scalar | None, words: tuple[str, ...]) -> Test:
    """Whether a value is of a type and in its range, as a function that is quick to ask."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return lambda item: item in parts and not isinstance(item, bool | float)
    if origin is UnionType:
        tests = [_test(part, row, words) for part in parts]
        return lambda item: any(test(item) for test in tests)
    if origin is tuple:
        of = _test(parts[0], row, words)
        return lambda item: isinstance(item, tuple) and all(map(of, item))
    if origin is dict:
        value = _test(parts[1], row, words)
        return lambda item: isinstance(item, dict) and all(map(value, item.values()))
    return _plain_test(hint, row, words)


def _plain_test(hint: object, row: Scalar | None, words: tuple[str, ...]) -> Test:
    if hint is int and row:
        takes = row.takes
        return lambda item: type(item) is int and takes(item)
    if hint is float and row:
        takes = row.takes
        return lambda item: type(item) in {int, float} and takes(item)  # type: ignore[arg-type]
    if words:
        known = frozenset(words)
        return lambda item: isinstance(item, str) and item in known
    return lambda item: isinstance(item, hint)  # type: ignore[arg-type]


def _misfits(item: object, hint: object, field: _Field, at: str) -> Iterator[Fault]:
    """Why a value does not fit, and what would; one fault for every part that does not."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is UnionType:
        yield from _misfits(item, parts[0], field, at)
    elif (origin is tuple and isinstance(item, tuple)) or (origin is dict and isinstance(item, dict)):
        inner = parts[1] if origin is dict else parts[0]
        test = _test(inner, field.row, field.words)
        pairs = item.items() if isinstance(item, dict) else enumerate(item)
        wrong = ((key, part) for key, part in pairs if not test(part))
        found = [fault for key, part in wrong for fault in _misfits(part, inner, field, f"{at}.{key}")]
        yield from together(found, len(item), at)
    else:
        yield Fault(at, _misfit(item, hint, field))


def _misfit(item: object, hint: object, field: _Field) -> str:
    if get_origin(hint) is Literal:
        return f"{item!r} is not known; choose {either(get_args(hint))}"
    if hint in {int, float} and field.row:
        try:
            held(item, field.row, "")
        except InputError as error:
            return error.faults[0].message
    if field.words:
        return f"{item!r} is not known; choose {either(field.words)}"
    names = {bool: "true or false", str: "a text", tuple: "a tuple", dict: "a table of finite numbers"}
    return f"must be {names.get(get_origin(hint) or hint, getattr(hint, '__name__', hint))}, not {said(item)}"  # type: ignore[arg-type]
