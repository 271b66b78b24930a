"""Megatron's spellings of our flags, so that a launch script's words can be pasted as they are."""

from __future__ import annotations

MEGATRON: dict[str, tuple[str, ...]] = {
    "tp": ("--tensor-model-parallel-size",),
    "pp": ("--pipeline-model-parallel-size",),
    "vpp": ("--num-virtual-stages-per-pipeline-rank", "--virtual-pipeline-model-parallel-size"),
    "cp": ("--context-parallel-size",),
    "ep": ("--expert-model-parallel-size",),
    "etp": ("--expert-tensor-parallel-size",),
    "micro_batch": ("--micro-batch-size", "--mbs"),
    "global_batch": ("--global-batch-size", "--gbs"),
    "seq": ("--seq-length", "--seq-len"),
    "sp": ("--sequence-parallel",),
    "group": ("--microbatch-group-size-per-virtual-pipeline-stage",),
    "first_layers": ("--decoder-first-pipeline-num-layers",),
    "last_layers": ("--decoder-last-pipeline-num-layers",),
    "count_embedding": ("--account-for-embedding-in-pipeline-split",),
    "count_head": ("--account-for-loss-in-pipeline-split",),
    "flash": ("--use-flash-attn",),
}
"""Field -> flags that mean the same and take the same value."""

SWITCHES: dict[str, tuple[str, object]] = {
    "--use-distributed-optimizer": ("zero", 1),
    "--bf16": ("dtype", "bf16"),
    "--fp16": ("dtype", "fp16"),
}
"""Flags without a value -> the field and the value that they set."""
