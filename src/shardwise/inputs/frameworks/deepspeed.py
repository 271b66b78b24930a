"""A DeepSpeed JSON."""

from __future__ import annotations

from typing import Any

from shardwise.errors import Fault
from shardwise.inputs.foreign import Foreign
from shardwise.inputs.frameworks.imported import Draft, Imported

_USED = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization", "bf16",
    "fp16", "tensor_parallel", "sequence_parallel_size", "optimizer", "pipeline", "_shardwise",
}  # fmt: skip


def read_deepspeed(data: dict[str, Any], *, title: str = "deepspeed") -> Imported:
    """The batch, the sharding and the number format; everything else is the training script's."""
    draft = Draft(framework="deepspeed")
    for part in (_batch, _zero, _format, _parallel):
        part(draft, data)
    draft.assume("runtime", "huggingface", "DeepSpeed wraps a model of the user; eager PyTorch is taken")
    draft.assumed.append("no model and no sequence length: a DeepSpeed file does not say them")
    draft.ignored += [f"{key} = {_short(value)}" for key, value in sorted(data.items()) if key not in _USED]
    return draft.finish(title)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _given(draft: Draft, data: dict[str, Any], key: str) -> int | None:
    value = data.get(key)
    if value == "auto":
        draft.assumed.append(f"{key} is auto: the Trainer fills it in")
        return None
    return None if value is None else draft.whole(key, value)


def _batch(draft: Draft, data: dict[str, Any]) -> None:
    total, micro, steps = (
        _given(draft, data, key)
        for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    if micro:
        draft.take("micro_batch", micro, "train_micro_batch_size_per_gpu")
    if total:
        draft.take("global_batch", total, "train_batch_size")
    if not (total and micro and steps):
        if not total and micro and steps:
            draft.assume_batch(steps, "train_micro_batch_size_per_gpu x gradient_accumulation_steps on every replica")
        return
    if total % (micro * steps):
        message = f"{total} is not a multiple of {micro} per GPU x {steps} accumulation steps; change one of them"
        draft.faults.append(Fault("train_batch_size", message))
    else:
        draft.take("dp", total // (micro * steps), "train_batch_size / micro batch / accumulation steps")


def _zero(draft: Draft, data: dict[str, Any]) -> None:
    keys = Foreign(data, "", draft.faults).table("zero_optimization")
    stage = keys.data.get("stage", 0)
    if stage not in [0, 1, 2, 3] or isinstance(stage, bool):
        draft.faults.append(Fault("zero_optimization.stage", f"is {stage!r}; it must be 0, 1, 2 or 3"))
        return
    draft.take("zero", stage, "zero_optimization.stage")
    if keys.has("mics_shard_size") and keys.data["mics_shard_size"] != -1:
        draft.take_whole("zero_group", "zero_optimization.mics_shard_size", keys.data["mics_shard_size"])
    for key in ("offload_optimizer", "offload_param"):
        device = keys.table(key).data.get("device", "none")
        if device not in ["none", None]:
            draft.take("offload", "optimizer", f"zero_optimization.{key}.device {device}")


def _format(draft: Draft, data: dict[str, Any]) -> None:
    for name in ("bf16", "fp16"):
        table = data.get(name)
        enabled = table.get("enabled") if isinstance(table, dict) else None
        if enabled is True:
            draft.take("dtype", name, f"{name}.enabled")
        elif enabled == "auto":
            draft.assumed.append(f"{name}.enabled is auto: the Trainer fills it in; bf16 is taken")
    if "dtype" not in draft.fields:
        auto = any(
            isinstance(data.get(name), dict) and data[name].get("enabled") == "auto" for name in ("bf16", "fp16")
        )
        draft.assume("dtype", "bf16" if auto else "fp32", "neither bf16 nor fp16 is enabled" if not auto else "auto")
    kind = data.get("optimizer", {}).get("type") if isinstance(data.get("optimizer"), dict) else None
    if kind and str(kind).lower() not in {"adam", "adamw", "fusedadam", "deepspeedcpuadam"}:
        draft.ignored.append(f"optimizer.type {kind}: AdamW is taken")


def _parallel(draft: Draft, data: dict[str, Any]) -> None:
    tensor = data.get("tensor_parallel")
    if isinstance(tensor, dict) and tensor.get("autotp_size"):
        draft.take_whole("tp", "tensor_parallel.autotp_size", tensor["autotp_size"])
    if data.get("sequence_parallel_size"):
        draft.take_whole("cp", "sequence_parallel_size", data["sequence_parallel_size"])
        draft.take("cp_kind", "all-to-all", "Ulysses")
    stages = Foreign(data, "", draft.faults).table("pipeline").data.get("stages", "auto")
    if stages != "auto":
        draft.take_whole("pp", "pipeline.stages", stages)
    if draft.number("dp") > 1 and (draft.number("cp") > 1 or draft.number("tp") > 1):
        draft.gpus = draft.number("dp") * draft.number("cp") * draft.number("tp") * draft.number("pp")
