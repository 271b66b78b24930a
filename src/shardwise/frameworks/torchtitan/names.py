"""torchtitan's names: 0.2.2 is TOML, 0.3.0 and main are Python with the same names but for the batch."""

from __future__ import annotations

TORCHTITAN_DEGREES = {
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree",
    "etp": "expert_tensor_parallel_degree",
}
TORCHTITAN_SCHEDULES = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "gpipe": "GPipe",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
TORCHTITAN_NEAREST = {"InterleavedZeroBubble": "zb-h1", "LoopedBFS": "gpipe"}
"""Schedules of theirs that ours has no word for -> the nearest of ours."""
TORCHTITAN_CP_KINDS = {"ring": "alltoall", "all-gather": "allgather"}
"""`context_parallel_rotate_method`, 0.2 only; their alltoall passes shards of keys and values on, as a ring does."""
TORCHTITAN_DISPATCHERS = {"all-to-all": "standard", "deepep": "deepep"}
"""`expert_parallel_comm_backend`."""
TORCHTITAN_OUTPUT = {"0.2": "output", "0.3": "lm_head", "main": "lm_head"}
"""The output layer's module."""
TORCHTITAN_FLAVORS = {
    "llama-3-8b": ("llama3", "8B"),
    "llama-3-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
    "qwen3-0.6b": ("qwen3", "0.6B"),
    "qwen3-1.7b": ("qwen3", "1.7B"),
    "qwen3-14b": ("qwen3", "14B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
}
"""Models of our catalog that all versions ship -> their model and flavor."""
