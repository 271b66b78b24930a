"""The string under a field is the one place that says what it means: help texts and reference pages read it here.

The strings are not kept by Python, so the source is parsed; only a verb's own `--help` and the docs pay for that.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDoc:
    """One field of one of our types, as people read it."""

    name: str
    """Name in Python, JSON, TOML and (with hyphens) on the command line."""
    kind: str
    """`int`, `float`, `text`, `switch`, `list`, or the name of one of our types."""
    choices: tuple[str, ...]
    """The values to choose from; empty: any."""
    required: bool
    """Has no default."""
    default: object
    """Its default, or none where it is required."""
    text: str
    """What it means."""


@cache
def describe(kind: type) -> tuple[FieldDoc, ...]:
    """The fields of a dataclass in order, each with the string under it."""
    texts, hints = texts_of(kind), get_type_hints(kind)
    return tuple(
        FieldDoc(
            name=field.name,
            kind=_kind_name(hints[field.name]),
            choices=tuple(str(choice) for choice in _choices(hints[field.name])),
            required=field.default is MISSING and field.default_factory is MISSING,
            default=None if field.default is MISSING else field.default,
            text=texts.get(field.name, ""),
        )
        for field in fields(kind)
        if field.init  # what follows from the others is not given
    )


def texts_of(kind: type) -> dict[str, str]:
    """Field -> the string under it, of a dataclass or a named tuple."""
    ours = [one for one in reversed(kind.__mro__) if one.__module__.startswith("shardwise.")]
    return {name: text for one in ours for name, text in _pairs(_definition(one))}


def _definition(kind: type) -> ast.ClassDef:
    tree = ast.parse(inspect.getsource(inspect.getmodule(kind) or kind))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)


def _pairs(found: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, under in zip(found.body, found.body[1:], strict=False):
        match field, under:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())


def _choices(hint: object) -> tuple[object, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()


def _kind_name(hint: object) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "int" if all(isinstance(part, int) for part in parts) else "text"
    if origin is tuple:
        return f"list of {_kind_name(parts[0])}"
    if origin is dict:
        return f"table of {_kind_name(parts[1])}"
    if origin is Union or type(hint).__name__ == "UnionType":
        return " or ".join("none" if part is type(None) else _kind_name(part) for part in parts)
    names = {int: "int", float: "float", str: "text", bool: "switch"}
    return names.get(hint, getattr(hint, "__name__", str(hint))) if isinstance(hint, type) else str(hint)
