"""Sizes that no one has are refused or answered; each of these once ran for ever."""

import json
import os
import subprocess
import sys

import pytest

from shardwise.errors import InputError
from shardwise.pipeline.costs import costs
from shardwise.pipeline.generate import generate
from shardwise.pipeline.optimise import optimise
from shardwise.search.micro_batches import divisors


def shardwise(*arguments):
    command = [sys.executable, "-m", "shardwise", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["schedule", "auto", "--pp", "4", "--microbatches", "8", "--costs", "10,11,9", "--hop", "1e308"], "1e+308"),
        (["schedule", "1f1b", "--pp", "1000000", "--microbatches", "2", "--costs", "10,11,9"], "at most 10,000"),
        (["schedule", "auto", "--pp", "1000000", "--microbatches", "1", "--costs", "10,11,9"], "at most 10,000"),
        (["schedule", "1f1b", "--pp", "9000", "--microbatches", "2", "--costs", "10,11,9"], "9,000 chunks"),
        (["schedule", "zb-1p", "--pp", "4096", "--microbatches", "1500", "--costs", "10,11,9"], "micro batches"),
        (["schedule", "v-half", "--pp", "2000", "--microbatches", "1500", "--costs", "10,11,9"], "micro batches"),
        (["plan", "llama-3-8b", "-c", "16xh100", "--global-batch", str(10**18), "--seq", "4096", "--time", "20s"],
         "global"),
    ],
)  # fmt: skip
def test_sizes_out_of_reach_are_refused(arguments, words):
    code, told = shardwise(*arguments)
    assert code == 2
    assert words in told


def test_what_if_with_more_gpus_than_there_are(tmp_path):
    path = tmp_path / "plan.json"
    code, _ = shardwise("plan", "llama-3.2-1b", "-c", "8xh100", "--global-batch", "64", "--seq", "2048", "-q",
                        "--only", "pp=1 cp=1 tp=1", "--out", str(path))  # fmt: skip
    assert code == 0
    assert json.loads(path.read_text())
    code, told = shardwise("what-if", str(path), "--gpus", "9" * 18)
    assert code == 2
    assert "more than 15 digits" in told


def test_divisors_are_listed_as_far_as_asked():
    assert divisors(10**18, 16) == [1, 2, 4, 5, 8, 10, 16]
    assert divisors(12, 12) == [1, 2, 3, 4, 6, 12]
    assert divisors(12, 5) == [1, 2, 3, 4]
    assert divisors(7, 0) == []


def test_the_largest_pipeline_is_answered():
    assert generate("1f1b", pp=4096, microbatches=2).pp == 4096
    with pytest.raises(InputError, match="up to 4,096 are planned"):
        generate("1f1b", pp=4097, microbatches=2)


@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e-12])
def test_a_limit_binds_in_any_unit_of_bytes(unit):
    """With bytes of 1e-12 an order of 522 once held ten times four, below its own bound of 562."""
    given = costs(pp=4, vpp=2, f=10, i=11, w=9, hop=1, activation=unit, memory_limit=4 * unit)
    answer = optimise(given, pp=4, vpp=2, microbatches=8, effort=0.02)
    assert max(answer.timeline.peak) <= 4 * unit * (1 + 1e-9)
    assert answer.bound.value == 608
    assert answer.value >= 562
