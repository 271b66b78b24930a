"""DeepSpeed's names (edaa722 and 0.19)."""

from __future__ import annotations

DEEPSPEED_OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon", "sgd": "SGD"}
