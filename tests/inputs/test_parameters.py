from __future__ import annotations

from dataclasses import replace

from shardwise.inputs.model import Mla, Model, Moe
from shardwise.inputs.parameters import count

TINY = Model(name="tiny", layers=2, hidden=8, heads=2, kv_heads=1, head_size=4, ffn=16, vocab=10)


def test_by_hand():
    found = count(TINY)
    assert found.attention == 8 * 8 + 2 * 8 * 4 + 8 * 8
    assert found.mlp == 3 * 8 * 16
    assert found.norms == 16
    assert (found.embedding, found.head, found.final_norm) == (80, 80, 8)
    assert found.total == found.active == found.main == 80 + 80 + 8 + 2 * (192 + 384 + 16)


def test_switches():
    base = count(TINY)
    assert count(replace(TINY, tied=True)).total == base.total - 80
    assert count(replace(TINY, qkv_bias=True)).attention == base.attention + 8 + 4 + 4
    assert count(replace(TINY, out_bias=True)).attention == base.attention + 8
    assert count(replace(TINY, mlp_bias=True)).mlp == base.mlp + 16 + 16 + 8
    assert count(replace(TINY, activation="gelu")).mlp == 2 * 8 * 16
    assert count(replace(TINY, norm="layernorm")).norms == 2 * base.norms
    assert count(replace(TINY, norms_per_layer=4)).norms == 2 * base.norms
    assert count(replace(TINY, position="learned", max_positions=5)).position == 40
    assert count(replace(TINY, head_bias=True)).head == 90
    assert count(replace(TINY, qk_norm="head")).attention == base.attention + 8
    assert count(replace(TINY, qk_norm="full")).attention == base.attention + 8 + 4
    assert count(replace(TINY, sinks=True)).attention == base.attention + 2
    assert count(replace(TINY, embedding_norm=True)).embedding_norm == 8
    assert count(replace(TINY, embedding_size=4)).embedding == 40 + 2 * 32


def test_experts():
    moe = Moe(experts=4, top_k=2, expert_ffn=6, shared_ffn=5, first_dense=1, shared_gate=True, router_bias=True)
    found = count(replace(TINY, moe=moe))
    assert found.mixed == (("attention", "dense", 1), ("attention", "experts", 1))
    assert (found.router, found.expert, found.shared) == (36, 144, 120 + 8)
    assert found.layer("attention", "experts") == 192 + 16 + 36 + 128 + 4 * 144
    assert found.total - found.active == 2 * 144
    biased = count(replace(TINY, moe=replace(moe, expert_bias=True)))
    assert biased.expert == 144 + 2 * 6 + 8


def test_every_second_layer():
    found = count(replace(TINY, layers=6, moe=Moe(experts=4, top_k=1, expert_ffn=6, every=2)))
    assert [number for _, _, number in found.mixed] == [3, 3]


def test_latent_attention():
    mla = Mla(kv_rank=3, nope_size=4, rope_size=2, value_size=5)
    plain = count(replace(TINY, mla=mla)).attention
    assert plain == 8 * 12 + 8 * 5 + 3 + 3 * 2 * 9 + 2 * 5 * 8
    compressed = count(replace(TINY, mla=replace(mla, q_rank=7))).attention
    assert compressed == plain - 8 * 12 + 8 * 7 + 7 + 7 * 12


def test_multi_token_prediction():
    found = count(replace(TINY, mtp=1))
    assert found.mtp == found.layer("attention", "dense") + 2 * 64 + 3 * 8
    assert found.total == found.main + found.mtp
    moe = Moe(experts=4, top_k=2, expert_ffn=6)
    assert count(replace(TINY, mtp=1, moe=moe)).ahead == ("experts",)
