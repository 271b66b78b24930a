"""A plan's order: found, checked, written, and carried along by every verb that reads the plan."""

from __future__ import annotations

import json

import pytest

import shardwise as sw

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
