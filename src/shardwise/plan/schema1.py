"""Plan files of schema 1 in the words of schema 2.

There, layers stood in `strategy` and in `partition`, and the schedule in `strategy` and in `schedule`. A proof of that
time was about another cost model and is left out: nothing of it could be checked today.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.inputs.layers import spread
from shardwise.inputs.serialise import Plain
from shardwise.plan.plan import Plan

_PARTS = ("inputs", "partition", "schedule", "predictions", "proof", "provenance", "run")
_PARTITION = {"layers", "recompute", "recomputed_layers"}
_SCHEDULE = {"name", "pp", "vpp", "placement", "microbatches", "rows", "csv"}
_DERIVED = {"tokens_per_iteration", "microbatches", "memory_limit_bytes"}
"""Predictions that the inputs say."""
_AFTER = {"stragglers", "gradient reduction", "weight gathering", "optimizer", "framework"}
"""Parts of an iteration that follow its passes."""


def upgraded(data: Plain) -> Plain:
    """What a file of schema 1 holds, as schema 2 says it; what is not understood is told."""
    faults = [
        Fault(name, "must be a table of keys and values; leave the key out when nothing is known")
        for name in _PARTS
        if name in data and not isinstance(data[name], dict)
    ]
    if faults:
        raise InputError(faults)
    made = {name: part for name, part in data.items() if name not in {"partition", "schedule", "proof"}}
    partition, schedule = data.get("partition", {}), data.get("schedule", {})
    if partition.get("space") == "per-op":
        return _per_operator(data, made)
    unknown = [
        Fault(f"{part}.{key}", "is not a known key; leave it out")
        for part, table, known in (("partition", partition, _PARTITION), ("schedule", schedule, _SCHEDULE))
        for key in sorted(table.keys() - known)
    ]
    if unknown:
        raise InputError(unknown)
    if schedule.get("rows"):
        made["order"] = schedule["rows"]
    if isinstance(partition.get("recompute"), list):
        made["balance"] = {"problem": "", "recompute": partition["recompute"]}
    if data.get("predictions"):
        made["predictions"] = _predictions(data["predictions"], made)
    else:
        made.pop("predictions", None)
    return made


def _predictions(told: Plain, made: Plain) -> Plain:
    found = {name: part for name, part in told.items() if name not in {*_DERIVED, "balance", "rehearsed"}}
    time, balance, rehearsed = told.get("time"), told.get("balance"), told.get("rehearsed")
    if "makespan" not in found and isinstance(time, dict) and isinstance(time.get("parts"), list):
        parts = [part for part in time["parts"] if isinstance(part, dict) and part.get("name") not in _AFTER]
        found["makespan"] = sum(one for part in parts if isinstance(one := part.get("value"), int | float))
    if isinstance(balance, dict) and "balance" in made:
        made["balance"] |= {"problem": balance.get("name") or ""}
        made["balance"] |= {name: balance[name] for name in ("simulated", "bound", "peak") if name in balance}
    if isinstance(rehearsed, dict):
        found["rehearsed"] = [_rehearsed(rank, one) for rank, one in rehearsed.items()]
    return found


def _rehearsed(rank: str, told: Any) -> Any:  # noqa: ANN401 - anything, to be refused with its path
    if not isinstance(told, dict) or not isinstance(told.get("corrected", {}), dict):
        return told
    number = rank.removeprefix("pp")
    kept = {name: part for name, part in told.items() if name != "corrected"}
    return {"rank": int(number) if re.fullmatch("[0-9]{1,9}", number) else rank, **kept, **told.get("corrected", {})}


def _per_operator(data: Plain, made: Plain) -> Plain:
    try:
        partition, told, source = data["partition"], data["predictions"], data["provenance"]
        schedule, cost = data.get("schedule", {}), told["cost"]
        strategy = data["inputs"]["strategy"]
        made["operators"] = {
            "names": partition["ops"],
            "microbatches": partition.get("microbatches") or strategy["global_batch"] // partition["micro_batch"],
            "stages": [{**one, **its} for one, its in zip(partition["stages"], cost["stages"], strict=True)],
            "seconds": cost["seconds"], "gpu_seconds": cost["gpu_seconds"], "bound": told["bound"], "gap": told["gap"],
            "orders": told["orders"], "profile": source["profile"],
        }  # fmt: skip
        made["provenance"] = {"shardwise": source["shardwise"], "costs": source["cost_model"]}
        ordered = {**strategy, "schedule": schedule.get("name", "1f1b")}
        made["inputs"] = {**data["inputs"], "strategy": ordered}
        if "csv" in schedule:
            made["order"] = schedule["csv"].splitlines()
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        why = f"its stages or predictions are not whole ({type(error).__name__}: {error}); plan again"
        raise InputError(Fault("partition", why)) from None
    del made["predictions"]
    return made


def refuse_contradictions(plan: Plan, data: Plain) -> None:
    """What stands beside the strategy must be the same as there."""
    faults = list(_contradictions(plan, data)) if plan.operators is None else []
    if faults:
        raise InputError(faults)


def _contradictions(plan: Plan, data: Plain) -> Iterator[Fault]:
    partition, schedule, strategy = data.get("partition", {}), data.get("schedule", {}), plan.strategy
    try:
        own: Plain = {"partition.layers": list(spread(plan.model.depth, strategy))}
    except InputError:  # told by the checks
        own = {}
    for name in ("pp", "vpp", "placement", "microbatches"):
        own[f"schedule.{name}"] = getattr(strategy, name)
    if plan.order is None:
        own["schedule.name"] = strategy.schedule
    if plan.balance is None:
        own["partition.recompute"] = str(strategy.recompute)
    for path, ours in own.items():
        part, _, name = path.partition(".")
        said = (partition if part == "partition" else schedule).get(name, ours)
        if said != ours:
            yield Fault(path, f"says {_text(said)}, the strategy {_text(ours)}; change both, or leave {part} out")


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
