"""Runs behind SimuMax's published errors: rows that name the system file they are to be predicted with.

The model and the strategy go through the importer that everybody uses, and so does the system file; a row whose file is
not there is skipped.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.frameworks.load import load_cluster, load_model
from shardwise.frameworks.simumax import read as simumax
from shardwise.inputs.layers import with_layers
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.measure.validate.case import MeasuredRun, Skipped

Row = dict[str, Any]
GIB = 2.0**30
_NAME = re.compile(r"[\w-][\w.-]{0,99}")


def read(row: Row, folder: Path, cluster: str | None) -> MeasuredRun | Skipped:
    """A row, its fields already checked. `folder`: of its file; `cluster`: in place of the system that it names."""
    identity = {"id": str(row["case"]), "source": "simumax_runs"}
    world = int(row["parallel"]["world"])
    system = cluster or _beside(folder, str(row["system_config"]))
    if system is None:
        name = str(row["system_config"])[:60]
        reason = f"its system file {name}.json is neither beside the data nor in simumax_systems/ there; give --cluster"
        return Skipped(**identity, reason=reason)
    written = model_file(replace(load_model(str(row["model"])), layers=int(row["layer_num"])))
    model, strategy = simumax.read_model(written).model, simumax.read_strategy(_settings(row)).strategy
    return MeasuredRun(
        id=identity["id"],
        source=identity["source"],
        gpu=str(row.get("gpu", row["system_config"])),
        precision=strategy.dtype,
        complete=True,
        model=model,
        cluster=load_cluster(f"{world}x{system}"),
        strategy=with_layers(model.depth, strategy),
        runtime=load_runtime(strategy.runtime),
        measured=_measured(row),
        group=f"{row['model']}/{strategy.seq}/{world}/{strategy.global_batch}",
    )


def model_file(model: Model) -> Row:
    """A model as SimuMax's runs had it, in its keys: experts padded to their capacity of 1."""
    padded = {"moe_pad_expert_input_to_capacity": True} if model.moe else {}
    return {**simumax.write_model(model), **padded}


def _beside(folder: Path, name: str) -> str | None:
    if not _NAME.fullmatch(name):  # a path would leave the folder
        return None
    places = (folder / "simumax_systems" / f"{name}.json", folder / f"{name}.json")
    return next((str(place) for place in places if place.is_file()), None)


def _settings(row: Row) -> Row:
    """SimuMax's keys: sends are synchronous, nothing is recomputed."""
    parallel = row["parallel"]
    sizes = {f"{axis}_size": int(parallel.get(axis) or 1) for axis in ("tp", "cp", "pp", "ep", "etp")}
    told = {name: int(row[name]) for name in ("seq_len", "micro_batch_size", "micro_batch_num")}
    vpp = int(parallel.get("vp") or 1)
    return {
        **told, **sizes, "interleaving_size": vpp, "world_size": int(parallel["world"]), "dtype": "bf16",
        "zero_state": 1, "enable_recompute": False, "pp_comm_async": False,
        **{key: row[key] for key in ("te_version", "cross_entropy_loss_fusion", "dispatch_probs") if key in row},
    }  # fmt: skip


def _measured(row: Row) -> dict[str, float | bool]:
    found: dict[str, float | bool] = {"fits": True}
    for name, key, unit in (("iteration_seconds", "real_ms", 1e-3), ("peak_bytes", "real_peak_gib", GIB)):
        value = row.get(key) or row.get(f"{key}_derived")
        if value:
            found[name] = float(value) * unit
    return found
