"""Sound files of every kind that Shardwise reads, each value marked with its kind, so that it can be spoilt.

W whole number, O the same with -1 for "open", F 0 or 1, N number, S switch, C one of some words, Q quantity with a
unit, T any text. What stands bare is left alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Leaf(NamedTuple):
    """A value and its kind."""

    kind: str
    value: Any


def W(value: int) -> Leaf:  # noqa: N802 - a mark, short so that files stay readable
    return Leaf("whole", value)


def O(value: int) -> Leaf:  # noqa: E743, N802 - -1 leaves it open
    return Leaf("open", value)


def F(value: int) -> Leaf:  # noqa: N802 - 0 or 1, false or true
    return Leaf("flag", value)


def N(value: float) -> Leaf:  # noqa: N802
    return Leaf("number", value)


def S(value: bool) -> Leaf:  # noqa: N802
    return Leaf("switch", value)


def C(value: str) -> Leaf:  # noqa: N802
    return Leaf("word", value)


def Q(value: str) -> Leaf:  # noqa: N802
    return Leaf("quantity", value)


def T(value: str) -> Leaf:  # noqa: N802
    return Leaf("text", value)


MODEL = {
    "name": T("small"), "layers": W(8), "hidden": W(512), "heads": W(8), "kv_heads": W(4), "head_size": W(64),
    "ffn": W(1024), "vocab": W(32000), "activation": C("swiglu"), "norm": C("rmsnorm"), "position": C("learned"),
    "max_positions": W(8192), "tied": S(True), "qkv_bias": S(False), "out_bias": S(False), "mlp_bias": S(False),
    "head_bias": S(False), "qk_norm": C("none"), "norms_per_layer": W(2), "parallel_residual": S(False),
    "embedding_norm": S(False), "embedding_size": W(0), "sinks": S(False), "windows": [W(0), W(128)], "mtp": W(0),
    "dropout": N(0.1),
    "moe": {
        "experts": W(8), "top_k": W(2), "expert_ffn": W(256), "shared_ffn": W(128), "first_dense": W(1), "every": W(1),
        "capacity": N(1.5), "imbalance": N(1.2), "router_bias": S(False), "expert_bias": S(False),
        "shared_gate": S(False),
    },
}  # fmt: skip
MLA_MODEL = {
    **{key: MODEL[key] for key in ("layers", "hidden", "heads", "kv_heads", "head_size", "ffn", "vocab")},
    "mla": {"kv_rank": W(64), "nope_size": W(32), "rope_size": W(16), "value_size": W(32), "q_rank": W(0)},
}
CLUSTER = {
    "name": T("ours"), "gpus": W(16), "host_bandwidth": Q("25GB/s"), "host_memory": Q("1TB"),
    "gpu": {
        "name": T("chip"), "memory": Q("80GB"), "bandwidth": Q("3.35TB/s"), "sms": W(132), "l2": Q("50MB"),
        "reserved": Q("1GB"), "flops": {"bf16": Q("989TFLOPS"), "fp32": Q("67TFLOPS"), "fp8": Q("1979TFLOPS")},
    },
    "levels": [
        {"name": T("nvlink"), "size": W(8), "bandwidth": Q("450GB/s"), "latency": Q("3us"), "topology": C("switch"),
         "oversubscription": N(1.0)},
        {"name": T("net"), "bandwidth": Q("50GB/s"), "latency": Q("8us")},
    ],
}  # fmt: skip
STRATEGY = {
    "tp": W(2), "pp": W(2), "vpp": W(1), "cp": W(1), "dp": W(4), "ep": W(1), "etp": W(1), "sp": S(True),
    "cp_kind": C("ring"), "zero": W(1), "zero_group": W(0), "micro_batch": W(1), "global_batch": W(16), "seq": W(4096),
    "schedule": C("1f1b"), "placement": C("loop"), "group": W(0), "recompute": C("none"), "layers": [W(4), W(4)],
    "first_layers": W(0), "last_layers": W(0), "count_embedding": S(False), "count_head": S(False), "dtype": C("bf16"),
    "master": C("mixed"), "grad_dtype": C("fp32"), "optimizer": C("adamw"), "offload": C("none"),
    "runtime": C("megatron"), "flash": S(True), "compile": S(False), "straggler": N(1.05),
}  # fmt: skip
RUNTIME = {
    "title": T("ours"),
    "can": {
        "zero": [W(0), W(1)], "hsdp": S(False), "tp": S(True), "pp": S(True), "cp": [C("ring")], "ep": S(True),
        "etp": S(True), "schedules": [C("1f1b"), C("interleaved")], "zero_with_pp": [W(0), W(1)],
        "uneven_layers": S(True), "cut": C("even"), "recompute": [C("full"), C("modules")], "modules": [C("mlp")],
        "modules_alone": [C("ops")], "dtypes": [C("bf16"), C("fp32")], "sp": [S(True), S(False)], "together": S(True),
        "replicas": S(True), "shards_over_cp": S(True), "zero_with_ep_cp": [W(0), W(1)], "mesh": S(False),
        "v_microbatches": [W(2)],
    },
    "kernels": {
        "norm": C("fused"), "attention": C("flash2"), "rope": C("fused"), "qkv": C("separate"),
        "turned_output_kept": S(False), "activation": C("fused"), "gelu_kept": N(1.0), "loss": C("fp32"),
        "vocab_multiple": W(128), "gathered_input_kept": S(False), "softmax_bytes": N(5.0), "softmax_work": N(10.0),
        "softmax_traffic": [N(14.0), N(15.0)], "reduce_staging": Q("100MB"), "weight_grad_fusion": S(True),
        "fused_optimizer": S(True), "optimizer_work": N(0.0), "expert_output_kept": S(True), "fp8_copies": N(2.0),
        "compiled": S(False),
    },
    "memory": {
        "gradients": C("buffer"), "master_is_parameter": S(False), "workspace": Q("67MB"), "fixed": Q("1MB"),
        "gradient_bytes": N(4.0), "fragmentation": N(0.08), "context": Q("1GB"), "bucket": Q("100MB"),
        "gathered_layers": N(2.0),
    },
    "overlap": {"grad_reduce": N(0.5), "param_gather": N(0.5), "fsdp": N(0.9), "fsdp_rate": N(1.0), "tp": N(0.0),
                "p2p": N(0.0), "ep": N(0.0), "cp": N(0.8), "p2p_shares": S(False)},
    "overheads": {"launch": Q("4us"), "launch_backward": Q("4us"), "layer": Q("200us"), "iteration": Q("2ms"),
                  "collective": Q("20us"), "microbatch": Q("1ms"), "owner": Q("3ms"), "slowdown": N(1.1)},
}  # fmt: skip
HUGGINGFACE = {
    "model_type": "llama", "num_hidden_layers": W(8), "hidden_size": W(512), "num_attention_heads": W(8),
    "num_key_value_heads": W(4), "head_dim": W(64), "intermediate_size": W(1024), "vocab_size": W(32000),
    "hidden_act": C("silu"), "tie_word_embeddings": S(False), "attention_bias": S(False), "mlp_bias": S(False),
    "attention_dropout": N(0.0), "sliding_window": W(128), "rms_norm_eps": T("1e-5"), "num_local_experts": W(8),
    "num_experts_per_tok": W(2), "first_k_dense_replace": W(1), "moe_intermediate_size": W(256),
    "num_nextn_predict_layers": W(1), "use_qk_norm": S(False),
}  # fmt: skip
SIMUMAX_MODEL = {
    "model_type": T("moe"), "model_name": T("small"), "attention_type": C("mla"), "hidden_size": W(512),
    "head_num": W(8), "kv_head_num": W(8), "head_size": W(64), "intermediate_size": W(1024), "layer_num": W(8),
    "vocab_size": W(32000), "use_swiglu": S(True), "expert_num": W(8), "topk": W(2), "moe_ffn_hidden_size": W(256),
    "moe_shared_expert_intermediate_size": W(128), "dense_layers": W(1), "qk_head_dim": W(32),
    "qk_pos_emb_head_dim": W(16), "v_head_dim": W(32), "q_lora_rank": W(64), "kv_lora_rank": W(64),
    "capacity": N(1.0), "moe_pad_expert_input_to_capacity": S(True), "make_vocab_size_divisible_by": N(128),
    "padded_vocab_size": N(32000), "group_linear_mode": T("parallel"),
}  # fmt: skip
SIMUMAX_STRATEGY = {
    "seq_len": W(4096), "micro_batch_size": W(1), "micro_batch_num": W(8), "dtype": C("bf16"), "fp8": S(False),
    "world_size": W(8), "tp_size": W(1), "cp_size": W(1), "pp_size": W(2), "ep_size": W(1), "etp_size": W(1),
    "enable_sequence_parallel": S(True), "interleaving_size": W(1), "zero_state": W(1), "use_fused_norm": S(True),
    "mem_factor": N(0.94), "attention_sparse_ratio": N(0.0), "te_version": C("2.8.0"), "enable_recompute": S(True),
    "recompute_granularity": C("full_block"), "recompute_layer_num": W(2), "pp_comm_async": S(False),
    "overlap_grad_reduce": S(True), "tp_net": T("auto"), "megatron_recompute": S(False), "use_flash_sdp": S(True),
    "grad_reduce_in_bf16": S(False), "cp_comm_type": C("a2a"), "dispatch_probs": S(True),
}  # fmt: skip
_OP = {"scale": N(2), "offset": N(-1), "efficient_factor": N(0.74), "latency_us": N(5.5), "fixed_latency_us": N(22.0)}
_NETWORK = {
    "processor_usage": N(0.0), "bandwidth": {"gbps": N(900), "efficient_factor": N(0.8), "latency_us": N(10)},
    "op": {"all_reduce": _OP, "all_gather": {"scale": N(1), "offset": N(-1), "dp_fixed_bw": {"2": N(4)}},
           "reduce_scatter": _OP, "p2p": _OP, "all2all": {**_OP, "fixed_latency_us_by_comm_num": {"2": N(51.0)}}},
}  # fmt: skip
SIMUMAX_SYSTEM = {
    "sys_name": T("b200_test"), "num_per_node": W(8), "FC8": S(False),
    "accelerator": {
        "backend": C("cuda"), "mem_gbs": N(180), "mode": C("roofline"),
        "op": {"default": {"tflops": N(2250), "efficient_factor": N(0.4)},
               "matmul": {"tflops": N(2250), "efficient_factor": N(0.5), "accurate_efficient_factor": {"b=1": N(0.6)}}},
        "bandwidth": {"default": {"gbps": N(8000), "efficient_factor": N(0.67), "latency_us": N(30)}},
    },
    "networks": {"intra_with_pcie": S(False), "high_intra_node": _NETWORK, "inter_node": _NETWORK},
}  # fmt: skip
MEGATRON = {
    "nproc-per-node": W(8), "nnodes": W(2), "num-layers": W(8), "hidden-size": W(512), "ffn-hidden-size": W(1024),
    "num-attention-heads": W(8), "group-query-attention": None, "num-query-groups": W(4), "seq-length": W(4096),
    "max-position-embeddings": W(4096), "position-embedding-type": C("learned_absolute"), "normalization": C("RMSNorm"),
    "swiglu": None, "vocab-size": W(32000), "attention-dropout": N(0.0), "hidden-dropout": N(0.0),
    "micro-batch-size": W(1), "global-batch-size": W(16), "bf16": None, "use-distributed-optimizer": None,
    "tensor-model-parallel-size": W(2), "pipeline-model-parallel-size": W(2), "sequence-parallel": None,
    "num-layers-per-virtual-pipeline-stage": W(2), "recompute-granularity": C("full"), "recompute-method": C("block"),
    "recompute-num-layers": W(1), "transformer-impl": C("transformer_engine"), "attention-backend": C("auto"),
    "optimizer": C("adam"), "exp-avg-dtype": C("fp32"), "num-experts": W(8), "moe-router-topk": W(2),
    "moe-ffn-hidden-size": W(256), "moe-layer-freq": Leaf("form", "1"), "moe-expert-capacity-factor": N(1.0),
    "expert-model-parallel-size": W(1), "expert-tensor-parallel-size": W(1), "context-parallel-size": W(2),
    "cp-comm-type": C("p2p"), "fp8-format": C("hybrid"), "fp8-recipe": C("delayed"), "mtp-num-layers": W(1),
    "num-distributed-optimizer-instances": W(1), "cpu-offloading-num-layers": W(0), "window-size": Leaf("form",
    "(127,0)"),
    "softmax-type": C("vanilla"),
}  # fmt: skip
TORCHTITAN = {
    "parallelism": {
        "tensor_parallel_degree": W(2), "pipeline_parallel_degree": W(2), "context_parallel_degree": W(1),
        "expert_parallel_degree": W(1), "data_parallel_shard_degree": O(2), "data_parallel_replicate_degree": W(1),
        "fsdp_reshard_after_forward": C("default"), "pipeline_parallel_schedule": C("1F1B"),
        "pipeline_parallel_microbatch_size": W(1), "enable_sequence_parallel": S(True),
    },
    "training": {"seq_len": W(4096), "local_batch_size": W(4), "global_batch_size": O(16), "dtype": C("float32"),
                 "mixed_precision_param": C("bfloat16"), "enable_cpu_offload": S(False), "steps": 1000},
    "activation_checkpoint": {"mode": C("selective"), "selective_ac_option": C("op")},
    "compile": {"enable": S(False)},
    "model": {"name": C("llama3"), "flavor": C("8B"), "converters": []},
}  # fmt: skip
DEEPSPEED = {
    "train_batch_size": W(16), "train_micro_batch_size_per_gpu": W(1), "gradient_accumulation_steps": W(2),
    "gradient_clipping": 1.0, "bf16": {"enabled": S(True)}, "sequence_parallel_size": W(1),
    "zero_optimization": {"stage": W(2), "offload_optimizer": {"device": C("none")}, "overlap_comm": True},
    "optimizer": {"type": C("AdamW"), "params": {"lr": 1e-4}}, "tensor_parallel": {"autotp_size": W(1)},
    "pipeline": {"stages": W(1)},
}  # fmt: skip
MINDFORMERS = {
    "seed": 0, "runner_config": {"batch_size": W(1), "gradient_accumulation_steps": W(1)},
    "parallel": {"enable_parallel_optimizer": S(True), "pipeline_config": {
        "pipeline_interleave": S(True), "pipeline_scheduler": C("1f1b")}},
    "parallel_config": {"data_parallel": W(2), "model_parallel": W(2), "pipeline_stage": W(2), "micro_batch_num": W(8),
                        "use_seq_parallel": S(True), "context_parallel": W(1), "expert_parallel": W(1)},
    "recompute_config": {"recompute": [[W(1), W(1)], [W(2), W(0)]], "select_recompute": S(False)},
    "model": {"model_config": {
        "type": "LlamaConfig", "num_layers": W(8), "hidden_size": W(512), "num_heads": W(8), "n_kv_heads": W(8),
        "vocab_size": W(32000), "multiple_of": W(256), "ffn_dim_multiplier": N(1.3), "seq_length": W(4096),
        "pp_interleave_num": W(2), "offset": [[W(0), W(0)], [W(0), W(0)]]}},
}  # fmt: skip
COSTS = {
    "f": N(10.0), "i": [N(11.0), N(11.0), N(11.0), N(11.0)], "w": N(9.0), "hop": N(1.0), "activation": N(1.0),
    "free_at_input_grad": N(0.5), "static": N(0.0), "memory_limit": N(100.0),
    "alternatives": [{"f": N(12.0), "i": N(12.0), "w": N(9.0), "activation": N(0.5)}],
}  # fmt: skip
_LAYERS = [
    {"name": T("HEAD"), "type": C("HEAD"), "time": N(2), "memory_parameter": N(1459)},
    {"name": T("BODY"), "type": C("BODY"), "time": N(10), "nb_layer": W(8), "memory_parameter": N(1400),
     "memory_activation": N(743), "memory_recompute": N(431), "recompute_coef": N(0.5)},
    {"name": T("TAIL"), "type": C("TAIL"), "time": N(12), "memory_parameter": N(3329)},
]  # fmt: skip
PROBLEM = {
    "pp": W(2), "vp": W(1), "mb": W(4), "layers": W(8), "mem_limit": N(45000), "low_mem": F(0), "seq_split": W(1),
    "hop": N(0.1), "schedule": C("1f1b"), "recompute_kinds": [C("full")],
    "model": {"stage_const_mem": N(0), "layers_description": _LAYERS},
}  # fmt: skip
_OFFSETS = (0, 0, -4, -2, 2, -2, -2, 10, -2, -2, -2, 0, 2, 2, 0, 0)
_SELECTED = (5, 5, 2, 1, 4, 3, 2, 14, 4, 4, 4, 6, 1, 5, 5, 6)
_COMM = (0, 5, 0, 1, 1, 4, 2, 2, 1, 3, 2, 6, 4, 5, 5, 1)
_PEAKS = (60854, 27620, 54533, 100631, 31713, 38874, 146986, 31713, 24553, 24553, 28484, 45016, 33763, 20463)
INIT = {
    "pipeline_config": {"pipeline_num": W(16), "num_layer": W(96), "offset": [*map(W, _OFFSETS)]},
    "time_config": {"head": N(0.0588), "body": N(3.1346), "tail": N(3.5158)},
    "recompute_config": {"recompute": S(False), "select_recompute": [*map(W, _SELECTED)],
                         "select_comm_recompute": [*map(W, _COMM)]},
    "memory_usage": {"head_memory": N(96643), "tail_memory": N(23531),
                     "body_memories": {"stage_id": [*map(W, range(1, 15))], "memories": [*map(N, _PEAKS)]}},
}  # fmt: skip
MANUAL = {"mine": {"offset": [W(0), W(0)], "recompute": [W(1), W(1)], "interleave_num": W(1), "show": S(True)}}
TRACE = {"traceEvents": [
    {"ph": C("X"), "cat": C("kernel"), "name": T("nvjet_gemm"), "ts": N(0), "dur": N(2e4), "pid": T("0"), "tid": T("0"),
     "args": {"correlation": 1}},
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 30000, "pid": 1, "tid": 1},
]}  # fmt: skip
PROBE_ROW = {"m": W(4096), "n": W(4096), "k": W(4096), "dtype": T("bf16"), "layout": C("F"), "seconds": N(2e-4)}
PROBE = {"schema": "shardwise/probe/1", "complete": True, "hardware": {"gpu": "NVIDIA H200"}, "software": {},
         "families": {"gemm": {"rows": [PROBE_ROW] * 3}}}  # fmt: skip
SNAPSHOT = {
    "segments": [{"device": W(0), "blocks": [{"size": N(4.2e8), "state": C("active_allocated")}]}],
    "device_traces": [[{"action": C("alloc"), "addr": 1, "size": N(2.0**20), "frames": []}]],
}  # fmt: skip
GPU_HOME = {"gpus": {"my-gpu": {"base": C("h100"), "memory": Q("80GB"), "bandwidth": Q("3TB/s"), "sms": W(132)}}}
CALIBRATION_HOME = {
    "source": T("ours"), "gemm": {"bf16": N(0.7), "fp16": N(0.7), "fp32": N(0.7)}, "gemm_depth": N(64.0),
    "gemm_fixed": Q("4us"), "wave": N(0.25), "bandwidth": N(0.85), "attention": [N(0.6), N(0.5)],
    "attention_half": [N(450.0), N(900.0)], "host": N(1.0), "network": {"default": N(0.8)}, "time_error": N(0.1),
    "corrections": {"gemm": N(1.1)}, "memory_error": N(0.03), "kernel_fixed": Q("2us"),
}  # fmt: skip
OPERATORS = {
    "format": "shardwise-operators", "version": W(1), "model": T("llama-3.2-1b"), "seq": W(4096),
    "operators": [{"name": T("x"), "micro_batch": W(1), "tp": W(1), "variant": W(0), "forward_seconds": N(1e-3),
                   "backward_seconds": N(2e-3)}],
}  # fmt: skip
