"""The tokens that MindFormers trains on: made up, as indexed datasets of Megatron's form, until others are named."""

from __future__ import annotations

from typing import Any

from shardwise.frameworks.launcher import STEPS
from shardwise.inputs.strategy import Strategy

DATA = "tokens"
"""Name of the files, without an ending."""
COLUMNS = ("input_ids", "labels", "loss_mask", "position_ids")


def loader(strategy: Strategy) -> dict[str, Any]:
    """The loader of both modes; its own mock data wants a tokenizer."""
    return {
        "type": "BlendedMegatronDatasetDataLoader",
        "datasets_type": "GPTDataset",
        "sizes": [STEPS * strategy.global_batch, 0, 0],
        "config": {
            "seed": 1234,
            "split": "1, 0, 0",
            "seq_length": strategy.seq,
            "eod_mask_loss": False,
            "reset_position_ids": False,
            "create_attention_mask": False,
            "reset_attention_mask": False,
            "create_compressed_eod_mask": False,
            "eod": 0,
            "pad": -1,
            "data_path": ["1", f"./{DATA}"],
        },
    }
