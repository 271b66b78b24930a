"""A rank that torchtitan's own trainer builds: what is refused, the program that is written, and what it counts.

torchtitan is not among the tools of the tests (it imports Triton): where it is missing, what needs it is skipped and
says so.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwise.cli.main import run
from shardwise.errors import InfeasibleError, InputError
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.strategy import Strategy
from shardwise.measure.rehearse.compare import compare
from shardwise.measure.rehearse.program import run_program
from shardwise.measure.rehearse.rehearse import spec_for
from shardwise.measure.rehearse.shardwise_rehearse_torchtitan import Sent
from shardwise.plan.file import write_plan
from shardwise.plan.plan import Plan

THERE = importlib.util.find_spec("torchtitan") is not None
real = pytest.mark.skipif(not THERE, reason="torchtitan not installed: its ranks are not counted")


def plan_of(name: str, words: str, layers: int = 2) -> Plan:
    strategy = Strategy.parse(f"{words} runtime=torchtitan")
    model = replace(load_model(name), layers=layers)
    return Plan(model=model, cluster=load_cluster(f"{strategy.world}xh200"), strategy=strategy)


def spec(plan: Plan, device="meta"):
    return spec_for(plan, "pp0", device=device, builder="torchtitan")


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("llama-3-8b", "pp2 dp2 zero2 mbs1 gbs8 seq1024", r"strategy\.pp: is 2: rehearse --with torchtitan cannot"),
        ("qwen3-30b-a3b", "dp4 ep4 zero2 mbs1 gbs4 seq1024", r"strategy\.ep: is 4"),
        ("llama-3-8b", "dp4 zero0 mbs1 gbs4 seq1024", r"strategy\.zero: is 0"),
        ("llama-3-8b", "dp4 zero2 fp8 mbs1 gbs4 seq1024", r"strategy\.dtype: is fp8"),
        ("llama-3-8b", "dp4 zero2 compile mbs1 gbs4 seq1024", r"--device: is meta, and torchtitan cannot go without"),
        ("llama-3-8b", "cp2 dp2 zero2 mbs1 gbs4 seq1024", r"context parallel, whose attention"),
        ("qwen3-30b-a3b", "dp4 zero2 mbs1 gbs4 seq1024", r"experts, whose kernels look"),
    ],
)
def test_what_cannot_be_built_or_counted_is_refused(name, words, told):
    with pytest.raises(InputError, match=told):
        spec(plan_of(name, words))


def test_what_the_export_cannot_say_is_refused():
    plan = plan_of("llama-3-8b", "dp4 zero2 mbs1 gbs4 seq1024")
    plan = replace(plan, strategy=Strategy.parse("dp4 zero1 mbs1 gbs4 seq1024"))
    with pytest.raises(InputError, match=r"strategy\.zero: FSDP shards gradients .*; plan what is written, then"):
        spec(plan)


def test_what_cannot_be_counted_can_be_run():
    assert "compiled" in spec(plan_of("llama-3-8b", "dp4 zero2 compile mbs1 gbs4 seq1024"), "cuda")["run_only"]


def test_a_model_of_no_family_is_refused():
    with pytest.raises(InfeasibleError, match=r"model\.activation: geglu"):
        spec(plan_of("gemma-2-9b", "dp4 zero2 mbs1 gbs4 seq1024"))


def test_the_program_stands_alone(tmp_path, capfd):
    write_plan(plan_of("llama-3-8b", "dp4 zero3 mbs1 gbs4 seq1024"), tmp_path / "plan.json")
    program = tmp_path / "rehearse.py"
    words = ["rehearse", str(tmp_path / "plan.json"), "--with", "torchtitan"]
    assert run([*words, "--write", str(program)]) == 0
    tree = ast.parse(program.read_text())
    named = {one.names[0].name for one in ast.walk(tree) if isinstance(one, ast.Import)}
    named |= {one.module for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)}
    modules = {name.split(".")[0] for name in named}
    assert modules - set(sys.stdlib_module_names) == {"torch", "torchtitan"}
    assert "torchtitan's own modules" in ast.get_docstring(tree)
    if not THERE:
        done = subprocess.run(
            [sys.executable, str(program), "--device", "meta"], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert "error: No module named 'torchtitan'; install what is missing here" in done.stderr
        assert run([*words, "--device", "meta"]) == 2
        assert "--with: is torchtitan, and torchtitan is not installed here; use --write FILE" in capfd.readouterr().err


def test_what_compute_waits_for_is_noted():
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    found = {}
    try:
        group = dist.group.WORLD.group_name
        with Sent(found):
            sent = (
                torch.ops._c10d_functional.all_gather_into_tensor(torch.ones(2, 3), 4, group),
                torch.ops._c10d_functional.reduce_scatter_tensor(torch.ones(8, 3), "sum", 4, group),
            )
            assert [torch.ops._c10d_functional.wait_tensor(one).sum() for one in sent] == [24, 6]
    finally:
        dist.destroy_process_group()
    assert found == {("spread 4", (6,)): 1, ("scatter", (6,)): 1}


def test_a_result_is_held_against_torchtitan():
    """On one GPU its weights are fp32 under autocast, whatever word the plan has for it."""
    plan = plan_of("llama-3.2-1b", "zero0 mbs1 gbs1 seq1024")
    shape = {"rank": 0, "with": "torchtitan", "memory": {"static": 1e9, "peak": 1e9}}
    told = {line.what: line.predicted for line in compare(plan, shape)}
    weights = 12 * sum(count for count in (128256 * 2048, 2 * 60_821_504))  # tied; values, two moments in fp32
    assert told["memory between iterations"] == pytest.approx(weights + 0.1e9, rel=0.01)


@real
@pytest.mark.parametrize(
    ("name", "words", "bound"),
    [
        ("llama-3.2-1b", "zero0 mbs2 gbs4 seq1024", 0.02),
        ("llama-3.2-1b", "dp4 zero3 hsdp2 mbs1 gbs4 seq2048 recompute=full", 0.02),
        ("qwen3-14b", "dp8 zero2 mbs1 gbs8 seq2048 recompute=ops", 0.02),
        # torch's loss over shares of the vocabulary makes one fp32 copy of its logits more than is predicted
        ("llama-3-8b", "tp2 dp2 zero2 mbs1 gbs4 seq2048", 0.12),
    ],
)
def test_the_trainer_holds_what_is_predicted(name, words, bound):
    plan = plan_of(name, words)
    result = run_program(spec(plan), device="meta")
    assert result["framework"].startswith("torchtitan 0.2")
    lines = {line.what: line for line in compare(plan, json.loads(json.dumps(result)))}
    assert abs(lines["peak"].error) < bound
