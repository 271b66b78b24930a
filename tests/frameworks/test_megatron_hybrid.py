"""Hybrids for Megatron-LM: the pattern of blocks with a bar where a stage ends, written and read back the same."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import shardwise
from shardwise.errors import InfeasibleError, InputError
from shardwise.frameworks.megatron.hybrid import chunk_layers, pattern_of
from shardwise.frameworks.megatron.read import read_arguments
from shardwise.inputs.strategy import Strategy
from shardwise.plan.plan import Plan

NEMOTRON = Strategy(
    tp=2, pp=4, vpp=2, dp=8, sp=True, zero=1, micro_batch=1, global_batch=128, seq=4096, schedule="interleaved",
    layers=(5, 7, 7, 7, 7, 7, 7, 5),
)  # fmt: skip
NEXT = Strategy(
    pp=4, dp=16, ep=16, zero=1, micro_batch=1, global_batch=256, seq=4096, layers=(11, 13, 13, 11), schedule="1f1b"
)


def plan_of(name, strategy):
    return Plan(model=shardwise.load_model(name), cluster=shardwise.load_cluster("64xh100"), strategy=strategy)


@pytest.mark.parametrize(
    ("name", "strategy", "pattern"),
    [
        ("nemotron-h-8b", NEMOTRON, "M-M-M|-M*-M-M|"),
        ("nemotron-h-8b", replace(NEMOTRON, pp=1, vpp=1, dp=32, schedule="1f1b", layers=()), "M-M-M-M*-"),
        ("nemotron-3-nano", replace(NEMOTRON, ep=8), "MEMEM|*EMEMEM|*"),
        ("qwen3-next", NEXT, "GEGEGE*E" * 2 + "GEGEGE|*EGE"),
    ],
)
def test_the_script_is_the_plan(name, strategy, pattern):
    plan = plan_of(name, strategy)
    written = shardwise.export(plan, "megatron")
    script = next(file for file in written.files if file.name == "train.sh")
    said = re.search(r"--hybrid-layer-pattern '?([^'\n]*)", script.text)[1]
    assert said.startswith(pattern)
    assert said == pattern_of(plan.model, strategy.layers or (plan.model.layers,))
    assert "pretrain_hybrid.py" in script.text
    assert "--pipeline-model-parallel-layout" not in script.text
    assert "--num-virtual-stages" not in script.text
    again = read_arguments(script.text)
    wanted = shardwise.estimate(plan.model, plan.cluster, plan.strategy)
    found = shardwise.estimate(again.model, plan.cluster, replace(plan.strategy, layers=again.strategy.layers))
    assert (again.model.mixers, again.model.feeds) == (plan.model.mixers, plan.model.feeds)
    assert again.strategy.vpp == strategy.vpp
    assert found.iteration_seconds == pytest.approx(wanted.iteration_seconds, rel=2e-3)


def test_bars_count_layers():
    assert chunk_layers("M-M*|-M-M") == (4, 4)
    assert chunk_layers("'GEGE|*EGE'") == (2, 2)
    assert chunk_layers("M-M*-") == ()


@pytest.mark.parametrize(
    ("name", "to", "words"),
    [
        ("jamba", "megatron", "Megatron-LM has no mamba layers"),
        ("kimi-linear", "megatron", "Megatron-LM has no kda layers"),
        ("nemotron-h-8b", "megatron@0.18", "cuts hybrids evenly; export to megatron@main"),
        ("nemotron-h-8b", "megatron-bridge", "which we do not write for it yet"),
        ("nemotron-h-8b", "torchtitan", "which we do not write for it yet"),
        ("deepseek-v3.2", "megatron", "Megatron-LM has none of these"),
    ],
)
def test_what_cannot_be_written_is_refused(name, to, words):
    plan = plan_of(name, Strategy(dp=64, zero=1, micro_batch=1, global_batch=64, seq=4096))
    with pytest.raises(InfeasibleError, match=words):
        shardwise.export(plan, to)


SCRIPT = """torchrun pretrain_hybrid.py --num-layers 6 --hidden-size 256 --num-attention-heads 4 --bf16 \\
 --seq-length 512 --micro-batch-size 1 --global-batch-size 8 --vocab-size 1000 --disable-bias-linear \\
 --hybrid-layer-pattern {}
"""


def test_a_script_of_a_stranger():
    model = read_arguments(SCRIPT.format("M-M-*-/M-")).model
    assert (model.layers, model.mixers) == (3, ("recurrent", "recurrent", "attention"))
    assert (model.recurrent.heads, model.recurrent.head_size) == (8, 64)
    with pytest.raises(InputError, match="letters Q, X are not known"):
        read_arguments(SCRIPT.format("MXQ-"))
