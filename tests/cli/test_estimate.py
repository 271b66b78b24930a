"""`shardwise estimate`: what it prints, writes and exits with."""

from __future__ import annotations

import json

import pytest
from test_bad_inputs import written

from shardwise.plan.file import read_plan

BIG = ("estimate", "llama-3-70b", "--cluster", "64xh100", "--tp", 8, "--pp", 4, "--global-batch", 256, "--seq", 8192)
TOO_BIG = ("estimate", "llama-3-70b", "--cluster", "16xh100", "--tp", 8, "--pp", 2, "--global-batch", 256)


def test_summary(shardwise):
    result = shardwise(*BIG)
    assert result.code == 0
    for word in ("iteration", "per second and GPU", "causal", "full attention", "HFU", "bubble", "memory", "fits"):
        assert word in result.out
    ranks = [line.split()[0] for line in result.out.splitlines() if "█" in line]
    assert ranks == ["0", "1", "2", "3"]
    assert "\x1b[" not in result.out  # no colour where a program reads


def test_equal_neighbours_are_one_line(shardwise):
    result = shardwise("estimate", "llama-3-8b", "-c", "8xh100", "--tp", 8, "--global-batch", 8)
    assert sum("█" in line for line in result.out.splitlines()) == 1


def test_explain_shows_both_ledgers_the_calibration_and_three_changes(shardwise):
    result = shardwise(*BIG, "--explain")
    assert result.code == 0
    for word in ("├─ backward", "│  ├─ gemm", "├─ optimizer moments", "the peak is in", "calibrated on: hopper"):
        assert word in result.out
    changes = result.out.split("changes that would make it faster:")[1].strip().splitlines()
    assert 2 <= len(changes) <= 4  # a heading and up to three
    assert all("yes" in line for line in changes[1:])


def test_json_adds_up(shardwise, tmp_path):
    file = tmp_path / "answer.json"
    assert shardwise(*BIG, "--explain", "--json", file).code == 0
    answer = json.loads(file.read_text())
    found = answer["predictions"]
    assert found["iteration_seconds"] == pytest.approx(sum(part["value"] for part in found["time"]["parts"]))
    for rank in found["memory"]:
        assert rank["peak"]["value"] == pytest.approx(sum(part["value"] for part in rank["peak"]["parts"]))
        assert rank["total"] >= rank["reserved"] >= rank["peak"]["value"]
    assert found["peak_bytes"] == max(rank["peak"]["value"] for rank in found["memory"])
    low, high = found["iteration_seconds_interval"]
    assert low < found["iteration_seconds"] < high
    assert found["mfu"] <= found["mfu_full_attention"]
    assert found["mfu"] <= found["hfu"]
    assert len(answer["advice"]) <= 3


def test_json_on_standard_output_is_json_alone(shardwise):
    result = shardwise(*BIG, "--json", "-")
    assert json.loads(result.out)["predictions"]["fits"] == "yes"


def test_the_same_question_gets_the_same_bytes(shardwise):
    assert shardwise(*BIG, "--explain", "--json", "-").out == shardwise(*BIG, "--explain", "--json", "-").out


def test_out_writes_a_plan_that_reads_back(shardwise, tmp_path):
    path = tmp_path / "plan.json"
    assert shardwise(*BIG, "--out", path).code == 0
    plan = read_plan(path)
    assert str(plan.strategy).startswith("tp8 pp4 dp2")
    assert plan.predictions.iteration_seconds > 0
    assert "hopper" in plan.provenance.calibration


def test_does_not_fit(shardwise):
    result = shardwise(*TOO_BIG, "--seq", 8192)
    assert result.code == 1
    assert "does not fit" in result.out
    assert "changes that would make it fit" in result.out
    assert "error: does not fit: pipeline rank 0 needs" in result.err
    assert "are missing" in result.err
    assert "the peak is in" in result.err


def test_nothing_can_fit(shardwise):
    result = shardwise("estimate", "llama-3.1-405b", "-c", "8xh100", "--tp", 8, "--global-batch", 8)
    assert result.code == 1
    assert "GPUs or more" in result.out


def test_a_schedule_is_timed_as_what_it_is(shardwise):
    """Splitting the backward pass fills bubbles; it must not be timed as plain 1F1B."""
    few = ("estimate", "llama-3-70b", "-c", "64xh100", "--tp", 8, "--pp", 4, "--global-batch", 32, "--seq", 8192)
    plain, split = (
        json.loads(shardwise(*few, "--runtime", "zero-bubble", "--schedule", name, "--json", "-").out)["predictions"]
        for name in ("1f1b", "zb-h1")
    )
    assert split["bubble"] < plain["bubble"]
    assert split["iteration_seconds"] < plain["iteration_seconds"]


def test_simumax_files(shardwise, tmp_path):
    _, *words = written(tmp_path, {})
    result = shardwise("estimate", *words)
    assert result.code == 0
    assert "llama3_8b" in result.out


def test_a_framework_file(shardwise, tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 --swiglu "
        "--seq-length 4096 --max-position-embeddings 4096 --normalization RMSNorm --vocab-size 128256 "
        "--position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear "
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 64 "
        "--bf16 --use-distributed-optimizer --sequence-parallel --use-flash-attn\n"
    )
    result = shardwise("estimate", "--from", script, "-c", "8xh100")
    assert result.code == 0, result.err
    assert "tp2 pp2 dp2" in result.out


def test_more_recompute_takes_more_time_and_less_memory(shardwise):
    answers = [
        json.loads(shardwise(*BIG, "--recompute", choice, "--json", "-").out)["predictions"]
        for choice in ("none", "full:10", "full")
    ]
    assert answers[0]["iteration_seconds"] < answers[1]["iteration_seconds"] < answers[2]["iteration_seconds"]
    assert answers[0]["peak_bytes"] > answers[1]["peak_bytes"] > answers[2]["peak_bytes"]
    assert answers[0]["hfu"] == pytest.approx(answers[0]["mfu"])
    assert answers[2]["hfu"] > answers[2]["mfu"]


def test_explain_and_json_say_what_stages_do_and_what_groups_reach(shardwise, tmp_path):
    file = tmp_path / "answer.json"
    result = shardwise(*BIG, "--explain", "--json", file)
    assert result.code == 0
    for word in ("TFLOP forward", "ranks x stride", "reduce-scatter", "send"):
        assert word in result.out
    found = json.loads(file.read_text(encoding="utf-8"))
    assert [one["rank"] for one in found["work"]] == [0, 1, 2, 3]
    assert all(one["backward_flops"] > one["forward_flops"] > 0 < one["forward_bytes"] for one in found["work"])
    pp = next(one for one in found["groups"] if one["group"] == "pp")
    assert (pp["ranks"], pp["stride"], pp["levels"], pp["collective"]) == (4, 16, ["infiniband"], "send")
    assert pp["bus_bandwidth"] == pytest.approx(pp["bytes"] / pp["seconds"])


@pytest.mark.parametrize("verb", ["estimate", "plan"])
def test_a_gpu_that_nobody_measured_is_told(shardwise, verb):
    for gpu, told in (("l40s", True), ("mi355x", True), ("h100", False)):
        words = (verb, "llama-3.2-1b", "-c", f"8x{gpu}", "--global-batch", 8, *(("--gap", "20%") * (verb == "plan")))
        assert (f"no measured run supports the times of {gpu}" in shardwise(*words).err) == told
