"""A question of a request: what `shardwise plan` would be asked, every fault told at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from shardwise import api
from shardwise.errors import Fault, InputError
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.foreign import Foreign
from shardwise.inputs.load import load_runtime, runtime_names
from shardwise.inputs.model import Model
from shardwise.web.untrusted import cluster_of, model_of

T = TypeVar("T")

LONGEST = 120.0
"""Seconds that a search may take."""
FIELDS = ("model", "cluster", "global_batch", "seq", "runtime", "only", "memory_margin", "gap", "time_limit")
_ONLY_LENGTH = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a request asks for, in the words of `api.plan`."""

    question: dict[str, Any]
    """What `api.question` takes too."""
    effort: dict[str, Any]


def searched(data: object) -> Wanted:
    """Read a question; InputError with every fault."""
    if not isinstance(data, dict):
        raise InputError(Fault("question", f"must be a table with the keys {', '.join(FIELDS)}"))
    table = Foreign(data)
    table.refuse_unknown(FIELDS)
    numbers = _numbers(table)
    model: Model | None = _tried(table, lambda: model_of(data.get("model")), "model")
    cluster: Cluster | None = _tried(table, lambda: cluster_of(data.get("cluster")), "cluster")
    try:
        other = api.fixed_by(numbers["only"])
    except InputError as error:
        table.faults.extend(Fault("only", str(fault)) for fault in error.faults)
    else:
        if "runtime" in other:  # it may be a file, and a stranger's word opens none
            table.faults.append(Fault("only", "gives a runtime; give it in the field runtime"))
    if table.faults or model is None or cluster is None:
        raise InputError(table.faults)
    effort = {name: numbers.pop(name) for name in ("gap", "time_limit")}
    return Wanted(question={"model": model, "cluster": cluster, **numbers}, effort=effort)


def _numbers(table: Foreign) -> dict[str, Any]:
    only = table.text("only", "")
    if len(only) > _ONLY_LENGTH:
        table.fault("only", f"has {len(only):,} characters; at most {_ONLY_LENGTH:,} are read")
    runtime = table.text("runtime", "megatron", choices=runtime_names())
    return {
        "global_batch": table.whole("global_batch", row="Strategy.global_batch"),
        "seq": table.whole("seq", 4096, row="Strategy.seq"),
        "runtime": load_runtime(runtime if runtime in runtime_names() else "megatron"),
        "only": only,
        "memory_margin": _margin(table),
        "gap": table.number("gap", 0.005, row="option.gap"),
        "time_limit": _time(table),
    }


def _time(table: Foreign) -> float:
    seconds = table.number("time_limit", LONGEST, row="option.time")
    if seconds > LONGEST:
        table.fault("time_limit", f"is {seconds:g} s; a search takes at most {LONGEST:g} s here")
    return seconds


def _margin(table: Foreign) -> float | None:
    return table.number("memory_margin", row="option.margin") if table.has("memory_margin") else None


def _tried(table: Foreign, read: Callable[[], T], at: str = "") -> T | None:
    """What a reader gives; its faults join those of the table."""
    try:
        return read()
    except InputError as error:
        table.faults.extend(Fault(fault.path or at, fault.message) for fault in error.faults)
        return None
