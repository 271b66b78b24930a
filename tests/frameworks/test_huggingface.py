from __future__ import annotations

import json

import pytest
from huggingface_cases import CASES

from shardwise.errors import InputError
from shardwise.frameworks.huggingface.read import read_config
from shardwise.frameworks.load import load_model, read_model
from shardwise.inputs.parameters import count

LLAMA = CASES["llama-3-8b"][0]


def test_at_least_25_families():
    assert len({config["model_type"] for config, _, _ in CASES.values()}) >= 25


@pytest.mark.parametrize("name", CASES)
def test_the_published_count_is_reached(name):
    config, published, source = CASES[name]
    read = read_config(config, name=name)
    assert count(read.model).main / 1e9 == pytest.approx(published, rel=0.005), source
    assert read.unknown == ()


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "mistral-7b", "mixtral-8x7b", "qwen2.5-7b", "qwen3-30b-a3b", "deepseek-v3",
        "gpt-oss-20b", "kimi-k2"]
)  # fmt: skip
def test_a_config_and_the_catalog_agree(name):
    ours = load_model(name)
    theirs = read_config(CASES[name][0], name=ours.name).model
    assert theirs == ours


def test_windows():
    assert read_config(CASES["gemma-3-12b"][0]).model.windows == (1024,) * 5 + (0,)
    assert read_config(CASES["gpt-oss-20b"][0]).model.windows == (128, 0)
    assert read_config(CASES["mistral-7b"][0]).model.windows == (4096,)
    assert read_config(
        {**CASES["qwen2.5-7b"][0], "use_sliding_window": True, "max_window_layers": 27}
    ).model.windows == (0,) * 27 + (131072,)


def test_multi_token_prediction_and_head_size():
    model = read_config(CASES["deepseek-v3"][0]).model
    assert (model.mtp, model.head_size, model.mla.rope_size) == (1, 128, 64)
    assert read_config(CASES["mistral-nemo"][0]).model.head_size == 128


def test_an_unknown_architecture_says_what_was_not_understood():
    read = read_config({**LLAMA, "model_type": "novamind", "flux_capacitor": 3, "gigawatts": 1.21})
    assert read.unknown == ("flux_capacitor", "gigawatts")
    assert "novamind" in read.notes[0]
    assert "flux_capacitor, gigawatts" in read.notes[1]


def test_missing_fields_are_all_named_at_once():
    with pytest.raises(InputError) as caught:
        read_config({"model_type": "llama", "hidden_act": "silu"})
    assert [fault.path for fault in caught.value.faults] == [
        "num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "zamba", "attn_layer_period": 8, "mamba_d_state": 16}, ["attn_layer_period", "mamba_d_state"]),
        ({"layer_types": ["linear_attention", "full_attention"]}, ["linear_attention"]),
        ({"model_type": "pegasus"}, ["causal"]),
        ({"num_hidden_layers": "32"}, ["num_hidden_layers", "'32'"]),
        ({"num_hidden_layers": True}, ["num_hidden_layers", "truth value true"]),
        ({"num_key_value_heads": 7}, ["7", "32"]),
        ({"intermediate_size": None}, ["intermediate_size"]),
        ({"num_local_experts": 8}, ["num_experts_per_tok", "8"]),
        ({"kv_lora_rank": 512}, ["qk_nope_head_dim", "v_head_dim"]),
    ],
)
def test_what_cannot_be_counted_is_refused(change, words):
    with pytest.raises(InputError) as caught:
        read_config({**LLAMA, **change})
    assert all(word in str(caught.value) for word in words)


def test_a_folder_with_a_config(tmp_path):
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    loaded = read_model(folder)
    assert loaded.value.name == "my-model"
    assert [note.split(":")[0] for note in loaded.notes] == ["without effect on sizes and times"]
    assert load_model(folder / "config.json").layers == 32
