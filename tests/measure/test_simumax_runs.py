"""SimuMax's runs on eight A100 behind PCIe, by the path that a user has: a system file, a model and a strategy.

The system below is made by hand, with round means in place of tables of shapes; with SimuMax's own file the errors are
2.3% in the mean and 4.6% at most.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from shardwise.estimate.estimate import estimate
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.frameworks.simumax.read import read_model, read_strategy, read_system
from shardwise.measure.validate.simumax_runs import model_file
from shardwise.measure.validate.validate import validate

# Model, layers, tp, pp, ep, micro batches, milliseconds, peak GiB (MooreThreads/SimuMax docs/FULL_RESULTS.md: real is
# its v1.0 estimate / (1 + the published error); 4096 tokens, micro batches of 1, Megatron-Core 0.12, nothing hidden).
RUNS = (
    ("llama3-70b", 12, 1, 2, 1, 4, 4876.8, 65.15), ("llama3-70b", 12, 2, 1, 1, 4, 7010.8, 59.85),
    ("llama3-70b", 12, 4, 1, 1, 4, 4783.6, 38.63), ("llama3-70b", 12, 8, 1, 1, 4, 2922.5, 28.04),
    ("llama3-70b", 12, 1, 2, 1, 32, 26078.3, 66.52), ("llama3-70b", 12, 2, 1, 1, 32, 31738.4, 60.65),
    ("llama3-70b", 12, 4, 1, 1, 32, 21972.4, 39.04), ("llama3-70b", 12, 8, 1, 1, 32, 23020.1, 28.26),
    ("deepseekv2", 4, 1, 1, 8, 4, 3572.5, 46.59), ("deepseekv2", 4, 1, 2, 4, 4, 1690.9, 47.27),
    ("deepseekv2", 4, 1, 1, 8, 32, 21070.4, 46.59), ("deepseekv2", 4, 1, 2, 4, 32, 9748.9, 47.27),
    ("llama3-8b", 32, 1, 2, 1, 4, 3460.3, 51.34), ("llama3-8b", 32, 2, 1, 1, 4, 5411.4, 43.94),
    ("llama3-8b", 32, 4, 1, 1, 4, 4183.6, 27.62), ("llama3-8b", 32, 8, 1, 1, 4, 3492.0, 19.47),
    ("llama3-8b", 32, 1, 2, 1, 32, 18807.9, 51.34), ("llama3-8b", 32, 2, 1, 1, 32, 27192.4, 43.94),
    ("llama3-8b", 32, 4, 1, 1, 32, 22670.5, 27.62), ("llama3-8b", 32, 8, 1, 1, 32, 27569.2, 19.47),
)  # fmt: skip


def _pcie(gather: float, scatter: float, reduce: float, exchange: float, **strided: dict) -> dict:
    """A network of 30 GiB/s; shares of it, and 15 us a step."""
    shares = {"all_gather": gather, "reduce_scatter": scatter, "all_reduce": reduce, "all2all": exchange, "p2p": 0.5}
    ops = {
        name: {"efficient_factor": share, "latency_us": 15, "dp_fixed_bw": strided.get(name, {})}
        for name, share in shares.items()
    }  # fmt: skip
    return {"bandwidth": {"gbps": 30, "efficient_factor": 0.5, "latency_us": 10}, "op": ops}


def _memory(share: float) -> dict:
    return {"gbps": 1600, "efficient_factor": share, "latency_us": 40}


SHARES = {"default": 0.7, "matmul": 0.7, "group_matmul": 0.64, "sdp_fwd": 1.0, "sdp_bwd": 0.85}
SYSTEM: dict[str, Any] = {
    "sys_name": "a100_by_hand", "num_per_node": 8,
    "accelerator": {
        "backend": "cuda", "mem_gbs": 80, "mode": "roofline",
        "op": {name: {"tflops": 312, "efficient_factor": share} for name, share in SHARES.items()},
        "bandwidth": {
            "default": _memory(0.91), "permute_fwd": _memory(0.19), "permute_bwd": _memory(0.19), "ce": _memory(0.81),
        },
    },
    "networks": {
        "intra_with_pcie": True,
        "intra_node_pcie_2x": _pcie(0.69, 0.64, 0.70, 0.70),
        "intra_node_pcie_4x": _pcie(0.69, 0.68, 0.69, 0.64),
        "intra_node_pcie_8x": _pcie(
            0.45, 0.37, 0.42, 0.28, all_gather={"2": 4, "4": 7.6}, reduce_scatter={"2": 3.9, "4": 7}
        ),
    },
}  # fmt: skip


def _row(run: tuple) -> dict:
    model, layers, tp, pp, ep, count, milliseconds, gib = run
    return {
        "case": "-".join(map(str, run[:6])), "system_config": "a100_by_hand", "model": model, "layer_num": layers,
        "parallel": {"world": 8, "tp": tp, "pp": pp, "ep": ep, "cp": 1, "vp": 1, "dp": 8 // tp // pp},
        "seq_len": 4096, "micro_batch_size": 1, "micro_batch_num": count,
        "real_ms_derived": milliseconds, "real_peak_gib_derived": gib,
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    (place / "runs.json").write_text(json.dumps({"rows": [_row(run) for run in RUNS]}))
    (place / "simumax_systems").mkdir()
    (place / "simumax_systems" / "a100_by_hand.json").write_text(json.dumps(SYSTEM))
    return place


@pytest.fixture(scope="module")
def outcomes(folder):
    found = validate([folder / "runs.json"])
    assert not found.skipped
    return {one.case.id: one for one in found.outcomes}


def test_times_follow_the_runs(outcomes):
    errors = {name: one.error["iteration_seconds"] for name, one in outcomes.items()}
    assert sum(map(abs, errors.values())) / len(errors) < 0.04, errors
    assert max(map(abs, errors.values())) < 0.09, errors


def test_peaks_follow_the_runs(outcomes):
    errors = {name: one.error["peak_bytes"] for name, one in outcomes.items()}
    assert sum(map(abs, errors.values())) / len(errors) < 0.012, errors


def test_a_pipeline_of_two_is_ranked_before_tensor_parallel_of_two(outcomes):
    """Half the links of a PCIe tree are shared by strided groups; without their rates tp2 looked faster."""
    for model, layers, count in (("llama3-8b", 32, 4), ("llama3-8b", 32, 32), ("llama3-70b", 12, 4)):
        pipeline, tensor = (
            outcomes[f"{model}-{layers}-{tp}-{pp}-1-{count}"].predicted["iteration_seconds"]
            for tp, pp in ((1, 2), (2, 1))
        )
        assert pipeline < 0.8 * tensor


def test_validate_says_what_an_importing_user_gets(folder, outcomes):
    system = folder / "simumax_systems" / "a100_by_hand.json"
    written = model_file(replace(load_model("llama3-8b"), layers=32))
    strategy = {"tp_size": 4, "world_size": 8, "seq_len": 4096, "micro_batch_size": 1, "micro_batch_num": 4}
    found = estimate(read_model(written).model, load_cluster(system), read_strategy(strategy).strategy)
    one = outcomes["llama3-8b-32-4-1-1-4"].predicted
    assert (found.iteration_seconds, found.peak_bytes) == (one["iteration_seconds"], one["peak_bytes"])


def test_a_row_without_its_system_is_skipped_and_cluster_gives_one(folder, tmp_path):
    lonely = tmp_path / "runs.json"
    lonely.write_text((folder / "runs.json").read_text())
    found = validate([lonely])
    assert len(found.skipped) == len(RUNS)
    assert "a100_by_hand.json" in found.skipped[0].reason
    assert "--cluster" in found.skipped[0].reason
    given = validate([lonely], str(folder / "simumax_systems" / "a100_by_hand.json"))
    assert len(given.outcomes) == len(RUNS)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "x" * 5000])
def test_a_system_is_only_looked_for_beside_the_rows(tmp_path, name):
    path = tmp_path / "runs.json"
    path.write_text(json.dumps({"rows": [{**_row(RUNS[0]), "system_config": name}]}))
    assert "neither beside" in validate([path]).skipped[0].reason


def test_rows_of_another_gpu_than_the_given_clusters_are_skipped(folder):
    found = validate((), str(folder / "simumax_systems" / "a100_by_hand.json"))
    told = {one.case.cluster.gpu.name for one in found.outcomes}
    assert told == {"a100_by_hand"}
    assert {one.case.gpu for one in found.outcomes} == {"A100"}
    assert any("it ran on h200" in one.reason for one in found.skipped)


FOUR = {"world_size": 8, "seq_len": 4096, "micro_batch_size": 1, "micro_batch_num": 4, "ep_size": 8}


def _found(cluster):
    model = read_model(model_file(replace(load_model("deepseekv2"), layers=4))).model
    return estimate(model, cluster, read_strategy(FOUR).strategy)


@pytest.mark.parametrize("name", ["permute_fwd", "permute_bwd", "ce"])
def test_a_slow_operator_makes_a_slow_run(name):
    slow = copy.deepcopy(SYSTEM)
    slow["accelerator"]["bandwidth"][name] = _memory(0.05)
    usual, found = (_found(read_system(system).cluster).iteration_seconds for system in (SYSTEM, slow))
    assert found > 1.01 * usual


def test_both_optimizers_of_a_model_with_experts_gather():
    update = _found(load_cluster("8xa100")).update
    assert update.gather == pytest.approx(update.reduce, rel=0.05), "two gathers of 2 bytes, one sum of 4"
