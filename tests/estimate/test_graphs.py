"""CUDA graphs take the host out of the passes that they cover."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.estimate.setup import setup_of
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy


@pytest.mark.parametrize(("graphs", "least", "most"), [("none", 1.0, 1.0), ("attention", 0.3, 0.7), ("layer", 0, 0)])
def test_the_host_of_a_layer(graphs, least, most):
    given = Strategy(tp=8, global_batch=8, seq=1024, cuda_graphs=graphs)
    cluster, runtime, model = load_cluster("8xh100"), load_runtime("megatron"), load_model("llama3-8b")

    def layer(strategy):
        return setup_of(model, cluster, strategy, runtime).chunks[0].runs[1].block

    eager, graphed = layer(replace(given, cuda_graphs="none")), layer(given)
    for before, after in ((eager.f, graphed.f), (eager.i, graphed.i), (eager.w, graphed.w)):
        assert least * before.host <= after.host <= most * before.host
        assert after.device == before.device
