"""Facts of operators are data: fp32 weights have no fp32 copy, and a name says nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwise.errors import InputError
from shardwise.frameworks.aceso.read_profile import read_profile
from shardwise.frameworks.aceso.write_profile import write_profile
from shardwise.per_op.evaluate import evaluate
from shardwise.per_op.profiles.table import MB
from shardwise.per_op.question import OperatorLayout, PerOpPlan, SplitStage
from shardwise.per_op.search import search

from .conftest import profile, question, random_profile

RESNET = ("conv1", "bn1", "relu1", "fc")
INPUTS, OUTPUTS, WEIGHTS, KEPT = (12, 40, 40, 20), (40, 40, 20, 1), (8, 1, 0, 30), (50, 40, 20, 2)
FORWARD_RESERVED, BACKWARD_RESERVED = (6, 2, 1, 900), (10, 3, 1, 900)


def image(**more):
    """A Wide-ResNet of four operators on one GPU; MB, and 1 ms for every pass of every operator."""
    columns = ((1000,) * 4, (1000,) * 4, INPUTS, OUTPUTS, WEIGHTS, KEPT, FORWARD_RESERVED, BACKWARD_RESERVED)
    values = np.array(columns, dtype=float).reshape(8, 1, 1, 1, 4)
    return profile(values, ops=RESNET, micro_batches=(1,), tps=(1,), name="resnet_small", whole=True, **more)


def memory_of(found):
    asked = question(found, gpus=1, node=1)
    stage = SplitStage(gpus=1, layouts=(OperatorLayout(1, 1),) * 4, recompute=(False,) * 4)
    return evaluate(asked, PerOpPlan(stages=(stage,), samples=1)).memory[0] / MB


def test_the_memory_of_an_fp32_model_by_hand():
    """Weights, gradients and two moments in fp32: 4 x 39 MB. Kept: the input and all activations but bn1's, whose
    tensor relu1 shares: 12 + 50 + 20 + 2. Reserved: the largest of both passes, the last operator left out: 6 + 10, but
    never less than the weights' 39. In all 156 + 84 + 39.
    """
    assert memory_of(image()) == pytest.approx(156 + 84 + 39)


def test_the_same_weights_in_fp16_have_an_fp32_copy():
    """2 bytes each of weight and gradient, 4 of the copy, 8 of moments: 8 x 39 MB."""
    assert memory_of(image(tags={"dtype": "fp16"})) == pytest.approx(8 * 39 + 84 + 39)


def named(mlp):
    ops = ("start", "norm", mlp, "drop", "end")
    kinds = {"start": "embedding", "norm": "norm", mlp: "matrix", "drop": "pointwise", "end": "head"}
    facts = {name: {"kind": kind, "starts_layer": name == "norm"} for name, kind in kinds.items()}
    return replace(random_profile(7, ops=ops), operators=facts)


def test_a_name_changes_nothing():
    """`mlp` as `mlp-fc` was taken for another operator: another plan, proven, without a note."""
    answers = []
    for name in ("mlp", "mlp-fc", "bn-conv-pool"):
        asked = question(named(name), layers=3)
        answers.append(search(replace(asked, memory=0.8 * max(search(asked).cost.memory))))
    assert answers[0].proven
    assert [(one.plan, one.cost, one.bound) for one in answers[1:]] == [
        (answers[0].plan, answers[0].cost, answers[0].bound)
    ] * 2


def test_an_unknown_operator_is_refused_with_the_line_to_add():
    with pytest.raises(InputError, match=r"nothing is known of operator 'mlp-fc'; add to profile.toml: \[operators"):
        search(question(replace(named("mlp-fc"), operators={}), layers=1))


def test_tp_sizes_of_which_none_was_profiled_are_refused(tmp_path):
    """They were taken for an operator that fits nowhere."""
    write_profile(random_profile(3, tps=(1, 2)), tmp_path)
    with (tmp_path / "profile.toml").open("a") as file:
        file.write("[operators.enc-attention-qkv]\ntp = [3]\n")
    with pytest.raises(InputError, match=r"enc-attention-qkv: tp is \[3\]; profiled are \[1, 2\]: name one"):
        read_profile(tmp_path, "")
