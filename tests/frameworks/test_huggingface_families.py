"""Every architecture that is read: transformers builds as many parameters of its own config as we count."""

from __future__ import annotations

import pytest

from shardwise.check.model import checked_model
from shardwise.errors import InputError
from shardwise.frameworks.huggingface.read import read_config
from shardwise.inputs.parameters import count

DENSE = """
aria_text arcee bloom codegen cohere cohere2 cwm emu3 ernie4_5 exaone4 falcon gemma gemma2 gemma3_text glm glm4 gpt-sw3
gpt2 gpt_bigcode gpt_neo gpt_neox gptj granite helium hyperclovax jais2 llama minicpm3 ministral3 mistral nanochat olmo
olmo2 olmo3 opt phi phi3 qwen2 qwen3 seed_oss smollm3 stablelm starcoder2 vaultgemma youtu biogpt
"""
EXPERTS = """
exaone_moe flex_olmo glm4_moe_lite gpt_oss granitemoe granitemoeshared llama4_text mellum minimax_m2 mixtral
olmoe phimoe qwen2_moe qwen3_moe solar_open
"""
MIXED = """
bamba deepseek_v32 falcon_h1 falcon_mamba glm_moe_dsa granitemoehybrid jamba kimi_linear lfm2 mamba mamba2 minimax
nemotron_h olmo_hybrid qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next
"""
TYPES = [*DENSE.split(), *EXPERTS.split(), *MIXED.split()]
LISTED = {"nemotron_h", "gpt_neo", "qwen3_5", "qwen3_5_moe"}
"""Whose layers are a list or stand in an inner config: built as deep as their defaults."""


def config(kind, **changes):
    transformers = pytest.importorskip("transformers")
    depth = {} if kind in LISTED else {"num_hidden_layers": 8}
    return transformers.AutoConfig.for_model(kind, **depth, **changes)


def built(made):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    with torch.device("meta"):
        return sum(one.numel() for one in transformers.AutoModelForCausalLM.from_config(made).parameters())


def test_there_are_as_many_as_said():
    assert len(set(TYPES)) == len(TYPES) >= 80


@pytest.mark.parametrize("kind", TYPES)
def test_transformers_builds_as_many_parameters(kind):
    made = config(kind)
    found = read_config(made.to_dict(), name=kind)
    checked_model(found.model, kind)
    assert count(found.model).total == built(made)
    assert not [note for note in found.notes if "is not known" in note]


KIMI = {
    "model_type": "kimi_linear", "num_hidden_layers": 8, "hidden_size": 256, "intermediate_size": 512,
    "vocab_size": 1000, "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "num_experts": 8, "num_experts_per_token": 2, "moe_intermediate_size": 64,
    "num_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1,
}  # fmt: skip
TABLE = {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7], "head_dim": 32, "num_heads": 4,
         "short_conv_kernel_size": 4}  # fmt: skip


def test_the_file_that_kimi_published_counts_from_one():
    model = read_config({**KIMI, "linear_attn_config": TABLE}).model
    assert model.mixers == ("recurrent", "recurrent", "recurrent", "attention")
    assert (model.recurrent.kind, model.recurrent.rank) == ("kda", 32)


def test_signs_of_nemotron():
    keys = {
        "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-E/ME", "hidden_size": 256, "vocab_size": 1000,
        "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "mamba_num_heads": 8, "mamba_head_dim": 32, "ssm_state_size": 64, "n_groups": 2, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 64, "moe_shared_expert_intermediate_size": 96,
    }  # fmt: skip
    model = read_config(keys).model
    assert model.layers == 6
    assert model.mixers == ("recurrent", "none", "recurrent", "attention", "none", "none")
    assert model.feeds == ("none", "dense", "none", "none", "dense", "experts")
    assert model.moe.shared_ffn == 96


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("qwen3_next", {"layer_types": ["linear_attention", "wavelets"]}, "names 2 layers, the model has 8"),
        ("qwen3_next", {"layer_types": ["linear_attention"] * 7 + ["wavelets"]}, "wavelets cannot be counted yet"),
        ("qwen3_next", {"linear_num_value_heads": None}, "linear_num_value_heads: is missing"),
        ("nemotron_h", {"layers_block_type": ["mamba", "tree"]}, "tree cannot be counted yet"),
        ("nemotron_h", {"moe_latent_size": 64}, "experts behind a narrower projection"),
        ("recurrent_gemma", {}, "cannot be counted yet"),
    ],
)
def test_what_cannot_be_counted_is_named(kind, changes, words):
    keys = config(kind).to_dict() | changes
    with pytest.raises(InputError, match=words):
        read_config(keys)
