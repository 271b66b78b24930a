"""A plan as the trainer arguments of PaddleNLP, for its auto-parallel pre-training program.

Its parser refuses keys that it does not know, so the header stands in the script beside the JSON.
"""

from __future__ import annotations

from typing import Any

from shardwise.frameworks.nearest import (
    choose,
    even_layers,
    known_modules,
    known_schedule,
    recomputed,
    without,
    without_lora,
)
from shardwise.frameworks.target import ExportDraft, File
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.serialise import to_json

PADDLE_DEGREES = {
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "vpp": "virtual_pp_degree",
}
PADDLE_CP_KINDS = {"ring": "context_parallel_degree", "all-to-all": "sep_parallel_degree"}
PADDLE_SCHEDULES = {"1f1b": "1F1B", "interleaved": "VPP", "gpipe": "FThenB", "zb-h1": "ZBH1", "zb-v": "ZBVPP"}
PADDLE_RECOMPUTED = {"core-attention": "core_attn", "attention": "full_attn"}
"""`recompute_granularity` of one module of ours."""


Settings = dict[str, Any]


def write(draft: ExportDraft) -> tuple[File, ...]:
    """`paddle.json` and the script that starts it."""
    for bend in (without_lora, _pipeline, _states, _axes, _recompute, _numbers):
        bend(draft)
    draft.settle()
    draft.by_hand.append("model_name_or_path, input_dir and output_dir: the model and the data are not in the file")
    return (
        File(name="paddle.json", text=to_json(_arguments(draft))),
        File(name="train.sh", text=_script(draft), program=True),
    )


def _pipeline(draft: ExportDraft) -> None:
    known_schedule(draft, tuple(PADDLE_SCHEDULES))
    s = draft.strategy
    if s.pp == 1:
        return
    if s.schedule == "zb-v" and s.microbatches != s.pp:
        draft.refuse(
            "strategy.schedule", f"Paddle's ZBVPP runs pp micro batches only, {s.pp}; the plan has {s.microbatches}"
        )
    even_layers(draft, "Paddle cuts stages of equal numbers of layers")


def _states(draft: ExportDraft) -> None:
    s = draft.strategy
    if s.pp > 1 and s.zero > 1:
        draft.refuse("strategy.zero", f"zero {s.zero} with pp {s.pp}: only stage 1 goes with a pipeline; use zero 1")
    if s.zero and s.dp % s.shard_group:
        text = f"states are sharded over {s.shard_group} ranks, which do not divide dp {s.dp}; all replicas are written"
        draft.lose("strategy.zero_group", text, zero_group=0 if s.cp == 1 else s.dp)
    choose(draft, "offload", ("none",), "none")


def _axes(draft: ExportDraft) -> None:
    s = draft.strategy
    if s.cp > 1:
        choose(draft, "cp_kind", tuple(PADDLE_CP_KINDS), "ring")
    if draft.model.moe and (s.ep > 1 or s.etp > 1):
        draft.refuse("strategy.ep", f"ep {s.ep}, etp {s.etp}: this program has no expert parallel; use 1")


def _recompute(draft: ExportDraft) -> None:
    recompute = draft.strategy.recompute
    if len(recompute.modules) > 1:
        known_modules(draft, {}, (), "Paddle (one module at most)")
    known_modules(draft, {"mla-up": "attention"}, tuple(PADDLE_RECOMPUTED), "Paddle")
    recompute = draft.strategy.recompute
    if recompute.group > 1:
        text = f"{recompute}: layers are recomputed one by one, so {recompute.group} times as many inputs are kept"
        draft.lose("strategy.recompute", text, recompute=Recompute(full=True, layers=recompute.layers))


def _numbers(draft: ExportDraft) -> None:
    choose(draft, "dtype", ("fp32", "bf16", "fp16"), "bf16")
    if draft.strategy.dtype != "fp32":
        choose(draft, "master", ("mixed", "autocast"), "mixed")
    choose(draft, "optimizer", ("adamw",), "adamw")
    why = "gradients are accumulated in fp32 (amp_master_grad)"
    without(draft, compile=(False, "static graphs are compiled in any case"), grad_dtype=("fp32", why))


def _arguments(draft: ExportDraft) -> Settings:
    s = draft.strategy
    found: Settings = {
        "enable_auto_parallel": True,  # the program stops without it
        "do_train": True,
        "per_device_train_batch_size": s.micro_batch,
        "gradient_accumulation_steps": s.microbatches,
        "max_seq_length": s.seq,
        **{PADDLE_DEGREES[name]: getattr(s, name) for name in ("tp", "pp", "vpp")},
        "sequence_parallel": s.sp and s.tp > 1,
        "use_flash_attention": s.flash,
        "bf16": s.dtype == "bf16",
        "fp16": s.dtype == "fp16",
        "amp_master_grad": s.dtype != "fp32",
        "fp16_opt_level": "O1" if s.master == "autocast" else "O2",
    }
    if s.cp > 1:
        found[PADDLE_CP_KINDS[s.cp_kind]] = s.cp
    if s.pp > 1:
        found["pipeline_schedule_mode"] = PADDLE_SCHEDULES[s.schedule]
    if s.zero and s.dp > 1:
        found |= {"sharding": f"stage{s.zero}", "sharding_parallel_degree": min(s.dp, s.shard_group)}
    return found | _recompute_keys(draft)


def _recompute_keys(draft: ExportDraft) -> Settings:
    """`no_recompute_layers` names the others, so that any list can be said."""
    recompute, counts = draft.strategy.recompute, recomputed(draft)
    if not any(counts):
        return {"recompute": False}
    granularity = "full" if recompute.full else PADDLE_RECOMPUTED[recompute.modules[0]]
    found: Settings = {"recompute": True, "recompute_granularity": granularity}
    kept: list[int] = []
    start = 0
    for count, layers in zip(counts, draft.layers, strict=True):
        kept += range(start + count, start + layers)
        start += layers
    return found | ({"no_recompute_layers": kept} if kept else {})


def _script(draft: ExportDraft) -> str:
    lines = ["#!/bin/bash", draft.header().rstrip("\n")]
    lines.append('python -m paddle.distributed.launch --gpus "${GPUS:-0,1,2,3,4,5,6,7}" \\')
    return "\n".join([*lines, '    run_pretrain_auto.py paddle.json "$@"', ""])
