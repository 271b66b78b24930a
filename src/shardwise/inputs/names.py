"""What other frameworks call our things: the one place for a foreign name.

Readers (`inputs/frameworks`), the command line's aliases and the exporters all look here, so that a file that one of
them writes is a file that another reads. Tables go from our word to theirs; `back` turns one round.
"""

from __future__ import annotations

from collections.abc import Mapping


def back(table: Mapping[str, str]) -> dict[str, str]:
    """Their word to ours; of two of ours with one name, the first in the table is meant."""
    return {theirs: ours for ours, theirs in reversed(list(table.items()))}


# Megatron-LM, main of August 2026 (d98e8a6): command line flags, here without their dashes.

MEGATRON_NUMBERS = {
    "tp": "tensor-model-parallel-size",
    "pp": "pipeline-model-parallel-size",
    "vpp": "num-virtual-stages-per-pipeline-rank",
    "cp": "context-parallel-size",
    "ep": "expert-model-parallel-size",
    "etp": "expert-tensor-parallel-size",
    "group": "microbatch-group-size-per-virtual-pipeline-stage",
    "micro_batch": "micro-batch-size",
    "global_batch": "global-batch-size",
    "seq": "seq-length",
    "first_layers": "decoder-first-pipeline-num-layers",
    "last_layers": "decoder-last-pipeline-num-layers",
}
MEGATRON_ALSO = {
    "vpp": ("virtual-pipeline-model-parallel-size",),
    "micro_batch": ("mbs",),
    "global_batch": ("gbs",),
    "seq": ("seq-len",),
}
"""Other spellings of the numbers that people use."""
MEGATRON_SWITCHES: dict[str, tuple[str, object]] = {
    "account-for-embedding-in-pipeline-split": ("count_embedding", True),
    "account-for-loss-in-pipeline-split": ("count_head", True),
    "optimizer-cpu-offload": ("offload", "optimizer"),
    "fine-grained-activation-offloading": ("offload", "activations"),
    "grad-reduce-in-bf16": ("grad_dtype", "bf16"),
    "bf16": ("dtype", "bf16"),
    "fp16": ("dtype", "fp16"),
    "sequence-parallel": ("sp", True),
}
"""Flags without a value -> the field and the value that they set."""
MEGATRON_SHARDING = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""`--data-parallel-sharding-strategy` of ZeRO 0, 1, 2, 3."""
MEGATRON_CP_KINDS = {"ring": "p2p", "all-gather": "all_gather", "all-to-all": "a2a"}
MEGATRON_RECOMPUTED: dict[str, tuple[str, ...]] = {
    "core_attn": ("core-attention",),
    "layernorm": ("attention-norm", "mlp-norm"),
    "mla_up_proj": ("mla-up",),
    "moe_act": ("moe-act",),
    "mlp": ("mlp",),
    "moe": ("mlp",),
    "shared_experts": ("mlp",),
}
"""`--recompute-modules` -> our modules."""
MEGATRON_OPTIMIZERS = {"adamw": "adam", "sgd": "sgd", "muon": "muon"}

# torchtitan: 0.2.2 is TOML, 0.3.0 and main are Python with the same names but for the batch.

TORCHTITAN_DEGREES = {
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree",
    "etp": "expert_tensor_parallel_degree",
}
TORCHTITAN_SCHEDULES = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "gpipe": "GPipe",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
TORCHTITAN_NEAREST = {"InterleavedZeroBubble": "zb-h1", "LoopedBFS": "gpipe"}
"""Schedules of theirs that ours has no word for -> the nearest of ours."""
TORCHTITAN_CP_KINDS = {"ring": "alltoall", "all-gather": "allgather"}
"""`context_parallel_rotate_method`, 0.2 only; their alltoall passes shards of keys and values on, as a ring does."""
TORCHTITAN_OUTPUT = {"0.2": "output", "0.3": "lm_head", "main": "lm_head"}
"""The output layer's module."""
TORCHTITAN_FLAVORS = {
    "llama-3-8b": ("llama3", "8B"),
    "llama-3-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
    "qwen3-0.6b": ("qwen3", "0.6B"),
    "qwen3-1.7b": ("qwen3", "1.7B"),
    "qwen3-14b": ("qwen3", "14B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
}
"""Models of our catalog that all versions ship -> their model and flavor."""

# MindFormers 2.1.0, graph mode: `parallel_config` and its neighbours.

MINDFORMERS_DEGREES = {
    "dp": "data_parallel",
    "tp": "model_parallel",
    "pp": "pipeline_stage",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "etp": "expert_model_parallel",
}
MINDFORMERS_SCHEDULES = {"1f1b": "1f1b", "gpipe": "gpipe", "zb-v": "zero_bubble_v", "seq-1f1b": "seqpipe"}
MINDFORMERS_CP_KINDS = {"ring": "colossalai_cp", "all-to-all": "ulysses_cp"}
MINDFORMERS_PATTERNS = {
    "core-attention": r"self_attention\.core_attention",
    "attention": "self_attention",
    "attention-norm": "input_layernorm",
    "mlp": "mlp",
    "mlp-norm": "pre_mlp_layernorm",
}
"""Parts of a layer by the names of its cells, as `select_recompute` and PyNative's `select_module` match them."""

# MindFormers 2.1.0, PyNative: `parallelism`.

PYNATIVE_DEGREES = {
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "vpp": "pipeline_parallel_interleave_num",
    "cp": "context_parallel",
    "ep": "expert_parallel",
}
PYNATIVE_SCHEDULES = {"1f1b": "1f1b", "interleaved": "interleaved_1f1b", "gpipe": "gpipe"}
PYNATIVE_CP_KINDS = {"ring": "colossal", "all-to-all": "ulysses"}
PYNATIVE_RESHARD = {2: "never", 3: "always"}
"""`reshard_after_forward_policy` by ZeRO stage."""

# DeepSpeed edaa722 and 0.19.

DEEPSPEED_OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon", "sgd": "SGD"}

# PaddleNLP 3.0 trainer arguments.

PADDLE_DEGREES = {
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "vpp": "virtual_pp_degree",
}
PADDLE_CP_KINDS = {"ring": "context_parallel_degree", "all-to-all": "sep_parallel_degree"}
PADDLE_SCHEDULES = {"1f1b": "1F1B", "interleaved": "VPP", "gpipe": "FThenB", "zb-h1": "ZBH1", "zb-v": "ZBVPP"}
PADDLE_RECOMPUTED = {"core-attention": "core_attn", "attention": "full_attn"}
"""`recompute_granularity` of one module of ours."""
