"""What a call of a verb gives: held against the types that the verb declares, before anything is done with it.

A verb says in its annotations what it takes, and nowhere else. What is of another kind is refused with all faults at
once, under the names of the arguments; None stands for the default where None itself means nothing. Rooms below name
what is wrong by the flag of the command line; who calls from Python is told the argument.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: who presses Ctrl-C while that loads would see a traceback of Python's
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from shardwise.errors import Fault

_OTHER_NAMES = {"with": "builder", "time": "time_limit", "memory": "memory_limit", "to": "target"}
"""Flags that are called otherwise in Python."""
flags_are_told: set[int] = set()
"""Threads in which the command line calls, whose user knows flags; those of the page's server are not among them."""


def read(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb, its arguments held against its annotations."""

    def called(*args: Any, **given: Any) -> Any:  # noqa: ANN401 - whatever the verb takes and gives
        from shardwise.errors import InputError

        if faults := list(_faults(verb, args, given)):
            raise InputError(faults, title=f"{verb.__name__}()")
        args, given = _said(verb, args, given)
        try:
            return verb(*args, **given)
        except InputError as error:
            from threading import get_ident

            if get_ident() not in flags_are_told:
                error.rename(lambda text: _without_flags(text, verb))
            raise

    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
        setattr(called, name, getattr(verb, name))
    called.__wrapped__ = verb  # type: ignore[attr-defined] # where inspect finds the signature
    return called


def _names(verb: Callable[..., Any]) -> tuple[str, ...]:
    code = verb.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _defaults(verb: Callable[..., Any]) -> dict[str, Any]:
    code, last = verb.__code__, verb.__defaults__ or ()
    positional = code.co_varnames[code.co_argcount - len(last) : code.co_argcount]
    return dict(zip(positional, last, strict=True)) | (verb.__kwdefaults__ or {})


def _said(
    verb: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, the default where None says nothing, and numpy's numbers as Python's."""
    defaults, names = _defaults(verb), _names(verb)

    def value(name: str, value: Any) -> Any:  # noqa: ANN401 - any argument
        if value is None:
            return defaults.get(name)
        return _number(value)

    placed = tuple(value(names[index], one) if index < len(names) else one for index, one in enumerate(args))
    return placed, {name: value(name, one) for name, one in given.items()}


def _faults(verb: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Iterator[Fault]:
    from shardwise.errors import Fault

    code, defaults = verb.__code__, _defaults(verb)
    more = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if code.co_flags & 0x04 else ""
    placed = list(zip(_names(verb)[: code.co_argcount], args, strict=False))
    rest = [(more, one) for one in args[code.co_argcount :] if more]
    for name, value in [*placed, *rest, *given.items()]:
        kinds = _alternatives(verb.__annotations__.get(name, "Any"))
        if (value is None and name in defaults) or any(_is(value, kind) for kind in kinds):
            continue
        told = " or ".join(_shown(kind) for kind in kinds if kind != "None")
        yield Fault(name, f"must be {told}, not {_what(value)}")


def _alternatives(annotation: str) -> list[str]:
    """`int | Sequence[str | None]` -> `int`, `Sequence[str | None]`."""
    found, depth = [""], 0
    for letter in str(annotation):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "|" and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [one.strip() for one in found]


def _number(value: Any) -> Any:  # noqa: ANN401 - any argument
    """Numpy's numbers as Python's; all else as it is."""
    return value.item() if hasattr(value, "dtype") and getattr(value, "shape", None) == () else value


def _whole(value: object) -> bool:
    return isinstance(_number(value), int) and not isinstance(value, bool)


def _text(value: object) -> bool:
    return isinstance(value, str)


_CALL = ("a function", callable)
_TABLE = ("a table", lambda value: hasattr(value, "keys"))
_WORD = ("a text", _text)  # one of some words; which, is checked where they are used
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "Any": ("anything", lambda _: True),
    "Callable": _CALL, "Follow": _CALL, "Report": _CALL, "Stop": _CALL,
    "Builder": _WORD, "Device": _WORD, "Literal": _WORD, "Method": _WORD, "Objective": _WORD, "Packing": _WORD,
    "Placement": _WORD, "str": _WORD,
    "Mapping": _TABLE, "dict": _TABLE,
    "None": ("nothing", lambda value: value is None),
    "Source": ("a text or a path", lambda value: _text(value) or hasattr(value, "__fspath__")),
    "Zero": ("0, 1, 2 or 3", _whole),
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "float": ("a number", lambda value: _whole(value) or isinstance(_number(value), float)),
    "int": ("a whole number", _whole),
}  # fmt: skip
"""Word of an annotation -> how it is said, and its test. All others are classes."""
_LISTS = {"Sequence", "list", "tuple"}


def _is(value: object, kind: str) -> bool:
    """Whether a value is of a kind; classes go by their names, each of which the house has once."""
    head, _, inner = kind.partition("[")
    if head in _LISTS:
        return _are(value, _alternatives(inner[:-1].split(",")[0]))
    if head in _KINDS:
        return _KINDS[head][1](value)
    return any(one.__name__ == head for one in type(value).__mro__)


def _are(value: Any, kinds: list[str]) -> bool:  # noqa: ANN401 - any argument
    several = hasattr(value, "__iter__") and hasattr(value, "__len__") and not hasattr(value, "keys")
    if not several or isinstance(value, str | bytes):
        return False
    return all(any(_is(one, kind) for kind in kinds) for one in value)


def _shown(kind: str) -> str:
    head, _, inner = kind.partition("[")
    if head in _LISTS:
        one = inner[:-1].split(",")[0]
        return f"a list, each {_shown(one)}"
    return _KINDS[head][0] if head in _KINDS else f"{'an' if head[0] in 'AEIO' else 'a'} {head}"


def _what(value: object) -> str:
    from shardwise.inputs.gate import said

    plain = value is None or isinstance(value, bool | int | float | str | list | dict)
    return said(value) if plain else f"of type {type(value).__name__}"


def _without_flags(text: str, verb: Callable[..., Any]) -> str:
    """`--memory-margin` -> `memory_margin`, where the verb has such an argument and no command line is quoted."""
    import re

    names = _names(verb)

    def argument(found: re.Match[str]) -> str:
        flag = found["flag"] or ""
        called = (flag.replace("-", "_"), _OTHER_NAMES.get(flag, ""))
        return next((name for name in called if name in names), found[0])

    flags = r"\bshardwise [a-z][^`;,\n]*|(?<![\w`-])--(?P<flag>[a-z][a-z0-9-]*)"
    return re.sub(flags, argument, re.sub(r"^MODEL\b", "model", text))
