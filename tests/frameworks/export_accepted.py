"""What the targets take, learned by handing them exports (docs/how-to/export.md): names, kinds and choices.

The real parsers run where they are installed (`test_real`); this table holds everywhere. A new flag of an exporter goes
here after the real thing took it.
"""

from __future__ import annotations


def words(text):
    return frozenset(text.split())


MEGATRON_SWITCHES = words(
    """
    accumulate-allreduce-grads-in-fp32 add-qkv-bias bf16 disable-bias-linear
    fine-grained-activation-offloading fp16 fp4-param-gather
    fp8-param-gather grad-reduce-in-bf16 group-query-attention moe-grouped-gemm
    moe-pad-expert-input-to-capacity moe-shared-expert-gate multi-latent-attention optimizer-cpu-offload
    overlap-grad-reduce overlap-param-gather qk-layernorm quick-geglu sequence-parallel squared-relu swiglu
    untie-embeddings-and-output-weights use-distributed-optimizer use-megatron-fsdp
    reuse-grad-buf-for-mxfp8-param-ag tp-comm-overlap use-precision-aware-optimizer
    overlap-moe-expert-parallel-comm use-transformer-engine-op-fuser use-rope-scaling moe-router-pre-softmax
    moe-router-enable-expert-bias no-yarn-correction-range-round-to-int no-persist-layer-norm no-masked-softmax-fusion
    no-rope-fusion no-gradient-accumulation-fusion
    """
)
MEGATRON_WHOLE = words(
    """
    context-parallel-size expert-model-parallel-size expert-tensor-parallel-size ffn-hidden-size
    global-batch-size hidden-size kv-channels kv-lora-rank max-position-embeddings micro-batch-size
    microbatch-group-size-per-virtual-pipeline-stage moe-ffn-hidden-size moe-router-topk
    moe-shared-expert-intermediate-size mtp-num-layers num-attention-heads moe-router-num-groups moe-router-group-topk
    num-distributed-optimizer-instances num-experts num-layers num-query-groups
    num-virtual-stages-per-pipeline-rank pipeline-model-parallel-size q-lora-rank qk-head-dim
    qk-pos-emb-head-dim recompute-num-layers rotary-base seq-length tensor-model-parallel-size v-head-dim vocab-size
    window-attn-skip-freq make-vocab-size-divisible-by rotary-seq-len-interpolation-factor
    yarn-original-max-position-embeddings
    """
)
MEGATRON_PATTERNS = {
    "attention-dropout": r"[0-9.]+",
    "hidden-dropout": r"[0-9.]+",
    "moe-expert-capacity-factor": r"[0-9.]+",
    "norm-epsilon": r"[0-9.]+(e-[0-9]+)?",
    **dict.fromkeys(
        words("""rotary-percent rope-scaling-factor rotary-scaling-factor mscale mscale-all-dim yarn-beta-fast
        yarn-beta-slow moe-router-topk-scaling-factor moe-aux-loss-coeff"""),
        r"[0-9.]+(e-[0-9]+)?",
    ),
    "moe-router-score-function": "softmax|sigmoid",
    "moe-router-load-balancing-type": "aux_loss|none",
    "attention-backend": "flash|fused|unfused|local|auto",
    "ckpt-format": "torch|torch_dist|torch_dcp|fsdp_dtensor",
    "cp-comm-type": "p2p|all_gather|a2a",
    "cuda-graph-impl": "none|local|transformer_engine|full_iteration",
    "cuda-graph-modules": "attn",
    "data-parallel-sharding-strategy": "no_shard|optim|optim_grads|optim_grads_params",
    "exp-avg-dtype": "fp32|fp16|bf16|fp8",
    "exp-avg-sq-dtype": "fp32|fp16|bf16|fp8",
    "fp4-format": "e2m1",
    "fp8-format": "e4m3|hybrid",
    "fp8-recipe": "tensorwise|delayed|mxfp8|blockwise",
    "moe-layer-freq": r"\(\[[01]\]\*\d+(\+\[[01]\]\*\d+)*\)",
    "moe-expert-rank-capacity-factor": r"1\.5",
    "moe-flex-dispatcher-backend": "deepep|hybridep",
    "moe-token-dispatcher-type": "allgather|alltoall|flex",
    "normalization": "LayerNorm|RMSNorm",
    "offload-modules": "core_attn",
    "optimizer": "adam|sgd|muon",
    "pipeline-model-parallel-layout": r"E[tm*0-9|()]*L",
    "position-embedding-type": "learned_absolute|rope|yarn|none",
    "recompute-granularity": "full|selective",
    "recompute-method": "uniform|block",
    "recompute-modules": r"((core_attn|layernorm|mla_up_proj|moe_act|mlp|moe|shared_experts) ?)+",
    "softmax-type": "vanilla|off-by-one|learnable",
    "transformer-impl": "local|transformer_engine",
    "window-size": r"\d+,0",
}

DEEPSPEED = words(
    """
    _shardwise _program train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps zero_optimization
    optimizer bf16 fp16 data_types tensor_parallel sequence_parallel_size data_parallel_size expert_parallel
    pipeline activation_checkpointing zero_allow_untested_optimizer
    """
)
DEEPSPEED_ZERO = {"stage", "overlap_comm", "contiguous_gradients", "offload_optimizer"}

MINDFORMERS_PARALLEL = words(
    """
    data_parallel model_parallel context_parallel expert_parallel pipeline_stage micro_batch_num
    seq_split_num use_seq_parallel context_parallel_algo
    """
)
"""`parallel_config`: any other key is refused."""
MINDFORMERS_RECOMPUTE = {"recompute", "select_recompute", "select_comm_recompute"}
PYNATIVE = {
    "checkpoint": {"enable_save"},
    "training": {"local_batch_size", "global_batch_size", "steps", "seed"},
    "optimizer": {"type"},
    "lr_scheduler": {"type", "learning_rate", "warmup_ratio"},
    "train_dataset": {"dataloader", "num_parallel_workers"},
    "recompute": {"mode", "full_recompute_layer", "select_module"},
    "parallelism": words(
        """
        data_parallel_shard data_parallel_shard_strategy reshard_after_forward_policy cpu_offload
        dense_fsdp_shard_size tensor_parallel context_parallel context_parallel_method pipeline_parallel
        pipeline_parallel_layers_per_stage pipeline_parallel_schedule pipeline_parallel_interleave_num
        sequence_parallel expert_parallel
        """
    ),
}
"""Every table but `model`, which takes any key, refuses others."""

PADDLE = words(
    """
    enable_auto_parallel do_train per_device_train_batch_size gradient_accumulation_steps max_seq_length
    tensor_parallel_degree pipeline_parallel_degree virtual_pp_degree sequence_parallel use_flash_attention
    bf16 fp16 amp_master_grad fp16_opt_level context_parallel_degree sep_parallel_degree
    pipeline_schedule_mode sharding sharding_parallel_degree recompute recompute_granularity
    no_recompute_layers do_eval do_predict evaluation_strategy save_strategy model_type model_name_or_path input_dir
    output_dir max_steps logging_steps learning_rate seed
    """
)

TORCHTITAN_02 = {
    "job": {"description"},
    "experimental": {"custom_import"},
    "metrics": {"log_freq", "disable_color_printing"},
    "model": {"name", "flavor", "hf_assets_path", "converters"},
    "optimizer": {"name"},
    "training": words(
        """
        dataset local_batch_size global_batch_size seq_len enable_cpu_offload dtype mixed_precision_param
        """
    ),
    "parallelism": words(
        """
        data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward
        tensor_parallel_degree pipeline_parallel_degree context_parallel_degree context_parallel_rotate_method
        expert_parallel_degree expert_tensor_parallel_degree pipeline_parallel_schedule
        pipeline_parallel_schedule_csv pipeline_parallel_microbatch_size
        pipeline_parallel_expert_parallel_overlap module_fqns_per_model_part
        """
    ),
    "activation_checkpoint": {"mode", "selective_ac_option"},
    "compile": {"enable"},
}
