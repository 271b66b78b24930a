"""Operators of a layer: parameters, operations, kept bytes, and laws between strategies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.cost.activations import plain_walk, selective_walk
from shardwise.estimate.mfu import model_flops
from shardwise.frameworks.load import load_model
from shardwise.inputs.load import load_runtime, model_names
from shardwise.inputs.model import Model
from shardwise.inputs.parameters import count
from shardwise.inputs.strategy import Strategy
from shardwise.ops.embedding import embedding, head
from shardwise.ops.layer import layer_kinds, layer_ops
from shardwise.ops.shard import shard_of

UNPADDED = load_runtime("torchtitan")
TOY = Model(name="toy", layers=2, hidden=1024, heads=8, kv_heads=8, head_size=128, ffn=4096, vocab=32000)


def all_ops(model, strategy=None, runtime=UNPADDED):
    shard = shard_of(model, strategy or Strategy(seq=2048), runtime)
    layers = [op for kind in layer_kinds(model) for op in layer_ops(shard, kind)]
    # a multi-token-prediction layer has a final norm of its own and shares the output matrix
    extra = model.mtp * head(shard, own_weights=False)
    first = shard.of(model.towers[0].name) if model.towers else shard  # the model's own stands where its layers begin
    return [*embedding(first), *layers, *head(shard, own_weights=not model.tied), *extra]


@pytest.mark.parametrize("name", model_names())
def test_parameters_add_up_to_the_model(name):
    """On one rank the operators hold every parameter of the model, once."""
    model = load_model(name)
    assert sum(op.params for op in all_ops(model)) == pytest.approx(count(model).total, rel=1e-9)


@pytest.mark.parametrize("name", ["gpt3-175b", "llama-3-8b", "llama-3-70b", "mixtral-8x7b", "qwen3-8b", "deepseek-v2"])
def test_operations_add_up_to_the_model(name):
    """F + I + W of matrix products and attention; attention's backward computes its scores once more."""
    model = replace(load_model(name), mtp=0)
    seq = 2048
    found = again = 0.0
    for op in all_ops(model, Strategy(seq=seq)):
        f, i, w = op.flops()
        found += f + i + w
        if op.kind == "attention":
            again += 2.0 * op.shape[0] * op.shape[1] * op.shape[2] * op.shape[5] * op.shape[3]
    assert (found - again) / seq == pytest.approx(model_flops(model, seq, causal=True), rel=5e-3)


class TestByHand:
    def test_a_dense_layer(self):
        shard = shard_of(TOY, Strategy(seq=512), UNPADDED)
        ops = {f"{op.module} {op.name}": op for op in layer_ops(shard, layer_kinds(TOY)[0])}
        assert ops["attention qkv"].params == 3 * 1024 * 1024
        assert ops["attention output"].shape == (512, 1024, 1024)
        assert ops["mlp up"].params == 2 * 1024 * 4096
        assert ops["mlp down"].kept == 2 * 512 * 4096  # bf16
        assert ops["mlp-norm norm"].params == 1024

    def test_korthikanti(self):
        """Per layer s b h (34 + 5 a s / h) with dropout and stored scores (Korthikanti et al. 2022, eq. 2)."""
        model = replace(
            TOY, ffn=4096, activation="gelu", norm="layernorm", dropout=0.1, position="learned", max_positions=2048,
            qkv_bias=True, out_bias=True, mlp_bias=True,
        )  # fmt: skip
        seq = 2048
        shard = shard_of(model, Strategy(seq=seq, flash=False), UNPADDED)
        kept = plain_walk(layer_ops(shard, layer_kinds(model)[0])).kept
        assert kept == pytest.approx(seq * 1024 * (34 + 5 * 8 * seq / 1024), rel=0.03)

    def test_flash_keeps_no_scores(self):
        flash, stored = (
            plain_walk(layer_ops(shard_of(TOY, Strategy(seq=4096, flash=on), UNPADDED), layer_kinds(TOY)[0])).kept
            for on in (True, False)
        )
        assert stored - flash == pytest.approx(5 * 8 * 4096**2, rel=0.01)

    def test_experts_are_spread_over_their_ranks(self):
        model = load_model("mixtral-8x7b")
        one, eight = (
            sum(op.params for op in all_ops(model, Strategy(seq=1024, dp=8, ep=ep)) if op.expert) for ep in (1, 8)
        )
        assert one == 8 * eight


tps = st.sampled_from([1, 2, 4, 8])
seqs = st.sampled_from([1024, 2048, 8192])
names = st.sampled_from(["llama-3-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v2"])
runtimes = st.sampled_from(["megatron", "megatron-local"]).map(load_runtime)


def layer_walks(name, strategy, runtime):
    model = load_model(name)
    shard = shard_of(model, strategy, runtime)
    return [plain_walk(layer_ops(shard, kind)) for kind in dict.fromkeys(layer_kinds(model))]


@settings(deadline=None, max_examples=40)
@given(names, tps, seqs, st.booleans(), runtimes)
def test_more_tensor_parallel_never_keeps_more(name, tp, seq, sp, runtime):
    narrow = layer_walks(name, Strategy(tp=tp, seq=seq, sp=sp), runtime)
    wide = layer_walks(name, Strategy(tp=2 * tp, seq=seq, sp=sp), runtime)
    for one, other in zip(narrow, wide, strict=True):
        assert other.kept <= one.kept * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(names, tps, seqs, runtimes)
def test_sequence_parallel_never_keeps_more(name, tp, seq, runtime):
    without = layer_walks(name, Strategy(tp=tp, seq=seq, sp=False), runtime)
    for one, other in zip(without, layer_walks(name, Strategy(tp=tp, seq=seq), runtime), strict=True):
        assert other.kept <= one.kept * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(
    names, tps, runtimes,
    st.frozensets(st.sampled_from(["attention", "core-attention", "mlp", "mlp-norm", "activation", "moe-act"])),
)  # fmt: skip
def test_recompute_never_keeps_more(name, tp, runtime, modules):
    model = load_model(name)
    shard = shard_of(model, Strategy(tp=tp, seq=2048), runtime)
    for kind in dict.fromkeys(layer_kinds(model)):
        ops = layer_ops(shard, kind)
        assert selective_walk(ops, modules).kept <= plain_walk(ops).kept * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(names, st.sampled_from([2, 4]), seqs)
def test_tokens_scale_what_is_kept(name, factor, seq):
    one = layer_walks(name, Strategy(seq=seq), UNPADDED)
    more = layer_walks(name, Strategy(seq=seq, micro_batch=factor), UNPADDED)
    for single, several in zip(one, more, strict=True):
        assert several.kept == pytest.approx(factor * single.kept, rel=0.01)


def test_inputs_of_which_backward_needs_the_shape_alone_are_not_kept():
    """PaddlePaddle's `no_need_buffer`: an addition reads no values again, an embedding only the tokens' numbers."""
    ops, tokens = all_ops(TOY), 2048
    assert {op.kept for op in ops if op.name == "residual"} == {0.0}
    assert {op.kept for op in ops if op.name == "embedding"} == {16.0 * tokens}
    counted = [op._replace(kept=op.kept + (2.0 * tokens * TOY.hidden if op.name == "residual" else 0.0)) for op in ops]
    assert plain_walk(counted).backward > plain_walk(ops).backward
