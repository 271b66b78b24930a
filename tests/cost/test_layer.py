"""Layers out of remembered halves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.cost.chunk import combined
from shardwise.cost.layer import PLAIN, layer_afresh, layer_block, layer_passes
from shardwise.estimate.setup import layer_groups, setup_of
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.ops.layer import layer_kinds

ONE = Strategy(micro_batch=2, global_batch=64, seq=4096)
LAYOUTS = [
    ("llama-3-8b", replace(ONE, tp=2, dp=32)),
    ("llama-3-8b", replace(ONE, tp=2, cp=2, dp=16)),
    ("llama-3-8b", replace(ONE, tp=2, cp=2, dp=16, cp_kind="all-to-all")),
    ("llama-3-8b", replace(ONE, cp=4, dp=16, micro_batch=4)),  # as many tokens a rank as (1, 1)
    ("deepseek-v3", replace(ONE, tp=2, dp=32, ep=8)),
    ("deepseek-v3", replace(ONE, tp=2, dp=32, ep=32, dispatcher="deepep")),
    ("deepseek-v3", replace(ONE, tp=2, dp=32, ep=8, etp=2)),
    ("gpt-oss-120b", replace(ONE, tp=4, dp=16, ep=8)),
]


@pytest.mark.parametrize("runtime", ["megatron", "torchtitan"])
def test_remembered_halves_cost_what_the_layer_costs_afresh(runtime: str) -> None:
    """Whatever was asked before: no half may be remembered by less than it depends on."""
    for name, strategy in (*LAYOUTS, *reversed(LAYOUTS)):
        setup = setup_of(load_model(name), load_cluster("64xh100"), strategy, load_runtime(runtime))
        groups = layer_groups(setup.network, strategy, setup.runtime)
        for kind in dict.fromkeys(layer_kinds(setup.model)):
            layer_block.cache_clear()
            found = layer_block(setup.shard, kind, PLAIN, setup.machine, groups, 0.0)
            assert found == layer_afresh(setup.shard, kind, setup.machine, groups)
            passes = layer_passes(setup.shard, kind, setup.machine, groups)
            assert passes == (found.f, combined(found.i, found.w))
