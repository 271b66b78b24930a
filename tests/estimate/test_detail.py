"""Operations, bytes and bandwidths of an estimate: by hand, and against what the cost model itself uses."""

from __future__ import annotations

import pytest

import shardwise
from shardwise.cost.network import all_reduce, dispatch, ring, send
from shardwise.estimate.detail import group_rates
from shardwise.estimate.setup import setup_of
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy


def asked(model, cluster, line):
    found = shardwise.estimate(model, cluster, line)
    return found, shardwise.detail(found)


def rates(inside):
    return {(one.group, one.collective): one for one in inside.groups}


def test_operations_of_a_model_by_hand():
    """Two a weight and token forward, four backward; causal attention 2 s h a token and pass, half as much again."""
    _, inside = asked("llama-3-8b", "8xh100", "mbs1 gbs8 seq4096")
    (one,) = inside.work
    tokens, weights, layers, hidden = 4096, 8.03e9 - 128256 * 4096, 32, 4096
    products, attention = 2 * weights * tokens, 2 * layers * tokens * tokens * hidden
    assert one.forward_flops == pytest.approx(products + attention, rel=0.01)
    assert one.backward_flops == pytest.approx(2 * products + 2.5 * attention, rel=0.01)
    assert one.recompute_flops == one.recompute_bytes == 0
    # at least every weight once, in both passes and for its gradient
    assert one.forward_bytes > 2 * weights
    assert one.backward_bytes > 2 * 2 * weights


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("llama-3-70b", "tp8 pp4x2 mbs1 gbs64 seq4096 recompute=full:2"),
        ("qwen3-30b-a3b", "tp2 pp2 ep8 mbs1 gbs64 seq4096 recompute=core-attention"),
        ("deepseek-v2-lite", "pp1 ep8 mbs1 gbs64 seq4096 recompute=mlp"),
    ],
)
def test_stages_have_the_operations_that_the_cost_model_counts(model, line):
    found, inside = asked(model, "64xh100", line)
    setup = setup_of(found.model, found.cluster, found.strategy, load_runtime("megatron"))
    for one in inside.work:
        chunks = setup.rank_chunks(one.rank)
        assert one.forward_flops + one.backward_flops == pytest.approx(sum(chunk.flops for chunk in chunks))
        assert one.recompute_flops == pytest.approx(sum(chunk.recompute_flops for chunk in chunks))
        assert (one.recompute_bytes > 0) == (one.recompute_flops > 0)


def test_a_frozen_model_has_next_to_no_weight_gradients():
    _, whole = asked("llama-3-8b", "8xh100", "mbs1 gbs8 seq4096")
    _, frozen = asked("llama-3-8b", "8xh100", "mbs1 gbs8 seq4096 lora16")
    assert frozen.work[0].backward_flops < 0.65 * whole.work[0].backward_flops


def test_every_group_with_its_levels_and_bandwidths():
    found, inside = asked("qwen3-30b-a3b", "64xh100", "tp2 cp2 pp2 dp8 ep8 mbs1 gbs64 seq4096")
    known = rates(inside)
    assert {name for name, _ in known} == {"tp", "cp", "ep", "dp", "expert dp", "pp"}
    assert (known["tp", "all-gather"].ranks, known["tp", "all-gather"].stride) == (2, 1)
    assert known["tp", "all-gather"].levels == ("nvlink",)
    assert (known["cp", "ring"].ranks, known["cp", "ring"].stride) == (2, 2)
    assert known["dp", "reduce-scatter"].levels == ("nvlink", "infiniband")
    assert known["pp", "send"].stride == 32
    for one in inside.groups:
        assert one.algorithm_bandwidth == pytest.approx(one.bytes / one.seconds)
        # a way is never faster than the links on it, eight adapters of a node together
        links = sum(8 * level.bandwidth for level in found.cluster.levels if level.name in one.levels)
        assert 0 < one.bus_bandwidth < links


def test_bandwidths_are_the_network_models_own():
    model, cluster, strategy = (
        load_model("llama-3-8b"),
        load_cluster("16xh100"),
        Strategy.parse("tp2 pp2 dp4 zero0 gbs16 seq4096"),
    )
    setup = setup_of(model, cluster, strategy, load_runtime("megatron"))
    known = {(one.group, one.collective): one for one in group_rates(setup)}
    reduce, gather, hop = known["dp", "all-reduce"], known["tp", "all-gather"], known["pp", "send"]
    assert reduce.seconds == all_reduce(setup.network.group(4, 2), reduce.bytes)
    assert reduce.bus_bandwidth == pytest.approx(reduce.algorithm_bandwidth * 2 * 3 / 4)
    assert gather.seconds == ring(setup.network.group(2, 1), gather.bytes)
    assert gather.bus_bandwidth == pytest.approx(gather.algorithm_bandwidth / 2)
    assert hop.seconds == send(setup.network, 8, hop.bytes)


def test_sharded_layers_travel_at_the_rate_of_the_runtime():
    found, inside = asked("llama-3-8b", "16xh100", "dp16 hsdp8 zero3 mbs1 gbs16 seq4096 runtime=torchtitan")
    known = rates(inside)
    rate = load_runtime("torchtitan").overlap.fsdp_rate
    setup = setup_of(found.model, found.cluster, found.strategy, load_runtime("torchtitan"))
    gather = known["dp", "all-gather"]
    assert gather.seconds == pytest.approx(ring(setup.network.group(8, 1), gather.bytes / rate))
    assert known["replicas", "all-reduce"].levels == ("infiniband",)


def test_one_gpu_talks_to_nobody():
    _, inside = asked("llama-3.2-1b", "1xh100", "mbs1 gbs1 seq2048")
    assert inside.groups == ()


def test_dispatched_tokens_take_the_time_of_their_dispatch():
    found, inside = asked("qwen3-30b-a3b", "64xh100", "dp64 ep16 mbs1 gbs64 seq4096 dispatch=deepep")
    one = rates(inside)["ep", "dispatch"]
    setup = setup_of(found.model, found.cluster, found.strategy, load_runtime("megatron"))
    (routing,) = {comm.routing for run in setup.chunks[0].runs for op in run.block.ops for comm in op.comms}
    assert one.seconds == dispatch(setup.network.group(16, 1), one.bytes, routing)
    assert one.bus_bandwidth == pytest.approx(one.algorithm_bandwidth * 15 * routing.reached(1 / 16))
