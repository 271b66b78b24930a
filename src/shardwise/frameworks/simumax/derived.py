"""What SimuMax counts itself and writes into its dumps of a strategy: checked, and kept up to date. And what it knows
that changes nothing here: looked at, and named.

A dump whose numbers do not follow from its settings was edited or cut: SimuMax would ignore them without a word.
"""

from __future__ import annotations

from typing import Any

from shardwise.inputs.foreign import Foreign

Raw = dict[str, Any]
TEXTS = (
    "parallelism", "recompute_status", "net", "is_recompute", "is_megatron_selective_recompute",
    "use_variance_tail_model", "megatron_recompute_module_set", "te_dummy_wgrad_memory_enabled",
    "te_grouped_linear_dummy_wgrad_memory_enabled", "te_cp_a2a_saves_pre_posta2a_output",
    "te_cp_a2a_save_pre_posta2a_min_version", "te_grouped_linear_dummy_wgrad_min_version",
    "valid_recompute_granularity", "valid_megatron_recompute_modules", "valid_cp_a2a_modes",
)  # fmt: skip
"""Derived keys that say nothing of ours: summaries, and what its own versions switch."""
UNUSED_OF_MODEL = {
    "text": ("model_type", "group_linear_mode"),
    "number": (
        "make_vocab_size_divisible_by", "padded_vocab_size", "orig_vocab_size", "capacity", "topk",
        "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "dense_layers", "qk_head_dim",
        "qk_pos_emb_head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank",
    ),
    "switch": ("moe_pad_expert_input_to_capacity",),
}  # fmt: skip
UNUSED_OF_STRATEGY = {
    "number": ("attention_sparse_ratio",),
    "switch": (
        "use_math_sdp", "use_accm_weight", "enable_dropout", "recompute_variance", "cache_groupgemm_col_fp8_inputs",
        "offload_groupgemm_col_inputs", "enable_straggler_model",
    ),
    "text": (
        "cp_a2a_mode", "moe_dispatcher_policy", "te_dummy_wgrad_min_version", "te_cp_a2a_min_version",
        "te_cp_saved_output_min_version", "tp_net", "cp_net", "pp_net", "dp_net", "ep_net", "etp_net", "edp_net",
    ),
}  # fmt: skip
"""Keys that SimuMax knows and that change nothing here, where nothing else reads them, by kind."""
NUMBERS = ("shard_size", "dp_size", "edp_size", "global_batch_size")


def derived(fields: Raw, world: int) -> dict[str, int]:
    """The numbers that follow from our fields and the world size, by SimuMax's names."""
    inner = fields["tp"] * fields["cp"] * fields["pp"]
    return {
        "shard_size": inner,
        "dp_size": fields["dp"],
        "edp_size": max(1, world // (fields["ep"] * fields["etp"] * fields["pp"])),
        "global_batch_size": fields["global_batch"],
    }


def check_derived(keys: Foreign, fields: Raw, world: int) -> None:
    """A fault for every derived number that does not follow from the settings."""
    for key, value in derived(fields, world).items():
        if keys.has(key) and keys.data[key] != value:
            text = f"is {keys.data[key]}, but {value} follows from the other keys; remove it, or mend the others"
            keys.fault(key, text)


def refreshed(written: Raw, raw: Raw, fields: Raw, world: int) -> Raw:
    """A written strategy without summaries of another one, and with its derived numbers."""
    if written == raw:
        return written
    now = derived(fields, world)
    kept = {key: value for key, value in written.items() if key not in TEXTS}
    return {key: now.get(key, value) for key, value in kept.items()}


def without_effect(unused: list[str]) -> list[str]:
    """The note that names keys which change nothing here."""
    return [f"SimuMax's settings without effect here: {', '.join(unused)}"] if unused else []
