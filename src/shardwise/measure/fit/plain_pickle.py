"""Pickles of plain values (dict, list, tuple, text, numbers, None), read without running anything.

Python's own unpickler calls whatever a file names. This one knows no name and no call: an operation that would import,
call or build an object is refused, and so is whatever else a snapshot of memory never holds.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from itertools import islice
from typing import Any

MOST_STEPS = 16_000_000
_MARK = object()
_Stack = list[Any]


class PickleError(ValueError):
    """A pickle that is broken, or holds more than plain values."""


def plain(data: bytes) -> Any:  # noqa: ANN401 - a file can hold anything
    """The value in a pickle."""
    stack: _Stack = []
    memo: dict[int, Any] = {}
    try:
        for opcode, argument, _ in islice(pickletools.genops(data), MOST_STEPS):
            if opcode.name == "STOP":
                return _answer(stack)
            _step(opcode.name, argument, stack, memo)
    except PickleError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise PickleError(f"is a broken pickle: {error}") from None
    raise PickleError(f"is a pickle without an end within {MOST_STEPS:,} steps; record fewer events")


def _answer(stack: _Stack) -> Any:  # noqa: ANN401
    if len(stack) != 1 or stack[0] is _MARK:
        raise PickleError("is a broken pickle: it ends with nothing, or with more than one value")
    return stack[0]


_LITERALS = frozenset({
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING",
})  # fmt: skip
_FIXED: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_DICT": dict, "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple, "MARK": lambda: _MARK,
}  # fmt: skip
_IDLE = frozenset({"PROTO", "FRAME"})


def _step(name: str, argument: Any, stack: _Stack, memo: dict[int, Any]) -> None:  # noqa: ANN401
    if name in _LITERALS:
        stack.append(argument)
    elif name in _FIXED:
        stack.append(_FIXED[name]())
    elif name in {"BINPUT", "LONG_BINPUT", "PUT"}:
        memo[int(argument)] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in {"BINGET", "LONG_BINGET", "GET"}:
        stack.append(memo[int(argument)])
    elif name in _GATHER:
        _GATHER[name](stack)
    elif name not in _IDLE:
        raise PickleError(f"holds the operation {name}, which plain values never need; it was not run")


def _marked(stack: _Stack) -> list[Any]:
    """What was pushed since the last mark."""
    at = len(stack) - 1
    while stack[at] is not _MARK:
        at -= 1
        if at < 0:
            raise PickleError("is a broken pickle: it has no mark")
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _set_item(stack: _Stack) -> None:
    value, key = stack.pop(), stack.pop()
    stack[-1][key] = value


def _set_items(stack: _Stack) -> None:
    pairs = _pairs(_marked(stack))
    stack[-1].update(pairs)


def _append(stack: _Stack) -> None:
    value = stack.pop()
    _list(stack).append(value)


def _appends(stack: _Stack) -> None:
    items = _marked(stack)
    _list(stack).extend(items)


def _list(stack: _Stack) -> list[Any]:
    if not isinstance(stack[-1], list):
        raise PickleError("is a broken pickle: it appends to what is no list")
    return stack[-1]


def _last(count: int) -> Callable[[_Stack], None]:
    def make(stack: _Stack) -> None:
        items = tuple(stack[len(stack) - count :])
        del stack[len(stack) - count :]
        stack.append(items)

    return make


_GATHER: dict[str, Callable[[_Stack], None]] = {
    "SETITEM": _set_item, "SETITEMS": _set_items, "APPEND": _append, "APPENDS": _appends,
    "TUPLE": lambda stack: stack.append(tuple(_marked(stack))), "TUPLE1": _last(1), "TUPLE2": _last(2),
    "TUPLE3": _last(3), "LIST": lambda stack: stack.append(_marked(stack)),
    "DICT": lambda stack: stack.append(_pairs(_marked(stack))), "POP": lambda stack: stack.pop() and None,
}  # fmt: skip
