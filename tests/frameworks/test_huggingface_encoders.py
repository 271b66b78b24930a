"""Encoders, encoders with a decoder and vision towers: transformers builds as many parameters as we count."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.check.model import checked_model
from shardwise.errors import InputError
from shardwise.frameworks.huggingface.read import read_config
from shardwise.inputs.parameters import count

TEXT = {
    "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 4, "vocab_size": 1000,
}  # fmt: skip
SIGLIP = {
    "vision_use_head": False, "image_size": 896, "patch_size": 14, "hidden_size": 1152, "num_attention_heads": 16,
    "intermediate_size": 4304,
}  # fmt: skip
LLAMA4 = {"hidden_size": 1408, "vision_output_dim": 4096, "image_size": 336}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", {}),
    "roberta": ("RobertaForMaskedLM", {}),
    "xlm-roberta": ("XLMRobertaForMaskedLM", {}),
    "camembert": ("CamembertForMaskedLM", {}),
    "t5": ("T5ForConditionalGeneration", {}),
    "mt5": ("MT5ForConditionalGeneration", {}),
    "bart": ("BartForConditionalGeneration", {}),
    "whisper": ("WhisperForConditionalGeneration", {}),
    "vit": ("ViTForImageClassification", {}),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", {"vision_config": {"hidden_size": 2048}}),
    "qwen2_5_vl": (
        "Qwen2_5_VLForConditionalGeneration",
        {"vision_config": {"depth": 8, "hidden_size": 1280, "out_hidden_size": 2048}},
    ),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", {"vision_config": {"out_hidden_size": 2048}}),
    "qwen3_vl_moe": (
        "Qwen3VLMoeForConditionalGeneration", {"vision_config": {"out_hidden_size": 2048}, "num_experts": 8}
    ),
    "internvl": ("InternVLForConditionalGeneration", {"model_type": "qwen2"}),
    "llama4": ("Llama4ForConditionalGeneration", {"vision_config": LLAMA4, "intermediate_size_mlp": 2048}),
    "gemma3": ("Gemma3ForConditionalGeneration", {"vision_config": SIGLIP, "head_dim": 128}),
}  # fmt: skip
ALONE = ("bert", "roberta", "xlm-roberta", "camembert", "t5", "mt5", "bart", "whisper", "vit")


def config(kind):
    transformers = pytest.importorskip("transformers")
    more = dict(CASES[kind][1])
    vision = {"vision_config": more.pop("vision_config")} if "vision_config" in more else {}
    parts = {} if kind in ALONE else {"text_config": TEXT | more, **vision}
    return transformers.AutoConfig.for_model(kind, **parts)


@pytest.mark.parametrize("kind", CASES)
def test_transformers_builds_as_many_parameters_of_all_towers(kind):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    made = config(kind)
    found = read_config(made.to_dict(), name=kind)
    checked_model(found.model, kind)
    with torch.device("meta"):
        built = getattr(transformers, CASES[kind][0])(made)
    assert count(found.model).total == sum(one.numel() for one in built.parameters())
    assert not [note for note in found.notes if "is not known" in note or "only the language part was" in note]
    assert found.model.towers or found.model.stem or not found.model.causal


WHAT = {
    "qwen2_5_vl": ("vision", (64,) * 7 + (0,), False), "gemma3": ("vision", (), False), "t5": ("encoder", (), False),
    "whisper": ("encoder", (), False),
}  # fmt: skip


@pytest.mark.parametrize("kind", WHAT)
def test_a_tower_sees_all_of_its_tokens(kind):
    tower = read_config(config(kind).to_dict(), name=kind).model.towers[0]
    assert (tower.name, tower.windows, tower.causal) == WHAT[kind]


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("t5", {"d_ff": None}, "d_ff: is missing"),
        ("bert", {"num_attention_heads": 7}, "not a multiple of 7 heads"),
        ("vit", {"image_size": [224, 448]}, "is no square"),
        ("llama4", {"vision_config": {"hidden_size": 768, "vision_output_dim": 4096}}, "vision_config"),
        ("gemma3", {"vision_config": {"hidden_size": 1152}}, "vision_config.image_size: is missing"),
        ("pegasus", {}, "of others only bart, bert"),
    ],
)
def test_what_a_file_of_an_encoder_lacks_is_named(kind, changes, words):
    keys = config(kind).to_dict() if kind in CASES else {"model_type": kind, "vocab_size": 1000}
    with pytest.raises(InputError, match=words):
        read_config(keys | changes)


def test_a_tower_that_is_not_known_is_named_and_left_out():
    keys = {"model_type": "llava", "text_config": {**TEXT, "model_type": "llama"}, "vision_config": {"hidden_size": 8}}
    found = read_config(keys)
    assert not found.model.towers
    assert any("only the language part was read" in note and "vision_config" in note for note in found.notes)
