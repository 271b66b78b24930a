"""What runs behind a product hides no longer than the product lasts; what an exchange of heads takes and keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.estimate.estimate import estimate
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy

MODEL = load_model("llama-3-8b")
STRATEGY = Strategy(tp=8, micro_batch=1, global_batch=4, seq=4096)


def _backward(rate: float, weight_gather: float) -> float:
    cluster = load_cluster("8xa100")
    cluster = replace(cluster, levels=(replace(cluster.levels[0], bandwidth=rate, latency=0.0),))
    runtime = load_runtime(f"megatron+overlap.weight_gather={weight_gather:g}")
    return estimate(MODEL, cluster, STRATEGY, runtime=runtime).stages[0].backward


def test_a_gather_on_a_slow_network_shows_behind_a_short_product():
    hidden, shown = (_backward(20e9, share) for share in (1.0, 0.0))
    fast_hidden, fast_shown = (_backward(2e12, share) for share in (1.0, 0.0))
    # on the fast one all of it hides, on the slow one only as much as the products last: the same seconds
    gathers = MODEL.layers * 2 * 4096 * 4096 * 2 * 7 / 8
    assert fast_shown - fast_hidden == pytest.approx(gathers / 2e12, rel=0.5)
    assert 0 < shown - hidden < 0.3 * gathers / 20e9


def test_the_output_layers_unused_gradient_is_there_while_it_is_made():
    """SimuMax's B200 runs: 70B of 12 layers over tp4 peaks at 39.07 GiB, over tp8 at 28.29."""
    model = replace(load_model("llama-3-70b"), layers=12)
    runtime = load_runtime("megatron+kernels.loss=fused")
    for tp, measured in ((4, 39.07), (8, 28.29)):
        strategy = Strategy(tp=tp, dp=8 // tp, micro_batch=1, global_batch=4 * 8 // tp, seq=4096)
        found = estimate(model, load_cluster("8xb200"), strategy, runtime=runtime)
        assert found.memory[0].peak.value / 2**30 == pytest.approx(measured, rel=0.003)
        assert found.memory[0].at == "backward, head: output layer"


def test_attentions_output_is_kept_on_both_sides_of_an_exchange_of_heads():
    """SimuMax's B200 runs: 70B of 12 layers over 131,072 tokens, tp2 cp4 112.67 GiB, cp8 147.99."""
    model = replace(load_model("llama-3-70b"), layers=12)
    runtime = load_runtime("megatron+kernels.loss=fused")
    for tp, measured in ((2, 112.67), (1, 147.99)):
        strategy = Strategy(
            tp=tp, cp=8 // tp, cp_kind="all-to-all", micro_batch=1, global_batch=4, seq=131072
        )  # fmt: skip
        found = estimate(model, load_cluster("8xb200"), strategy, runtime=runtime)
        assert found.memory[0].peak.value / 2**30 == pytest.approx(measured, rel=0.003)
