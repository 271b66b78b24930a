"""MindFormers' names (2.1.0): graph mode's `parallel_config` and its neighbours, and PyNative's `parallelism`."""

from __future__ import annotations

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
MINDFORMERS_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
MINDFORMERS_PATTERNS = {
    "core-attention": r"self_attention\.core_attention",
    "attention": "self_attention",
    "attention-norm": "input_layernorm",
    "mlp": "mlp",
    "mlp-norm": "pre_mlp_layernorm",
}
"""Parts of a layer by the names of its cells, as `select_recompute` and PyNative's `select_module` match them."""
MINDFORMERS_READ_PATTERNS = {
    **{theirs: ours for ours, theirs in MINDFORMERS_PATTERNS.items()},
    r"feed_forward\.mul": "activation",
    r"feed_forward\.w1\.activation\.silu": "activation",
    r"mlp\.mul": "activation",
    r"mlp\.activation_func\.silu": "activation",
    r"mlp\.shared_experts\.mul": "activation",
    r"mlp\.shared_experts\.activation_func\.silu": "activation",
    "attention": "attention",
    "attention_norm": "attention-norm",
    "feed_forward": "mlp",
    "ffn_norm": "mlp-norm",
}
"""What is read: also the operators that `select_recompute: true` stands for, and the cells of older models."""
MINDFORMERS_COMM = {r".*\.norm": "comm"}
"""What `select_comm_recompute: true` stands for."""
LESS_MEMORY = "ENABLE_LESS_MEM_VPP"
"""Environment variable of MindSpore (2.4 and later): 1 runs interleaved chunks with the short warm-up of `low-memory`.

No YAML of MindFormers' sets it (1.5 to 2.1), and it has an effect with jit_level O0 or O1 only.
"""
JIT_LEVELS = ("O0", "O1")
"""Levels that know the switch; O2 hands the whole graph over."""
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
