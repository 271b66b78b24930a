"""Estimates on clusters of several kinds of GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import shardwise
from shardwise.errors import InputError
from shardwise.estimate.predictions import rank_gpus
from shardwise.inputs.load import mixed_of, named_cluster
from shardwise.inputs.strategy import Strategy

MODEL = "llama-3-8b"


def renamed(gpus, name="h100"):
    """The same GPU under another name: another kind that is no different."""
    made = named_cluster(f"{gpus}x{name}")
    return replace(made, gpu=replace(made.gpu, name=f"{name}-other"))


@pytest.mark.parametrize(
    "words",
    [
        "tp8 pp4", "tp4 pp2 mbs2 nosp", "tp8 pp4x2", "pp4 zb-h1 runtime=torch-pipelining", "tp8 pp4 layers=7,9,9,7",
        "tp2 zero1", "zero3", "tp1 zero2 mbs2 recompute=full", "tp2 pp2 cp2", "tp8 pp4 recompute=full:2",
        "pp4x2 zb-v runtime=torch-pipelining", "pp4 auto runtime=torch-pipelining",
    ],
)  # fmt: skip
def test_kinds_that_are_alike_are_one_cluster(words):
    """Whatever is said of the plain cluster is said of it in two kinds."""
    both = mixed_of([named_cluster("16xh100"), renamed(16)])
    plain, mixed = (shardwise.estimate(MODEL, one, f"{words} gbs64") for one in (named_cluster("32xh100"), both))
    of_kinds = {"cluster", "calibration", "slowest", "fullest", "order"}
    names = [name for name in plain.__dataclass_fields__ if name not in of_kinds]
    assert {name: getattr(plain, name) for name in names} == {name: getattr(mixed, name) for name in names}


def test_a_stage_takes_what_its_kind_takes():
    cluster = named_cluster("16xh100 + 16xa100-40")
    found = shardwise.estimate(MODEL, cluster, "tp8 pp4 gbs64 layers=11,11,5,5")
    alone = [shardwise.estimate(MODEL, f"32x{name}", "tp8 pp4 gbs64 layers=11,11,5,5") for name in ("h100", "a100-40")]
    assert found.stages[:2] == alone[0].stages[:2]
    assert found.stages[2:] == alone[1].stages[2:]
    assert [gpu.name for gpu in rank_gpus(cluster, found.strategy, found)] == ["h100"] * 2 + ["a100-40"] * 2
    assert found.device.name == "a100-40"  # less room there, though the H100s hold more
    assert found.total_bytes < max(rank.total for rank in found.memory)
    assert found.time.value == pytest.approx(found.iteration_seconds)


def test_replicas_wait_for_the_slowest_and_may_share_the_batch():
    cluster = "8xh100 + 8xa100"
    equal = shardwise.estimate(MODEL, cluster, "zero1 gbs64 runtime=torch-pipelining recompute=full")
    shared = shardwise.estimate(MODEL, cluster, "zero1 gbs64 batches=6,2 runtime=torch-pipelining recompute=full")
    a100 = shardwise.estimate(MODEL, "16xa100", "zero1 gbs64 runtime=torch-pipelining recompute=full")
    assert equal.makespan == a100.makespan
    assert equal.slowest == 1
    assert shared.iteration_seconds < 0.75 * equal.iteration_seconds
    assert shared.time.value == pytest.approx(shared.iteration_seconds)


def test_the_slower_join_shows():
    parts = [named_cluster("16xh100"), named_cluster("16xa100")]
    slow = replace(parts[1].levels[-1], bandwidth=1e9)
    fast, late = (mixed_of(parts, join) for join in (None, slow))
    for words in ("tp8 pp4 gbs64", "tp8 gbs64", "zero3 gbs64 recompute=full"):
        times = [shardwise.estimate(MODEL, one, words).iteration_seconds for one in (fast, late)]
        assert times[1] > times[0], words


@pytest.mark.parametrize(
    ("cluster", "words", "told"),
    [
        ("8xh100 + 4xa100", "pp2 tp2 gbs12", "tp 2 x cp 1 x dp 3 = 6 GPUs of a pipeline stage must be alike"),
        (
            "8xh100 + 4xa100",
            "tp6 gbs12",
            "cp 1 x tp 6 = 6 GPUs of a replica must be alike, and do not divide the 8x",
        ),
        ("16xh100", "gbs64 batches=6,2", "16xh100 has one kind of GPU; leave it out"),
        ("8xh100 + 8xa100", "gbs64 batches=6,2,1", "8xh100 . 8xa100 has 2 kinds; give one for each"),
        ("8xh100 + 8xa100", "gbs64 batches=6,2", "runtime megatron gives every replica as many micro batches"),
        (
            "8xh100 + 8xa100",
            "gbs64 batches=6,3 runtime=torch-pipelining",
            "8 x 6 . 8 x 3. x micro_batch 1 = 72 s",
        ),
        ("8xh100 + 8xa100", "pp2 gbs64 batches=6,2 runtime=torch-pipelining", "pp is 2: kinds hold stages"),
        ("8xh100 + 8xa100", "gbs64 fp8", "fp8"),
        (
            "8xh100 + 8xmi300x",
            "gbs64",
            "8xh100 .NVIDIA. and 8xmi300x .AMD.: collectives of different makers",
        ),
        ("8xtpu-v5p + 8xtpu-v6e", "gbs64 zero3 runtime=maxtext", "maxtext does not run replicas on different kinds"),
    ],
)
def test_what_cannot_be_is_told_with_its_numbers(cluster, words, told):
    with pytest.raises(InputError) as caught:
        shardwise.estimate(MODEL, cluster, words)
    assert re.search(told, str(caught.value)), str(caught.value)


def test_words_of_batches_are_read_back():
    strategy = Strategy.parse("tp2 dp8 gbs64 batches=6,2")
    assert Strategy.parse(str(strategy)) == strategy
    assert strategy.microbatches == 6
