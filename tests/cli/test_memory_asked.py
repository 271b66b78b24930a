"""A limit that was asked for is the one yardstick: of every line, of `fits` and of its probability."""

from __future__ import annotations

import json

import pytest

import shardwise as sw
from shardwise import api

ASKED = ("llama-3-8b", "-c", "8xh100", "--global-batch", "16", "--seq", "4096", "--only", "tp2 pp1 cp=1 mbs<=2")


@pytest.fixture(scope="module")
def limited():
    answer = sw.plan("llama-3-8b", "8xh100", global_batch=16, only="tp2 pp1 cp=1 mbs<=2", memory="40GiB")
    return sw.plan_of(answer)


@pytest.fixture
def path(limited, tmp_path):
    sw.write_plan(limited, tmp_path / "m.json")
    return tmp_path / "m.json"


def test_every_verb_says_the_limit_and_judges_by_it(limited, path, shardwise, tmp_path):
    assert limited.predictions.memory_limit == 40 * 2**30
    said = "of 40.00 GiB asked for (GPU: 79.20 GiB)"
    words = [
        ("plan", *ASKED, "--memory", "40GiB"), ("show", path), ("estimate", "--from", path),
        ("export", path, "--to", "megatron", "--out", tmp_path / "run"),
    ]  # fmt: skip
    for one in words:
        assert said in shardwise(*one).out
    assert said in (tmp_path / "run" / "train.sh").read_text()
    assert said in limited._repr_html_()
    low, high = limited.predictions.total_bytes_interval
    assert low <= 40 * 2**30 < high
    assert limited.predictions.fits == sw.estimate(limited).fits == "close"
    assert limited.predictions.fits_probability == sw.estimate(limited).fits_probability < 0.99


def test_a_wider_limit_is_judged_anew(limited):
    assert sw.plan_of(sw.estimate(limited), memory_limit=79e9).predictions.fits == "yes"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--memory", "40GiB", "--memory-margin", "5GiB"), "both say what a GPU may use"),
        (("--memory", "200GiB"), "200.00 GiB are more than the 79.20 GiB that h100 has"),
    ],
)
def test_what_cannot_be_asked_is_refused(shardwise, words, said):
    found = shardwise("plan", *ASKED, *words)
    assert found.code == 2
    assert said in found.err


def test_another_memory_drops_the_limit_and_says_so(shardwise, path):
    found = shardwise("what-if", path, "--memory", "80GB", "--json", "-")
    rows = json.loads(found.out)
    assert rows["the plan as it is"]["fits"] == "close"
    assert rows["the same strategy there"]["fits"] == rows["the best there"]["fits"] == "yes"
    assert "the plan's own limit, 40.00 GiB of 79.20 GiB, does not go with another memory" in found.err
    assert rows["the best there"]["iteration_seconds"] < rows["the plan as it is"]["iteration_seconds"]


def test_another_number_of_gpus_keeps_memory_and_limit(limited):
    there = sw.what_if(limited, memory="141GB", only="tp2 pp1 cp=1 mbs<=2")
    further = sw.what_if(sw.plan_of(there), gpus=16, only="tp<=2 pp1 cp=1 mbs=1")
    assert further.cluster.gpu.memory == 141e9
    assert not further.note
    kept = sw.what_if(limited, gpus=16, only="tp<=2 pp1 cp=1 mbs=1")
    assert kept.again.question.memory_limit == 40 * 2**30


def test_a_limit_above_the_gpu_is_the_gpus(path, tmp_path, shardwise):
    data = json.loads(path.read_text())
    data["inputs"]["cluster"]["gpu"]["memory"] = 30 * 2.0**30
    data["predictions"]["memory_limit"] = 75.86 * 2.0**30
    path.write_text(json.dumps(data))
    found = shardwise("why", path, "recompute=none", "--json", "-")
    told = json.loads(found.out)
    assert told["fits"] == "no"
    assert told["missing_bytes"] > 0
    assert "of 30.00 GiB that may be used" in shardwise("why", path, "recompute=none").out
    assert api.renewed(path).plan.predictions.memory_limit == 30 * 2**30
    assert "of 30.00 GiB on" in shardwise("export", path, "--to", "megatron", "--out", tmp_path / "run").out
