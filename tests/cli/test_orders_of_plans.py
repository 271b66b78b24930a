"""A plan's order: found, checked, written, and carried along by every verb that reads the plan."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import shardwise as sw
from shardwise import api
from shardwise.errors import InputError
from shardwise.web.answers import view

LINE = "pp4 mbs1 gbs64 seq8192"
SPLIT = "tp1 pp4 dp4 mbs1 gbs64 seq8192 zb-h1 runtime=zero-bubble"


@pytest.fixture(scope="module")
def base():
    return sw.plan_of(sw.estimate("llama-3-8b", "16xh100", LINE))


@pytest.fixture(scope="module")
def limited():
    """A plan whose order holds less than that of its schedule's name, and takes longer."""
    plan = sw.plan_of(sw.estimate("llama-3-8b", "16xh100", SPLIT))
    return sw.plan_of(sw.schedule("auto", plan=plan, memory_limit="60GB", effort=0.2), plan)


@pytest.fixture
def written(base, limited, tmp_path):
    paths = {"base": tmp_path / "base.json", "limited": tmp_path / "limited.json"}
    sw.write_plan(base, paths["base"])
    sw.write_plan(limited, paths["limited"])
    return paths


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-h1", "seq-1f1b", "auto"])
def test_the_proof_of_a_plans_order_is_checked(name, base, tmp_path, shardwise):
    """A plan's chunks free different shares at I; the checker knew one share of all."""
    sw.write_plan(base, tmp_path / "plan.json")
    shardwise("schedule", name, "--plan", tmp_path / "plan.json", "--json", tmp_path / "answer.json", "-q")
    question = json.loads((tmp_path / "answer.json").read_text())["proof"]["question"]
    assert len(question["free_at_input_grad"]) == len(question["rank_of"])
    found = shardwise("simulate", tmp_path / "answer.json")
    assert found.code == 0
    assert "derived anew" in found.out


@pytest.mark.parametrize(("name", "limit"), [("1f1b", "40GB"), ("auto", "20GB")])
def test_a_plans_bytes_are_said_in_gib(name, limit, written, shardwise):
    found = shardwise("schedule", name, "--plan", written["base"], "--memory-limit", limit)
    assert found.code == 1
    assert " GiB" in found.err
    assert "e+10" not in found.err


@pytest.fixture
def chunked():
    line = "pp4x2 mbs1 gbs64 seq8192 layers=4,4,4,4,4,4,4,4"
    return sw.plan_of(sw.estimate("llama-3-8b", "16xh100", line))


def test_the_group_of_interleaved_is_written(chunked):
    found = sw.schedule("interleaved", plan=chunked, group=8)
    made = sw.plan_of(found)
    assert made.strategy.group == 8
    assert made.predictions.total_bytes == pytest.approx(max(found.timeline.peak), rel=1e-9)
    assert sw.plan_of(sw.schedule("1f1b", plan=made)).strategy.group == 0


def test_an_order_over_the_limit_is_not_written(chunked, tmp_path, shardwise):
    sw.write_plan(chunked, tmp_path / "plan.json")
    words = ("schedule", "interleaved", "--plan", tmp_path / "plan.json", "--group", 16, "--out", tmp_path / "out.json")
    assert shardwise(*words).code == 1
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"splits": 4}, "splits: is 4"),
        ({"group": 8}, "group: is 8, and only interleaved"),
        ({"pp": 8}, "pp: the plan says it"),
        ({"costs": "1,1,1"}, "costs: the plan says it"),
        ({"microbatches": 3}, "microbatches: the plan says it"),
        ({"hop": 9.0}, "hop: the plan says it"),
        ({"vpp": 2}, "vpp: the plan says it"),
        ({"free_at_input_grad": 0.1}, "free_at_input_grad: the plan says it"),
    ],
)
def test_what_the_plan_says_or_cannot_say_is_refused_beside_it(more, words, base):
    with pytest.raises(InputError, match=words):
        sw.schedule("1f1b", plan=base, **more)


BROKEN = {
    "dp": {"dp": 7}, "global_batch": {"global_batch": 66}, "ep": {"ep": 2}, "zero": {"runtime": "torchtitan"},
    "schedule": {"schedule": "zb-h1"},
}  # fmt: skip


@pytest.mark.parametrize("field", BROKEN)
def test_a_plan_that_no_verb_takes_is_neither_ordered_nor_rehearsed(field, base):
    plan = replace(base, strategy=replace(base.strategy, **BROKEN[field]))
    for ask in (lambda: sw.schedule("1f1b", plan=plan), lambda: api.rehearsal_program(plan, rank="pp0")):
        with pytest.raises(InputError, match=field):
            ask()


def test_a_gpu_without_a_peak_is_a_sentence(base):
    plan = replace(base, cluster=replace(base.cluster, gpu=replace(base.cluster.gpu, flops={})))
    for ask in (sw.timeline, lambda it: sw.schedule("1f1b", plan=it), lambda it: api.rehearsal_program(it, rank="pp0")):
        with pytest.raises(InputError, match="no peak is given"):
            ask(plan)


def test_an_order_goes_into_the_plan_that_was_ordered_and_no_other(base, limited, chunked):
    found = sw.schedule("1f1b", plan=base)
    assert sw.plan_of(found, base) == sw.plan_of(found)
    with pytest.raises(InputError, match="the schedule is of llama-3-8b"):
        sw.plan_of(found, chunked)
    with pytest.raises(InputError, match="of costs, not of a plan"):
        sw.plan_of(sw.schedule("1f1b", pp=4, microbatches=8, costs="1,1,1"), base)
    with pytest.raises(InputError, match="vpp 2"):
        sw.plan_of(sw.estimate(chunked), limited)


@pytest.mark.parametrize("limit", [-1.0, float("nan"), 0, "much", True])
def test_a_memory_limit_is_checked(limit, base):
    with pytest.raises(InputError, match="memory_limit"):
        sw.plan_of(sw.estimate(base), memory_limit=limit)


def test_what_if_and_why_keep_the_order(limited):
    same = sw.what_if(limited, gpus=16, only="pp4 tp1")
    assert same.kept.iteration_seconds == same.before.iteration_seconds
    assert same.kept.total_bytes == same.before.total_bytes
    found = sw.why(limited, "pp4")
    assert found.change == "nothing"
    assert found.slower == 0
    assert sw.why(limited, "zb-h1").other.order is None


def test_why_keeps_the_group_of_the_plan(chunked):
    plan = sw.plan_of(sw.schedule("interleaved", plan=chunked, group=8))
    assert sw.why(plan, "pp4x2").other.strategy.group == 8
    assert sw.why(plan, "pp8").other.strategy.group == 0


def test_a_plans_order_goes_with_its_strategy(limited, written):
    whole = sw.estimate(limited)
    path = str(written["limited"])
    for found in (
        sw.estimate(limited, limited.cluster),
        sw.estimate(limited, strategy=limited.strategy),
        sw.estimate(limited, strategy="pp4"),
        sw.estimate(path, "16xh100"),
        sw.estimate(path, "16xh100", limited.strategy),
    ):
        assert found.total_bytes == whole.total_bytes
        assert sw.plan_of(found).order.csv() == limited.order.csv()
    assert sw.estimate(limited, "16xh200").order is limited.order
    assert sw.estimate(limited, strategy="recompute=full").order is None


def test_what_a_line_leaves_out_is_the_plans(written, shardwise, base):
    found = shardwise("estimate", written["base"], "-s", "tp2 pp4 recompute=full", "--json", "-", "-q")
    told = json.loads(found.out)["inputs"]["strategy"]
    assert (told["tp"], told["dp"], told["seq"], told["global_batch"]) == (2, 2, 8192, 64)
    assert "recompute=full" in json.loads(found.out)["strategy"]
    assert sw.estimate(base, strategy="tp2 pp4").strategy.seq == 8192


def test_an_order_that_is_left_out_is_noted(written, shardwise):
    assert "the order that" in shardwise("estimate", written["limited"], "--recompute", "full").err
    assert "the order that" not in shardwise("estimate", written["limited"], "-c", "16xh100").err
    assert "the order that" not in shardwise("estimate", written["limited"], "-c", "16xh200").err


@pytest.fixture(scope="module")
def lean():
    """A plan that was made for 40 GiB."""
    return sw.plan_of(sw.plan("llama-3-8b", "16xh100", global_batch=64, seq=8192, memory="40GiB", only="pp4 tp2 vpp1"))


def test_the_memory_limit_of_a_plan_is_kept(lean):
    limit = lean.memory_limit
    assert limit == 40 * 2**30
    assert sw.schedule("auto", plan=lean, effort=0.2).pipeline.costs.memory_limit == (limit,) * 4
    found = sw.balance_plan(lean)
    assert found.limit == limit
    for made in (sw.plan_of(found), sw.plan_of(sw.schedule("1f1b", plan=lean)), sw.plan_of(sw.estimate(lean))):
        assert made.predictions.memory_limit == limit
        assert made.predictions.total_bytes <= limit
        assert made.predictions.fits == "yes"
    assert sw.balance_plan(lean, memory_limit=60e9).limit == 60e9
    free = sw.plan_of(sw.schedule("1f1b", plan=lean, memory_limit="none"))
    assert free.predictions.memory_limit is None


def test_fits_is_said_against_the_memory_that_may_be_used(base, tmp_path, shardwise):
    made = sw.plan_of(sw.estimate(base), memory_limit=42e9)
    assert base.predictions.fits == "yes"
    assert made.predictions.fits == sw.estimate(made).fits == "no"
    sw.write_plan(made, tmp_path / "plan.json")
    found = shardwise("estimate", tmp_path / "plan.json")
    assert found.code == 1
    assert "does not fit: 56.82 GiB (" in found.out
    assert ") of 39.12 GiB asked for (GPU: 79.20 GiB) on pipeline rank 0, 17.70 GiB missing" in found.out
    assert "probability of fitting under 1%" in found.out
    assert "may use 39.12 GiB asked for (GPU: 79.20 GiB), 17.70 GiB are missing" in found.err


def test_the_page_says_fits_against_the_memory_of_the_question():
    question = {"model": "llama-3-8b", "cluster": "16xh100", "global_batch": 64, "seq": 8192}
    asked = {"question": {**question, "memory_margin": 43e9}, "strategy": "pp4 mbs1"}
    found = view(json.dumps(asked).encode())
    assert found["plan"]["predictions"]["fits"] == "no"
    assert found["view"]["numbers"]["fits"] == "no"
