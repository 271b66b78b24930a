"""Checks of one input by itself: the type and the range of every value."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from types import UnionType
from typing import Literal, get_args, get_origin

from shardwise.errors import Fault
from shardwise.inputs.check_rule import either
from shardwise.inputs.strategy import SCHEDULES, Strategy

_LEAST: dict[str, dict[str, float]] = {
    "Strategy": {
        **dict.fromkeys(("tp", "pp", "vpp", "dp", "cp", "ep", "etp", "micro_batch", "global_batch", "seq"), 1),
        **dict.fromkeys(("zero_group", "group", "first_layers", "last_layers", "layers"), 0),
        "straggler": 1,
    },
    "Recompute": {"group": 1, "layers": 0},
    "Lora": {"rank": 1},
    "Model": {
        **dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "head_size", "vocab"), 1),
        **dict.fromkeys(("ffn", "max_positions", "embedding_size", "windows", "mtp", "dropout"), 0),
    },
    "Mla": {**dict.fromkeys(("kv_rank", "nope_size", "value_size"), 1), "rope_size": 0, "q_rank": 0},
    "Moe": {
        **dict.fromkeys(("experts", "top_k", "expert_ffn", "every", "imbalance"), 1),
        **dict.fromkeys(("shared_ffn", "first_dense"), 0),
    },
    "Cluster": {"gpus": 1, "host_memory": 0},
    "Gpu": {"sms": 1, "l2": 0, "reserved": 0},
    "Level": {"size": 1, "latency": 0, "oversubscription": 1},
}
_MOST = {"Model": {"layers": 10_000, "mtp": 10_000}}
_LARGEST = 10**15  # no count of ours is larger; beyond it arithmetic with floats fails
_ABOVE_ZERO = {
    "Cluster": ("host_bandwidth",),
    "Gpu": ("memory", "bandwidth", "flops"),
    "Level": ("bandwidth",),
    "Moe": ("capacity",),
}


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
    fits: Callable[[object], bool]
    least: float | None
    most: float | None
    positive: bool
    nests: bool


@cache
def _fields(kind: Hashable) -> tuple[_Field, ...]:
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise TypeError(f"{kind} is not one of our types")
    hints, name = typing.get_type_hints(kind), kind.__name__
    least, most, positive = _LEAST.get(name, {}), _MOST.get(name, {}), _ABOVE_ZERO.get(name, ())
    return tuple(
        _Field(
            name=f.name,
            hint=hints[f.name],
            fits=_test(hints[f.name]),
            least=least.get(f.name),
            most=most.get(f.name),
            positive=f.name in positive,
            nests=_nests(hints[f.name]),
        )
        for f in fields(kind)
    )


def _faults(value: object, path: str) -> Iterator[Fault]:
    for field in _fields(typing.cast("Hashable", type(value))):
        item = getattr(value, field.name)
        if not field.fits(item):
            yield Fault(f"{path}.{field.name}", _misfit(item, field.hint))
            continue
        if field.least is not None or field.positive:
            yield from _range_faults(item, f"{path}.{field.name}", field)
        if field.nests:
            yield from _inside(item, f"{path}.{field.name}")
    if isinstance(value, Strategy) and value.schedule not in SCHEDULES:
        yield Fault(f"{path}.schedule", f"{value.schedule!r} is not a schedule; choose {either(SCHEDULES)}")


def _inside(item: object, path: str) -> Iterator[Fault]:
    if isinstance(item, tuple):
        for index, part in enumerate(item):
            yield from _faults(part, f"{path}.{index}")
    elif item is not None:
        yield from _faults(item, path)


def _nests(hint: object) -> bool:
    return is_dataclass(hint) or any(_nests(part) for part in get_args(hint))


def _test(hint: object) -> Callable[[object], bool]:
    """Whether a value is of a type, as a function that is quick to ask."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return lambda item: item in parts and not isinstance(item, bool | float)
    if origin is UnionType:
        tests = [_test(part) for part in parts]
        return lambda item: any(test(item) for test in tests)
    if origin is tuple:
        of = _test(parts[0])
        return lambda item: isinstance(item, tuple) and all(map(of, item))
    if origin is dict:
        value = _test(parts[1])
        return lambda item: isinstance(item, dict) and all(map(value, item.values()))
    return _plain_test(hint)


def _plain_test(hint: object) -> Callable[[object], bool]:
    if hint is int:
        return lambda item: type(item) is int and -_LARGEST < item < _LARGEST
    if hint is float:
        return lambda item: type(item) in {int, float} and math.isfinite(item)  # type: ignore[arg-type]
    return lambda item: isinstance(item, hint)  # type: ignore[arg-type]


def _misfit(item: object, hint: object) -> str:
    """Why a value is not of a type, and what would be."""
    if get_origin(hint) is Literal:
        return f"{item!r} is not known; choose {either(get_args(hint))}"
    if get_origin(hint) is UnionType:
        return _misfit(item, get_args(hint)[0])
    if get_origin(hint) is tuple and isinstance(item, tuple):
        test = _test(get_args(hint)[0])
        return _misfit(next(part for part in item if not test(part)), get_args(hint)[0])
    if hint is int:
        large = f"{_start(item)} is out of reach; it must be between -10^15 and 10^15: correct it"
        return large if type(item) is int else f"{item!r} is not a whole number; write it without quotes or decimals"
    if hint is float:
        return f"{item!r} is not a finite number"
    names = {bool: "true or false", str: "text", tuple: "a tuple", dict: "a table of finite numbers"}
    return f"{item!r} is not {names.get(get_origin(hint) or hint, getattr(hint, '__name__', hint))}"  # type: ignore[arg-type]


def _start(item: object) -> str:
    """A number cut short; Python writes none of more than 4,300 digits."""
    if isinstance(item, int) and abs(item) >= 10**30:
        return "a number of more than 30 digits"
    return str(item)


def _range_faults(item: object, path: str, field: _Field) -> Iterator[Fault]:
    for at, number in _numbers(item, path):
        if field.least is not None and number < field.least:
            yield Fault(at, f"{number:g} is too small; it must be at least {field.least:g}")
        elif field.most is not None and number > field.most:
            yield Fault(at, f"{number:g} is too large; it must be at most {field.most:g}")
        elif field.positive and number <= 0:
            yield Fault(at, f"{number:g} is not above zero; give what the hardware reaches")


def _numbers(item: object, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(item, int | float):
        yield path, item
    elif isinstance(item, dict | tuple):
        pairs = item.items() if isinstance(item, dict) else enumerate(item)
        yield from ((f"{path}.{key}", number) for key, number in pairs)
