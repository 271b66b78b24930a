"""A torchtitan configuration: TOML (0.2) or Python (0.3 and later), the latter read and never executed."""

from __future__ import annotations

import ast
from typing import Any

from shardwise.errors import FileError, InputError
from shardwise.frameworks.imported import ImportDraft, Imported, back
from shardwise.frameworks.torchtitan.names import (
    TORCHTITAN_CP_KINDS,
    TORCHTITAN_DEGREES,
    TORCHTITAN_DISPATCHERS,
    TORCHTITAN_FLAVORS,
    TORCHTITAN_NEAREST,
    TORCHTITAN_SCHEDULES,
)
from shardwise.frameworks.torchtitan.read_python import calls, model_module
from shardwise.inputs.foreign import Foreign
from shardwise.inputs.gate import said
from shardwise.inputs.load import model_names, named_model
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
    settings: Settings = {}
    for table, values in data.items():
        settings |= (
            {f"{table}.{key}": value for key, value in values.items()} if isinstance(values, dict) else {table: values}
        )
    return _read(settings, title, wraps=False)


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
    return _read(found[entry or next(iter(found))], title, wraps=True)


def _read(settings: Settings, title: str, *, wraps: bool) -> Imported:
    """`wraps`: FSDP, whose affair mixed formats are, runs even where nothing is sharded, as from 0.3 on."""
    draft = ImportDraft(framework="torchtitan")
    keys = Foreign(settings, "", draft.faults)
    for name, ours in _DEGREES.items():
        if keys.has(name):
            keys.read.add(name)
            draft.take_whole(ours, name, settings[name])
    for part in (_pipeline, _data, _batch, _recompute, _rest):
        part(draft, keys)
    _mixing(draft, wraps=wraps)
    draft.ignored += sorted(keys.idle())
    return draft.finish(title)


def _mixing(draft: ImportDraft, *, wraps: bool) -> None:
    replicas = draft.number("dp", 2) * draft.number("cp")
    alone = draft.number("tp") * draft.number("pp") > 1 and (draft.fields.get("zero") == 0 or replicas == 1)
    if not alone or draft.fields.get("dtype") == "fp32" or draft.fields.get("master") == "pure":
        return
    if wraps:
        draft.take("runtime", "torchtitan+can.mixed_alone=true", "FSDP in any case")
    else:
        draft.take("dtype", "fp32", "tensor or pipeline parallel without FSDP, which mixes formats")


def _data(draft: ImportDraft, keys: Foreign) -> None:
    replicate = keys.whole("parallelism.data_parallel_replicate_degree", 1, row="Strategy.dp")
    ranks = keys.whole("parallelism.data_parallel_shard_degree", -1, row="foreign.group")
    reshard = keys.text(
        "parallelism.fsdp_reshard_after_forward", "default", choices=("default", "always", "never")
    )  # fmt: skip
    if ranks == 1 and draft.number("cp") == 1 and not (replicate == 1 and _experts_spread(draft)):
        # with context parallel its ranks shard the states in any case
        draft.take("zero", 0, "data_parallel_shard_degree 1")
    else:
        kept = reshard == "never" or (reshard == "default" and draft.number("pp") > 1)
        draft.take("zero", 2 if kept else 3, f"fsdp_reshard_after_forward {reshard}")
    if ranks == -1:
        draft.assumed.append("dp: follows from the number of GPUs (data_parallel_shard_degree -1)")
        if replicate > 1:
            draft.ignored.append(f"data_parallel_replicate_degree {replicate}: the group that shards follows from dp")
        return
    if ranks < 1:
        keys.fault("parallelism.data_parallel_shard_degree", "is 0; write -1 (all that are left), or 1 or more")
        return
    draft.take(
        "dp", replicate * ranks, f"data_parallel_replicate_degree {replicate} x data_parallel_shard_degree {ranks}"
    )
    draft.gpus = draft.number("dp") * draft.number("tp") * draft.number("pp") * draft.number("cp")
    if replicate > 1 and ranks * draft.number("cp") > 1:
        draft.take("zero_group", ranks * draft.number("cp"), "data_parallel_shard_degree x context_parallel_degree")


def _experts_spread(draft: ImportDraft) -> bool:
    """With expert parallel FSDP runs in any case, over the tensor parallel ranks that hold the same experts."""
    return draft.number("ep") > 1 and draft.number("ep") * draft.number("etp") < draft.number("tp")


def _pipeline(draft: ImportDraft, keys: Foreign) -> None:
    if draft.number("pp") == 1:
        return  # what is said about a pipeline that is not there is named as without effect
    name = keys.text("parallelism.pipeline_parallel_schedule", "1F1B", choices=_SCHEDULES)
    draft.take("schedule", _SCHEDULES[name], f"pipeline_parallel_schedule {name}")
    if name in TORCHTITAN_NEAREST:
        draft.assumed.append(f"schedule {_SCHEDULES[name]}: the nearest to {name}")
    draft.order = keys.text("parallelism.pipeline_parallel_schedule_csv", "")
    parts = keys.data.get("parallelism.module_fqns_per_model_part")
    if parts:
        keys.read.add("parallelism.module_fqns_per_model_part")
        _parts(draft, keys, parts)
    elif name in _MULTI_STAGE:
        why = "torchtitan's default for schedules with several stages a rank"
        per_stage = keys.whole("parallelism.pipeline_parallel_layers_per_stage", 0, row="Strategy.first_layers")
        draft.assume(
            "vpp", 2, why + (f"; pipeline_parallel_layers_per_stage {per_stage} needs the model" if per_stage else "")
        )


def _parts(draft: ImportDraft, keys: Foreign, parts: object) -> None:
    name, pp = "parallelism.module_fqns_per_model_part", draft.number("pp")
    sound = isinstance(parts, list) and all(
        isinstance(part, list) and all(isinstance(module, str) for module in part) for part in parts
    )
    if not isinstance(parts, list) or not sound or len(parts) % pp:
        keys.fault(name, f"must be a list of a multiple of pp {pp} lists of module names, one per stage")
        return
    draft.fields["vpp"] = len(parts) // pp
    draft.take("layers", tuple(_layers_in(part) for part in parts), "module_fqns_per_model_part")


def _layers_in(part: list[str]) -> int:
    return sum(module.startswith("layers.") for module in part)


def _batch(draft: ImportDraft, keys: Foreign) -> None:
    if keys.has("training.num_tokens_per_microbatch_per_dp_rank"):
        _batch_in_tokens(draft, keys)
        return
    name = "training.local_batch_size" if keys.has("training.local_batch_size") else "training.batch_size"
    local = keys.whole(name, 8, row="Strategy.micro_batch")
    micro = 1
    if draft.number("pp") > 1:
        micro = keys.whole("parallelism.pipeline_parallel_microbatch_size", 1, row="Strategy.micro_batch")
    draft.take("micro_batch", micro if draft.number("pp") > 1 else local, name)
    if _total(draft, keys, "training.global_batch_size", "foreign.batch", 1):
        return
    if local % draft.number("micro_batch"):
        message = f"{local} is not a multiple of pipeline_parallel_microbatch_size {micro}; change one of them"
        keys.fault(name, message)
    else:
        passes = local // draft.number("micro_batch")
        draft.assume_batch(passes, "local_batch_size x dp, no gradient accumulation")


def _total(draft: ImportDraft, keys: Foreign, name: str, row: str, tokens: int) -> bool:
    """The global batch where it is given; -1 leaves it open."""
    total = keys.whole(name, -1, row=row)
    if total == -1:
        return False
    if total < tokens or total % tokens:
        keys.fault(name, f"{total} is no multiple of {tokens}; change it, or write -1")
    draft.take("global_batch", max(1, total // tokens), f"{name} / {tokens} tokens" if tokens > 1 else name)
    return True


def _batch_in_tokens(draft: ImportDraft, keys: Foreign) -> None:
    """The main branch counts tokens where 0.3 counted samples."""
    seq = draft.number("seq", 2048)
    name = "training.num_tokens_per_microbatch_per_dp_rank"
    micro = keys.whole(name)
    if micro % seq:
        keys.fault(name, f"{micro} is no multiple of the {seq} tokens of a sample; change one of them")
    draft.take("micro_batch", max(1, micro // seq), f"{name} / {seq} tokens")
    passes = keys.whole("parallelism.num_pp_microbatches", 1, row="Strategy.microbatches")
    if not _total(draft, keys, "training.num_tokens_per_train_step", "foreign.tokens", seq):
        draft.assume_batch(passes, "micro batches x dp")


def _recompute(draft: ImportDraft, keys: Foreign) -> None:
    modes = ("selective", "full", "none", "memory_budget")
    mode = keys.text("activation_checkpoint.mode", "selective", choices=modes)
    if mode == "selective":
        _selective(draft, keys)
    elif mode == "full":
        draft.take("recompute", Recompute(full=True), "activation_checkpoint.mode full")
    elif mode != "none":
        draft.assume("recompute", Recompute(), f"activation_checkpoint.mode {mode} cannot be said")


def _selective(draft: ImportDraft, keys: Foreign) -> None:
    name = "activation_checkpoint.selective_ac_option"
    keys.read.add(name)
    option = keys.data.get(name, "op")
    if option == "op":
        draft.take("recompute", Recompute(modules=("ops",)), "activation_checkpoint.mode selective, by operator")
        return
    every = draft.whole(name, option, row="Recompute.group")
    if every == 1:
        draft.take("recompute", Recompute(full=True), "selective_ac_option 1: every layer")
    elif every:
        draft.assume(
            "recompute",
            Recompute(modules=("ops",)),
            f"selective_ac_option {every}, every {every}th layer, cannot be said; by operator is nearest",
        )


def _rest(draft: ImportDraft, keys: Foreign) -> None:
    draft.take("runtime", "torchtitan", "torchtitan")
    if keys.switch("training.enable_cpu_offload", default=False):
        draft.take("offload", "optimizer", "training.enable_cpu_offload")
    if keys.switch("compile.enable", default=False):
        draft.take("compile", value=True, theirs="compile.enable")
    if draft.number("cp") > 1:  # from 0.3 on there is no other than the default of 0.2
        kinds = back(TORCHTITAN_CP_KINDS)
        theirs = keys.text("parallelism.context_parallel_rotate_method", "allgather", choices=kinds)
        draft.take("cp_kind", kinds[theirs], f"context_parallel_rotate_method {theirs}")
    if draft.number("ep") > 1:
        ways = back(TORCHTITAN_DISPATCHERS)
        theirs = keys.text("parallelism.expert_parallel_comm_backend", "standard", choices=ways)
        draft.take("dispatcher", ways[theirs], f"expert_parallel_comm_backend {theirs}")
    if keys.text("training.dtype", "float32", choices=("float32", "bfloat16")) == "bfloat16":
        draft.take("master", "pure", "training.dtype bfloat16")
    if keys.text("training.mixed_precision_param", "bfloat16", choices=("bfloat16", "float32")) == "float32":
        draft.take("dtype", "fp32", "training.mixed_precision_param float32")
    if not keys.switch("parallelism.enable_sequence_parallel", default=True):
        draft.take("sp", value=False, theirs="enable_sequence_parallel false")
    _converters(draft, keys)
    _model(draft, keys)


def _converters(draft: ImportDraft, keys: Foreign) -> None:
    converters = keys.data.get("model.converters") or []
    keys.read.add("model.converters")
    if not isinstance(converters, list):
        keys.fault("model.converters", f"must be a list of names, not {said(converters)}")
        return
    words = [str(name) for name in converters]
    for mark, dtype in (("float8", "fp8"), ("mx", "mxfp8")):
        if any(mark in name for name in words):
            draft.take("dtype", dtype, f"model.converters {words}")
            break
    draft.ignored += [f"model.converters {name}" for name in words if "float8" not in name and "mx" not in name]


def _model(draft: ImportDraft, keys: Foreign) -> None:
    """The file names a model of torchtitan's; our catalog has most of those that people train."""
    name, flavor = keys.text("model.name", ""), keys.text("model.flavor", "")
    ours = next((own for own, theirs in TORCHTITAN_FLAVORS.items() if theirs == (name, flavor)), None)
    ours = ours or (flavor if flavor in model_names() else None)  # as in the files that we write
    if ours is not None:
        draft.model = named_model(ours)
        draft.understood.append(f"model.name {name}, model.flavor {flavor} -> model {ours}")
    elif name or flavor:
        draft.assumed.append(f"no model: the catalog has no {name} {flavor}; give MODEL by name or file")
