"""Operators that the probe has measured on one GPU, as a profile: seconds are measured, collectives from the cluster.

One GPU runs the shard of every tensor parallel size; the collectives between the shards are added from the cluster's
latency and bandwidth. Bytes are those of our memory model, which is held against real runs as a whole; what a kernel
alone keeps says little about a layer, whose operators share their inputs.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shardwise.cost.network import network_of
from shardwise.errors import Fault, FileError, InputError
from shardwise.inputs.calibrations import calibration_of
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.files import read_mapping
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.serialise import to_json
from shardwise.per_op.profiles.analytic import communication, make_profile, operator_rows, tensor_parallels
from shardwise.per_op.profiles.table import Profile

FORMAT, VERSION = "shardwise-operators", 1
MOST_SECONDS = 1e4
MOST_ROWS = 100_000
_WHOLE = ("micro_batch", "tp", "variant")
_TIMES = ("forward_seconds", "backward_seconds")
Plain = dict[str, Any]
Key = tuple[str, int, int]


def read_operators(path: str) -> Plain:
    """The file as it is, once its format, its version and every row of it are sound."""
    data = read_mapping(path)
    if data.get("format") != FORMAT:
        said = f"its format is {data.get('format')!r}" if "format" in data else "it has no format"
        raise FileError(path, f"holds no measured operators: {said}, what the probe writes says {FORMAT!r}")
    if data.get("version") != VERSION:
        raise FileError(
            path, f"has version {data.get('version')!r}, this Shardwise reads {VERSION}; update one of both"
        )
    faults = [*_head_faults(data)] or [*_row_faults(data["operators"])]
    if faults:
        raise InputError(faults, title=path)
    return data


def _head_faults(data: Plain) -> Iterator[Fault]:
    if not isinstance(data.get("model"), str) or not data["model"]:
        yield Fault("model", "is missing; it names the model whose operators were measured")
    if not _whole(data.get("seq"), 1):
        yield Fault("seq", f"is {data.get('seq')!r}; it must be the tokens of a sample, 1 or more")
    for name in ("tags", "hardware"):
        if not isinstance(data.get(name, {}), dict):
            yield Fault(name, "must be a table of keys and values")
    rows = data.get("operators")
    if not isinstance(rows, list) or not rows:
        yield Fault("operators", "must be a list of measured operators; it is empty or missing")
    elif len(rows) > MOST_ROWS:
        yield Fault("operators", f"holds {len(rows):,} rows; up to {MOST_ROWS:,} are read")
    if data.get("complete") is False:
        yield Fault("complete", f"is false: {_lost(data)}; measure again, or ask for fewer micro batches")


def _lost(data: Plain) -> str:
    lost = data.get("lost")
    if not isinstance(lost, list) or not lost:
        return "the probe was stopped before its end"
    return f"{len(lost)} operators could not be measured, the first {str(lost[0])[:300]}"


def _row_faults(rows: list[Any]) -> Iterator[Fault]:
    seen: set[tuple[object, ...]] = set()
    for index, row in enumerate(rows):
        at = f"operators[{index}]"
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            yield Fault(at, "must be a table with a name")
            continue
        wrong = [f"{name} is {row.get(name)!r}" for name in _WHOLE if not _whole(row.get(name), int(name != "variant"))]
        wrong += [f"{name} is {row.get(name)!r}" for name in _TIMES if not _seconds(row.get(name))]
        if wrong:
            yield Fault(f"{at} ({row['name']})", f"{'; '.join(wrong)}; write whole numbers and seconds of 0 or more")
            continue
        key = (row["name"], *(row[name] for name in _WHOLE))
        if key in seen:
            yield Fault(f"{at} ({row['name']})", f"micro batch {key[1]}, tp {key[2]} is there twice; keep one")
        seen.add(key)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= 2**31


def _seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_SECONDS


def measured_profile(data: Plain, model: Model, cluster: Cluster, runtime: Runtime, *, title: str = "") -> Profile:
    """The profile of a model from what was measured; what is missing or not of this model is told at once."""
    times = {(row["name"], row["micro_batch"], row["tp"]): row for row in data["operators"] if row["variant"] == 0}
    sizes, tps = (tuple(sorted({key[axis] for key in times})) for axis in (1, 2))
    able = tensor_parallels(model, cluster)
    faults = [Fault("tp", f"{tp} was measured; {model.name} on {cluster.name} can have tp {', '.join(map(str, able))}")
              for tp in tps if tp not in able]  # fmt: skip
    if faults or not times:
        raise InputError(faults or Fault("operators", "none has variant 0, the one that is used"), title=title)
    made = make_profile(model, cluster, runtime, seq=data["seq"], micro_batches=sizes, tps=tps)
    faults = [*_coverage(times, made.ops, sizes, tps)]
    if faults:
        raise InputError(faults, title=title)
    values = made.values.copy()
    network = network_of(cluster, calibration_of(cluster.gpu))
    grid = operator_rows(model, runtime, seq=data["seq"], dtype="bf16", micro_batches=sizes, tps=tps)
    for rows in grid:
        at = sizes.index(rows.micro_batch), tps.index(rows.tp), 0
        for index, (name, op) in enumerate(zip(rows.names, rows.ops, strict=True)):
            own = times[name, rows.micro_batch, rows.tp]
            for column, (field, more) in enumerate(zip(_TIMES, communication(op, rows.tp, network), strict=True)):
                values[(column, *at, index)] = own[field] + more
    values.setflags(write=False)
    tags = made.tags | {str(key): str(value) for key, value in data.get("tags", {}).items()}
    return replace(
        made,
        values=values,
        tags=tags | {"source": "measured", "device": _device(data) or "unknown", "seq": str(data["seq"])},
        identity=hashlib.sha256(to_json(data["operators"]).encode()).hexdigest()[:12],
        notes=tuple(_notes(data, cluster)),
    )


def _coverage(
    times: dict[Key, Plain], ops: tuple[str, ...], sizes: tuple[int, ...], tps: tuple[int, ...]
) -> Iterator[Fault]:
    strange = sorted({name for name, _, _ in times} - set(ops))
    if strange:
        said = ", ".join(strange[:6]) + (" ..." if len(strange) > 6 else "")
        yield Fault("operators", f"{said}: no operator of this model; ask for its own with --write-operators")
    for size, tp in itertools.product(sizes, tps):
        lost = [op for op in ops if (op, size, tp) not in times]
        if lost:
            more = f" and {len(lost) - 4} more" if len(lost) > 4 else ""
            yield Fault(f"micro batch {size}, tp {tp}", f"lacks {', '.join(lost[:4])}{more}; measure them too")


def _device(data: Plain) -> str:
    return str(data.get("hardware", {}).get("gpu", ""))


def _notes(data: Plain, cluster: Cluster) -> Iterator[str]:
    device = _device(data)
    yield (
        f"seconds were measured on {device or 'an unnamed device'} at sequence length {data['seq']}; collectives are "
        "the cluster's, bytes our memory model's"
    )
    if device and cluster.gpu.name.split("-")[0].lower() not in device.lower().replace(" ", "-"):
        yield f"the profile was measured on {device} and the cluster has {cluster.gpu.name}: times will differ"
