"""Training steps of whole frameworks on one GPU as cases: rows with a `framework` and either our own model and
strategy, from which its files were written, or a Hugging Face config with what its loop was told.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from shardwise.frameworks.huggingface.read import read_config
from shardwise.frameworks.load import load_cluster
from shardwise.inputs import lookup
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.load import load_runtime, load_site
from shardwise.inputs.model import Model
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.typed import validated
from shardwise.measure.validate.case import MeasuredRun, Skipped

Row = dict[str, Any]
PARTS = ("forward_s", "backward_s", "optimizer_s")


def read(row: Row) -> MeasuredRun | Skipped:
    """One row as a case; some frameworks report what their allocator reserved and no more."""
    if reason := _fault(row):
        return Skipped(id=str(row["id"]), source=source_of(row), reason=reason)
    strategy, model = (_written(row) if "model" in row else _library(row)) or (None, None)
    if strategy is None or model is None:
        return Skipped(id=str(row["id"]), source=source_of(row), reason="neither a model nor a config_json is there")
    measured: dict[str, float | bool] = {"iteration_seconds": float(row["iteration_s"]), "fits": True}
    names = {"peak_allocated": "peak_bytes", "peak_reserved": "reserved_bytes"}
    measured |= {ours: float(row[theirs]) for theirs, ours in names.items() if row.get(theirs)}
    measured["spread"] = float(row.get("spread") or 0.0)
    measured |= {f"{name}econds": float(row[name]) for name in PARTS if row.get(name)}
    cluster = _cluster(row)
    return MeasuredRun(
        id=str(row["id"]),
        source=source_of(row),
        gpu=cluster.gpu.name.upper(),
        precision=strategy.dtype,
        complete=True,
        model=model,
        cluster=cluster,
        strategy=strategy,
        runtime=_runtime(row, strategy),
        measured=measured,
    )


def _cluster(row: Row) -> Cluster:
    """A run of the user's own says where it was; the others were on one machine."""
    if "cluster" in row:
        return validated(Cluster, row["cluster"], at="cluster")
    return replace(load_cluster("1xh200"), site=load_site("virtual-h200"))


FRAMEWORKS = ("megatron", "torchtitan", "deepspeed", "huggingface", "pipelining")


def source_of(row: Row) -> str:
    """A source for each framework, so that one can be left out."""
    word = str(row["framework"]).lower().replace("transformers", "huggingface")
    return f"h200_jobs_{next((name for name in FRAMEWORKS if name in word), 'other')}"


def _fault(row: Row) -> str:
    """What of a row cannot be read, in words; empty: nothing."""
    if source_of(row).endswith("other"):
        return f"framework is {str(row['framework'])[:40]!r}; it must be one of {', '.join(FRAMEWORKS)}, transformers"
    if "model" not in row:
        return ""
    for name, kind in (("model", Model), ("strategy", Strategy)):
        told = row[name]
        if not isinstance(told, dict):
            return f"{name} must be a table of keys and values"
        known = [one.name for one in fields(kind)]
        if strange := [key for key in told if key not in known]:
            return f"{name} has no field {strange[0]!r}; it has {', '.join(known)}"
    return ""


def _written(row: Row) -> tuple[Strategy, Model]:
    """Our own model and strategy, which the framework's files were written from."""
    strategy = lookup.build(Strategy, row["strategy"])
    if "stores scores" in str(row.get("version", "")):
        strategy = replace(strategy, flash=False)
    return strategy, lookup.build(Model, row["model"])


def _library(row: Row) -> tuple[Strategy, Model] | None:
    if not isinstance(row.get("config_json"), dict):
        return None
    told = row["strategy"]
    micro = int(told["micro_batch"])
    strategy = Strategy(
        zero=0,
        micro_batch=micro,
        global_batch=micro * int(told.get("accumulation") or 1),
        seq=int(told["seq"]),
        recompute=Recompute(full=told.get("recompute") == "full"),
        master="autocast" if told.get("states") == "amp" else "pure",
        dtype="fp8" if told.get("fp8") else "bf16",
        runtime="huggingface",
        compile=bool(told.get("compile")),
    )
    return strategy, read_config(row["config_json"], name=str(row["id"])).model


def _runtime(row: Row, strategy: Strategy) -> Runtime:
    """Layers that are compiled one by one leave the loss alone, and hand no mask to attention."""
    runtime = load_runtime(strategy.runtime)
    if row["strategy"].get("compile") == "layers":
        kernels = replace(runtime.kernels, compiled_loss="", compiled_full_attention=False)
        return replace(runtime, kernels=kernels)
    return runtime
