"""A torchtitan configuration: TOML (0.2) or Python (0.3 and later), the latter read and never executed."""

from __future__ import annotations

import ast
from typing import Any

from shardwise.errors import Fault, FileError, InputError
from shardwise.inputs.frameworks.imported import Draft, Imported
from shardwise.inputs.frameworks.torchtitan_python import calls, model_module
from shardwise.inputs.names import (
    TORCHTITAN_CP_KINDS,
    TORCHTITAN_DEGREES,
    TORCHTITAN_FLAVORS,
    TORCHTITAN_NEAREST,
    TORCHTITAN_SCHEDULES,
    back,
)
from shardwise.inputs.recompute import Recompute

Settings = dict[str, Any]
"""Dotted names such as `parallelism.tensor_parallel_degree`; the table is that of the 0.2 TOML."""

_SCHEDULES = {**back(TORCHTITAN_SCHEDULES), **TORCHTITAN_NEAREST}
_MULTI_STAGE = {"Interleaved1F1B", "ZBVZeroBubble", "DualPipeV", "InterleavedZeroBubble", "LoopedBFS"}
_DEGREES = {
    **{f"parallelism.{theirs}": ours for ours, theirs in TORCHTITAN_DEGREES.items()},
    "training.seq_len": "seq",
    "training.max_context_length": "seq",
}


def read_toml(data: Settings, *, title: str = "torchtitan") -> Imported:
    """A 0.2 TOML file."""
    settings = {
        f"{table}.{key}": value
        for table, values in data.items()
        if isinstance(values, dict)
        for key, value in values.items()
    }
    return _read(settings, title)


def read_python(text: str, *, entry: str = "", title: str = "torchtitan") -> Imported:
    """A configuration in Python: the calls of one function that builds one are read as text."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise FileError(title, f"is not Python that can be read: {error}") from None
    module = model_module(tree)
    found = {
        node.name: settings
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        if (settings := calls(node, module))
    }
    if not found and (settings := calls(tree, module)):
        found = {entry or "the file": settings}
    if entry and entry not in found:
        raise InputError(f"{title}: there is no configuration {entry!r}; it has {', '.join(found) or 'none'}")
    if not found:
        raise FileError(title, "holds no torchtitan configuration (no call with parallelism or training settings)")
    if len(found) > 1 and not entry:
        raise InputError(
            f"{title}: has {len(found)} configurations; choose one as {title}::{next(iter(found))}: " + ", ".join(found)
        )
    return _read(found[entry or next(iter(found))], title)


def _read(settings: Settings, title: str) -> Imported:
    draft = Draft(framework="torchtitan")
    used: set[str] = set()

    def get(name: str, default: Any = None) -> Any:  # noqa: ANN401 - a file can hold anything
        used.add(name)
        return settings.get(name, default)

    for name, ours in _DEGREES.items():
        if get(name) is not None:
            draft.take_whole(ours, name, settings[name])
    for part in (_pipeline, _data, _batch, _recompute, _rest):
        part(draft, get)
    draft.ignored += [f"{name} = {value!r}" for name, value in sorted(settings.items()) if name not in used]
    return draft.finish(title)


def _data(draft: Draft, get: Any) -> None:  # noqa: ANN401 - the getter above
    replicate = draft.whole("data_parallel_replicate_degree", get("parallelism.data_parallel_replicate_degree", 1)) or 1
    shard = get("parallelism.data_parallel_shard_degree", -1)
    reshard = get("parallelism.fsdp_reshard_after_forward", "default")
    if shard == 1 and draft.number("cp") == 1:  # with context parallel its ranks shard the states in any case
        draft.take("zero", 0, "data_parallel_shard_degree 1")
    else:
        kept = reshard == "never" or (reshard == "default" and draft.number("pp") > 1)
        draft.take("zero", 2 if kept else 3, f"fsdp_reshard_after_forward {reshard}")
    if shard == -1:
        draft.assumed.append("dp: follows from the number of GPUs (data_parallel_shard_degree -1)")
        return
    ranks = draft.whole("data_parallel_shard_degree", shard)
    if ranks:
        draft.take(
            "dp", replicate * ranks, f"data_parallel_replicate_degree {replicate} x data_parallel_shard_degree {ranks}"
        )
        draft.gpus = draft.number("dp") * draft.number("tp") * draft.number("pp") * draft.number("cp")
        if replicate > 1 and ranks * draft.number("cp") > 1:
            draft.take("zero_group", ranks * draft.number("cp"), "data_parallel_shard_degree x context_parallel_degree")


def _pipeline(draft: Draft, get: Any) -> None:  # noqa: ANN401
    name = str(get("parallelism.pipeline_parallel_schedule", "1F1B"))
    parts, per_stage = (
        get("parallelism.module_fqns_per_model_part"),
        get("parallelism.pipeline_parallel_layers_per_stage"),
    )
    if draft.number("pp") == 1:
        return
    if name not in _SCHEDULES:
        draft.faults.append(
            Fault("parallelism.pipeline_parallel_schedule", f"{name!r} is none of {', '.join(_SCHEDULES)}")
        )
        return
    draft.take("schedule", _SCHEDULES[name], f"pipeline_parallel_schedule {name}")
    if name in {"InterleavedZeroBubble", "LoopedBFS"}:
        draft.assumed.append(f"schedule {_SCHEDULES[name]}: the nearest to {name}")
    if isinstance(parts, list) and parts:
        draft.fields["vpp"] = max(1, len(parts) // draft.number("pp"))
        draft.take("layers", tuple(_layers_in(part) for part in parts), "module_fqns_per_model_part")
    elif name in _MULTI_STAGE:
        why = "torchtitan's default for schedules with several stages a rank"
        draft.assume(
            "vpp", 2, why + (f"; pipeline_parallel_layers_per_stage {per_stage} needs the model" if per_stage else "")
        )


def _layers_in(part: Any) -> int:  # noqa: ANN401
    return sum(str(module).startswith("layers.") for module in part) if isinstance(part, list) else 0


def _batch(draft: Draft, get: Any) -> None:  # noqa: ANN401
    if get("training.num_tokens_per_microbatch_per_dp_rank") is not None:
        _batch_in_tokens(draft, get)
        return
    local = (
        draft.whole("training.local_batch_size", get("training.local_batch_size", get("training.batch_size", 8))) or 1
    )
    micro = get("parallelism.pipeline_parallel_microbatch_size", 1)
    if draft.number("pp") > 1:
        draft.take_whole("micro_batch", "pipeline_parallel_microbatch_size", micro)
    else:
        draft.take("micro_batch", local, "training.local_batch_size")
    total = get("training.global_batch_size", -1)
    if isinstance(total, int) and total > 0:
        draft.take("global_batch", total, "training.global_batch_size")
    elif local % draft.number("micro_batch"):
        message = f"{local} is not a multiple of pipeline_parallel_microbatch_size {micro}; change one of them"
        draft.faults.append(Fault("training.local_batch_size", message))
    else:
        passes = local // draft.number("micro_batch")
        draft.assume_batch(passes, "local_batch_size x dp, no gradient accumulation")


def _batch_in_tokens(draft: Draft, get: Any) -> None:  # noqa: ANN401
    """The main branch counts tokens where 0.3 counted samples."""
    seq = draft.number("seq", 2048)
    name = "training.num_tokens_per_microbatch_per_dp_rank"
    micro = (draft.whole(name, get(name)) or seq) // seq
    draft.take("micro_batch", max(1, micro), f"{name} / {seq} tokens")
    passes = draft.whole("num_pp_microbatches", get("parallelism.num_pp_microbatches", 1)) or 1
    total = get("training.num_tokens_per_train_step", -1)
    if isinstance(total, int) and total > 0:
        draft.take("global_batch", max(1, total // seq), f"training.num_tokens_per_train_step / {seq} tokens")
    else:
        draft.assume_batch(passes, "micro batches x dp")


def _recompute(draft: Draft, get: Any) -> None:  # noqa: ANN401
    mode = get("activation_checkpoint.mode", "selective")
    option = str(get("activation_checkpoint.selective_ac_option", "op"))
    if mode == "full":
        draft.take("recompute", Recompute(full=True), "activation_checkpoint.mode full")
    elif mode == "selective" and not option.isdigit():
        draft.take("recompute", Recompute(modules=("ops",)), "activation_checkpoint.mode selective, by operator")
    elif mode == "selective" and option == "1":
        draft.take("recompute", Recompute(full=True), "selective_ac_option 1: every layer")
    elif mode == "selective":
        draft.assume(
            "recompute", Recompute(modules=("ops",)), f"every {option}th layer cannot be said; by operator is nearest"
        )
    elif mode != "none":
        draft.assume("recompute", Recompute(), f"activation_checkpoint.mode {mode} cannot be said")


def _rest(draft: Draft, get: Any) -> None:  # noqa: ANN401
    draft.take("runtime", "torchtitan", "torchtitan")
    if get("training.enable_cpu_offload") is True:
        draft.take("offload", "optimizer", "training.enable_cpu_offload")
    if get("compile.enable") is True:
        draft.take("compile", value=True, theirs="compile.enable")
    kind = back(TORCHTITAN_CP_KINDS).get(str(get("parallelism.context_parallel_rotate_method")))
    if kind and draft.number("cp") > 1:
        draft.take("cp_kind", kind, "context_parallel_rotate_method")
    if get("training.dtype") == "bfloat16":
        draft.take("master", "pure", "training.dtype bfloat16")
    if get("training.mixed_precision_param") == "float32":
        draft.take("dtype", "fp32", "training.mixed_precision_param float32")
    if get("parallelism.enable_sequence_parallel") is False:
        draft.take("sp", value=False, theirs="enable_sequence_parallel false")
    converters = get("model.converters") or []
    if isinstance(converters, list) and any("float8" in str(name) for name in converters):
        draft.take("dtype", "fp8", f"model.converters {converters}")
    elif isinstance(converters, list) and any("mx" in str(name) for name in converters):
        draft.take("dtype", "mxfp8", f"model.converters {converters}")
    _model(draft, get("model.name"), get("model.flavor"))


def _model(draft: Draft, name: object, flavor: object) -> None:
    """The file names a model of torchtitan's; our catalog has most of those that people train."""
    ours = next((own for own, theirs in TORCHTITAN_FLAVORS.items() if theirs == (name, flavor)), None)
    if ours is not None:
        from shardwise.inputs.load import load_model

        draft.model = load_model(ours)
        draft.understood.append(f"model.name {name}, model.flavor {flavor} -> model {ours}")
    elif name and flavor:
        draft.assumed.append(f"no model: the catalog has no {name} {flavor}; give MODEL by name or file")
