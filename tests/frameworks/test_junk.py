"""Files with junk in random places are read or refused with a sentence; nothing else comes out."""

from __future__ import annotations

import copy
import json
import random
import tomllib

import pytest
import yaml
from huggingface_cases import CASES
from test_frameworks import DEEPSPEED, MEGATRON, MINDFORMERS, TORCHTITAN
from test_simumax import DEEPSEEK, STRATEGY, SYSTEM

from shardwise.errors import InputError
from shardwise.frameworks.load import read_cluster, read_model, read_strategy
from shardwise.frameworks.read import read_framework
from shardwise.inputs.model import Model
from shardwise.inputs.parameters import count

JUNK = [None, True, 0, -1, 1, 2.5, "", "x", "8", [], [1, "a"], [[1], [2]], {}, {"a": 1}, 1e30, 10**12, "auto", [None]]
WORDS = ["", '"', "'", "$", "(", ")", "--", "0", "-1", "x", "\n", "--num-layers", "${A", "$((1*", "9" * 30, "²"]
OURS_MODEL = {
    "layers": 4, "hidden": 64, "heads": 8, "kv_heads": 2, "head_size": 8, "ffn": 128, "vocab": 1000,
    "moe": {"experts": 4, "top_k": 2, "expert_ffn": 8}, "windows": [1, 0],
}  # fmt: skip
OURS_CLUSTER = {
    "gpus": 64,
    "gpu": {"base": "h100", "memory": "80GB", "flops": {"bf16": "1TFLOPS", "fp32": 1.0}},
    "levels": [
        {"name": "a", "size": 8, "bandwidth": "1GB/s", "latency": "1us"},
        {"name": "b", "bandwidth": 1e9, "latency": 1e-6},
    ],
}
OURS_STRATEGY = {"tp": 8, "pp": 2, "recompute": "full:2", "layers": [1, 2], "lora": {"rank": 8}, "zero": 1}
FORMS = {
    "our model": (OURS_MODEL, read_model),
    "our cluster": (OURS_CLUSTER, read_cluster),
    "our strategy": (OURS_STRATEGY, read_strategy),
    "simumax model": (DEEPSEEK, read_model),
    "simumax strategy": (STRATEGY, read_strategy),
    "simumax system": (SYSTEM, read_cluster),
    "deepspeed": (DEEPSPEED, read_framework),
    "mindformers": (yaml.safe_load(MINDFORMERS), read_framework),
    "torchtitan": (tomllib.loads(TORCHTITAN), read_framework),
    **{f"hugging face {name}": (config, read_model) for name, (config, _, _) in list(CASES.items())[::4]},
}


def _spoilt(data, chance: random.Random):
    data = copy.deepcopy(data)
    for _ in range(chance.randint(1, 3)):
        at, key = data, None
        while isinstance(at, dict | list) and at:
            holder, key = at, chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
            at = holder[key] if chance.random() < 0.7 else None
        if key is not None:
            holder[key] = copy.deepcopy(chance.choice(JUNK))
    return data


def _read_or_refuse(read, path):
    try:
        found = read(path)
    except InputError as error:
        assert 0 < len(str(error)) < 20_000  # noqa: PT017 - a file that is read is as good
        return
    model = getattr(found, "model", None) or getattr(found, "value", None)
    if isinstance(model, Model):
        assert count(model).total > 0


@pytest.mark.parametrize("form", FORMS)
def test_spoilt_files(form, tmp_path):
    data, read = FORMS[form]
    chance = random.Random(form)  # noqa: S311 - a repeatable test
    for _ in range(40):
        path = tmp_path / "file.json"
        path.write_text(json.dumps(_spoilt(data, chance)))
        _read_or_refuse(read, path)


def test_spoilt_scripts(tmp_path):
    chance = random.Random(3)  # noqa: S311
    for _ in range(100):
        words = MEGATRON.split(" ")
        for _ in range(chance.randint(1, 6)):
            words[chance.randrange(len(words))] = chance.choice(WORDS)
        path = tmp_path / "train.sh"
        path.write_text(" ".join(words))
        _read_or_refuse(read_framework, path)
