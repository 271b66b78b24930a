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
