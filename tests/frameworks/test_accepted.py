"""Every key of every export is one that its target takes, with a value of the kind that it takes."""

from __future__ import annotations

import json
import re
import tomllib

import export_accepted as accepted
import export_readers as readers
import pytest
import yaml
from test_random_plans import PLANS, exported
from test_real import CASES, plan_of

SAID = [*PLANS, *(plan_of(strategy, model) for strategy, model in CASES.values())]


def files(to):
    """The files of all plans that the target can say."""
    made = [made for made, _ in (exported(plan, to) for plan in SAID) if made is not None]
    assert len(made) > 10
    return [readers.texts(export) for export in made]


def megatron_fault(flag, words):
    if flag in accepted.MEGATRON_SWITCHES:
        return bool(words)
    if flag in accepted.MEGATRON_WHOLE:
        return len(words) != 1 or not words[0].isdigit()
    return not re.fullmatch(accepted.MEGATRON_PATTERNS.get(flag, "unknown flag"), " ".join(words))


def test_megatron():
    for texts in files("megatron"):
        flags = readers.flags_of_yaml(texts["model_config.yaml"])
        assert {flag: words for flag, words in flags.items() if megatron_fault(flag, words)} == {}


def test_deepspeed():
    for texts in files("deepspeed"):
        data = json.loads(texts["ds_config.json"])
        assert data.keys() <= accepted.DEEPSPEED
        assert data["zero_optimization"].keys() <= accepted.DEEPSPEED_ZERO


def test_mindformers_graph():
    for texts in files("mindformers@2.1-graph"):
        data = yaml.safe_load(texts["mindformers.yaml"])
        assert data["use_legacy"] is False
        assert data["parallel_config"].keys() <= accepted.MINDFORMERS_PARALLEL
        assert data["recompute_config"].keys() <= accepted.MINDFORMERS_RECOMPUTE
        model = data["model"]["model_config"]
        assert ("n_routed_experts" in model) == (
            model["model_type"] == "deepseek_v3" and "num_experts_per_tok" in model
        )


def test_mindformers_pynative():
    for texts in files("mindformers@2.1-pynative"):
        data = yaml.safe_load(texts["mindformers.yaml"])
        assert isinstance(data.pop("model")["architectures"], str)
        assert data.keys() == accepted.PYNATIVE.keys()
        assert all(table.keys() <= accepted.PYNATIVE[name] for name, table in data.items())


def test_paddle():
    for texts in files("paddle"):
        data = json.loads(texts["paddle.json"])
        assert data["enable_auto_parallel"] is True
        assert data.keys() <= accepted.PADDLE


def test_torchtitan_02():
    for texts in files("torchtitan@0.2"):
        data = tomllib.loads(texts["torchtitan.toml"])
        assert all(table.keys() <= accepted.TORCHTITAN_02[name] for name, table in data.items())


@pytest.mark.parametrize("version", ["0.3", "main"])
def test_torchtitan_python(version):
    for texts in files(f"torchtitan@{version}"):
        readers.torchtitan_settings(version, texts)  # a field that the classes lack is a TypeError
        assert "-m torchtitan.train --module shardwise_config --config shardwise" in texts["torchtitan.sh"]
