"""Facts that make a model without moving its time or memory: norm epsilon, rotary scaling and share, routers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import DENSE, MOE

from shardwise.check.check import check
from shardwise.errors import InputError
from shardwise.estimate.estimate import estimate
from shardwise.frameworks.huggingface.read import read_config
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model, RopeScaling
from shardwise.inputs.serialise import to_dict
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.typed import validated

LLAMA3 = RopeScaling(kind="llama3", factor=8.0, original=8192)
STRATEGY = Strategy(tp=2, dp=4, micro_batch=1, global_batch=8, seq=2048, ep=1)


def with_facts(model: Model) -> Model:
    facts = {"norm_eps": 1e-6, "rope_scaling": LLAMA3, "rotary_share": 0.5}
    moe = model.moe and replace(
        model.moe, score="sigmoid", normalised=False, scale=2.5, balance_loss=0.01, balance_bias=True
    )
    return replace(model, moe=moe, **facts)


@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "moe"])
def test_they_move_neither_time_nor_memory(model):
    plain, changed = (estimate(one, load_cluster("8xh100"), STRATEGY) for one in (model, with_facts(model)))
    assert changed.iteration_seconds == plain.iteration_seconds
    assert changed.total_bytes == plain.total_bytes


@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "moe"])
def test_a_file_holds_them_and_leaves_defaults_out(model):
    """A plan of before has none of the keys, and must keep its id."""
    assert not {"norm_eps", "rotary_share", "rope_scaling"} & to_dict(model).keys()
    changed = with_facts(model)
    assert {"norm_eps", "rotary_share", "rope_scaling"} <= to_dict(changed).keys()
    assert validated(Model, to_dict(model)) == model
    assert validated(Model, to_dict(changed)) == changed


FORMER = {
    "name", "layers", "hidden", "heads", "kv_heads", "head_size", "ffn", "vocab", "activation", "norm", "position",
    "rotary_base", "max_positions", "tied", "qkv_bias", "out_bias", "mlp_bias", "head_bias", "qk_norm",
    "norms_per_layer", "parallel_residual", "embedding_norm", "embedding_size", "sinks", "windows", "mla", "moe", "mtp",
    "dropout",
}  # fmt: skip
FORMER_MOE = {
    "experts", "top_k", "expert_ffn", "shared_ffn", "first_dense", "every", "imbalance", "loads", "groups",
    "top_groups", "router_bias", "expert_bias", "shared_gate",
}  # fmt: skip


def test_what_was_added_since_is_quiet():
    """A plan's id is a hash of its file: a field that older files lack must be absent where it is at its default."""
    assert to_dict(MOE).keys() == FORMER
    assert to_dict(MOE)["moe"].keys() == FORMER_MOE


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"rope_scaling": RopeScaling(kind="yarn", factor=4.0)}, "model.rope_scaling.original"),
        ({"rope_scaling": replace(LLAMA3, low=8.0)}, "model.rope_scaling.low"),
        ({"rope_scaling": LLAMA3, "position": "none"}, "model.rope_scaling"),
        ({"rotary_share": 0.3}, "model.rotary_share"),
        ({"norm_eps": 0.0}, "model.norm_eps"),
    ],
)
def test_what_cannot_be_is_told(change, path):
    faults = check(replace(DENSE, **change), load_cluster("8xh100"), STRATEGY, load_runtime("megatron"))
    assert path in {fault.path for fault in faults}


def test_the_catalog_says_them():
    assert load_model("llama-3-8b").rope_scaling is None
    assert load_model("llama-3.1-8b").rope_scaling == LLAMA3
    assert load_model("llama-3.2-1b").rope_scaling == replace(LLAMA3, factor=32.0)
    assert load_model("qwen2.5-7b").norm_eps == 1e-6
    moe = load_model("deepseek-v3").moe
    assert moe is not None
    assert (moe.score, moe.normalised, moe.scale, moe.balance_bias) == ("sigmoid", True, 2.5, True)
    assert load_model("gpt-neox-20b").rotary_share == 0.25


_CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128,
    "intermediate_size": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({}, {"norm_eps": 1e-5, "rope_scaling": None, "rotary_share": 1.0}),
        ({"model_type": "qwen2"}, {"norm_eps": 1e-6}),
        ({"layer_norm_epsilon": 1e-6}, {"norm_eps": 1e-6}),
        ({"rotary_pct": 0.25}, {"rotary_share": 0.25}),
        ({"rotary_dim": 8}, {"rotary_share": 0.5}),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                              "original_max_position_embeddings": 8192}},
            {"rope_scaling": LLAMA3},
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, {"rope_scaling": RopeScaling(kind="linear", factor=2.0)}),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 4096},
            {"rope_scaling": RopeScaling(kind="dynamic", factor=2.0, original=4096)},
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}},
            {"rope_scaling": None, "rotary_base": 5e5, "rotary_share": 0.5},
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                                 "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
            {"rope_scaling": RopeScaling(kind="linear", factor=8.0), "rotary_base": 1e6},
        ),
    ],
)  # fmt: skip
def test_hugging_face(change, facts):
    read = read_config({**_CONFIG, **change})
    assert {name: getattr(read.model, name) for name in facts} == facts
    assert read.unknown == ()


def test_a_stretch_that_is_not_known_is_named():
    read = read_config({**_CONFIG, "rope_scaling": {"type": "longrope", "short_factor": [1.0]}})
    assert read.unknown == ("rope_scaling",)


_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"model_type": "mixtral", "router_aux_loss_coef": 0.02}, {"normalised": True, "balance_loss": 0.02}),
        ({"model_type": "qwen3_moe"}, {"normalised": False, "score": "softmax"}),
        ({"model_type": "qwen3_moe", "norm_topk_prob": True}, {"normalised": True}),
        (
            {"model_type": "deepseek_v3", "routed_scaling_factor": 2.5, "aux_loss_alpha": 0.001},
            {"score": "sigmoid", "scale": 2.5, "balance_bias": True, "balance_loss": 0.001, "normalised": True},
        ),
        (
            {"model_type": "deepseek_v2", "topk_method": "group_limited_greedy", "scoring_func": "softmax"},
            {"score": "softmax", "balance_bias": False, "normalised": False},
        ),
    ],
)
def test_routers_of_hugging_face(change, facts):
    moe = read_config({**_CONFIG, **_EXPERTS, **change}).model.moe
    assert {name: getattr(moe, name) for name in facts} == facts


def test_a_share_above_one_is_refused():
    with pytest.raises(InputError, match="partial_rotary_factor"):
        read_config({**_CONFIG, "partial_rotary_factor": 1.5})
