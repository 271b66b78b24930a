"""Megatron-LM's names (main of August 2026, d98e8a6): flags without their dashes; tables go from our word to theirs."""

from __future__ import annotations

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
    "fp8-param-gather": ("fp8_weights", True),
    "fp4-param-gather": ("fp8_weights", True),
    "fp8-dot-product-attention": ("fp8_attention", True),
    "grad-reduce-in-bf16": ("grad_dtype", "bf16"),
    "bf16": ("dtype", "bf16"),
    "fp16": ("dtype", "fp16"),
    "sequence-parallel": ("sp", True),
    "use-tp-pp-dp-mapping": ("rank_order", "pp-dp"),
}
"""Flags without a value -> the field and the value that they set."""
MEGATRON_SCALING = {"tensor": "tensorwise", "delayed": "delayed", "block": "blockwise"}
"""Our scaling of fp8 -> `--fp8-recipe`."""
MEGATRON_SHARDING = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""`--data-parallel-sharding-strategy` of ZeRO 0, 1, 2, 3."""
MEGATRON_DISPATCHERS: dict[str, tuple[str, ...]] = {
    "all-to-all": ("alltoall",), "all-gather": ("allgather",), "deepep": ("flex", "deepep"),
    "hybridep": ("flex", "hybridep"),
}  # fmt: skip
"""Dispatcher -> its type, and the backend of a flexible one."""
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
