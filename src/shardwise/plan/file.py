"""The plan file: what every verb reads and writes.

{"schema": "shardwise/plan/1", "inputs": {"model", "cluster", "strategy"}, "partition", "schedule", "predictions",
"proof", "provenance", "run"}. Parts that are not known are absent. The same plan is the same bytes, but for `run`,
which holds what depends on the day: seconds taken, date, machine.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, FileError, InputError
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.files import opened, read_mapping
from shardwise.inputs.gate import wrong
from shardwise.inputs.layers import spread
from shardwise.inputs.model import Model
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.serialise import Plain, to_json, to_plain
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.write import write_text

VERSION = 1
SCHEMA = f"shardwise/plan/{VERSION}"
_INPUTS: dict[str, type] = {"model": Model, "cluster": Cluster, "strategy": Strategy}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to train one model on one cluster, and what is known about it."""

    model: Model
    """What is trained."""
    cluster: Cluster
    """What it runs on."""
    strategy: Strategy
    """How it is split."""
    partition: Plain | None = field(default=None, hash=False)
    """Layers and recompute of every chunk."""
    schedule: Plain | None = field(default=None, hash=False)
    """Order of the passes: rows of actions, or a generator and its parameters."""
    predictions: Plain | None = field(default=None, hash=False)
    """Time, memory, bubble, bound and gap."""
    proof: Plain | None = field(default=None, hash=False)
    """What the bound is the least of, and hashes of what it was proven for."""
    provenance: Plain | None = field(default=None, hash=False)
    """Version, source of the costs, calibration."""
    run: Plain | None = field(default=None, hash=False)
    """What differs from run to run; outside the promise of the same bytes."""

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from shardwise.plan.notebook import plan_html

        return plan_html(self)


_PARTS = tuple(item.name for item in fields(Plan) if item.name not in _INPUTS)


def plan_text(plan: Plan) -> str:
    """The file's text."""
    inputs = {name: getattr(plan, name) for name in _INPUTS}
    parts = {name: part for name in _PARTS if (part := getattr(plan, name)) is not None}
    return to_json({"schema": SCHEMA, "inputs": inputs, **parts})


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan whole or not at all."""
    write_text(path, plan_text(plan))


def is_plan(path: str | Path) -> bool:
    """Whether a file looks like a plan: JSON with its schema near the top."""
    if not str(path).endswith(".json"):
        return False
    try:
        with opened(path) as file:
            return b'"shardwise/plan/' in file.read(4096)
    except FileError:
        return False


def read_plan(path: str | Path) -> Plan:
    """Read a plan; a newer schema, another file or a file over 64 MiB is refused with a sentence."""
    return plan_from(read_mapping(path), path)


def plan_from(data: Plain, path: str | Path) -> Plan:
    """A plan from what a file holds, with the same checks; `path` only names it in messages."""
    data = dict(data)
    _refuse_schema(data.pop("schema", None), path)
    faults = list(_shape_faults(data))
    if faults:
        raise InputError(faults, title=str(path))
    plan = Plan(**_read_inputs(data.pop("inputs"), path), **data)
    if fault := _contradiction(plan):
        raise InputError(fault, title=str(path))
    return plan


def _contradiction(plan: Plan) -> Fault | None:
    """Layers stand in the strategy; a list beside it must be the same."""
    layers = (plan.partition or {}).get("layers")
    if not isinstance(layers, list) or "space" in (plan.partition or {}):
        return None
    try:
        own = spread(plan.model.layers, plan.strategy)
    except InputError:  # told by the checks
        return None
    if tuple(layers) == own:
        return None
    said, ours = (",".join(map(str, counts)) for counts in (layers, own))
    return Fault("partition.layers", f"are {said}, those of the strategy {ours}; change both, or leave partition out")


def _refuse_schema(schema: object, path: str | Path) -> None:
    found = re.fullmatch(r"shardwise/plan/(\d+)", schema) if isinstance(schema, str) else None
    if found is None:
        said = f"its schema is {schema!r}" if schema is not None else "it has no schema"
        raise FileError(path, f"is not a plan: {said}, a plan says {SCHEMA!r}")
    if int(found[1]) > VERSION:
        raise FileError(
            path,
            f"was written by a newer Shardwise (plan schema {found[1]}, this one reads up to {VERSION}); update it",
        )
    if int(found[1]) < VERSION:
        raise FileError(path, f"has plan schema {found[1]}, which never was; a plan says {SCHEMA!r}")


def _shape_faults(data: Plain) -> Iterator[Fault]:
    known = ("inputs", *_PARTS)
    for name in sorted(data.keys() - set(known)):
        yield Fault(name, f"is not a part of a plan; the parts are {', '.join(known)}")
    for name in known:
        if name in data and not isinstance(data[name], dict):
            yield Fault(name, "must be a table of keys and values; leave the key out when nothing is known")
    if isinstance(data.get("partition"), dict):
        yield from _partition_faults(data["partition"])
    if isinstance(data.get("predictions"), dict):
        yield from _prediction_faults(data["predictions"])
    if "inputs" not in data:
        yield Fault("inputs", "is missing; a plan holds its model, cluster and strategy in full")
    elif isinstance(data["inputs"], dict):
        yield from _inputs_faults(data["inputs"])


def _prediction_faults(predictions: Plain) -> Iterator[Fault]:
    """Predictions are anybody's; those that are computed with must be numbers."""
    search = predictions.get("search")
    names = ("iteration_seconds", "bound", "gap", "memory_limit", "memory_limit_bytes", "total_bytes", "mfu")
    held = {name: predictions.get(name) for name in names}
    if isinstance(search, dict):
        held |= {f"search.{name}": search.get(name) for name in ("strategies", "simulated")}
    for name, value in held.items():
        if value is not None and (message := wrong(value, SCALARS["plan.number"])):
            yield Fault(f"predictions.{name}", f"{message}; leave it out where it is not known")


def _partition_faults(partition: Plain) -> Iterator[Fault]:
    """Counts of layers are whole numbers, whoever wrote them."""
    if not _are_counts(partition.get("layers", [])):
        yield Fault("partition.layers", "must be a list of whole numbers, the layers of every chunk")
    runs = partition.get("recompute")
    for index, run in enumerate(runs if isinstance(runs, list) else []):
        choices = run.get("choices") if isinstance(run, dict) else None
        if not isinstance(choices, dict) or not all(map(_are_counts, choices.values())):
            at = f"partition.recompute.{index}.choices"
            yield Fault(at, "must be a table of lists of whole numbers, the layers of every chunk by kind")


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 10**6 for value in values)


def _inputs_faults(inputs: Plain) -> Iterator[Fault]:
    for name in sorted(inputs.keys() - _INPUTS.keys()):
        yield Fault(f"inputs.{name}", f"is not an input; the inputs are {', '.join(_INPUTS)}")
    for name in _INPUTS:
        if not isinstance(inputs.get(name), dict):
            yield Fault(f"inputs.{name}", "is missing or not a table; a plan holds it in full")


def _read_inputs(inputs: Plain, path: str | Path) -> dict[str, Any]:
    from shardwise.inputs.typed import validated

    values: dict[str, Any] = {}
    faults: list[Fault] = []
    for name, kind in _INPUTS.items():
        try:
            values[name] = validated(kind, inputs[name], at=f"inputs.{name}")
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults, title=str(path))
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value that two plans do not share."""

    path: str
    """Dotted path of the value."""
    left: Any
    """In the first plan; none where it is absent."""
    right: Any
    """In the second plan; none where it is absent."""

    def __str__(self) -> str:
        return f"{self.path}: {_said(self.left)} -> {_said(self.right)}"


def diff(left: Plan, right: Plan) -> tuple[Difference, ...]:
    """Everything in which two plans differ, `run` aside, in the order of the file."""
    a, b = (
        {name: to_plain(getattr(plan, name)) for name in (*_INPUTS, *_PARTS) if name != "run"} for plan in (left, right)
    )
    return tuple(_differences(a, b, ""))


def _differences(a: Any, b: Any, path: str) -> Iterator[Difference]:  # noqa: ANN401 - any JSON values
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys([*a, *b]):
            yield from _differences(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _differences(one, other, f"{path}.{index}")
    elif a != b:
        yield Difference(path=path, left=a, right=b)


def _said(value: object) -> str:
    return "absent" if value is None else str(value)


LENGTH = 12


def plan_id(plan: Plan) -> str:
    """The same for the same inputs, partition and schedule; a new prediction of them does not change it."""
    decided = replace(plan, predictions=None, proof=None, provenance=None, run=None)
    return hashlib.sha256(plan_text(decided).encode()).hexdigest()[:LENGTH]
