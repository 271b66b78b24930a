"""A DeepSpeed JSON."""

from __future__ import annotations

from typing import Any

from shardwise.errors import Fault
from shardwise.frameworks.imported import ImportDraft, Imported
from shardwise.inputs.foreign import Foreign

DEEPSPEED_OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon", "sgd": "SGD"}


_OPTIMIZERS = {
    **dict.fromkeys(("adam", "adamw", "fusedadam", "deepspeedcpuadam"), "adamw"),
    **{theirs.lower(): ours for ours, theirs in DEEPSPEED_OPTIMIZERS.items()},
}


def read_deepspeed(data: dict[str, Any], *, title: str = "deepspeed") -> Imported:
    """The batch, the sharding and the number format; everything else is the training script's."""
    draft = ImportDraft(framework="deepspeed")
    keys = Foreign(data, "", draft.faults)
    keys.read.add("_shardwise")
    for part in (_batch, _zero, _format, _optimizer, _parallel, _program):
        part(draft, keys)
    draft.ignored += sorted(keys.idle())
    return draft.finish(title)


def _program(draft: ImportDraft, keys: Foreign) -> None:
    """What our own program reads beside; of another's program the file says nothing."""
    program = keys.table("_program")
    if not program.data:
        draft.assume("runtime", "deepspeed", "DeepSpeed wraps a model of the user; transformers' is taken")
        draft.assumed.append("no model and no sequence length: a DeepSpeed file does not say them")
        return
    draft.take("seq", program.whole("seq", row="Strategy.seq"), "_program.seq")
    for name in ("flash", "compile"):
        draft.take(name, program.switch(name, default=name == "flash"), f"_program.{name}")
    draft.take("runtime", program.text("runtime", "deepspeed"), "_program.runtime")
    draft.gpus = program.whole("world", row="Strategy.dp")
    program.read |= {
        "tp",
        "cp",
        "pp",
        "dp",
        "micro_batch",
        "microbatches",
        "dtype",
        "recompute",
    }  # DeepSpeed's own say them
    draft.ignored += program.idle()


def _given(draft: ImportDraft, keys: Foreign, key: str, row: str) -> int | None:
    """A number of theirs; `auto` and nothing leave it open."""
    keys.read.add(key)
    if keys.data.get(key) == "auto":
        draft.assumed.append(f"{keys.path(key)} is auto: the Trainer fills it in")
        return None
    return draft.whole(keys.path(key), keys.data[key], row=row) if keys.has(key) else None


def _batch(draft: ImportDraft, keys: Foreign) -> None:
    total = _given(draft, keys, "train_batch_size", "Strategy.global_batch")
    micro = _given(draft, keys, "train_micro_batch_size_per_gpu", "Strategy.micro_batch")
    steps = _given(draft, keys, "gradient_accumulation_steps", "Strategy.microbatches")
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


def _zero(draft: ImportDraft, keys: Foreign) -> None:
    table = keys.table("zero_optimization")
    draft.take("zero", table.whole("stage", 0, row="Strategy.zero"), "zero_optimization.stage")
    group = table.whole("mics_shard_size", -1, row="foreign.group")
    if group > 0:
        draft.take("zero_group", group, "zero_optimization.mics_shard_size")
    for key in ("offload_optimizer", "offload_param"):
        part = table.table(key)
        device = part.text("device", "none", choices=("none", "cpu", "nvme"))
        if device != "none":
            draft.take("offload", "optimizer", f"zero_optimization.{key}.device {device}")
        draft.ignored += part.idle()
    draft.ignored += table.idle()


def _format(draft: ImportDraft, keys: Foreign) -> None:
    auto = []
    for name in ("bf16", "fp16"):
        table = keys.table(name)
        if table.data.get("enabled") == "auto":
            table.read.add("enabled")
            auto.append(name)
            draft.assumed.append(f"{name}.enabled is auto: the Trainer fills it in; bf16 is taken")
        elif table.switch("enabled", default=False):
            if draft.fields.get("dtype"):
                table.fault("enabled", "is true beside bf16.enabled; DeepSpeed takes one of them: switch one off")
            draft.take("dtype", name, f"{name}.enabled")
        draft.ignored += table.idle()
    numbers = keys.table("data_types")
    if numbers.has("grad_accum_dtype"):
        kind = numbers.text("grad_accum_dtype", choices=("fp32", "bf16", "fp16"))
        if kind == "fp16":
            draft.ignored.append("data_types.grad_accum_dtype fp16: gradients in fp32 are taken")
        else:
            draft.take("grad_dtype", kind, "data_types.grad_accum_dtype")
    draft.ignored += numbers.idle()
    if "dtype" not in draft.fields:
        draft.assume("dtype", "bf16" if auto else "fp32", "auto" if auto else "neither bf16 nor fp16 is enabled")


def _optimizer(draft: ImportDraft, keys: Foreign) -> None:
    table = keys.table("optimizer")
    kind = table.text("type", "AdamW")
    ours = _OPTIMIZERS.get(kind.lower())
    if ours is None:
        draft.ignored.append(f"optimizer.type {kind}: AdamW is taken")
    elif ours != "adamw":
        draft.take("optimizer", ours, f"optimizer.type {kind}")
    draft.ignored += table.idle()


def _parallel(draft: ImportDraft, keys: Foreign) -> None:
    tensor, pipeline = keys.table("tensor_parallel"), keys.table("pipeline")
    if size := _given(draft, tensor, "autotp_size", "Strategy.group"):
        draft.take("tp", size, "tensor_parallel.autotp_size")
    if size := _given(draft, keys, "sequence_parallel_size", "Strategy.cp"):
        draft.take("cp", size, "sequence_parallel_size")
        draft.take("cp_kind", "all-to-all", "Ulysses")
    if stages := _given(draft, pipeline, "stages", "Strategy.pp"):
        draft.take("pp", stages, "pipeline.stages")
    experts = keys.table("expert_parallel")
    if experts.switch("enabled", default=False) and (size := _given(draft, experts, "autoep_size", "Strategy.ep")):
        draft.take("ep", size, "expert_parallel.autoep_size")
    size = _given(draft, keys, "data_parallel_size", "Strategy.dp")
    if size and "dp" not in draft.fields:
        draft.take("dp", size, "data_parallel_size")
    draft.ignored += [*tensor.idle(), *pipeline.idle(), *experts.idle()]
    if draft.number("dp") > 1 and (draft.number("cp") > 1 or draft.number("tp") > 1):
        draft.gpus = draft.number("dp") * draft.number("cp") * draft.number("tp") * draft.number("pp")
