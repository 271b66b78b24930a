"""One rank of a traced module's plan, counted with the module itself, against the estimate; and every refusal."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

import shardwise
from shardwise.cli.main import run
from shardwise.errors import InputError

pytest.importorskip("torch")
HERE = Path(__file__).parent
LLAMA, WORDS = "traced_models.py:small_llama", "ids=1x256:int64,labels=1x256:int64"
UNET = "traced_models.py:unet", "x=1x3x64x64"


@functools.cache
def traced(source, inputs):
    return shardwise.trace_module(f"{HERE / source}", inputs)


def planned(strategy, source=LLAMA, inputs=WORDS, runtime="huggingface"):
    cluster = shardwise.load_cluster("8xh200")
    strategy = shardwise.load_strategy(f"{strategy} runtime={runtime}", cluster)
    return shardwise.plan_of(shardwise.estimate(traced(source, inputs), cluster, strategy))


def counted(plan, rank="pp0", source=LLAMA):
    found = shardwise.rehearse(plan, rank=rank, device="meta", trace=f"{HERE / source}")
    return {line.what: line.error for line in found.lines}


EXACT = [
    ("dp8 zero0 mbs2 gbs64 seq256", "pp0", "huggingface"),
    ("dp8 zero2 mbs2 gbs64 seq256", "pp0", "deepspeed"),
    ("dp8 zero0 mbs4 gbs64 seq256 recompute=full", "pp0", "huggingface"),
    ("dp8 zero3 mbs4 gbs64 seq256", "pp0", "huggingface"),
    ("dp4 pp2 zero1 mbs2 gbs64 seq256", "pp0", "torch-pipelining"),
    ("dp4 pp2 zero1 mbs2 gbs64 seq256 recompute=full", "pp1", "torch-pipelining"),
    ("dp4 pp2 zero3 mbs2 gbs64 seq256", "pp1", "torch-parallel"),
]


@pytest.mark.parametrize(("strategy", "rank", "runtime"), EXACT)
def test_a_rank_holds_what_the_estimate_says(strategy, rank, runtime):
    errors = counted(planned(strategy, runtime=runtime), rank)
    assert abs(errors["memory between iterations"]) < 0.002
    assert abs(errors["peak"]) < 0.02


def test_stages_of_unequal_blocks_and_skips_are_counted():
    plan = planned("dp2 pp4 zero1 mbs4 gbs64 seq1", *UNET, runtime="torch-pipelining")
    for rank in ("pp0", "pp3"):
        errors = counted(plan, rank, UNET[0])
        assert abs(errors["memory between iterations"]) < 0.01
        assert abs(errors["peak"]) < 0.06


def test_the_command_says_that_the_file_is_executed(capsys, tmp_path):
    file = tmp_path / "plan.json"
    shardwise.write_plan(planned("dp8 zero1 mbs2 gbs64 seq256"), file)
    words = ["rehearse", str(file), "--trace", f"{HERE / LLAMA}"]
    assert run([*words, "--device", "meta"]) == 0
    printed = capsys.readouterr()
    assert "is executed now: it is your code" in printed.err
    assert "by its own module" in printed.out
    assert run([*words, "--device", "meta", "--write", str(tmp_path / "program.py")]) == 2
    assert run(words) == 2
    assert "add --device meta" in capsys.readouterr().err


REFUSED = {
    "no file": ({}, {}, "trace: is missing"),
    "another": ({}, {"trace": f"{HERE}/traced_models.py:tied_llama"}, "trace it again"),
    "broken": ({}, {"trace": f"{HERE}/traced_models.py:broken"}, "failed"),
    "lost": ({}, {"trace": "nowhere.py:build"}, "there is no file nowhere.py"),
    "nameless": ({}, {"trace": "nowhere"}, "names no function of a file"),
    "with": ({}, {"trace": f"{HERE / LLAMA}", "builder": "megatron"}, "is megatron, and a traced module"),
    "cut": ({"strategy": "tp2 dp4 zero2 mbs2 gbs64 nosp seq256", "runtime": "torch-parallel"},
            {"trace": f"{HERE / LLAMA}"}, "strategy.tp"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_counted_is_a_sentence(name):
    made, asked, said = REFUSED[name]
    plan = planned(**({"strategy": "dp8 zero1 mbs2 gbs64 seq256"} | made))
    with pytest.raises((InputError, shardwise.ShardwiseError)) as told:
        shardwise.rehearse(plan, device="meta", **asked)
    assert said in str(told.value)
    assert "Traceback" not in str(told.value)


def test_only_traced_models_take_a_file():
    plan = shardwise.plan_of(shardwise.estimate("llama-3.2-1b", "8xh200", "dp8 mbs1 gbs8 seq512 runtime=huggingface"))
    with pytest.raises(InputError, match="is for traced modules"):
        shardwise.rehearse(plan, device="meta", trace=f"{HERE / LLAMA}")
