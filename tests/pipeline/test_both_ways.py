"""DualPipe: two copies of the model on the same ranks, micro batches from both ends."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise
from shardwise.cli.main import run
from shardwise.errors import InputError
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.costs import costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.faults import find_fault
from shardwise.pipeline.orders.both_ways import both_ways, dualpipe
from shardwise.pipeline.replay import bound_for, replay
from shardwise.search.schedule import Refused

STAGE = {"f": 20, "i": 22, "w": 18, "hop": 1}


def test_the_published_figures():
    """The study of the schedulers, section 5: pp 8, 16 micro batches, stages of two chunks of 10, 11, 9."""
    line = simulate(dualpipe(8, 16), both_ways(costs(pp=8, **STAGE)))
    assert line.makespan == 1049
    assert line.bubble == pytest.approx(0.085, abs=5e-4)
    assert line.peak == (9,) * 8  # pp + 1 of pp: 1.125p


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 4), (4, 8), (4, 14), (8, 16), (16, 32)])
@pytest.mark.parametrize("together", [False, True])
def test_every_pass_of_both_copies_once(pp, microbatches, together):
    order = dualpipe(pp, microbatches, combined=together)
    assert find_fault(order) is None
    assert (order.copies, order.length, order.microbatches) == (2, pp, microbatches // 2)
    assert order.rank_of == (*range(pp), *reversed(range(pp)))
    line = simulate(order, both_ways(costs(pp=pp, **STAGE)))
    assert sum(line.bubbles().values()) == pytest.approx(line.bubble)
    assert line.critical_path()[0].start == 0
    assert line.critical_path()[-1].end == pytest.approx(line.makespan)


def test_both_ends_are_alike():
    """Rank r runs what rank pp - 1 - r runs, with the copies in each other's place."""
    order = dualpipe(8, 20)
    for row, other in zip(order.rows, reversed(order.rows), strict=True):
        assert [(a.kind, a.microbatch, (a.chunk + 8) % 16) for a in row] == [
            (a.kind, a.microbatch, a.chunk) for a in other
        ]


def test_pairs_hide_traffic_both_ways():
    given_costs = both_ways(costs(pp=8, **STAGE, traffic_f=8, traffic_b=16))
    apart, together = (simulate(dualpipe(8, 16, combined=flag), given_costs) for flag in (False, True))
    assert together.makespan < 0.9 * apart.makespan
    assert together.peak == apart.peak


def test_two_copies_of_two_stages_by_hand():
    """Two micro batches, one a way: 0F0 beside 2F0, and the messages cross."""
    order = Schedule.parse("0F0,3F0,3B0,0B0\n2F0,1F0,1B0,2B0\n")
    assert find_fault(order) is not None
    found = replay(order, costs(pp=2, vpp=2, f=1, i=1, w=1, hop=2), copies=2)
    assert found.timeline.start[0].tolist() == found.timeline.start[1].tolist() == [0, 3, 4, 8]
    assert found.timeline.makespan == 10
    assert found.bound.value == 1 + 1 + 1 + 1 + 4 + 1


@given(
    st.sampled_from([(2, 4), (4, 8), (4, 12)]),
    st.lists(st.integers(1, 20), min_size=12, max_size=12),
    st.integers(0, 5),
)
def test_a_bound_is_never_above_what_runs(shape, times, hop):
    pp, microbatches = shape
    made = both_ways(costs(pp=pp, f=times[:pp], i=times[4 : 4 + pp], w=times[8 : 8 + pp], hop=hop, static=3))
    order = dualpipe(pp, microbatches)
    line = simulate(order, made)
    assert 0 < bound_for(order, made).value <= line.makespan * (1 + 1e-9)
    assert made.static == (6,) * pp
    assert sum(line.work) == pytest.approx(microbatches * sum(sum(times[k : k + pp]) for k in (0, 4, 8)))


def test_the_verbs(tmp_path, capsys):
    files = {name: str(tmp_path / f"a.{name}") for name in ("json", "csv", "svg", "html", "trace")}
    words = [word for name, path in files.items() for word in (f"--{name}", path)]
    asked = ["--pp", "8", "--microbatches", "16", "--costs", "20,22,18", "--hop", "1"]
    assert run(["schedule", "dualpipe", *asked, *words]) == 0
    told = capsys.readouterr()
    assert "makespan       1049" in told.out
    assert "does not say that its chunks are 2 copies" in told.err
    answer = json.loads((tmp_path / "a.json").read_text())
    assert (answer["copies"], answer["microbatches"]) == (2, 16)
    assert run(["simulate", files["csv"], "--costs", "20,22,18", "--hop", "1", "--copies", "2", "-q"]) == 0
    assert "makespan       1049" in capsys.readouterr().out
    assert run(["simulate", files["csv"], "--costs", "20,22,18"]) == 2
    assert "deadlock" in capsys.readouterr().err
    assert run(["simulate", files["csv"], "--costs", "20,22,18", "--copies", "3"]) == 2
    assert "are 3, and the order has 16 chunks" in capsys.readouterr().err


def test_beside_other_orders_of_the_same_model():
    found = shardwise.schedule("dualpipe-v", pp=8, microbatches=16, costs="10,11,9", hop=1, compare=["dualpipe"])
    (other,) = found.others
    assert not isinstance(other, Refused)
    assert [found.timeline.makespan, other.timeline.makespan] == [1083, 1049]
    assert other.timeline.peak == (18,) * 8  # of chunks half as large


@pytest.mark.parametrize(("pp", "microbatches", "told"), [(3, 8, "pp: is 3"), (4, 6, "are 6"), (4, 9, "are 9")])
def test_what_it_asks_for(pp, microbatches, told):
    with pytest.raises(InputError, match=told):
        dualpipe(pp, microbatches)


def test_a_plan_has_no_word_for_it():
    plan = shardwise.plan_of(shardwise.estimate("llama-3-8b", "8xh100", "pp4 gbs16 seq4096"))
    with pytest.raises(InputError, match="two copies of the model"):
        shardwise.schedule("dualpipe", plan=plan)
