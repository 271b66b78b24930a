from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from shardwise.errors import InputError
from shardwise.frameworks.load import read_cluster, read_model, read_strategy
from shardwise.frameworks.simumax.read import (
    read_model as model_of,
)
from shardwise.frameworks.simumax.read import (
    read_strategy as strategy_of,
)
from shardwise.frameworks.simumax.read import read_system as system_of
from shardwise.frameworks.simumax.read import write_model, write_strategy, write_system
from shardwise.inputs.parameters import count

LLAMA = {
    "model_name": "llama3-8b", "model_type": "dense", "hidden_size": 4096, "head_num": 32, "kv_head_num": 8,
    "head_size": 128, "intermediate_size": 14336, "layer_num": 32, "vocab_size": 128257, "use_swiglu": True,
}  # fmt: skip
DEEPSEEK = {
    "model_name": "deepseekv2", "model_type": "moe", "attention_type": "mla", "hidden_size": 5120, "head_num": 128,
    "kv_head_num": 128, "head_size": 128, "intermediate_size": 12288, "layer_num": 60, "vocab_size": 102400,
    "use_swiglu": True, "expert_num": 160, "topk": 6, "moe_ffn_hidden_size": 1536, "dense_layers": 1,
    "moe_shared_expert_intermediate_size": 3072, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64, "v_head_dim": 128, "capacity": 1, "group_linear_mode": "parallel",
}  # fmt: skip
STRATEGY = {
    "seq_len": 4096, "micro_batch_size": 1, "micro_batch_num": 8, "dtype": "bf16", "world_size": 8, "tp_size": 1,
    "pp_size": 2, "ep_size": 4, "etp_size": 1, "enable_sequence_parallel": True, "zero_state": 1,
    "enable_recompute": True, "recompute_granularity": "selective_recompute", "recompute_layer_num": 2,
    "attn_recompute": True, "mla_rms_recompute": True, "mlp_recompute": True, "mlp_rms_recompute": True,
    "use_fused_norm": True, "mem_factor": 0.94, "te_version": "2.8.0", "attention_sparse_ratio": 0.0,
}  # fmt: skip


def _op(scale: int, offset: int, **more: float) -> dict[str, float]:
    return {"scale": scale, "offset": offset, **more}


def _network(gbps: float) -> dict:
    return {
        "processor_usage": 0.0,
        "bandwidth": {"gbps": gbps, "efficient_factor": 0.8, "latency_us": 10},
        "op": {
            "all_reduce": _op(2, -1, efficient_factor=0.74, latency_us=5.5, fixed_latency_us=22.0),
            "all_gather": {**_op(1, -1), "dp_fixed_bw": {"2": 4, "4": 7.65}},
            "reduce_scatter": _op(1, -1),
            "p2p": _op(1, 0, efficient_factor=1.45, latency_us=16.0),
            "all2all": {**_op(1, -1), "fixed_latency_us_by_comm_num": {"2": 51.0, "8": 0.0}},
        },
    }


SYSTEM: dict[str, Any] = {
    "sys_name": "b200_test", "num_per_node": 8, "FC8": False,
    "accelerator": {
        "backend": "cuda", "mem_gbs": 180, "mode": "roofline",
        "op": {
            "default": {"tflops": 2250, "efficient_factor": 0.4},
            "matmul": {
                "tflops": 2250, "efficient_factor": 0.5,
                "accurate_efficient_factor": {"b=1, m=4096, k=8192, n=10240, layout=TN": 0.64},
            },
            "fp8_matmul": {"tflops": 2250, "efficient_factor": 0, "accurate_efficient_factor": {}},
            "sdp_fwd": {"tflops": 2250, "efficient_factor": 1.07},
        },
        "bandwidth": {
            "default": {"gbps": 8000, "efficient_factor": 0.67, "latency_us": 30},
            "ce": {"gbps": 8000, "efficient_factor": 0.32, "latency_us": 30},
        },
    },
    "networks": {"intra_with_pcie": False, "high_intra_node": _network(900), "inter_node": _network(200)},
}  # fmt: skip


@pytest.mark.parametrize("data", [LLAMA, DEEPSEEK])
def test_a_model_is_read_and_written_back(data):
    read = model_of(data)
    assert write_model(read.model, read.raw) == data
    assert model_of(write_model(read.model)).model == read.model


def test_model_counts_are_simumaxs():
    assert count(model_of(LLAMA).model).total / 1e9 == pytest.approx(8.03, abs=0.005)
    assert count(model_of(DEEPSEEK).model).total / 1e9 == pytest.approx(235.74, abs=0.005)


def test_a_changed_model_changes_only_its_keys():
    read = model_of(LLAMA)
    assert write_model(replace(read.model, layers=12), read.raw) == {**LLAMA, "layer_num": 12}


def test_a_strategy_is_read_and_written_back():
    read = strategy_of(STRATEGY)
    strategy = read.strategy
    assert (strategy.dp, strategy.global_batch, strategy.microbatches) == (4, 32, 8)
    assert str(strategy.recompute) == "attention+attention-norm+ffn+mlp-norm:2"
    assert write_strategy(strategy, read.raw) == STRATEGY
    again = strategy_of(write_strategy(strategy)).strategy
    assert again == strategy


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"recompute_granularity": "full_block"}, "full:2"),
        ({"recompute_granularity": "sdp_only"}, "core-attention:2"),
        ({"recompute_granularity": "attn_only"}, "attention:2"),
        ({"enable_recompute": False}, "none"),
        ({"megatron_recompute": True, "megatron_recompute_modules": ["layernorm", "moe_act"]},
         "attention-norm+mlp-norm+moe-act"),
    ],
)  # fmt: skip
def test_recompute(change, text):
    assert str(strategy_of({**STRATEGY, **change}).strategy.recompute) == text


def test_pipeline_keys():
    data = {
        **STRATEGY, "pp_size": 4, "interleaving_size": 2, "num_layers_in_first_pipeline_stage": 9,
        "num_layers_in_last_pipeline_stage": 11, "account_for_loss_in_pipeline_split": True,
        "grad_reduce_in_bf16": True,
    }  # fmt: skip
    strategy = strategy_of(data).strategy
    assert (strategy.vpp, strategy.schedule, strategy.first_layers, strategy.last_layers) == (2, "interleaved", 9, 11)
    assert strategy.count_head
    assert strategy.grad_dtype == "bf16"
    assert write_strategy(strategy, data) == data


def test_a_system_is_read_and_written_back():
    system = system_of(SYSTEM, gpus=32)
    cluster = system.cluster
    assert (cluster.gpus, cluster.node_size, cluster.gpu.peak("bf16")) == (32, 8, 2250e12)
    assert cluster.levels[1].bandwidth == pytest.approx(200 * 2**30 / 8)
    assert cluster.gpu.sms == 148
    assert not cluster.gpu.has("fp8")
    assert any("fp8_matmul" in note for note in system.notes)
    nvlink = system.efficiency.networks["high_intra_node"]
    assert nvlink.collectives["all_gather"].efficiency == 0.8
    assert nvlink.collectives["all_gather"].rate_by_group[4] == pytest.approx(7.65 * 2**30)
    assert nvlink.collectives["all2all"].fixed_by_group[2] == pytest.approx(51e-6)
    assert write_system(system) == SYSTEM


def test_fp8_of_a_gpu_without_it_is_left_out():
    data = copy.deepcopy(SYSTEM)
    data["sys_name"] = "a100_pcie_bf16"
    data["accelerator"]["op"]["fp8_matmul"] = {"tflops": 624, "efficient_factor": 0.75}
    system = system_of(data)
    assert not system.cluster.gpu.has("fp8")
    assert "no FP8 hardware" in " ".join(system.notes)


def _refused(read, data) -> str:
    with pytest.raises(InputError) as caught:
        read(data)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tp_sizee": 2}, ["tp_sizee", "did you mean tp_size"]),
        ({"seq_len": None}, ["seq_len", "missing"]),
        ({"micro_batch_size": None}, ["micro_batch_size", "missing"]),
        ({"tp_size": 3}, ["world_size", "8", "tp 3"]),
        ({"world_size": 10, "pp_size": 3}, ["10", "pp 3"]),
        ({"micro_batch_num": 0}, ["micro_batch_num", "0 is too small"]),
        ({"micro_batch_size": -1}, ["micro_batch_size", "-1 is too small"]),
        ({"tp_size": "2"}, ["tp_size", "'2'", "without quotes"]),
        ({"tp_size": True}, ["tp_size", "truth value"]),
        ({"tp_size": 0}, ["tp_size", "0 is too small"]),
        ({"dtype": "fp4"}, ["dtype", "'fp4'", "bf16"]),
        ({"recompute_granularity": "selective"}, ["recompute_granularity", "did you mean selective_recompute"]),
        ({"attn_recompute": False, "mla_rms_recompute": False, "mlp_recompute": False, "mlp_rms_recompute": False},
         ["selective_recompute", "attn_recompute"]),
        ({"mlp_recompute": False}, ["mlp_rms_recompute", "mlp_recompute"]),
        ({"cp_comm_type": "magic"}, ["cp_comm_type", "'magic'"]),
        ({"zero_state": 4}, ["zero_state", "4"]),
        ({"order_of_paralielism": "pp-dp"}, ["order_of_paralielism"]),
        ({"enable_recompute": 1}, ["enable_recompute", "true or false"]),
        ({"megatron_recompute": True, "megatron_recompute_modules": ["norms"]}, ["recompute_modules", "norms"]),
    ],
)  # fmt: skip
def test_bad_strategies(change, words):
    message = _refused(strategy_of, {**STRATEGY, **change})
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("drop", "words"),
    [(key, [key, "missing"]) for key in ("layer_num", "vocab_size", "head_size", "use_swiglu", "topk", "hidden_size")],
)
def test_models_with_missing_keys(drop, words):
    message = _refused(model_of, {key: value for key, value in DEEPSEEK.items() if key != drop})
    assert all(word in message for word in words), message


def test_bad_models():
    assert "dense_layers" in _refused(model_of, {**DEEPSEEK, "dense_layers": 61})
    assert "did you mean layer_num" in _refused(model_of, {**LLAMA, "layer_numm": 1})
    assert "topk" in _refused(model_of, {**DEEPSEEK, "topk": 200})
    assert "kv_head_num" in _refused(model_of, {**LLAMA, "kv_head_num": 7})


def _changed(path: str, value: object) -> dict:
    data = copy.deepcopy(SYSTEM)
    at = data
    *inner, last = path.split(".")
    for part in inner:
        at = at[part]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("accelerator.mode", None, ["accelerator.mode", "missing"]),
        ("networks.high_intra_node.op.all_reduce.bw", 3, ["networks.high_intra_node.op.all_reduce.bw"]),
        ("speed", 3, ["speed", "not a known key"]),
        ("accelerator.op.matmul.efficient_factor", 0, ["matmul.efficient_factor", "0 is too small"]),
        ("accelerator.op.matmul.efficient_factor", 7.5, ["matmul.efficient_factor", "7.5", "1.3"]),
        ("accelerator.op.matmul.efficient_factor", "0.75", ["'0.75'", "without quotes"]),
        ("accelerator.op.matmul.accurate_efficient_factor", {"b=1": 9}, ["b=1", "9"]),
        ("accelerator.bandwidth.default.gbps", -5, ["bandwidth.default.gbps", "-5"]),
        ("networks.high_intra_node", None, ["networks", "high_intra_node"]),
        ("accelerator", 3, ["accelerator", "table"]),
    ],
)
def test_bad_systems(path, value, words):
    message = _refused(system_of, _changed(path, value))
    assert all(word in message for word in words), message


def test_many_nodes_need_a_network_between_them():
    with pytest.raises(InputError, match="inter_node is missing"):
        system_of(_changed("networks.inter_node", None), gpus=16)
    assert system_of(_changed("networks.inter_node", None)).cluster.gpus == 8


def test_the_loader_knows_the_three_forms(tmp_path):
    for name, data in (("model", LLAMA), ("strategy", STRATEGY), ("system", SYSTEM)):
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    assert read_model(tmp_path / "model.json").value.layers == 32
    assert read_strategy(tmp_path / "strategy.json").value.pp == 2
    assert read_cluster(tmp_path / "system.json").value.gpus == 8
    assert read_cluster(f"64x{tmp_path / 'system.json'}").value.gpus == 64


def test_dumps_of_strategies_have_numbers_that_follow():
    base = strategy_of(STRATEGY)
    s = base.strategy
    edp = s.world // (s.ep * s.etp * s.pp)
    counted = {"shard_size": s.tp * s.cp * s.pp, "dp_size": s.dp, "edp_size": edp, "global_batch_size": s.global_batch}
    dump = {**STRATEGY, **counted, "parallelism": "tp1", "recompute_status": "No Recompute"}
    read = strategy_of(dump)
    assert read.strategy == s
    assert write_strategy(read.strategy, read.raw) == dump
    more = replace(s, global_batch=2 * s.global_batch)
    again = write_strategy(more, read.raw)
    assert again["global_batch_size"] == more.global_batch
    assert "parallelism" not in again
    message = _refused(strategy_of, {**dump, "dp_size": s.dp + 1, "global_batch_size": 7})
    assert f"dp_size: is {s.dp + 1}, but {s.dp} follows from the other keys" in message
    assert "global_batch_size: is 7" in message
