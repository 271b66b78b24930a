"""SimuMax v1.2's 14 examples: our own text for their inputs in its keys, and the figures that it gives for them.

All: 8 GPUs (A100 with PCIe), sequences of 4096, 8 micro batches of 1, bf16 with fp32 gradients, ZeRO 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

LLAMA_8B = {
    "model_name": "llama3_8b", "hidden_size": 4096, "head_num": 32, "kv_head_num": 8, "head_size": 128,
    "intermediate_size": 14336, "layer_num": 32, "vocab_size": 128257, "use_swiglu": True,
}  # fmt: skip
LLAMA_70B = {
    "model_name": "llama3_70b", "hidden_size": 8192, "head_num": 64, "kv_head_num": 8, "head_size": 128,
    "intermediate_size": 28672, "layer_num": 12, "vocab_size": 128256, "use_swiglu": True,
}  # fmt: skip
DEEPSEEK_V2 = {
    "model_name": "deepseek_v2", "attention_type": "mla", "hidden_size": 5120, "head_num": 128, "kv_head_num": 128,
    "head_size": 128, "intermediate_size": 12288, "layer_num": 4, "vocab_size": 102400, "use_swiglu": True,
    "expert_num": 160, "topk": 6, "moe_ffn_hidden_size": 1536, "moe_shared_expert_intermediate_size": 3072,
    "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "dense_layers": 1, "moe_pad_expert_input_to_capacity": True, "capacity": 1,
}  # fmt: skip
# te_version: without the unused gradients that Transformer Engine keeps from 2.3 on; SimuMax leaves them out of these.
BASE = {
    "seq_len": 4096, "micro_batch_size": 1, "micro_batch_num": 8, "dtype": "bf16", "world_size": 8, "zero_state": 1,
    "te_version": "2.2.0",
}  # fmt: skip
FULL = {"recompute_granularity": "full_block"}
ATTENTION_MLP = {"recompute_granularity": "selective_recompute", "attn_recompute": True, "mlp_recompute": True}
ALL_FOUR = {**ATTENTION_MLP, "mla_rms_recompute": True, "mlp_rms_recompute": True}


class Example(NamedTuple):
    """One example and what SimuMax says about it."""

    name: str
    model: dict[str, Any]
    strategy: dict[str, Any]
    peaks: tuple[float, ...]
    """Peak allocated GiB of the first and, with a pipeline, the last stage."""
    seconds: float
    """Iteration."""
    compute: float
    """Forward, backward and recompute of the first stage, seconds."""
    layers: float
    """Exposed tensor and expert parallel communication, seconds."""
    data: float
    """Exposed gradient reduction and weight gathering, seconds."""


def _example(name, model, changes, *figures):
    return Example(name, model, {**BASE, **changes}, *figures)


EXAMPLES = [
    _example("llama3 8B tp1 pp2", LLAMA_8B, {"pp_size": 2}, (50.885, 45.164), 5.555, 3.578, 0.0, 0.835),
    _example("llama3 8B tp2", LLAMA_8B, {"tp_size": 2}, (43.670,), 8.632, 3.997, 2.199, 2.358),
    _example("llama3 8B tp4", LLAMA_8B, {"tp_size": 4}, (27.447,), 6.760, 2.170, 3.073, 1.459),
    _example("llama3 8B tp8", LLAMA_8B, {"tp_size": 8}, (19.347,), 7.102, 1.187, 5.872, 0.0),
    _example("llama3 70B/12 tp1 pp2", LLAMA_70B, {"pp_size": 2}, (64.845, 61.184), 7.884, 4.806, 0.0, 1.280),
    _example("llama3 70B/12 tp2", LLAMA_70B, {"tp_size": 2}, (59.654,), 10.728, 5.373, 1.620, 3.614),
    _example(
        "llama3 70B/12 tp2 full", LLAMA_70B, {"tp_size": 2, **FULL, "recompute_layer_num": 12},
        (53.745,), 12.927, 6.940, 2.253, 3.614,
    ),
    _example(
        "llama3 70B/12 tp2 attention+mlp", LLAMA_70B, {"tp_size": 2, **ATTENTION_MLP, "recompute_layer_num": 12},
        (55.245,), 12.624, 6.805, 2.084, 3.614,
    ),
    _example("llama3 70B/12 tp4", LLAMA_70B, {"tp_size": 4}, (38.481,), 7.346, 2.742, 2.298, 2.217),
    _example("llama3 70B/12 tp8", LLAMA_70B, {"tp_size": 8}, (27.905,), 5.940, 1.457, 4.417, 0.0),
    _example("DeepSeek-V2/4 ep8", DEEPSEEK_V2, {"ep_size": 8}, (45.893,), 6.260, 2.675, 2.409, 1.080),
    _example(
        "DeepSeek-V2/4 ep4 pp2", DEEPSEEK_V2, {"ep_size": 4, "pp_size": 2},
        (30.383, 44.982), 2.855, 1.028, 0.296, 0.301,
    ),
    _example(
        "DeepSeek-V2/4 ep4 pp2 full", DEEPSEEK_V2, {"ep_size": 4, "pp_size": 2, **FULL, "recompute_layer_num": 2},
        (26.701, 41.842), 3.577, 1.346, 0.444, 0.301,
    ),
    _example(
        "DeepSeek-V2/4 ep4 pp2 all four", DEEPSEEK_V2,
        {"ep_size": 4, "pp_size": 2, **ALL_FOUR, "recompute_layer_num": 2}, (27.524, 43.152), 3.123, 1.258, 0.296,
        0.301,
    ),
]  # fmt: skip
