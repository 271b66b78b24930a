"""Per-operator plans run: processes whose operators have splits of their own make the gradients of one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from operator_plans import drawn_plan
from start_folder import folder_of, started

from shardwise import api
from shardwise.api import load_model
from shardwise.errors import InfeasibleError
from shardwise.frameworks.export import export
from shardwise.frameworks.folder import write_export
from shardwise.per_op.as_plan import plan_of

pytest.importorskip("torch")
SMALL = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 4, "head_size": 8, "ffn": 64, "vocab": 51}
LLAMA = replace(load_model("llama-3-8b"), **SMALL)
TIED = replace(LLAMA, tied=True, kv_heads=2, qk_norm="head", qkv_bias=True, out_bias=True, mlp_bias=True)
GPT = replace(LLAMA, position="learned", max_positions=16, norm="layernorm", activation="gelu", qkv_bias=True,
              out_bias=True, mlp_bias=True, embedding_norm=True, tied=True)  # fmt: skip
GEMMA = replace(load_model("gemma-2-9b"), layers=2, windows=(4, 0))
"""As wide as it is: 2 layers in fp64 and their gradients would be 21 GB a process."""


def written(plan, folder):
    write_export(export(plan, "torch-pipelining"), folder)
    return folder


def run(folder, processes, *words, **environment):
    """The folder's program on so many processes."""
    given = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "STEPS": "3", **environment}
    runner = Path(__file__).with_name("run_forked.py")
    done = subprocess.run(
        [sys.executable, str(runner), str(folder), "train_operators.py", str(processes), *words],
        env=given, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.parametrize(
    ("model", "gpus", "seed", "more"),
    [
        (LLAMA, (4, 2, 2), 1, {}),
        (TIED, (2, 1, 1), 12, {"sp": False, "zero": 0, "schedule": "gpipe"}),
        (GEMMA, (4,), 4, {"grad_dtype": "bf16"}),
    ],
    ids=["8-processes", "4-tied", "4-gemma"],
)
def test_gradients_are_those_of_one_process(tmp_path, model, gpus, seed, more):
    """Stages of other sizes, cut inside layers, tp changing inside them, recompute by operator; in fp64."""
    plan = drawn_plan(model, gpus, seed, **more)
    layouts = [{layout[0] for layout in stage.layouts} for stage in plan.operators.stages]
    assert any(len(tps) > 1 for tps in layouts)
    assert any(stage.recompute for stage in plan.operators.stages)
    said = run(written(plan, tmp_path / "run"), sum(gpus), "--check")
    found = re.findall(r"rank=(\d+) gradients=(\d+) worst=(\S+)", said)
    assert sorted(int(rank) for rank, _, _ in found) == list(range(sum(gpus)))
    assert sum(int(count) for _, count, _ in found) > 0
    assert max(float(worst) for *_, worst in found) <= 1e-6


def test_what_is_sharded_less_than_planned_is_priced_as_written():
    """The export said the 54 GiB of ZeRO 2 and wrote ZeRO 1, which takes 80."""
    model = replace(load_model("llama-3.2-1b"), layers=2)
    made = [
        plan_of(
            api.plan_operators(model, "4xh100", global_batch=16, seq=512, zero=zero, stages="1", operators_only=True)
        )
        for zero in (1, 2)
    ]
    one, two = (export(plan, "torch-pipelining") for plan in made)
    same = [stage.layouts for plan in made for stage in plan.operators.stages]
    assert same[0] == same[1]
    assert (one.as_written, two.as_written) == ("", one.prediction)
    assert two.prediction != one.prediction
    assert f"as written: {one.prediction}" in two.files[0].text


def test_it_trains_as_one_process_does(tmp_path):
    """Weights, losses, updates with sharded states, and as many parameters as the whole model on one GPU."""
    plan = drawn_plan(GPT, (2, 2), 5, zero=1, seq=16)
    plan = replace(plan, strategy=replace(plan.strategy, dtype="fp32"))
    said = run(written(plan, tmp_path / "run"), 4, LEARNING_RATE="0.01")
    told = [float(loss) for loss in re.findall(r"step=\d+ seconds=[\d.]+ loss=([\d.]+)", said)]
    words = f"tp1 pp1 dp1 mbs4 gbs{plan.strategy.global_batch} seq16 fp32 zero0 runtime=torch-pipelining"
    alone = started(folder_of(GPT, words, "torch-pipelining", tmp_path / "one"), steps=3, LEARNING_RATE="0.01")
    assert told == pytest.approx(alone.losses, abs=2e-5)
    assert told[0] - told[-1] > 0.01
    assert f"parameters={alone.parameters} world=4" in said


def test_the_script_starts_it_in_16_bits(tmp_path):
    plan = drawn_plan(LLAMA, (1, 1), 6)
    losses = started(written(plan, tmp_path / "run"), steps=2).losses
    assert losses[1] < losses[0] + 0.1


def test_the_file_says_every_operator(tmp_path):
    plan = drawn_plan(LLAMA, (4, 2, 2), 1)
    told = json.loads((written(plan, tmp_path) / "shardwise_operators.json").read_text())
    rows = [row for stage in told["plan"]["stages"] for row in stage["operators"]]
    assert [f"{unit}" for _, unit, _, _ in rows] == [name.rpartition("/")[2] for name in plan.operators.names]
    assert [tp for _, _, tp, _ in rows] == [tp for stage in plan.operators.stages for tp, _, _ in stage.layouts]
    again = [sum(row[3] for row in stage["operators"]) for stage in told["plan"]["stages"]]
    assert again == [len(stage.recompute) for stage in plan.operators.stages]
    assert told["plan"]["passes"][2] == "F0 B0 F1 B1 F2 B2"


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v2-lite"])
def test_what_the_program_has_not_is_refused(model):
    small = replace(load_model(model), layers=2)
    with pytest.raises(InfeasibleError, match="the program has none"):
        export(drawn_plan(small, (2, 2), 7), "torch-pipelining")


def test_what_does_not_divide_is_refused_with_the_numbers():
    plan = drawn_plan(replace(LLAMA, kv_heads=1), (4,), 8)
    with pytest.raises(InfeasibleError, match=r"tp \d does not divide kv_heads 1"):
        export(plan, "torch-pipelining")


def test_zero_2_and_numbers_that_the_program_lacks_are_told():
    plan = drawn_plan(LLAMA, (2,), 9, zero=2)
    made = export(replace(plan, strategy=replace(plan.strategy, dtype="fp8")), "torch-pipelining")
    assert [fault.path for fault in made.losses] == ["strategy.zero", "strategy.dtype"]
    with pytest.raises(InfeasibleError, match="--strict"):
        export(plan, "torch-pipelining", strict=True)


def test_a_plan_with_one_split_is_launched_as_its_strategy(tmp_path, monkeypatch):
    """And one with several says which, and what runs it."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    found = api.plan_of(api.plan_operators(LLAMA, "2xh100", global_batch=8, seq=32, stages="2", microbatches="4"))
    told = api.launch(found, "torch-pipelining", cpu=True, dry_run=True, out=tmp_path / "run")
    assert (told.predicted.strategy.pp, told.predicted.strategy.microbatches) == (2, 4)
    assert not (tmp_path / "run").exists()
    with pytest.raises(InfeasibleError, match=r"splits differ(.|\n)*export --to torch-pipelining"):
        api.launch(drawn_plan(LLAMA, (4, 2, 2), 1), "torch-pipelining", cpu=True, dry_run=True)


def test_micro_batches_that_do_not_divide_are_refused():
    plan = drawn_plan(LLAMA, (2,), 9)
    five = replace(plan, strategy=replace(plan.strategy, global_batch=13))
    with pytest.raises(InfeasibleError, match="global batch 13: 3 micro batches do not divide it"):
        export(five, "torch-pipelining")
