"""`balance --plan`: what is written is what the estimate says, never slower, and no cut is below the bound."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from shardwise import estimate, load_cluster, load_model
from shardwise.errors import InfeasibleError, InputError
from shardwise.estimate.predictions import predictions_of
from shardwise.inputs.strategy_text import complete, parse
from shardwise.plan.file import read_plan, write_plan
from shardwise.plan.predict import estimate_of, plan_of
from shardwise.search.balance_plan import balanced

MODEL, CLUSTER = load_model("llama-3-8b"), load_cluster("16xh100")


def planned(text):
    return plan_of(estimate(MODEL, CLUSTER, complete(parse(text), CLUSTER)))


@pytest.mark.parametrize(
    "text",
    [
        "pp4 gbs64 seq4096",
        "pp4x2 gbs64 seq4096",
        "pp4 gbs64 seq8192 zb-h1 runtime=zero-bubble",
        "pp4 gbs64 seq4096 recompute=full runtime=mindformers",
    ],
)
def test_a_plan_is_balanced(text):
    plan = planned(text)
    found = balanced(plan)
    assert found.after.iteration_seconds < found.before.iteration_seconds
    assert found.bound <= found.after.iteration_seconds
    assert found.gap < 0.05
    again = balanced(plan_of(found.after))
    assert again.after.iteration_seconds <= found.after.iteration_seconds * (1 + 1e-9)
    layers = found.after.strategy.layers
    for giver, taker in ((0, 1), (1, 0), (len(layers) - 1, 0)):  # neighbours by hand
        moved = [n - (k == giver) + (k == taker) for k, n in enumerate(layers)]
        if min(moved) < 1:
            continue
        other = estimate(MODEL, CLUSTER, replace(found.after.strategy, layers=tuple(moved)))
        assert other.iteration_seconds >= found.bound or other.total_bytes > found.limit


def test_the_command_writes_what_the_estimate_says(shardwise, tmp_path):
    write_plan(planned("pp4 gbs64 seq4096"), tmp_path / "plan.json")
    out, answer = tmp_path / "balanced.json", tmp_path / "answer.json"
    done = shardwise("balance", "--plan", tmp_path / "plan.json", "--write-plan", out, "--json", answer)
    assert done.code == 0
    assert "less than" in done.out
    plan = read_plan(out)
    assert predictions_of(estimate_of(plan)) == plan.predictions
    assert json.loads(answer.read_text())["seconds"] == plan.predictions.iteration_seconds


def test_what_cannot_be_balanced_is_told():
    with pytest.raises(InputError, match="one pipeline stage"):
        balanced(planned("pp1 gbs64 seq4096 zero2"))
    with pytest.raises(InputError, match="auto orders its passes"):
        balanced(planned("pp4 gbs64 seq4096 auto zero2 runtime=torchtitan"))
    with pytest.raises(InfeasibleError, match="the leanest of those seen needs"):
        balanced(planned("pp4 gbs64 seq4096"), limit=1e9)


def test_the_plan_says_what_the_options_would(shardwise, tmp_path):
    write_plan(planned("pp4 gbs64 seq4096"), tmp_path / "plan.json")
    done = shardwise("balance", "--plan", tmp_path / "plan.json", "-s", "8")
    assert done.code == 2
    assert "--pp: goes with --problem or --init" in done.err


def test_the_limit_is_said_in_both_units(shardwise, tmp_path):
    """`-mem` is MB of 10^6 bytes where all else is GiB."""
    write_plan(planned("pp4 gbs64 seq4096"), tmp_path / "plan.json")
    told = shardwise("balance", "--plan", tmp_path / "plan.json", "-mem", 60000)
    assert "55.88 GiB (60,000 MB of 10^6 bytes) of every rank" in told.out
    assert "10^6 bytes" in shardwise("balance", "--help").out
