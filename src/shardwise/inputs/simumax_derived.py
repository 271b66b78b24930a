"""What SimuMax counts itself and writes into its dumps of a strategy beside its settings: checked, and kept up to date.

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
