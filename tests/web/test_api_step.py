"""The cockpit's endpoint: what it says is what an estimate says, impossible steps carry the reason, and it is small."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from serving import SMALL

import shardwise
from shardwise.report.page import asset_text
from shardwise.report.view.remembered import words_of
from shardwise.web import first

LINE = "tp2 pp2 dp2 cp1 ep1 zero1 mbs1 gbs16 seq4096"
MEGATRON = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \\
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 4096 --swiglu --bf16 \\
  --max-position-embeddings 4096 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \\
  --micro-batch-size 1 --global-batch-size 16 --normalization RMSNorm --vocab-size 128256 --use-distributed-optimizer
"""
TORCHTITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 4096
[parallelism]
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
"""
DEEPSPEED = json.dumps(
    {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2}}
)
MINDFORMERS = """parallel_config:
  data_parallel: 2
  model_parallel: 2
  pipeline_stage: 2
  micro_batch_num: 8
runner_config:
  batch_size: 1
"""
SCRIPTS = {
    "train.sh": (MEGATRON, "tp2 pp2 dp2"),
    "llama3_8b.toml": (TORCHTITAN, "tp2 pp2 dp2"),
    "ds_config.json": (DEEPSPEED, "zero2"),
    "finetune.yaml": (MINDFORMERS, "tp2 pp2 dp2"),
}


def step(server, **more):
    return server.post("/api/step", {"question": SMALL, "strategy": LINE, **more})


@pytest.mark.parametrize(
    "change", ["", "tp4", "pp4", "mbs2", "zero0", "recompute=full", "gbs32", "seq8192", "cp2", "fp8"]
)
def test_a_step_says_what_an_estimate_says(server, change):
    found = step(server, change=change or None).data
    same = shardwise.estimate(SMALL["model"], SMALL["cluster"], found["strategy"])
    numbers = found["numbers"]
    for name in ("iteration_seconds", "mfu", "tokens_per_second_per_gpu", "total_bytes", "bubble"):
        assert numbers[name] == getattr(same, name), name
    assert tuple(numbers["interval"]) == same.iteration_seconds_interval
    assert [one["total"] for one in found["stages"]] == [one.total for one in same.memory]
    assert all(sum(one["memory"].values()) == pytest.approx(one["total"], abs=10) for one in found["stages"])


@pytest.mark.parametrize("runtimes", [("torchtitan", "megatron"), ("megatron", "torchtitan")])
def test_a_step_is_of_the_runtime_that_it_turned_to(server, runtimes):
    line = f"tp2 pp1 zero3 mbs1 gbs16 seq4096 recompute=full runtime={runtimes[0]}"
    asked = {"question": SMALL, "strategy": line, "change": f"runtime={runtimes[1]}"}
    found = server.post("/api/step", asked).data
    same = shardwise.estimate(SMALL["model"], SMALL["cluster"], found["strategy"])
    assert same.strategy.runtime == runtimes[1]
    assert found["numbers"]["iteration_seconds"] == same.iteration_seconds
    assert found["numbers"]["total_bytes"] == same.total_bytes


def test_a_runtime_that_cannot_run_the_strategy_says_so(server):
    found = step(server, change="runtime=torchtitan").data
    assert "numbers" not in found
    assert any("torchtitan" in fault for fault in found["faults"])


def test_a_step_says_what_the_view_says(server):
    asked = {"question": {**SMALL, "memory_margin": "20GiB"}, "strategy": LINE}
    numbers = server.post("/api/view", asked).data["view"]["numbers"]
    told = server.post("/api/step", asked).data["numbers"]
    assert told == {name: numbers[name] for name in told}


def test_every_value_of_a_knob_is_possible_or_says_why_not(server):
    found = step(server).data
    assert {"gpus", "gpu", "tp", "pp", "vpp", "cp", "zero", "mbs", "recompute", "schedule", "dtype", "gbs", "seq"} <= {
        knob["name"] for knob in found["knobs"]
    }
    for knob in found["knobs"]:
        assert knob["value"] in [one["value"] for one in knob["choices"]]
        for one in knob["choices"]:
            there = {**SMALL, **({"cluster": one["cluster"]} if "cluster" in one else {})}
            words = one.get("words", knob["name"] + one["value"])
            after = step(server, question=there, change=words).data
            assert bool(after["faults"]) == ("fault" in one), (knob["name"], one, after["faults"])
            assert after["faults"][:1] == [one["fault"]] if "fault" in one else "numbers" in after


def test_what_is_lost_against_the_best_names_its_part(server):
    lost = step(server, change="tp8 pp1", best=LINE).data["beside"]
    assert lost["slower"] > 0.1
    assert "tp communication" in [part["name"] for part in lost["parts"]]
    assert "beside" not in step(server, best=LINE).data, "the best loses nothing against itself"
    there = {**SMALL, "cluster": "16xh100"}
    assert "beside" not in step(server, question=there, change="tp2", best=LINE).data, "it does not run there"


def test_days_and_money_follow_from_tokens_and_price(server):
    found = step(server, tokens=1e12, price=2.5).data
    budget = found["budget"]
    steps = 1e12 / (16 * 4096)
    assert budget["days"] == pytest.approx(steps * found["numbers"]["iteration_seconds"] / 86400)
    assert budget["gpu_hours"] == pytest.approx(8 * 24 * budget["days"])
    assert budget["cost"] == pytest.approx(2.5 * budget["gpu_hours"])


def test_what_does_not_fit_offers_ways_out(server):
    found = step(server, change="tp1 pp1 mbs8 zero0 gbs64 recompute=none", ways=True).data
    assert found["numbers"]["fits"] == "no"
    assert found["ways"]
    for way in found["ways"]:
        again = step(server, strategy=way["strategy"]).data["numbers"]
        assert (again["iteration_seconds"], again["total_bytes"]) == pytest.approx((way["seconds"], way["bytes"]))


@pytest.mark.parametrize("change", ["", "mbs4", "tp1 pp1 zero0"])
def test_gpus_for_so_many_days_fit_and_end_in_time(server, change):
    asked = {"change": change or None, "tokens": 1e12}
    for days in (40, 400):
        found = step(server, **asked, days=days).data["enough"]
        there = {**SMALL, "cluster": f"{found['gpus']}xh100"}
        again = step(server, question=there, strategy=found["strategy"], tokens=1e12).data
        assert again["numbers"]["fits"] == "yes"
        assert again["budget"]["days"] == found["days"]
        assert (found["days"] <= days) == found["reached"]
        fewer = {**SMALL, "cluster": f"{found['gpus'] // 2}xh100"}
        half = re.sub(r"dp(\d+)", lambda dp: f"dp{int(dp[1]) // 2}", found["strategy"])
        if found["reached"]:
            less = step(server, question=fewer, strategy=half, tokens=1e12).data
            assert less["faults"] or less["numbers"]["fits"] != "yes" or less["budget"]["days"] > days


def test_no_way_out_is_offered_that_does_not_fit(server):
    question = {**SMALL, "model": "llama-3-70b", "cluster": "2xh100"}
    found = step(server, question=question, strategy="tp2 mbs1 gbs16 seq4096", ways=True, tokens=1e12, days=9).data
    assert found["numbers"]["fits"] == "no"
    assert found["ways"] == []
    assert found["enough"] == {}


def test_what_cannot_run_can_be_turned_until_it_can(server):
    found = step(server, change="tp64 pp3").data
    assert "does not divide" in found["faults"][0]
    assert "numbers" not in found
    assert not any("fault" in one for knob in found["knobs"] for one in knob["choices"])


def test_a_step_is_a_few_kilobytes(server, record_property):
    size = len(step(server, best=LINE, tokens=1e12).body)
    record_property("measured", f"a step of the page: {size:,} bytes")
    assert size < 16_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"strategy": "x" * 3000}, {"change": "documents=/etc/passwd"}, {"change": "runtime=/etc/passwd"},
        {"best": "runtime=/etc/passwd"}, {"tokens": -1}, {"price": "many"}, {"ways": "yes"}, {"question": None},
        {"other": 1}, {"days": 0}, {"change": 7}, {"strategy": ""}, {"change": "tp0"}, {"change": "tp999999999999"},
    ],
)  # fmt: skip
def test_a_strangers_step_opens_nothing_and_is_refused_in_a_sentence(server, wrong):
    found = step(server, **wrong)
    if found.status == 200:  # values that can be read: the strategy says what is wrong with them
        assert found.data["faults"] or "numbers" in found.data
    else:
        assert found.status == 422
        assert "Traceback" not in found.message
        assert "root:" not in found.message


@pytest.mark.parametrize("name", SCRIPTS)
def test_launch_scripts_are_read_shown_and_stepped(server, name):
    text, words = SCRIPTS[name]
    found = server.post("/api/script", {"name": name, "text": text, "question": SMALL}).data
    assert set(words.split()) <= set(found["strategy"].split())
    assert found["notes"]
    model = found["model"] or found["name"]
    question = {
        **SMALL, "model": model, "cluster": f"{found['gpus']}xh100", "only": "",
        **{key: found[key] for key in ("global_batch", "seq", "runtime")},
    }  # fmt: skip
    told = server.post("/api/step", {"question": question, "strategy": found["strategy"]}).data
    assert told["strategy"] == found["strategy"]
    assert told["numbers"]["iteration_seconds"] > 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.sh", "echo hello"),
        ("x.json", "{"),
        ("x.yaml", "a: &a [*a]"),
        ("x.toml", "[parallelism"),
        ("x.py", "import os"),
    ],
)
def test_what_is_no_script_is_refused_in_a_sentence(server, name, text):
    found = server.post("/api/script", {"name": name, "text": text, "question": SMALL})
    assert found.status == 422
    assert "Traceback" not in found.message


def test_what_a_script_lays_over_its_runtime_stands_in_its_line(server):
    found = server.post("/api/script", {"name": "x.sh", "text": MEGATRON + " --sequence-parallel", "question": SMALL})
    assert found.data["runtime"] == "megatron"
    assert "runtime=megatron+" in found.data["strategy"]
    question = {**SMALL, "model": found.data["model"] or found.data["name"], "only": "", "runtime": "megatron"}
    told = server.post("/api/step", {"question": question, "strategy": found.data["strategy"]})
    assert told.data["numbers"]["iteration_seconds"] > 0


def test_a_script_names_files_and_none_is_opened(server):
    text = (
        MEGATRON + " --pipeline-model-parallel-layout /etc/passwd --data-path /etc/passwd --tokenizer-model /etc/passwd"
    )
    found = server.post("/api/script", {"name": "/etc/passwd.sh", "text": text, "question": SMALL})
    assert "root:" not in found.body.decode()


def test_the_first_answer_is_what_estimates_say(server):
    found = server.get("/api/first").data["done"]
    question = first.QUESTION
    for one in (*found["top"][:3], *found["points"][-3:]):
        same = shardwise.estimate(question["model"], question["cluster"], one["strategy"])
        assert (one["seconds"], one["total_bytes"]) == (same.iteration_seconds, same.total_bytes)
    assert found["step"]["strategy"] == found["view"]["strategy"]
    assert found["step"]["numbers"]["fits"] == "yes"
    assert len(found["points"]) > 20


def test_the_first_answer_is_to_the_question_that_the_form_asks():
    form = dict(re.findall(r"^  (\w+): \"?([\w-]+)\"?,", asset_text("state.js").partition("NUMBERS")[0], re.MULTILINE))
    asked = first.QUESTION
    assert f"{form['gpus']}x{form['gpu']}" == asked["cluster"]
    assert {name: form[name] for name in ("model", "global_batch", "seq")} == {
        name: str(asked[name]) for name in ("model", "global_batch", "seq")
    }


def test_what_is_kept_of_an_answer_is_all_that_the_file_holds():
    answer = shardwise.plan("llama-3-8b", "8xh100", global_batch=16, seq=4096, only="tp<=2 pp<=2 vpp=1")
    kept = json.loads(Path(first.__file__).with_name(first.NAME).read_text(encoding="utf-8"))
    assert kept.keys() == {"plan", *words_of(answer)}
