"""A model as config.json: read back it is the same model, and transformers builds as many parameters as we count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from start_models import small

import shardwise
from shardwise.errors import InfeasibleError
from shardwise.frameworks.huggingface.config import write_config
from shardwise.frameworks.huggingface.read import read_config
from shardwise.inputs.load import model_names
from shardwise.inputs.model import RopeScaling
from shardwise.inputs.parameters import count

REFUSED = {"deepseek-moe-16b", "deepseek-v3", "glm-4.5-355b", "glm-4.5-air"}
"""Shared experts beside plain attention and multi-token prediction: transformers has neither."""
NAMES = model_names()


def built(keys):
    """Parameters of the model that transformers makes of a config, on no device."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**keys)
    with torch.device("meta"):
        return sum(one.numel() for one in transformers.AutoModelForCausalLM.from_config(config).parameters())


def read(keys, model):
    """The model of a config, but for how transformers computes it."""
    found = read_config(keys, name=model.name).model
    windows = [found.window_of(layer) for layer in range(model.layers)]
    assert windows == [model.window_of(layer) for layer in range(model.layers)]
    return replace(found, fused_qkv=model.fused_qkv, gelu_steps=model.gelu_steps, windows=model.windows)


@pytest.mark.parametrize("name", NAMES)
def test_every_model_of_the_catalog(name):
    model = shardwise.load_model(name)
    if name in REFUSED or model.towers or not model.causal:
        with pytest.raises(InfeasibleError, match=f"no architecture of transformers that is known here is {name}: the"):
            write_config(model)
        return
    keys = write_config(model).keys
    assert read(keys, model) == model
    assert built(keys) == count(model).total


SCALINGS = (
    None, RopeScaling(kind="linear", factor=4.0), RopeScaling(kind="dynamic", factor=2.0, original=4096),
    RopeScaling(kind="llama3", factor=8.0, original=8192, high=3.0),
    RopeScaling(kind="yarn", factor=4.0, original=4096),
)  # fmt: skip


CHANGES = {
    "layers": (2, 4), "kv_heads": (1, 2, 4), "head_size": (8, 32), "ffn": (64, 256), "tied": (True, False),
    "activation": ("swiglu", "geglu", "gelu", "relu", "squared-relu"), "norm": ("rmsnorm", "layernorm"),
    "rotary_base": (1e4, 1e6), "norm_eps": (1e-5, 1e-6), "rotary_share": (1.0, 0.5), "rope_scaling": SCALINGS,
    "qkv_bias": (True, False), "out_bias": (True, False), "mlp_bias": (True, False), "head_bias": (True, False),
    "qk_norm": ("none", "head", "full"), "norms_per_layer": (1, 2, 4), "parallel_residual": (True, False),
    "windows": ((), (64,), (64, 0)), "position": ("rope", "alibi", "learned"), "dropout": (0.0, 0.1), "mtp": (0, 1),
    "embedding_norm": (True, False), "sinks": (True, False),
}  # fmt: skip
ROUTED = {
    "expert_ffn": (32, 16), "shared_ffn": (0, 64), "first_dense": (0, 1, 2), "every": (1, 2),
    "normalised": (True, False),
    "balance_loss": (0.0, 0.01), "shared_gate": (True, False), "score": ("softmax", "sigmoid"), "scale": (1.0, 2.5),
    "groups": (1, 2), "balance_bias": (True, False), "router_bias": (True, False), "expert_bias": (True, False),
}  # fmt: skip


@st.composite
def models(draw):
    """A small model of the catalog's kind, with none, one or two facts of it changed."""
    changed = {}
    for name in draw(st.lists(st.sampled_from(sorted(CHANGES)), max_size=2)):
        changed[name] = draw(st.sampled_from(CHANGES[name]))
    if changed.get("position") == "learned":
        changed["max_positions"] = 128
    found = small(draw(st.sampled_from(NAMES)), **changed)
    if not found.moe:
        return found
    names = draw(st.lists(st.sampled_from(sorted(ROUTED)), max_size=2))
    return replace(found, moe=replace(found.moe, **{name: draw(st.sampled_from(ROUTED[name])) for name in names}))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(model=models())
def test_a_model_that_is_drawn(model):
    try:
        keys = write_config(model).keys
    except InfeasibleError as error:
        assert "the nearest" in str(error)  # noqa: PT017 - refused is as good as read back
        return
    assert read(keys, model) == model
    assert built(keys) == count(model).total


def test_a_rhythm_of_windows_longer_than_the_model():
    model = small("gemma-3-1b", layers=4)
    keys = write_config(model).keys
    assert keys["layer_types"] == ["sliding_attention"] * 4
    assert built(keys) == count(model).total


def test_what_the_data_does_to_the_router_is_no_fact_of_the_model():
    model = shardwise.load_model("mixtral-8x7b")
    uneven = replace(model, moe=replace(model.moe, imbalance=1.3, loads=(1.0,) * 8))
    assert write_config(uneven).keys == write_config(model).keys
