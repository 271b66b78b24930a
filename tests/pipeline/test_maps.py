"""Any map of chunks to ranks: the rows say who holds what, in any number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise
from shardwise.cli.main import run
from shardwise.errors import InputError
from shardwise.pipeline.action import Action, Schedule
from shardwise.pipeline.costs import costs
from shardwise.pipeline.replay import bound_for, replay

UNEVEN = "0F0,1F0,1B0,0B0\n2F0,2B0\n"


def forward_first(rank_of, microbatches):
    """All forwards, then all backwards, on any ranks."""
    rows = []
    for rank in range(1 + max(rank_of)):
        own = [chunk for chunk, other in enumerate(rank_of) if other == rank]
        forward = [Action(chunk, "F", m) for m in range(microbatches) for chunk in own]
        back = [Action(chunk, "B", m) for m in range(microbatches) for chunk in reversed(own)]
        rows.append([*forward, *back])
    return Schedule.of(rows)


def test_three_chunks_on_two_ranks_by_hand(tmp_path, capsys):
    path = tmp_path / "map.csv"
    path.write_text(UNEVEN)
    found = shardwise.simulate(path, "10,11,9", hop=1)
    assert found.timeline.makespan == 10 + 10 + 1 + 10 + 20 + 1 + 20 + 20
    assert found.bound.value == 30 + 33 + 2 + 9
    assert found.timeline.peak == (2, 1)
    files = [str(tmp_path / f"a.{name}") for name in ("html", "svg", "trace", "json")]
    words = [word for path in files for word in (f"--{path.rpartition('.')[2]}", path)]
    assert run(["simulate", str(path), "--costs", "10,11,9", "--memory-limit", "1p", *words]) == 0
    assert "makespan" in capsys.readouterr().out


def test_costs_are_of_every_chunk():
    order = Schedule.parse(UNEVEN)
    assert replay(order, costs(pp=2, chunks=3, f=[1, 2, 3], i=1, w=1)).timeline.makespan == 6 + 6
    with pytest.raises(InputError, match="are of 4 chunks; the schedule has 3"):
        replay(order, costs(pp=2, vpp=2, f=1, i=1, w=1))
    with pytest.raises(InputError, match="f: has 4 entries, expected 1 or 3"):
        costs(pp=2, chunks=3, f=[1, 2, 3, 4], i=1, w=1)


@st.composite
def maps(draw):
    """Chunks that never jump to a rank for which an order of all forwards first would wait for itself."""
    counts = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    rank_of = [rank for rank, count in enumerate(counts) for _ in range(count)]
    sizes = st.lists(st.integers(1, 9), min_size=len(rank_of), max_size=len(rank_of))
    return rank_of, [draw(sizes) for _ in range(3)], draw(st.integers(0, 3)), draw(st.integers(1, 6))


@given(maps())
def test_a_bound_is_never_above_an_order_that_runs(drawn):
    rank_of, (f, i, w), hop, microbatches = drawn
    order = forward_first(rank_of, microbatches)
    given_costs = costs(pp=1 + max(rank_of), chunks=len(rank_of), f=f, i=i, w=w, hop=hop)
    found = replay(order, given_costs)
    assert 0 < bound_for(order, given_costs).value <= found.timeline.makespan * (1 + 1e-9)
    assert sum(found.timeline.work) == pytest.approx(microbatches * sum(map(sum, (f, i, w))))
    assert sum(found.timeline.bubbles().values()) == pytest.approx(found.timeline.bubble)
