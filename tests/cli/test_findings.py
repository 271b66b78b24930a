"""What an independent attack found on 918ce20: guesses of importers, slips of units, exits 70, hangs (10 to 13, 16)."""

from __future__ import annotations

import gzip
import json
import os

import pytest
import yaml

QUESTION = ("llama-3.2-1b", "-c", "8xh100")
PLAN = ("plan", *QUESTION, "--global-batch", "8", "--gap", "20%")


def refused(result, *words):
    assert result.code == 2, (result.code, result.out[-300:], result.err[-300:])
    assert "unexpected error" not in result.err
    for word in words:
        assert word in result.err, result.err


@pytest.fixture
def plan(shardwise, tmp_path):
    path = tmp_path / "plan.json"
    assert shardwise("estimate", *QUESTION, "-s", "gbs8 seq4096", "--out", path).code == 0
    return path


MINDFORMERS = {
    "runner_config": {"batch_size": 1},
    "parallel_config": {"data_parallel": 2, "model_parallel": 2, "pipeline_stage": 2, "micro_batch_num": 8},
    "recompute_config": {"recompute": [1, 1]},
    "model": {"model_config": {"type": "LlamaConfig", "num_layers": 8, "hidden_size": 512, "num_heads": 8,
                               "vocab_size": 32000, "seq_length": 4096}},
}  # fmt: skip


@pytest.mark.parametrize(
    "recompute", [[1], [1, 1, 1], [[1, 1], [1, 1]], [[1], [1]], {"a": 1}, "full", [1, "x"], [[1, 1.5]]]
)
def test_10_a_recompute_list_of_another_shape_is_no_full_recompute(shardwise, tmp_path, recompute):
    path = tmp_path / "mf.yaml"
    path.write_text(yaml.safe_dump({**MINDFORMERS, "recompute_config": {"recompute": recompute}}))
    refused(shardwise("check", "--from", path, "-c", "8xascend-910b"), "recompute_config.recompute")


def test_10_every_key_of_a_file_is_accounted_for(shardwise, tmp_path):
    path = tmp_path / "mf.yaml"
    path.write_text(yaml.safe_dump({**MINDFORMERS, "callbacks": [], "parallel": {"strategy_ckpt": "x"}}))
    result = shardwise("check", "--from", path, "-c", "8xascend-910b")
    assert result.code == 0, result.err
    assert "callbacks" in result.err
    assert "strategy_ckpt" in result.err
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 1, "reduce_bucket_size": 5}}))
    assert "reduce_bucket_size" in shardwise("check", *QUESTION, "--from", path).err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--num-layers-per-virtual-pipeline-stage 4.0", "--num-layers-per-virtual-pipeline-stage"),
        ("--moe-layer-freq often --num-experts 8", "--moe-layer-freq"),
        ("--normalization BatchNorm", "--normalization"),
        ("--attention-dropout some", "--attention-dropout"),
        ("--window-size wide", "--window-size"),
        ("--transformer-impl magic", "--transformer-impl"),
        ("--optimizer lion", "--optimizer"),
        ("--sequence-parallel false", "--sequence-parallel"),
    ],
)
def test_10_megatron_flags_do_not_vanish(shardwise, tmp_path, flags, named):
    path = tmp_path / "run.sh"
    path.write_text(
        "pretrain_gpt.py --num-layers 16 --hidden-size 512 --num-attention-heads 8 --max-position-embeddings 4096 "
        f"--pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 8 --vocab-size 32000 "
        f"--bf16 {flags}\n"
    )
    refused(shardwise("check", "--from", path, "-c", "8xh100"), named)


@pytest.mark.parametrize("value", ["nan", {}, -1e18])
@pytest.mark.parametrize("key", ["mem_factor", "attention_sparse_ratio", "recompute_layer_num"])
def test_10_simumax_numbers_are_numbers(shardwise, tmp_path, key, value):
    path = tmp_path / "strategy.json"
    path.write_text(json.dumps({"seq_len": 4096, "micro_batch_size": 1, "micro_batch_num": 8, key: value}))
    refused(shardwise("check", *QUESTION, "-s", path), key)


@pytest.mark.parametrize(
    ("change", "at", "offer"),
    [
        ({"flops": {"bf16": 989, "fp32": 67e12}}, "cluster.gpu.flops.bf16", '"989 TFLOP/s"'),
        ({"memory": 80}, "cluster.gpu.memory", '"80 GB"'),
        ({"bandwidth": 3350}, "cluster.gpu.bandwidth", '"3350 GB/s"'),
    ],
)
def test_11_a_unit_that_was_left_out_is_offered(shardwise, tmp_path, change, at, offer):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"gpus": 8, "gpu": {"base": "h100", **change}}))
    refused(shardwise("estimate", "llama-3.2-1b", "-c", path), at, offer)


def test_11_a_latency_of_three_seconds(shardwise, tmp_path):
    path = tmp_path / "cluster.json"
    level = {"name": "nvlink", "size": 8, "bandwidth": "450GB/s", "latency": 3}
    path.write_text(json.dumps({"gpus": 8, "gpu": "h100", "levels": [level]}))
    refused(shardwise("estimate", "llama-3.2-1b", "-c", path), "cluster.levels.0.latency", '"3 us"')


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("sp=maybe", "on, true"), ("cp_kind=foo", "ring"), ("gbs=4", "--global-batch"), ("seq=5", "--seq"),
        ("mbs=0", "at least 1"), ("tp<=²", "whole number"), ("zero=9", "at most 3"), ("layers=1,2", "search"),
    ],
)  # fmt: skip
def test_11_conditions_mean_something(shardwise, condition, said):
    for option in ("--only", "--fix"):
        refused(shardwise(*PLAN, option, condition), said)


def test_11_a_text_is_no_switch(shardwise, tmp_path):
    config = {
        "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8,
        "vocab_size": 32000,
        "intermediate_size": 1024, "attention_bias": "false",
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    refused(shardwise("check", path, "-c", "8xh100"), "attention_bias", "true or false")


@pytest.mark.parametrize("line", ["tp0", "seq0", "hsdp=-8", "cp0", "mbs0", "dp0", "gbs0", "microbatches=0"])
def test_12_why_of_what_cannot_be(shardwise, plan, line):
    refused(shardwise("why", plan, line), "at least")


def test_12_why_not_nothing(shardwise, plan):
    refused(shardwise("why", plan, " "), "nothing to compare with", "tp4 pp8")


@pytest.mark.parametrize(
    "words",
    [
        (*PLAN, "--only", "mbs=0"),
        ("sweep", *QUESTION, "--global-batch", "8", "--tokens", "1T", "--store", "0GB/s"),
        ("plan", *QUESTION, "--global-batch", "²"),
        ("sweep", *QUESTION, "--global-batch", "²"),
        ("schedule", "auto", "--pp", "2", "--microbatches", "4", "--costs", "1,1,1", "--effort", "nan"),
        ("schedule", "auto", "--pp", "2", "--microbatches", "4", "--costs", "1,inf,1"),
        ("check", *QUESTION, "--tp", "9" * 400),
        ("check", *QUESTION, "-s", "tp" + "9" * 400),
        ("check", "llama-3.2-1b", "-c", "9" * 12 + "xh100"),
    ],
)
def test_12_numbers_that_ended_in_a_fault_of_ours(shardwise, words):
    refused(shardwise(*words))


def test_12_files_that_ended_in_a_fault_of_ours(shardwise, tmp_path, plan):
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"f": 1, "i": 1, "w": 1, "alternatives": [{"f": "x"}, {"i": []}]}))
    words = ("schedule", "auto", "--pp", "2", "--microbatches", "4", "--costs", costs)
    refused(shardwise(*words), "alternatives[0].f", "alternatives[1].i")
    model = tmp_path / "model.json"
    model.write_text('{"layers": ' + "9" * 400 + ', "hidden": 8}')
    refused(shardwise("check", model, "-c", "8xh100"), "digits")
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0, "dur": 5, "pid": 0}
    trace = tmp_path / "trace.json"
    deep = '{"traceEvents": [{"args": ' + "[" * 50_000 + "]" * 50_000 + "}]}"
    for text, said in (
        (json.dumps([{**event, "cat": []}]), "cat"),
        (json.dumps([{**event, "pid": {}}]), "pid"),
        (json.dumps([{**event, "dur": "x"}]), "dur"),
        (deep, "nested too deeply"),
        ('[{"dur": ' + "9" * 5000 + "}]", "digits"),
    ):
        trace.write_text(text)
        refused(shardwise("calibrate", "--trace", trace, "--plan", plan, "--name", "ours", "--dry-run"), said)


@pytest.mark.parametrize("option", ["--trace", "--log", "--snapshot"])
def test_13_what_never_ends_is_no_file(shardwise, tmp_path, plan, option):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for name in (pipe, "/dev/zero"):
        words = ("calibrate", option, name, "--plan", plan, "--name", "ours", "--dry-run")
        refused(shardwise(*words), "pipe or a device")


def test_13_profiles_in_a_pipe_a_device_or_a_flood(shardwise, tmp_path, monkeypatch):
    pipe, flood = tmp_path / "pipe", tmp_path / "flood.tar.gz"
    os.mkfifo(pipe)
    for name in (pipe, "/dev/zero"):
        refused(shardwise("plan-operators", *QUESTION, "--profiles", name), "pipe or a device")
    monkeypatch.setattr("shardwise.frameworks.aceso.profile_texts.MOST_UNPACKED", 2**20)
    flood.write_bytes(gzip.compress(bytes(2**22)))
    refused(shardwise("plan-operators", *QUESTION, "--profiles", flood))


def test_13_a_pipe_wherever_a_file_is_read(shardwise, tmp_path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for words in (
        ("check", pipe, "-c", "8xh100"), ("check", "llama-3.2-1b", "-c", pipe), ("check", *QUESTION, "-s", pipe),
        ("check", "--from", pipe, "-c", "8xh100"), ("show", pipe), ("plan", pipe), ("simulate", pipe, "--costs",
        "1,1,1"),
        ("balance", "--problem", pipe), ("validate", "--data", pipe), ("check", *QUESTION, "--runtime", pipe),
    ):  # fmt: skip
        refused(shardwise(*words))


SCRIPT = """#!/bin/bash
torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 \\
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \\
  --micro-batch-size 1 --global-batch-size 2048 --bf16 --use-distributed-optimizer --vocab-size 50257
"""


def test_16_a_script_without_its_number_of_nodes(shardwise, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    result = shardwise("check", "--from", path, "-c", "256xh100", "--json", "-")
    assert result.code == 0, result.err
    strategy = json.loads(result.out)["inputs"]["strategy"]
    assert (strategy["dp"], strategy["global_batch"]) == (8, 2048)
    assert "was assumed" not in result.err
    path.write_text(SCRIPT.replace("--micro-batch-size 1", "--micro-batch-size x"))
    assert "was assumed" not in shardwise("check", "--from", path, "-c", "256xh100").err


def test_16_tables_of_a_base_are_laid_one_over_the_other(shardwise, tmp_path):
    path = tmp_path / "model.toml"
    path.write_text('base = "deepseek-v3"\n[moe]\nimbalance = 1.5\n')
    result = shardwise("check", path, "-c", "512xh100", "-s", "tp8 ep8 gbs512", "--json", "-")
    assert result.code == 0, result.err
    moe = json.loads(result.out)["inputs"]["model"]["moe"]
    assert (moe["imbalance"], moe["experts"]) == (1.5, 256)


def test_16_a_missing_number_is_not_missing_hardware(shardwise, tmp_path):
    path = tmp_path / "cluster.json"
    gpu = {"base": "b200", "flops": {"bf16": "2250TFLOPS", "fp32": "75TFLOPS"}}
    path.write_text(json.dumps({"gpus": 8, "gpu": gpu}))
    result = shardwise("check", "llama-3.2-1b", "-c", path, "-s", "fp8 gbs8")
    refused(result, "cluster.gpu.flops.fp8")
    assert "no fp8 hardware" not in result.err
    assert "no fp8 hardware" in shardwise("check", "llama-3.2-1b", "-c", "8xa100", "-s", "fp8 gbs8").err
