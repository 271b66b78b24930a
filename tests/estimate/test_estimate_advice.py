"""The changes that are advised: valid, deterministic, helpful, quick."""

from __future__ import annotations

import time

import pytest

import shardwise
from shardwise.check.check import check
from shardwise.estimate.advice import advise, difference, neighbours
from shardwise.inputs.load import load_runtime

CASES = {
    "fits": ("llama-3-70b", "64xh100", "tp8 pp4 dp2 mbs1 gbs256 seq8192"),
    "does not fit": ("llama-3-70b", "16xh100", "tp8 pp2 dp1 mbs1 gbs256 seq8192"),
    "experts": ("mixtral-8x7b", "32xh100", "pp2 dp16 ep8 mbs1 gbs256 seq4096"),
    "sharded": ("llama-3-8b", "16xh100", "dp16 zero3 mbs4 gbs256 seq8192 runtime=torchtitan"),
    "one GPU": ("gpt2", "1xh100", "mbs8 gbs8 seq1024"),
}


def asked(name):
    model, cluster, text = CASES[name]
    strategy = shardwise.Strategy.parse(text)
    return shardwise.estimate(shardwise.load_model(model), shardwise.load_cluster(cluster), strategy)


@pytest.mark.parametrize("name", CASES)
def test_changes_are_valid_and_bring_what_they_say(name):
    base = asked(name)
    changes = advise(base)
    assert len(changes) <= 3
    assert len({change.kind for change in changes}) == len(changes)
    for change in changes:
        runtime = load_runtime(change.strategy.runtime)
        assert not check(base.model, base.cluster, change.strategy, runtime)
        then = shardwise.estimate(base.model, base.cluster, change.strategy)
        assert change.seconds == pytest.approx(base.iteration_seconds - then.iteration_seconds)
        assert change.bytes == pytest.approx(base.total_bytes - then.total_bytes)
        assert change.fits == then.fits
        assert change.text == difference(base.strategy, change.strategy)
        assert change.strategy.global_batch == base.strategy.global_batch
        assert change.strategy.world == base.strategy.world


@pytest.mark.parametrize("name", ["fits", "experts"])
def test_what_fits_gets_faster(name):
    base = asked(name)
    changes = advise(base)
    if base.fits == "yes":
        assert all(change.seconds > 0 and change.fits == "yes" for change in changes)
        assert [change.seconds for change in changes] == sorted((c.seconds for c in changes), reverse=True)


def test_what_does_not_fit_gets_smaller():
    changes = advise(asked("does not fit"))
    assert changes
    assert all(change.bytes > 0 for change in changes)
    assert any(change.fits != "no" for change in changes)


@pytest.mark.parametrize("name", CASES)
def test_deterministic(name):
    assert advise(asked(name)) == advise(asked(name))


@pytest.mark.bench
def test_quick():
    base = asked("does not fit")
    advise(base)
    start = time.process_time()
    advise(base)
    assert time.process_time() - start < 1.0  # 0.3 on a quiet machine


def test_a_neighbour_keeps_the_work():
    base = asked("fits")
    found = list(neighbours(base.model, base.strategy, load_runtime("megatron")))
    assert len(found) > 20
    for _, strategy in found:
        assert strategy != base.strategy
        assert (strategy.world, strategy.global_batch, strategy.seq) == (64, 256, 8192)


def test_the_difference_in_words():
    old, new = (shardwise.Strategy.parse(text) for text in ("tp8 dp2 gbs64", "tp4 dp4 gbs64"))
    assert difference(old, new) == "tp 8 -> 4, dp 2 -> 4"
    assert difference(old, old) == ""
