"""Hybrids: mixers without attention, patterns of layers, sparse and chunked attention, held to sums done by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

import shardwise
from shardwise.check.model import checked_model
from shardwise.errors import InfeasibleError, InputError
from shardwise.estimate.mfu import model_flops
from shardwise.inputs.load import load_runtime
from shardwise.inputs.mixers import Recurrent, Sparse
from shardwise.inputs.model import Mla, Model, Moe
from shardwise.inputs.parameters import count
from shardwise.inputs.strategy import Strategy
from shardwise.ops.attention import area
from shardwise.ops.layer import layer_kinds, layer_ops
from shardwise.ops.op import Kind
from shardwise.ops.shard import shard_of
from shardwise.plan.plan import Plan
from shardwise.report.svg_pass import _KINDS, _OF

BASE = Model(name="base", layers=8, hidden=64, heads=4, kv_heads=2, head_size=16, ffn=128, vocab=512)
KINDS = (
    Recurrent(kind="mamba", heads=128, state=16, rank=4, conv_bias=True),
    Recurrent(kind="mamba2", heads=8, head_size=16, state=32, key_heads=2, conv_bias=True),
    Recurrent(kind="delta", heads=8, head_size=16, state=16, key_heads=4),
    Recurrent(kind="kda", heads=4, head_size=16, state=16, rank=16),
    Recurrent(kind="lightning", heads=4, head_size=16, state=16, conv=0),
    Recurrent(kind="conv", heads=64, conv=3),
)
HYBRID = ("recurrent", "recurrent", "recurrent", "attention")


def hybrid(mixer, **more):
    return replace(BASE, mixers=HYBRID, recurrent=mixer, **more)


def shard(model, tp=1, runtime="megatron", **more):
    strategy = Strategy(tp=tp, micro_batch=2, global_batch=2, seq=256, sp=tp > 1, **more)
    return shard_of(model, strategy, load_runtime(runtime))


@pytest.mark.parametrize("mixer", KINDS, ids=lambda one: one.kind)
@pytest.mark.parametrize("tp", [1, 2])
def test_operators_hold_the_parameters_that_are_counted(mixer, tp):
    model = hybrid(mixer)
    kind = layer_kinds(model)[0]
    assert kind.name == "recurrent layer"
    held = sum(op.params for op in layer_ops(shard(model, tp), kind))
    found = count(model)
    copied = found.norms * (1 - 1 / tp)  # norms stand on every rank
    assert held == pytest.approx(found.layer("recurrent", "dense") / tp + copied)


def test_mamba_2_by_hand():
    """Values 128, keys and queries 2 x 32 each: in 2 x 128 + 2 x 64 + 8, a convolution of 4 tokens and a bias over 256
    channels, decays, skips and steps of 8 heads, a norm of 128, out 128 x 64.
    """
    assert KINDS[1].parameters(64) == 64 * 392 + 256 * 5 + 3 * 8 + 128 + 128 * 64
    # in chunks of 64: 32 keys on average before each token, of 64 and 128 columns; 128 x 32 into the state and out
    assert KINDS[1].products == 32 * (64 + 128) + 2 * 128 * 32


@pytest.mark.parametrize("mixer", KINDS, ids=lambda one: one.kind)
def test_time_grows_with_tokens_and_not_with_their_square(mixer):
    model = hybrid(mixer)
    assert model_flops(model, 8192, causal=True) - model_flops(model, 4096, causal=True) == pytest.approx(
        6 * 2 * 4096 * 2 * 4 * 16 / 2
    )  # two layers of attention, half of the scores


def test_layers_that_only_mix_and_layers_that_only_feed():
    """Nemotron-H: every block is a layer with one norm."""
    model = replace(
        BASE, layers=4, mixers=("recurrent", "none", "attention", "none"), feeds=("none", "dense"), recurrent=KINDS[1]
    )
    names = [kind.name for kind in layer_kinds(model)]
    assert names == ["recurrent lone layer", "feed-forward layer", "lone layer", "feed-forward layer"]
    held = sum(op.params for kind in layer_kinds(model) for op in layer_ops(shard(model), kind))
    assert held == count(model).layers == KINDS[1].parameters(64) + count(model).attention + 2 * (3 * 64 * 128) + 4 * 64


def test_attention_beside_a_recurrence_shares_its_norm_and_its_sum():
    model = replace(BASE, mixers=("both",), recurrent=KINDS[1])
    ops = layer_ops(shard(model), layer_kinds(model)[0])
    assert [op.name for op in ops].count("norm") == 2
    assert [op.name for op in ops].count("residual") == 2
    assert sum(op.params for op in ops) == count(model).layer("both", "dense")


def test_experts_where_the_pattern_says():
    moe = Moe(experts=8, top_k=2, expert_ffn=32)
    model = hybrid(KINDS[2], moe=moe, feeds=("dense", "experts"))
    assert [kind.moe for kind in layer_kinds(model)] == [False, True] * 4


def test_chunks_see_half_of_themselves():
    assert area(8192, 2048, chunked=True) == 1 / 8
    assert area(8192, 2048) == pytest.approx(0.25 * 7 / 8)
    assert area(1024, 2048, chunked=True) == 0.5


def test_a_gate_is_as_wide_as_the_queries():
    gated = replace(BASE, attention_gate=True)
    assert count(gated).attention - count(BASE).attention == 64 * 64
    held = [sum(op.params for op in layer_ops(shard(one), layer_kinds(one)[0])) for one in (BASE, gated)]
    assert held[1] - held[0] == 64 * 64


LATENT = replace(BASE, mla=Mla(kv_rank=32, nope_size=16, rope_size=8, value_size=16, q_rank=24))
SPARSE = replace(LATENT, sparse=Sparse(heads=4, head_size=8, top_k=64))


def test_sparse_attention_by_hand():
    """Queries 24 x 4 x 8, keys 64 x 8 with a norm of 16, weights 64 x 4."""
    assert count(SPARSE).attention - count(LATENT).attention == 24 * 32 + 64 * 8 + 16 + 64 * 4
    core = next(op for op in layer_ops(shard(SPARSE), layer_kinds(SPARSE)[0]) if op.name == "attention")
    # 64 of 256 keys, less what the first tokens lack; compressed keys of 32 and their rotary 8, compressed values
    assert core.shape == (8, 256, 256, 40, 32, 0.25 * (1 - 0.125), 1.0)
    held = sum(op.params for op in layer_ops(shard(SPARSE), layer_kinds(SPARSE)[0]))
    assert held == count(SPARSE).layer("attention", "dense")


def test_what_a_pattern_lacks_is_said():
    for model, words in (
        (replace(BASE, mixers=HYBRID), "mixers name recurrent layers"),
        (replace(BASE, recurrent=KINDS[0]), "names no recurrent layer"),
        (replace(BASE, feeds=("experts",)), "feeds name layers with experts"),
        (replace(BASE, mixers=("none",), feeds=("none",)), "neither mixes tokens nor has a feed-forward block"),
        (hybrid(replace(KINDS[1], state=0)), "has a state; give its size"),
        (hybrid(replace(KINDS[0], rank=0)), "low-rank projection; give its width"),
        (hybrid(replace(KINDS[1], key_heads=3)), "3 does not divide heads 8"),
        (replace(BASE, sparse=SPARSE.sparse), "chooses keys of latent attention"),
        (replace(BASE, chunked=True), "no layer has a window"),
    ):
        with pytest.raises(InputError, match=words):
            checked_model(model, "model.json")


@pytest.mark.parametrize("mixer", KINDS, ids=lambda one: one.kind)
def test_verbs_agree_on_hybrids(mixer):
    """What the search says of its answer is what an estimate of it says; unequal layers are cut where they balance."""
    model = hybrid(replace(mixer, heads=mixer.heads * 4, key_heads=mixer.key_heads * 4), layers=16, hidden=256)
    found = shardwise.plan(model, "8xh100", global_batch=32, seq=2048, time_limit=5)
    best = found.fastest
    again = shardwise.estimate(model, "8xh100", best.strategy)
    assert again.iteration_seconds == pytest.approx(best.iteration_seconds, rel=1e-9)


PLAN = Plan(
    model=hybrid(KINDS[5]), cluster=shardwise.load_cluster("8xh100"),
    strategy=Strategy(dp=8, micro_batch=1, global_batch=32, seq=2048),
)  # fmt: skip


@pytest.mark.parametrize("to", ["megatron", "torchtitan", "mindformers", "torch-pipelining", "deepspeed", "paddle"])
def test_no_file_trains_other_layers_than_planned(to):
    with pytest.raises(InfeasibleError, match=r"has conv layers|no architecture of transformers"):
        shardwise.export(PLAN, to)


def test_a_rehearsal_says_that_it_cannot_build_them():
    with pytest.raises(InputError, match="has conv layers: rehearse cannot build it yet"):
        shardwise.rehearse(PLAN, device="meta")


def test_intervals_know_that_no_such_layer_was_measured():
    wide, plain = (shardwise.estimate(model, PLAN.cluster, PLAN.strategy) for model in (PLAN.model, BASE))
    assert spread(*wide.total_bytes_interval) > spread(*plain.total_bytes_interval)
    assert spread(*wide.iteration_seconds_interval) > max(1.25**2, spread(*plain.iteration_seconds_interval))


def spread(low, high):
    return high / low


def test_pictures_know_recurrences():
    found = shardwise.estimate(PLAN.model, PLAN.cluster, PLAN.strategy)
    assert "attention and recurrence" in {part.name for part in found.time.leaves()}
    alone = shardwise.estimate("mamba2-2.7b", "8xh100", "mbs1 gbs64 seq4096")
    assert {"recurrence"} <= {part.name for part in alone.time.leaves()}
    assert {_OF[kind] for kind in get_args(Kind)} <= _KINDS.keys()
