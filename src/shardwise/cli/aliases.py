"""Megatron's spellings of our flags, so that a launch script's words can be pasted as they are."""

from __future__ import annotations

from shardwise.frameworks.megatron.names import MEGATRON_ALSO, MEGATRON_NUMBERS, MEGATRON_SWITCHES

_SAME_VALUE = {
    **{ours: (theirs, *MEGATRON_ALSO.get(ours, ())) for ours, theirs in MEGATRON_NUMBERS.items()},
    **{ours: (theirs,) for theirs, (ours, value) in MEGATRON_SWITCHES.items() if value is True},
    "flash": ("use-flash-attn",),
}
MEGATRON = {ours: tuple(f"--{name}" for name in names) for ours, names in _SAME_VALUE.items()}
"""Field -> flags that mean the same and take the same value."""

SWITCHES: dict[str, tuple[str, object]] = {
    "--use-distributed-optimizer": ("zero", 1),
    "--bf16": MEGATRON_SWITCHES["bf16"],
    "--fp16": MEGATRON_SWITCHES["fp16"],
}
"""Flags without a value -> the field and the value that they set."""
