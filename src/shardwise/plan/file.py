"""The plan file: what every verb reads and writes.

{"schema": "shardwise/plan/2", "inputs": {"model", "cluster", "strategy"}, "order", "balance", "operators",
"predictions", "proof", "provenance", "run"}. Parts that are not known are absent. The same plan is the same bytes, but
for `run`, which holds what depends on the day: seconds taken, date, machine. Files of schema 1 are read as well.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from shardwise.cost.chunk import placement_of
from shardwise.errors import Fault, FileError, InputError
from shardwise.estimate.predictions import Predictions, predictions_table
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.files import opened, read_mapping
from shardwise.inputs.mixed import Mixed
from shardwise.inputs.model import Model
from shardwise.inputs.serialise import Plain, to_json, to_plain
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.typed import validated
from shardwise.inputs.write import write_text
from shardwise.pipeline.action import Schedule, placed
from shardwise.pipeline.faults import validate
from shardwise.plan.operators import operator_faults
from shardwise.plan.plan import Balance, Operators, Plan, Proof, Provenance
from shardwise.plan.schema1 import refuse_contradictions, upgraded

VERSION = 2
SCHEMA = f"shardwise/plan/{VERSION}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a plan was made for, in full."""

    model: Model
    cluster: Cluster
    strategy: Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedInputs(Inputs):
    """The same on several kinds of GPU."""

    cluster: Mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a plan file holds beside its schema."""

    inputs: Inputs
    order: tuple[str, ...] | None = None
    """One row of actions per rank."""
    balance: Balance | None = None
    operators: Operators | None = None
    predictions: Predictions | None = None
    proof: Proof | None = None
    provenance: Provenance | None = None
    run: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedContent(Content):
    """The same of a plan for several kinds of GPU."""

    inputs: MixedInputs


_PARTS = tuple(item.name for item in fields(Content) if item.name != "inputs")


def plan_table(plan: Plan) -> Plain:
    """What the plan's file holds."""
    inputs = {item.name: getattr(plan, item.name) for item in fields(Inputs)}
    parts = {name: _plain(part) for name in _PARTS if (part := getattr(plan, name)) is not None}
    table: Plain = to_plain({"schema": SCHEMA, "inputs": inputs, **parts})
    return table


def _plain(part: object) -> Any:  # noqa: ANN401 - a JSON value
    if isinstance(part, Schedule):
        return part.csv().splitlines()
    if isinstance(part, Predictions):
        return predictions_table(part)
    return part


def plan_text(plan: Plan) -> str:
    """The file's text."""
    return to_json(plan_table(plan))


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan whole or not at all."""
    write_text(path, plan_text(plan))


BESIDE = frozenset({"plans", "top", "alone", "strategy", "outdated"})
"""Keys of what `plan` and `show` tell in JSON beside the plan: such a file is read as the plan that it is."""


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
    old = _version(data.get("schema"), path) == 1
    given = {name: part for name, part in data.items() if name not in {"schema", *BESIDE}}
    try:
        content = validated(_kind(given), with_intervals(upgraded(given) if old else given))
        if faults := list(_lengths(content)):
            raise InputError(faults)  # noqa: TRY301 - as those of the types
        made = {name: getattr(content, name) for name in _PARTS if name != "order"}
        inputs = {item.name: getattr(content.inputs, item.name) for item in fields(Inputs)}
        plan = Plan(**inputs, order=_order(content), **made)
        if old:
            refuse_contradictions(plan, given)
    except InputError as error:
        raise InputError([_cured(fault) for fault in error.faults], title=str(path)) from None
    return plan


def _kind(given: Plain) -> type[Content]:
    inputs = given.get("inputs")
    cluster = inputs.get("cluster") if isinstance(inputs, dict) else None
    return MixedContent if isinstance(cluster, dict) and "kinds" in cluster else Content


def with_intervals(given: Plain) -> Plain:
    """Files from before there were intervals of memory say by what share it typically errs: a yes or a no of then is
    taken to be one of nine in ten.
    """
    told = given.get("predictions")
    if not isinstance(told, dict) or "memory_error" not in told:
        return given
    error, total = told["memory_error"], told.get("total_bytes")
    if not (isinstance(error, int | float) and isinstance(total, int | float) and 0 <= error <= 1):
        return given  # told by the types
    kept = {name: part for name, part in told.items() if name != "memory_error"}
    chance = {"yes": 0.95, "close": 0.5, "no": 0.05}.get(str(told.get("fits")), 0.5)
    interval = [total / (1 + error), total * (1 + error)]
    return {**given, "predictions": {"total_bytes_interval": interval, "fits_probability": chance, **kept}}


def _cured(fault: Fault) -> Fault:
    whole = fault.path.startswith("predictions.") and fault.message.endswith("add it")
    return Fault(fault.path, f"{fault.message}, or leave predictions out: they are made anew") if whole else fault


def _version(schema: object, path: str | Path) -> int:
    found = re.fullmatch(r"shardwise/plan/([0-9]{1,9})", schema) if isinstance(schema, str) else None
    if found is None:
        said = f"its schema is {schema!r}" if schema is not None else "it has no schema"
        raise FileError(path, f"is not a plan: {said}, a plan says {SCHEMA!r}")
    version = int(found[1])
    if version > VERSION:
        raise FileError(
            path, f"was written by a newer Shardwise (plan schema {version}, this one reads up to {VERSION}); update it"
        )
    if not version:
        raise FileError(path, f"has plan schema {version}, which never was; a plan says {SCHEMA!r}")
    return version


def _lengths(content: Content) -> Iterator[Fault]:
    """Lists that have an entry per rank or chunk must have as many as the strategy; operators agree with themselves."""
    told, balance, strategy = content.predictions, content.balance, content.inputs.strategy
    if content.operators is not None:
        yield from operator_faults(content.operators, strategy, content.inputs.cluster.gpus)
    listed: dict[str, tuple[Sequence[object], int]] = {}
    if told is not None:
        listed = {f"predictions.{name}": (getattr(told, name), strategy.pp) for name in ("stages", "memory")}
    for index, run in enumerate(balance.recompute if balance else ()):
        for name, counts in run.choices.items():
            listed[f"balance.recompute.{index}.choices.{name}"] = (counts, strategy.chunks)
    for path, (entries, wanted) in listed.items():
        if len(entries) != wanted:
            yield Fault(path, f"must have {wanted} entries, as the strategy's pp and vpp say; not {len(entries)}")


def _order(content: Content) -> Schedule | None:
    """The rows as a schedule that the strategy's ranks can run."""
    rows, strategy = content.order, content.inputs.strategy
    if rows is None:
        return None
    order = Schedule.parse("\n".join(rows), name=strategy.schedule)
    shape, wanted = (order.pp, order.chunks, order.microbatches), (strategy.pp, strategy.chunks, strategy.microbatches)
    if shape != wanted:
        said = "the rows have {} ranks, {} chunks and {} micro batches; ".format(*shape)
        cure = "the strategy has {}, {} and {}: leave them out, or order the plan anew".format(*wanted)
        raise InputError(Fault("order", said + cure))
    validate(order, rank_of=placed(strategy.pp, strategy.vpp, placement_of(strategy)))
    return order


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
    a, b = (plan_table(replace(plan, run=None)) for plan in (left, right))
    a, b = ({**table.pop("inputs"), **table} for table in (a, b))
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
    """The same for the same inputs, order and operators; a new prediction of them does not change it."""
    decided = replace(plan, predictions=None, proof=None, provenance=None, run=None)
    return hashlib.sha256(plan_text(decided).encode()).hexdigest()[:LENGTH]
