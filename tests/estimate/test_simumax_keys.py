"""Every key of SimuMax's files is used, named with its value, or refused.

Finding 10 of "one truth": keys that change SimuMax's answer (fused loss, norm and SwiGLU, mem_factor, all efficiencies)
were dropped.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from shardwise.errors import InputError
from shardwise.estimate.estimate import estimate
from shardwise.estimate.predictions import predictions_of
from shardwise.frameworks.simumax.read import _MODEL_KEYS, _STRATEGY_KEYS, read_model, read_strategy, read_system
from shardwise.inputs.load import load_runtime
from shardwise.plan.file import plan_from, plan_text
from shardwise.plan.predict import plan_of

MODEL = {
    "model_name": "small", "model_type": "moe", "attention_type": "mla", "hidden_size": 2048, "head_num": 16,
    "kv_head_num": 16, "head_size": 128, "intermediate_size": 10944, "layer_num": 16, "vocab_size": 102400,
    "use_swiglu": True, "expert_num": 64, "topk": 6, "moe_ffn_hidden_size": 1408, "dense_layers": 1,
    "moe_shared_expert_intermediate_size": 2816, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64, "v_head_dim": 128, "capacity": 1.5, "moe_pad_expert_input_to_capacity": True,
    "group_linear_mode": "parallel", "make_vocab_size_divisible_by": 128, "padded_vocab_size": 102400,
    "orig_vocab_size": 102400,
}  # fmt: skip
OTHER_MODEL = {
    "model_name": "other", "model_type": "dense", "attention_type": "mha", "hidden_size": 4096, "head_num": 32,
    "kv_head_num": 8, "head_size": 64, "intermediate_size": 8192, "layer_num": 12, "vocab_size": 51200,
    "use_swiglu": False, "expert_num": 32, "topk": 2, "moe_ffn_hidden_size": 1024, "dense_layers": 2,
    "moe_shared_expert_intermediate_size": 1408, "q_lora_rank": 768, "kv_lora_rank": 256, "qk_head_dim": 64,
    "qk_pos_emb_head_dim": 32, "v_head_dim": 64, "capacity": 2, "moe_pad_expert_input_to_capacity": False,
    "group_linear_mode": "serial", "make_vocab_size_divisible_by": 64, "padded_vocab_size": 102528,
    "orig_vocab_size": 102399,
}  # fmt: skip
STRATEGY = {
    "seq_len": 4096, "micro_batch_size": 1, "micro_batch_num": 8, "dtype": "bf16", "fp8": False, "world_size": 16,
    "tp_size": 2, "cp_size": 2, "pp_size": 2, "ep_size": 4, "etp_size": 1, "cp_comm_type": "a2a",
    "enable_recompute": True, "recompute_granularity": "selective_recompute", "recompute_layer_num": 2,
    "attn_recompute": True, "mlp_recompute": True, "interleaving_size": 2, "zero_state": 1,
}  # fmt: skip
FLIPS = {
    "seq_len": 8192, "micro_batch_size": 2, "micro_batch_num": 16, "dtype": "fp32", "fp8": True, "world_size": 32,
    "tp_size": 1, "cp_size": 1, "pp_size": 4, "ep_size": 8, "etp_size": 2, "cp_comm_type": "ring",
    "cp_a2a_mode": "sync_cp", "order_of_paralielism": "tp-cp-pp", "moe_dispatcher_policy": "all2all-seq",
    "num_layers_in_first_pipeline_stage": 6, "num_layers_in_last_pipeline_stage": 6,
    "account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True,
    "enable_sequence_parallel": False, "interleaving_size": 1, "microbatch_group_size_per_vp_stage": 4,
    "pp_comm_async": False, "zero_state": 0, "grad_reduce_in_bf16": True, "use_fp32_accum_grad": False,
    "attention_sparse_ratio": 0.5, "use_flash_sdp": False, "use_math_sdp": True, "use_fused_norm": False,
    "use_fused_swiglu": False, "use_fused_grad_accumulation": False, "use_accm_weight": False,
    "cross_entropy_loss_fusion": True, "overlap_grad_reduce": False, "enable_dropout": True, "enable_recompute": False,
    "recompute_granularity": "full_block", "recompute_layer_num": 1, "attn_recompute": False,
    "mla_rms_recompute": True, "mlp_recompute": False, "mlp_rms_recompute": True, "recompute_variance": True,
    "megatron_recompute": True, "megatron_recompute_modules": ["mlp"], "cache_groupgemm_col_fp8_inputs": True,
    "offload_groupgemm_col_inputs": True, "dispatch_probs": True, "te_version": "2.2.0",
    "te_dummy_wgrad_min_version": "2.4.0", "te_cp_a2a_min_version": "2.9.0", "te_cp_saved_output_min_version": "2.11.0",
    "tp_net": "x", "cp_net": "x", "pp_net": "x", "dp_net": "x", "ep_net": "x", "etp_net": "x", "edp_net": "x",
    "enable_straggler_model": False, "mem_factor": 0.8,
}  # fmt: skip


def _collectives(share: float) -> dict:
    names = ("all_reduce", "all_gather", "reduce_scatter", "p2p", "all2all")
    return {
        name: {"scale": 1, "offset": -1, "efficient_factor": share - 0.02 * index, "latency_us": 5.0 + index,
               "fixed_latency_us": 20.0}
        for index, name in enumerate(names)
    }  # fmt: skip


SYSTEM: dict[str, Any] = {
    "sys_name": "made_up", "num_per_node": 8, "FC8": False,
    "accelerator": {
        "backend": "cuda", "mem_gbs": 180, "mode": "roofline",
        "op": {
            "default": {"tflops": 1000, "efficient_factor": 0.4},
            "matmul": {"tflops": 990, "efficient_factor": 0.5, "accurate_efficient_factor": {
                "b=1, m=2048, k=2048, n=1536, layout=TN, accumulate=False, out_dtype=bf16": 0.64,
                "b=4, m=2048, k=2048, n=1536, layout=TN, accumulate=False, out_dtype=bf16": 0.3}},
            "group_matmul": {"tflops": 980, "efficient_factor": 0.35},
            "fp8_matmul": {"tflops": 2000, "efficient_factor": 0.45},
            "fp8_group_matmul": {"tflops": 2000, "efficient_factor": 0.25},
            "sdp_fwd": {"tflops": 970, "efficient_factor": 0.8, "accurate_efficient_factor": {
                "batch=1, seq_len=4096, head_num=4, kv_head_num=4, qk_head_dim=192, v_head_dim=128, "
                "qkv_contiguous=True": 0.6}},
            "sdp_bwd": {"tflops": 960, "efficient_factor": 0.7},
        },
        "bandwidth": {
            "default": {"gbps": 3000, "efficient_factor": 0.8, "latency_us": 3},
            "permute_fwd": {"gbps": 3000, "efficient_factor": 0.5, "latency_us": 4},
            "permute_bwd": {"gbps": 3000, "efficient_factor": 0.4, "latency_us": 5},
            "ce": {"gbps": 3000, "efficient_factor": 0.3, "latency_us": 6},
            "ce_fusion": {"gbps": 3000, "efficient_factor": 0.2, "latency_us": 7},
        },
    },
    "networks": {
        "intra_with_pcie": False,
        "high_intra_node": {
            "processor_usage": 0.0,
            "bandwidth": {"gbps": 400, "efficient_factor": 0.9, "latency_us": 9, "fixed_latency": 1},
            "op": {**_collectives(0.7), "p2p": {"scale": 1, "offset": 0}},
        },
        "low_intra_node": {"bandwidth": {"gbps": 100, "efficient_factor": 0.9}, "op": _collectives(0.5)},
        "inter_node": {
            "bandwidth": {"gbps": 200, "efficient_factor": 0.6, "latency_us": 11},
            "op": {
                **_collectives(0.8),
                "all_gather": {"scale": 1, "offset": -1, "dp_fixed_bw": {"4": 20}},
                "all2all": {"scale": 1, "offset": -1, "efficient_factor": 0.5, "latency_us": 8.0,
                            "fixed_latency_us_by_comm_num": {"4": 51.0}},
            },
        },
    },
}  # fmt: skip


PCIE = copy.deepcopy(SYSTEM)
PCIE["networks"]["intra_with_pcie"] = True
PCIE["networks"]["intra_node_pcie_8x"] = SYSTEM["networks"]["high_intra_node"]


LAYOUTS = (
    {}, {"tp_size": 16, "cp_size": 1, "pp_size": 1}, {"tp_size": 4, "cp_size": 4, "pp_size": 1}, {"pp_size": 4},
    {"tp_size": 1, "cp_size": 1, "pp_size": 1, "ep_size": 16},
)  # fmt: skip
"""Splits that use every network for every kind of collective."""


def answer(model: dict, strategy: dict, system: dict, layouts: tuple[dict, ...] = ({},)) -> tuple[str, str]:
    """What is predicted, as text, and all notes on the way; a refusal is a note."""
    numbers, notes = [], []
    for layout in layouts:
        vpp = {"interleaving_size": 1} if layout else {}
        try:
            read = (
                read_model(model), read_strategy({**strategy, **layout, **vpp}),
                read_system(system, gpus=strategy["world_size"]),
            )  # fmt: skip
            notes += [note for one in read for note in one.notes]
            found = estimate(read[0].model, read[2].cluster, read[1].strategy)
            numbers.append(f"{found.cluster.name} {found.cluster.gpu.memory} {predictions_of(found)}")
        except InputError as error:
            notes.append(str(error))
    return "\n".join(numbers), "\n".join(notes)


@pytest.fixture(scope="module")
def before() -> tuple[str, str]:
    found = answer(MODEL, STRATEGY, SYSTEM)
    assert found[0], found[1]
    return found


@pytest.fixture(scope="module")
def everywhere() -> tuple[str, str]:
    found = answer(MODEL, STRATEGY, SYSTEM, LAYOUTS)
    assert len(found[0].splitlines()) == len(LAYOUTS), found[1]
    return found


def held(key: str, after: tuple[str, str], before: tuple[str, str]) -> None:
    """The answer changed (a refusal is one), or the notes did, and name the key."""
    named = after[1] != before[1] and key in after[1] + before[1]
    assert after[0] != before[0] or named, f"{key} was dropped: {after[1]}"


@pytest.mark.parametrize("key", _STRATEGY_KEYS)
def test_every_key_of_a_strategy_is_used_named_or_refused(key, before):
    held(key, answer(MODEL, {**STRATEGY, key: FLIPS[key]}, SYSTEM), before)


@pytest.mark.parametrize("key", [key for key in _MODEL_KEYS if key != "model_name"])
def test_every_key_of_a_model_is_used_named_or_refused(key, before):
    held(key, answer({**MODEL, key: OTHER_MODEL[key]}, STRATEGY, SYSTEM), before)


def _leaves(data: dict, *path: str) -> Iterator[tuple[str, ...]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, *path, key)
        else:
            yield (*path, key)


def _flipped(path: tuple[str, ...]) -> dict:
    data = copy.deepcopy(SYSTEM)
    at = data
    for part in path[:-1]:
        at = at[part]
    old = at[path[-1]]
    words = {"cuda": "musa", "roofline": "only_compute", "made_up": "b200"}
    at[path[-1]] = words.get(old) if isinstance(old, str) else (not old if isinstance(old, bool) else old * 1.1 + 0.01)
    if path[-1] == "num_per_node":
        at[path[-1]] = 4
    return data


@pytest.mark.parametrize("path", list(_leaves(SYSTEM)), ids=".".join)
def test_every_figure_of_a_system_is_used_named_or_refused(path, everywhere):
    numbers, notes = answer(MODEL, STRATEGY, _flipped(path), LAYOUTS)
    if path[-1] == "intra_with_pcie":
        assert "intra_node_pcie" in read_system(PCIE).cluster.levels[0].name
    elif "low_intra_node" in path:
        assert "networks.low_intra_node (gbps = 1" in notes
    elif "fp8_matmul" in path:
        fp8 = {**STRATEGY, "fp8": True}
        held(path[-1], answer(MODEL, fp8, _flipped(path)), answer(MODEL, fp8, SYSTEM))
    elif "ce_fusion" in path:
        fused = {**STRATEGY, "cross_entropy_loss_fusion": True}
        held(path[-1], answer(MODEL, fused, _flipped(path)), answer(MODEL, fused, SYSTEM))
    else:
        held(path[-1].split(",")[0], (numbers, notes), everywhere)


def test_the_fusions_are_kernels_of_the_runtime_and_stay_in_a_plan():
    switches = {"cross_entropy_loss_fusion": True, "use_fused_norm": False, "use_fused_swiglu": False}
    model, strategy = read_model(MODEL).model, read_strategy({**STRATEGY, **switches, "mem_factor": 0.9}).strategy
    runtime = load_runtime(strategy.runtime)
    assert (runtime.kernels.loss, runtime.kernels.norm, runtime.kernels.activation) == ("fused", "eager", "eager")
    assert (runtime.base, runtime.overlap.tp) == ("megatron", 0.0)
    found = estimate(model, read_system(SYSTEM, gpus=16).cluster, strategy)
    for rank in found.memory:
        assert rank.reserved == pytest.approx(rank.peak.value / 0.9, rel=1e-5)
    again = plan_from(json.loads(plan_text(plan_of(found))), "plan.json")
    assert predictions_of(estimate(again.model, again.cluster, again.strategy)) == predictions_of(found)


def test_a_measured_shape_counts_exactly_and_for_its_neighbours():
    """Flops / (peak x efficiency), as SimuMax has it."""
    from shardwise.cost.kernels import machine_of, op_times
    from shardwise.inputs.calibrations import calibration_of
    from shardwise.ops.op import Op

    gpu = read_system(SYSTEM).cluster.gpu
    machine = machine_of(gpu, calibration_of(gpu), load_runtime("megatron"), "bf16", accumulating=True)
    flops = 2.0 * 2048 * 1536 * 2048
    hit, near, far = (op_times(Op("x", "x", "gemm", (2048, width, 2048)), machine) for width in (1536, 4096, 8192))
    assert hit.f == pytest.approx(flops / (990e12 * 0.64))
    assert near.f == pytest.approx(flops / 1536 * 4096 / (990e12 * 0.64)), "the nearest shape's"
    assert far.f == pytest.approx(flops / 1536 * 8192 / (990e12 * 0.5)), "the mean"
    assert hit.w == pytest.approx(flops / (990e12 * 0.5))


def test_collectives_take_the_time_of_the_file():
    from shardwise.cost.network import all_to_all, network_of, ring, send
    from shardwise.inputs.calibrations import calibration_of

    cluster = read_system(SYSTEM, gpus=16).cluster
    network = network_of(cluster, calibration_of(cluster.gpu))
    size, gib = 1e9, 2.0**30
    near, shares = network.group(8, 1), SYSTEM["networks"]["high_intra_node"]["op"]
    own = shares["all2all"]
    wanted = size * 7 / 8 / (400 * gib * own["efficient_factor"])
    assert all_to_all(near, size) == pytest.approx(wanted + 20e-6 + 7 * own["latency_us"] * 1e-6)
    for kind, name in (("all-gather", "all_gather"), ("reduce-scatter", "reduce_scatter")):
        own = shares[name]
        wanted = size * 7 / 8 / (400 * gib * own["efficient_factor"]) + 20e-6 + 7 * own["latency_us"] * 1e-6
        assert ring(near, size, kind) == pytest.approx(wanted)
    assert send(network, 8, size) == pytest.approx(size / (200 / 8 * gib * 0.74) + 8e-6 + 20e-6)
    assert send(network, 1, size) == pytest.approx(size / (400 * gib * 0.9) + 9e-6)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("megatron+loss=fused", "changes nothing"), ("megatron+kernels.los=fused", "did you mean loss"),
        ("megatron+kernels.loss=magic", "magic"), ("megatron+overlap.tp=7", "7"),
        ("megatro+kernels.loss=fused", "megatro"), ("megatron+kernels.loss", "changes nothing"),
    ],
)  # fmt: skip
def test_a_runtime_with_wrong_changes_is_refused(name, word):
    with pytest.raises(InputError, match=word):
        load_runtime(name)
