"""A plan as a DeepSpeed JSON.

DeepSpeed's file holds the batch, the sharding, the experts and the number format. Stages are arguments of the program:
the file's `pipeline` table names them, and ours takes them from there, as it takes what stands in `_program`.

What DeepSpeed takes without a word or stops at, and what is done about it here:

- a pipeline runs with ZeRO 0 and 1 only, and automatic tensor parallel and Ulysses take all GPUs as theirs x dp: plans
  that have two of the three, or a pipeline and ZeRO 2 or 3, are refused
- without ZeRO, 16-bit parameters have 16-bit gradients: stage 1 is written for fp32 ones
- the batch is checked with tensor parallel ranks taken for replicas: with tp it is left out, and follows from the rest
- Ulysses makes its groups only where `data_parallel_size` is there too
- AutoTP takes no experts, AutoEP no pipeline, and Ulysses neither latent attention nor ZeRO 0 and 1
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardwise.frameworks.deepspeed.read import DEEPSPEED_OPTIMIZERS
from shardwise.frameworks.huggingface.write import LOOP, MODEL, model_config, shared_files
from shardwise.frameworks.launcher import starting
from shardwise.frameworks.nearest import (
    all_layers,
    choose,
    even_layers,
    known_modules,
    known_schedule,
    without_lora,
)
from shardwise.frameworks.target import ExportDraft, File
from shardwise.inputs.serialise import to_json

Settings = dict[str, Any]
PROGRAM = Path(__file__).with_name("deepspeed_train.py")


def write(draft: ExportDraft) -> tuple[File, ...]:
    """`ds_config.json` and the program that takes it; JSON has no comments, so the header is its key `_shardwise`."""
    for bend in (without_lora, _pipeline, _states, _axes, _recompute, _numbers):
        bend(draft)
    config = model_config(draft)
    _program_can(draft, config.architecture)
    draft.settle()
    start = starting(
        draft, "deepspeed", ("deepspeed_train.py",), before=["export STEPS SEED=${SEED:-1234}"],
        needs="DeepSpeed 0.19, transformers 5 and torch 2.11 or newer",
    )  # fmt: skip
    head = {"_shardwise": draft.notes(), "_program": _program(draft)}
    return (
        *start,
        File(name="ds_config.json", text=to_json(head | _config(draft))),
        File(name="config.json", text=to_json(config.keys)),
        File(name=PROGRAM.name, text=draft.header() + PROGRAM.read_text(encoding="utf-8")),
        *shared_files(LOOP, MODEL),
    )


def _pipeline(draft: ExportDraft) -> None:
    known_schedule(draft, ("1f1b",), chunks=False)
    if draft.strategy.pp > 1:
        even_layers(draft, "DeepSpeed partitions by count or by parameters, not by a list")


def _states(draft: ExportDraft) -> None:
    s = draft.strategy
    if s.pp > 1 and s.zero > 1:
        draft.refuse(
            "strategy.zero",
            f"zero {s.zero} with pp {s.pp}: DeepSpeed's pipeline does not run with ZeRO 2 and 3; use zero 1 or pp 1",
        )
    if s.zero and s.shard_group < s.dp * s.cp:
        text = (
            f"{s.zero_group}: states are sharded over all {s.dp * s.cp} ranks (MiCS is gone), so memory is at most as"
        )
        draft.lose("strategy.zero_group", f"{text} planned", zero_group=0)
    shared = s.dp * s.cp > 1 or (draft.model.moe is not None and s.tp > s.ep * s.etp)
    if s.zero == 0 and s.dtype != "fp32" and s.grad_dtype == "fp32" and shared:
        text = f"zero 0 keeps {s.dtype} gradients; zero 1 is written, which adds them up in fp32 and needs less memory"
        draft.lose("strategy.zero", text, zero=1)
    if s.offload == "optimizer" and s.zero == 0:
        draft.lose("strategy.offload", "host memory is for sharded states only (zero 1 to 3)", offload="none")


def _axes(draft: ExportDraft) -> None:
    s = draft.strategy
    used = [f"{name} {getattr(s, name)}" for name in ("tp", "cp", "pp") if getattr(s, name) > 1]
    if len(used) > 1:
        why = "AutoTP, Ulysses and the pipeline each take all GPUs as theirs x dp"
        draft.refuse(f"strategy.{used[0].split()[0]}", f"{' with '.join(used)}: {why}; keep one of them above 1")
    if s.ep > 1 and s.zero == 3 and s.cp > 1:
        draft.refuse(
            "strategy.ep", f"ep {s.ep} with zero 3 and cp {s.cp}: AutoEP has no Ulysses at stage 3; use zero 2"
        )
    if s.cp > 1 and s.cp_kind != "all-to-all":
        heads = min(draft.model.heads, draft.model.heads if draft.model.mla else draft.model.kv_heads)
        if heads % (s.tp * s.cp):
            draft.refuse("strategy.cp_kind", f"only all-to-all (Ulysses) is here, and cp {s.cp} does not divide heads")
        else:
            draft.lose("strategy.cp_kind", f"{s.cp_kind} is not here; all-to-all is written", cp_kind="all-to-all")
    if s.tp > 1 and s.sp:
        draft.lose("strategy.sp", "automatic tensor parallel keeps norms and residuals whole", sp=False)
    if s.etp > 1:
        draft.lose("strategy.etp", "experts are not split over ranks", etp=1)


_PIPED = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3"}
)
"""Architectures whose layers take rotary positions from outside, so that a stage can hand them in."""


def _program_can(draft: ExportDraft, architecture: str) -> None:
    """What DeepSpeed 0.19 does to transformers' models under each of its axes."""
    s, model = draft.strategy, draft.model
    if s.tp > 1 and model.moe:
        draft.refuse(
            "strategy.tp", f"{s.tp}: AutoTP refuses transformers' layouts of experts; use tp 1 with ep or zero"
        )
    if s.pp > 1 and (architecture not in _PIPED or any(model.windows)):
        what = "layers with a window" if any(model.windows) else architecture or model.name
        text = f"{s.pp}: the program has no stages of {what}; use pp 1, or export to torch-pipelining"
        draft.refuse("strategy.pp", text)
    if s.pp > 1 and s.ep > 1:
        text = f"{s.ep} with pp {s.pp}: AutoEP does not go with DeepSpeed's pipeline; keep one of them above 1"
        draft.refuse("strategy.ep", text)
    if s.cp > 1 and (model.mla or any(model.windows) or not s.flash):
        what = "latent attention" if model.mla else "windows" if any(model.windows) else "stored scores"
        draft.refuse("strategy.cp", f"{s.cp}: Ulysses for transformers does not do {what}; use cp 1, or torchtitan")
    if s.cp > 1 and s.zero < 2:
        text = f"{s.zero} with cp {s.cp}: DeepSpeed's optimizer for it stops; zero 2 is written, with less memory"
        draft.lose("strategy.zero", text, zero=2)


def _recompute(draft: ExportDraft) -> None:
    known_modules(draft, {}, (), "DeepSpeed")
    if draft.strategy.recompute.full:
        all_layers(draft, "DeepSpeed has an interval, not a number of layers")


def _numbers(draft: ExportDraft) -> None:
    choose(draft, "dtype", ("fp32", "bf16", "fp16"), "bf16")
    choose(draft, "optimizer", tuple(DEEPSPEED_OPTIMIZERS), "adamw")
    if draft.strategy.dtype != "fp32":
        choose(draft, "master", ("mixed",), "mixed")
    if draft.strategy.offload == "activations" and not draft.strategy.recompute.full:
        text = "only what full recompute keeps can go to host memory"
        draft.lose("strategy.offload", text, offload="none")


def _program(draft: ExportDraft) -> Settings:
    """What DeepSpeed's file has no word for, for our program; and whose prediction it is."""
    s = draft.strategy
    return {
        "world": s.world, "tp": s.tp, "cp": s.cp, "pp": s.pp, "dp": s.dp, "micro_batch": s.micro_batch,
        "microbatches": s.microbatches, "seq": s.seq, "dtype": s.dtype, "flash": s.flash, "compile": s.compile,
        "recompute": "full" if s.recompute.full else "none", "runtime": draft.runtime,
    }  # fmt: skip


def _config(draft: ExportDraft) -> Settings:
    s = draft.strategy
    found: Settings = {
        "train_batch_size": s.global_batch,
        "train_micro_batch_size_per_gpu": s.micro_batch,
        "gradient_accumulation_steps": s.microbatches,
        "zero_optimization": _zero(draft),
        "optimizer": {"type": DEEPSPEED_OPTIMIZERS[s.optimizer]},
    }
    if s.tp > 1:
        del found["train_batch_size"]
    if s.optimizer == "sgd":
        found["zero_allow_untested_optimizer"] = True
    if s.dtype != "fp32":
        found[s.dtype] = {"enabled": True}
        found["data_types"] = {"grad_accum_dtype": s.grad_dtype}
    if s.tp > 1:
        found["tensor_parallel"] = {"autotp_size": s.tp}
    if s.cp > 1:
        found |= {"sequence_parallel_size": s.cp, "data_parallel_size": s.dp}
    if draft.model.moe and s.ep > 1 and s.pp == 1:
        found["expert_parallel"] = {"enabled": True, "autoep_size": s.ep}
    if s.pp > 1:
        interval = s.recompute.group if s.recompute.full else 0
        found["pipeline"] = {"stages": s.pp, "partition": "uniform", "activation_checkpoint_interval": interval}
    if s.recompute.full:
        found["activation_checkpointing"] = {"cpu_checkpointing": s.offload == "activations"}
    return found


def _zero(draft: ExportDraft) -> Settings:
    s = draft.strategy
    one = s.zero == 0 and s.dtype != "fp32" and s.grad_dtype == "fp32"  # a single rank: stage 1 shards nothing
    found: Settings = {"stage": 1 if one else s.zero}
    if s.zero > 1:
        found |= {"overlap_comm": True, "contiguous_gradients": True}
    if s.offload == "optimizer":
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return found
