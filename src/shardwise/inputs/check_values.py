"""Checks of one input by itself: the type and the range of every value."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, get_args, get_origin

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
_ABOVE_ZERO = {
    "Cluster": ("host_bandwidth",),
    "Gpu": ("memory", "bandwidth", "flops"),
    "Level": ("bandwidth",),
    "Moe": ("capacity",),
}


def value_faults(value: object, path: str) -> Iterator[Fault]:
    """Wrong types and ranges of a dataclass of ours and of those inside it."""
    kind = type(value).__name__
    for name, hint in _hints(type(value)).items():
        at, item = f"{path}.{name}", getattr(value, name)
        wrong = _type_fault(item, hint)
        if wrong:
            yield Fault(at, wrong)
        else:
            yield from _range_faults(item, at, kind, name)
            yield from _inside(item, at)
    if isinstance(value, Strategy):
        yield from _schedule_faults(value.schedule, f"{path}.schedule")


def _inside(item: object, path: str) -> Iterator[Fault]:
    if is_dataclass(item):
        yield from value_faults(item, path)
    elif isinstance(item, tuple):
        for index, part in enumerate(item):
            if is_dataclass(part):
                yield from value_faults(part, f"{path}.{index}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _type_fault(item: object, hint: object) -> str:
    """A sentence when the value is not of the type; empty when it is."""
    if get_origin(hint) is Literal:
        return "" if item in get_args(hint) else f"{item!r} is not known; choose {either(get_args(hint))}"
    if get_origin(hint) is UnionType:
        return (
            "" if any(not _type_fault(item, part) for part in get_args(hint)) else _type_fault(item, get_args(hint)[0])
        )
    if get_origin(hint) is tuple:
        return _tuple_fault(item, get_args(hint)[0])
    if get_origin(hint) is dict:
        parts = (_type_fault(part, get_args(hint)[1]) for part in item.values()) if isinstance(item, dict) else ()
        return next((part for part in parts if part), "" if isinstance(item, dict) else f"{item!r} is not a table")
    return _plain_fault(item, hint)


def _tuple_fault(item: object, part: object) -> str:
    if not isinstance(item, tuple):
        return f"{item!r} is not a tuple"
    return next((wrong for one in item if (wrong := _type_fault(one, part))), "")


def _plain_fault(item: object, hint: type) -> str:
    if hint is int and (isinstance(item, bool) or not isinstance(item, int)):
        return f"{item!r} is not a whole number; write it without quotes or decimals"
    if hint is float and (isinstance(item, bool) or not isinstance(item, int | float) or not math.isfinite(item)):
        return f"{item!r} is not a finite number"
    if hint in {bool, str} and not isinstance(item, hint):
        return f"{item!r} is not {'true or false' if hint is bool else 'text'}"
    if is_dataclass(hint) and not isinstance(item, hint):
        return f"{item!r} is not a {hint.__name__}"
    if hint is type(None):
        return "" if item is None else f"{item!r} is not none"
    return ""


def _range_faults(item: object, path: str, kind: str, name: str) -> Iterator[Fault]:
    least = _LEAST.get(kind, {}).get(name)
    positive = name in _ABOVE_ZERO.get(kind, ())
    for at, number in _numbers(item, path):
        if least is not None and number < least:
            yield Fault(at, f"{number:g} is too small; it must be at least {least:g}")
        elif positive and number <= 0:
            yield Fault(at, f"{number:g} is not above zero; give what the hardware reaches")


def _numbers(item: object, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(item, int | float) and not isinstance(item, bool):
        yield path, item
    elif isinstance(item, dict):
        yield from ((f"{path}.{key}", number) for key, number in item.items())
    elif isinstance(item, tuple):
        yield from ((f"{path}.{index}", number) for index, number in enumerate(item) if isinstance(number, int | float))


def _schedule_faults(schedule: str, path: str) -> Iterator[Fault]:
    if schedule not in SCHEDULES:
        yield Fault(path, f"{schedule!r} is not a schedule; choose {either(SCHEDULES)}")
