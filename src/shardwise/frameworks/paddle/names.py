"""PaddleNLP's names: the arguments of its 3.0 trainer."""

from __future__ import annotations

PADDLE_DEGREES = {
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "vpp": "virtual_pp_degree",
}
PADDLE_CP_KINDS = {"ring": "context_parallel_degree", "all-to-all": "sep_parallel_degree"}
PADDLE_SCHEDULES = {"1f1b": "1F1B", "interleaved": "VPP", "gpipe": "FThenB", "zb-h1": "ZBH1", "zb-v": "ZBVPP"}
PADDLE_RECOMPUTED = {"core-attention": "core_attn", "attention": "full_attn"}
"""`recompute_granularity` of one module of ours."""
