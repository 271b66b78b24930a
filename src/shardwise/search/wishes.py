"""What a user allows: `--only "tp<=8 zero1 recompute=none,full"` and `--fix pp=4`.

A condition is an axis, a comparison and one or several values; `zero1` is `zero=1`. Flags of a strategy (`nosp`,
`zb-v`) work as in its text; `recompute=full:auto` is full recomputation of as many layers as each stage needs.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any, NamedTuple, get_args

from shardwise.check.values import value_faults
from shardwise.errors import Fault, InputError, UnknownNameError
from shardwise.inputs.gate import counted, held
from shardwise.inputs.gate import word as one_of
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.strategy import (
    SCHEDULES,
    CpKind,
    CudaGraphs,
    Dispatcher,
    GradDtype,
    Offload,
    Optimizer,
    RankOrder,
)
from shardwise.inputs.strategy_text import SWITCH, Given, lowered, parse

AXES = (
    "tp", "sp", "cp", "cp_kind", "pp", "vpp", "schedule", "dp", "ep", "etp", "zero", "hsdp", "mbs", "recompute",
    "compile", "dispatcher", "ep_overlap", "cuda_graphs", "offload", "grad_dtype", "optimizer", "rank_order", "group",
)  # fmt: skip
_FIELDS = {"micro_batch": "mbs", "zero_group": "hsdp"}
_WORDS: dict[str, tuple[str, ...]] = {
    "cp_kind": get_args(CpKind), "dispatcher": get_args(Dispatcher), "cuda_graphs": get_args(CudaGraphs),
    "offload": get_args(Offload), "grad_dtype": get_args(GradDtype), "optimizer": get_args(Optimizer),
    "rank_order": get_args(RankOrder),
}  # fmt: skip
_NAMES = {axis: name for name, axis in _FIELDS.items()}
_SHORT = {"dispatch": "dispatcher", "graphs": "cuda_graphs", "grad": "grad_dtype", "order": "rank_order"}
_ASKED = {"global_batch": "--global-batch", "microbatches": "--global-batch", "seq": "--seq"}
"""Fields that are part of the question, and the option that gives them."""
_DECIDED = ("layers", "batches", "first_layers", "last_layers", "count_embedding", "count_head", "placement")
"""Fields that the search decides by itself for every strategy; a wish for one would be lost."""
_NUMERIC = frozenset({"tp", "cp", "pp", "vpp", "dp", "ep", "etp", "zero", "hsdp", "mbs", "group"})
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip
_CONDITION = re.compile(r"([a-z_-]+)(<=|>=|!=|<|>|=)(.+)")


class Condition(NamedTuple):
    """One axis must compare so with one of the values."""

    axis: str
    compare: str
    values: tuple[Any, ...]

    def holds(self, value: object) -> bool:
        compare = _COMPARE[self.compare]
        found = [compare(value, wanted) for wanted in self.values]
        return all(found) if self.compare == "!=" else any(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Conditions on the axes; all must hold."""

    conditions: tuple[Condition, ...] = ()

    def allow(self, axis: str, value: object) -> bool:
        return all(condition.holds(value) for condition in self.conditions if condition.axis == axis)

    def kept(self, axis: str, values: Iterable[Any]) -> list[Any]:
        return [value for value in values if self.allow(axis, value)]

    def named(self, axis: str) -> tuple[Any, ...]:
        """Values that are asked for by name."""
        return tuple(v for c in self.conditions if c.axis == axis and c.compare == "=" for v in c.values)


def read_wishes(*texts: str) -> tuple[Wishes, Given]:
    """Conditions on axes, and the other fields of a strategy that the texts give."""
    conditions: list[Condition] = []
    other: Given = {}
    faults: list[Fault] = []
    for word in (lowered(word) for text in texts for word in text.split()):
        try:
            found, rest = _read(word)
        except InputError as error:
            faults += error.faults
            continue
        conditions += found
        other |= rest
    if faults:
        raise InputError(faults, title="--only / --fix")
    return Wishes(conditions=tuple(conditions)), other


def kept(old: str, new: str) -> str:
    """The conditions of a plan with new ones: those on an axis that the new ones name give way to them.

    What the old ones fix beside the axes is in the plan's strategy already.
    """
    named = {condition.axis for condition in read_wishes(new)[0].conditions}
    words = [(word, _read(word)[0]) for word in old.lower().split()]
    stay = [word for word, found in words if found and not named.intersection(one.axis for one in found)]
    return " ".join([*stay, *new.split()])


def without(conditions: str, axis: str) -> str:
    """The conditions less those on an axis."""
    return " ".join(word for word in conditions.split() if axis not in {one.axis for one in _read(word.lower())[0]})


def _read(word: str) -> tuple[list[Condition], Given]:
    found = _CONDITION.fullmatch(word)
    name = found[1].replace("-", "_") if found else ""
    axis = _FIELDS.get(name, _SHORT.get(name, name))
    if found and axis in AXES:
        return [Condition(axis, found[2], tuple(_value(axis, text) for text in _split(axis, found[3])))], {}
    if found and found[2] != "=":
        raise UnknownNameError("axis", found[1], AXES)
    given = parse(word)
    faults = list(_range_faults(given))
    faults += [Fault(key, f"is given by {_ASKED[key]}, not by a condition; use that") for key in given if key in _ASKED]
    faults += [
        Fault(key, "is decided by the search, stage by stage; `estimate` takes it") for key in given if key in _DECIDED
    ]
    if faults:
        raise InputError(faults)
    axes = {_FIELDS.get(key, key): value for key, value in given.items() if _FIELDS.get(key, key) in AXES}
    other = {key: value for key, value in given.items() if _FIELDS.get(key, key) not in AXES}
    return [Condition(axis, "=", (value,)) for axis, value in axes.items()], other


def _range_faults(given: Given) -> Iterator[Fault]:
    """Words of a strategy leave ranges to `check`, which sees whole strategies; here they are looked at at once."""
    for key, value in given.items():
        if is_dataclass(value):
            yield from value_faults(value, key)
        if f"Strategy.{key}" in SCALARS and key != "layers":
            try:
                held(value, SCALARS[f"Strategy.{key}"], key)
            except InputError as error:
                yield from error.faults


def _split(axis: str, text: str) -> list[str]:
    # commas inside recompute=full:[4,3] belong to the value
    return re.split(r",(?![^\[]*\])", text) if axis != "recompute" or "[" not in text else [text]


def _value(axis: str, text: str) -> object:
    if axis in _NUMERIC:
        return counted(text, SCALARS[f"Strategy.{_NAMES.get(axis, axis)}"], axis)
    if axis in {"sp", "compile", "ep_overlap"}:
        one_of(text, SWITCH, axis)
        return SWITCH[text]
    if axis in _WORDS:
        return one_of(text, _WORDS[axis], axis)
    if axis == "schedule" and text not in SCHEDULES:
        raise UnknownNameError("schedule", text, SCHEDULES)
    if axis == "recompute":  # auto: as many layers of every stage as needed, AS_NEEDED in space.py
        return Recompute.parse(re.sub(r":auto$", ":0", text))
    return text
