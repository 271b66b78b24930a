"""What makes a model besides its shape reaches the framework, or is said to be lost.

Rotary base, norm epsilon, rotary scaling and router settings were not in the Model once: Megatron-LM trained another
model than the planned one, with a rotary base of 10,000 in place of 1,000,000, and nothing said so.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace

import export_readers as readers
import pytest
from export_plans import DENSE, EXPERTS, plan_of

from shardwise.errors import InfeasibleError
from shardwise.frameworks.export import export
from shardwise.frameworks.huggingface.read import read_config
from shardwise.frameworks.load import load_model
from shardwise.frameworks.megatron.hybrid import SIZES
from shardwise.frameworks.read import read_content
from shardwise.inputs.load import model_names
from shardwise.inputs.model import RopeScaling
from shardwise.inputs.strategy import Strategy

ONE = Strategy(dp=8, global_batch=8, seq=1024)
NEVER_SAID = {"name", "heads", "kv_heads", "head_size", "max_positions", "ffn"}
"""Read back another way where latent attention, experts or rotary positions leave them idle; others hold them."""


def differing(ours, read):
    """Fields that are not alike, those of experts by their own names."""
    for one in fields(ours):
        mine, theirs = getattr(ours, one.name), getattr(read, one.name)
        if one.name in {"moe", "recurrent"} and mine and theirs:
            yield from (f"{one.name}.{name}" for name in differing(mine, theirs))
        elif mine != theirs and one.name not in NEVER_SAID:
            yield one.name


@pytest.mark.parametrize("to", ["megatron@main", "megatron@0.18", "megatron-bridge"])
@pytest.mark.parametrize("name", model_names())
def test_every_model_of_the_catalog_comes_back_from_megatron(name, to):
    model = load_model(name)
    if model.beyond and (to != "megatron@main" or not model.recurrent or model.recurrent.kind not in SIZES):
        with pytest.raises(InfeasibleError, match=model.beyond[0]):  # it would train another model
            export(plan_of(ONE, model), to)
        return
    made = export(plan_of(ONE, model), to)
    file = "bridge.yaml" if to == "megatron-bridge" else "train.sh"
    read = read_content(readers.texts(made)[file], file).model
    lost = {fault.path.removeprefix("model.") for fault in made.losses}
    assert set(differing(model, read)) <= lost | {"moe.imbalance", "moe.loads"}


FACTS = replace(
    DENSE, rotary_base=1_000_000.0, norm_eps=1e-6, rotary_share=0.5,
    rope_scaling=RopeScaling(kind="llama3", factor=8.0, original=8192),
)  # fmt: skip
YARN = RopeScaling(kind="yarn", factor=32.0, original=8192, beta_fast=16.0, beta_slow=2.0, truncate=False)


def written(model, to="megatron"):
    made = export(plan_of(ONE, model), to)
    return made, readers.flags_of_yaml(readers.texts(made)["model_config.yaml"])


def test_megatron_is_told_what_makes_the_model():
    made, flags = written(FACTS)
    assert not made.losses
    said = {name: " ".join(flags[name]) for name in ("rotary-base", "norm-epsilon", "rotary-percent")}
    assert {name: float(value) for name, value in said.items()} == {
        "rotary-base": 1e6,
        "norm-epsilon": 1e-6,
        "rotary-percent": 0.5,
    }
    assert "use-rope-scaling" in flags


@pytest.mark.parametrize(
    ("scaling", "to", "told"),
    [
        (RopeScaling(kind="llama3", factor=32.0, original=8192), "megatron", "trains with 8"),
        (RopeScaling(kind="dynamic", factor=2.0, original=4096), "megatron", "dynamic by 2"),
        (RopeScaling(kind="linear", factor=2.5), "megatron", "linear by 2.5"),
        (RopeScaling(kind="linear", factor=4.0), "megatron", ""),
        (RopeScaling(kind="linear", factor=4.0), "megatron@0.18", "linear by 4"),
        (YARN, "megatron@0.19", ""),
        (YARN, "megatron@0.18", "yarn by 32"),
    ],
)
def test_a_stretch_that_megatron_cannot_say_is_told(scaling, to, told):
    made, _ = written(replace(DENSE, rope_scaling=scaling), to)
    losses = [str(fault) for fault in made.losses]
    assert len(losses) == bool(told)
    assert all(told in line for line in losses)


def test_routers():
    moe = replace(EXPERTS.moe, score="sigmoid", scale=2.5, balance_bias=True, balance_loss=1e-4, groups=4, top_groups=2)
    made, flags = written(replace(EXPERTS, moe=moe))
    assert not made.losses
    assert flags["moe-router-score-function"] == ["sigmoid"]
    assert flags["moe-router-topk-scaling-factor"] == ["2.5"]
    assert flags["moe-router-load-balancing-type"] == ["aux_loss"]
    assert "moe-router-enable-expert-bias" in flags
    made, flags = written(replace(EXPERTS, moe=replace(EXPERTS.moe, normalised=False, balance_bias=True)))
    assert "moe-router-pre-softmax" in flags
    assert [fault.path for fault in made.losses] == ["model.moe.balance_bias"]


def test_without_transformer_engine_attention_is_not_flash():
    """`--use-flash-attn` is parsed and never read there: predicted 37.4 GiB, measured 78.2."""
    plan = plan_of(replace(ONE, runtime="megatron-local"), DENSE)
    made = export(plan, "megatron")
    flags = readers.flags_of_yaml(readers.texts(made)["model_config.yaml"])
    assert "use-flash-attn" not in flags
    assert {"no-persist-layer-norm", "no-masked-softmax-fusion", "no-rope-fusion"} <= flags.keys()
    (loss,) = made.losses
    assert (loss.path, made.strategy.flash) == ("strategy.flash", False)
    assert "by the estimate" in loss.message
    with pytest.raises(InfeasibleError, match=r"sequence parallel.*\n.*|latent attention"):
        export(plan_of(replace(ONE, tp=2, dp=4, runtime="megatron-local", flash=False), EXPERTS), "megatron")


def test_the_script_says_what_is_missing(tmp_path):
    import subprocess

    made = export(plan_of(ONE), "megatron")
    for file in made.files:
        (tmp_path / file.name).write_text(file.text)
    done = subprocess.run(
        ["bash", tmp_path / "train.sh"], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 2
    assert "set MEGATRON" in done.stderr


@pytest.mark.parametrize("to", ["megatron", "megatron-bridge", "mindformers", "paddle"])
def test_what_gemma_has_beyond_others_is_told(to):
    lost = {fault.path for fault in export(plan_of(ONE, load_model("gemma-3-27b")), to).losses}
    assert {"model.window_rotary_base", "model.embedding_scaled", "model.query_scalar", "model.norm_offset"} <= lost
    lost = {fault.path for fault in export(plan_of(ONE, load_model("gemma-2-2b")), to).losses}
    assert {"model.score_cap", "model.logit_cap"} <= lost


@pytest.mark.parametrize("name", ["gemma-2b", "gemma-2-27b", "gemma-3-27b"])
def test_gemma_comes_back_from_hugging_face(name):
    made = readers.texts(export(plan_of(ONE, load_model(name)), "huggingface"))
    assert read_config(json.loads(made["config.json"]), name=name).model == load_model(name)


def test_caps_on_scores_need_them_stored():
    for to in ("huggingface", "torch-pipelining"):
        made = export(plan_of(ONE, load_model("gemma-2-2b")), to)
        assert "strategy.flash" in {fault.path for fault in made.losses}
        assert made.strategy is not None
        assert not made.strategy.flash


def test_mindformers_norms_queries_whatever_the_model_has():
    with pytest.raises(InfeasibleError, match=r"model\.qk_norm: qwen3 norms queries and keys of each head"):
        export(plan_of(ONE, DENSE), "mindformers", strict=True)


def test_paddle_refuses_what_is_no_llama():
    with pytest.raises(InfeasibleError, match=r"model\.moe: this program trains Llama, which has no experts; export"):
        export(plan_of(ONE, EXPERTS), "paddle")
    with pytest.raises(InfeasibleError, match="no latent attention"):
        export(plan_of(ONE, load_model("deepseek-v2-lite")), "paddle")


@pytest.mark.parametrize(("to", "zero"), [("huggingface", 1), ("huggingface", 3), ("torch-pipelining", 3)])
def test_states_spread_over_one_rank_are_not_spread(to, zero):
    """FSDP on one GPU costs time for nothing; that zero 3 would save 16-bit weights is told."""
    made = export(plan_of(Strategy(dp=1, zero=zero, global_batch=2, seq=1024), load_model("qwen3-0.6b")), to)
    assert made.strategy.zero == 0
    assert [fault.path for fault in made.losses] == ["strategy.zero"] * (zero == 3)
    assert "(runtime" in made.as_written
