"""The order of passes for stages that were found, by the one simulator."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import shardwise
from shardwise.cli.main import run
from shardwise.per_op.evaluate import evaluate
from shardwise.per_op.orders import order_of, ordered, orders
from shardwise.per_op.search import search
from shardwise.per_op.start import balanced
from shardwise.plan.file import read_plan

from .conftest import full, question, random_profile
from .test_engines import OPS


@pytest.fixture(scope="module")
def asked():
    found = random_profile(2, ops=OPS, layer=(1, 6), micro_batches=(1, 2), tps=(1, 2))
    pricing = full(found, layers=4)
    return question(found, layers=4, gpus=4, node=4, global_batch=16, pricing=pricing, stages=(4, 4))


def test_passes_add_up_to_the_stages(asked):
    plan = balanced(asked, 4)
    cost = evaluate(asked, plan)
    made = asked.pricing.pass_costs(asked, plan, split=False)
    for index, stage in enumerate(cost.stages):
        assert made.f[index] + made.i[index] + made.w[index] == pytest.approx(stage.seconds)
        assert min(made.f[index], made.i[index], made.w[index]) >= 0


def test_one_f_one_b_holds_what_the_closed_form_says(asked):
    plan = balanced(asked, 4)
    cost = evaluate(asked, plan)
    found = order_of(asked, plan, cost, "1f1b")
    assert list(found.memory) == pytest.approx(list(cost.memory))
    assert found.seconds == pytest.approx(cost.seconds)
    assert found.bound <= found.seconds


def test_zero_bubble_is_not_slower_where_it_fits(asked):
    answer = search(asked)
    found = {order.name: order for order in orders(asked, answer.plan, answer.cost)}
    assert found["auto"].seconds <= found["1f1b"].seconds * (1 + 1e-9)
    assert found["zb-h1"].seconds <= found["1f1b"].seconds * (1 + 1e-9)
    assert all(order.fits for order in found.values())
    chosen = ordered(answer, ("1f1b", "zb-h1", "auto"), choose="auto")
    assert chosen.order.seconds == pytest.approx(min(order.seconds for order in chosen.orders), rel=1e-8)


def test_an_order_that_does_not_fit_is_told(asked):
    answer = search(asked)
    tight = replace(asked, memory=1.01 * max(answer.cost.memory))
    chosen = ordered(replace(answer, question=tight), ("1f1b", "zb-2p"), choose="zb-2p")
    assert chosen.order is None or chosen.order.fits
    assert chosen.order is not None or "1f1b stays" in chosen.notes[-1]
    auto = ordered(replace(answer, question=tight), ("1f1b", "auto"), choose="auto").order
    assert auto.fits
    assert max(auto.memory) <= tight.memory * (1 + 1e-9)


def test_one_stage_keeps_the_plainest_order(asked):
    alone = replace(asked, stages=(1, 1), gpus=2)
    chosen = ordered(search(alone), ("1f1b", "gpipe", "zb-h1", "auto"), choose="auto")
    assert chosen.order.name == "1f1b"


@pytest.mark.parametrize("name", ["zb-2p", "auto"])
def test_the_answer_is_predicted_in_its_order(asked, name):
    """Seconds, memory and bound of another order than the one searched with are its own."""
    answer = search(asked)
    chosen = ordered(answer, ("1f1b", name), choose=name)
    order, cost = chosen.order, chosen.cost
    assert order.name == name
    assert cost.seconds == order.seconds < answer.cost.seconds
    assert cost.memory == pytest.approx(order.memory)
    assert max(cost.times) <= cost.seconds * (1 + 1e-9)
    assert [stage.seconds for stage in cost.stages] == pytest.approx(list(order.work))
    assert chosen.bound <= order.bound <= order.seconds
    assert max(cost.memory) > max(answer.cost.memory)


def test_no_plan_in_any_order_is_below_the_bound_for_any(asked):
    answer = search(asked)
    bound = ordered(answer, ("1f1b", "zb-2p"), choose="zb-2p").bound
    for plan in (answer.plan, *answer.others):
        assert all(order.seconds >= bound for order in orders(asked, plan, evaluate(asked, plan)))


def test_an_order_that_the_runtime_lacks_is_not_chosen(asked):
    from shardwise.inputs.load import load_runtime

    paddle = replace(asked, runtime=load_runtime("paddle"))
    chosen = ordered(replace(search(asked), question=paddle), ("1f1b", "zb-h1", "zb-2p"), choose="auto")
    assert {order.name for order in chosen.orders} == {"1f1b", "zb-h1", "zb-2p"}
    assert chosen.order.name in paddle.runtime.can.schedules


def test_the_file_holds_one_order(tmp_path, capfd):
    """The screen, the JSON and the plan file say the same seconds and bytes, and no plan beats its bound."""
    out, told = tmp_path / "plan.json", tmp_path / "told.json"
    words = ["plan-operators", "llama-3.2-3b", "-c", "8xh100", "--global-batch", "16", "--stages", "4"]
    words += ["--microbatches", "8", "--schedule", "auto", "--time-limit", "3s", "--operators-only"]
    words += ["--json", str(told), "--out", str(out)]
    assert run(words) == 2
    assert "strategy.schedule: auto is not in runtime megatron; use 1f1b" in capfd.readouterr().err
    assert not out.exists()
    assert run([*words, "--runtime", "zero-bubble"]) == 0
    plan, data = read_plan(out), json.loads(told.read_text())
    order = next(order for order in data["orders"] if order["name"] == plan.strategy.schedule)
    assert plan.strategy.runtime == "zero-bubble"
    assert plan.operators.bound <= plan.operators.seconds == order["seconds"] == data["cost"]["seconds"]
    assert [stage.memory for stage in plan.operators.stages] == pytest.approx(order["memory"])
    assert "for any order of passes" in capfd.readouterr().out
    assert run(["show", str(out)]) == 0
    assert "for any order of passes" in capfd.readouterr().out


def test_a_question_for_one_order_is_not_answered_in_gpipe(asked):
    with pytest.raises(shardwise.InputError, match="the question was made for 1f1b"):
        shardwise.plan_operators(asked, schedule="gpipe")
