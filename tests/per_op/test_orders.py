"""The order of passes for stages that were found, by the one simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.per_op.evaluate import evaluate
from shardwise.per_op.exact import search
from shardwise.per_op.orders import order_of, ordered, orders
from shardwise.per_op.start import balanced

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
