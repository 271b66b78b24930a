"""Models small enough to train on two cores, of the kinds that folders must start: dense, own rotary base, experts."""

from __future__ import annotations

from dataclasses import replace

import shardwise


def small(name, **changed):
    """A model of the catalog with its own facts, and little of everything."""
    model = shardwise.load_model(name)
    grouped = 2 if model.kv_heads < model.heads else 4
    model = replace(model, layers=2, hidden=64, heads=4, kv_heads=grouped, head_size=16, ffn=128, vocab=512)
    if model.moe:
        shared = 64 if model.moe.shared_ffn else 0
        moe = replace(model.moe, experts=4, top_k=2, expert_ffn=32, shared_ffn=shared, groups=1, top_groups=1)
        model = replace(model, moe=moe)
    if model.mla:
        ranks = {"q_rank": 24} if model.mla.q_rank else {}
        sizes = replace(model.mla, kv_rank=32, nope_size=16, rope_size=8, value_size=16, **ranks)
        model = replace(model, kv_heads=4, mla=sizes)
    return replace(model, **changed)


DENSE = small("llama-3.2-1b")
"""Tied, with stretched rotary positions."""
GQA = small("qwen2.5-0.5b", tied=False)
"""Grouped heads, biases, and a rotary base of its own."""
EXPERTS = small("qwen3-30b-a3b")
