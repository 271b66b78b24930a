"""Any map of chunks to ranks: the rows say who holds what, in any number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise
from shardwise.cli.main import run
from shardwise.errors import InputError
from shardwise.pipeline.action import Action, Schedule
from shardwise.pipeline.certificate import check
from shardwise.pipeline.costs import costs
from shardwise.pipeline.faults import find_fault
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


def exact(rank_of, times, hop, microbatches):
    """The least makespan over all orders of a tiny pipeline: every rank takes what is ready, in every way."""
    f, i, w = times
    chunks, best = len(rank_of), [float("inf")]

    def ready(key, ends):
        kind, c, m = key
        if kind == "W":
            return ends.get(("I", c, m))
        if kind == "I" and c == chunks - 1:
            return ends.get(("F", c, m))
        other = c - 1 if kind == "F" else c + 1
        if other < 0:
            return 0.0
        end = ends.get((kind, other, m))
        return None if end is None else end + hop * (rank_of[other] != rank_of[c])

    def go(ends, clock, left):
        if not left:
            best[0] = min(best[0], max(clock))
            return
        open_ = [(key, at) for key in left if (at := ready(key, ends)) is not None]
        # active schedules are enough: what starts first somewhere must start before any other there could end
        length = {"F": f, "I": i, "W": w}
        soon = min(max(at, clock[rank_of[c]]) + length[kind][c] for (kind, c, _), at in open_)
        rank = next(rank_of[c] for (kind, c, _), at in open_ if max(at, clock[rank_of[c]]) + length[kind][c] == soon)
        for key, at in open_:
            kind, c, _ = key
            begin = max(at, clock[rank])
            if rank_of[c] != rank or begin >= soon:
                continue
            after = list(clock)
            after[rank] = begin + length[kind][c]
            if after[rank] < best[0]:
                go({**ends, key: after[rank]}, after, left - {key})

    cells = {(kind, c, m) for kind in "FIW" for c in range(chunks) for m in range(microbatches)}
    go({}, [0.0] * (1 + max(rank_of)), frozenset(cells))
    return best[0]


@pytest.mark.parametrize("rank_of", ["0,1,1,0", "1,0,0,1", "0,0,1,1", "1,0,1,0", "0,1,0,1"])
@pytest.mark.parametrize("times", [([3, 2, 4, 1], [2, 3, 1, 2], [1, 2, 2, 3]), ([1] * 4, [2] * 4, [1] * 4)])
def test_auto_on_any_map_is_bounded_and_best(rank_of, times):
    f, i, w = times
    made = costs(pp=2, vpp=2, f=f, i=i, w=w, hop=1)
    found = shardwise.schedule("auto", microbatches=2, costs=made, placement=rank_of, effort=0.1)
    best = exact([int(rank) for rank in rank_of.split(",")], times, 1, 2)
    assert found.bound.value <= best
    assert found.value == best
    assert found.timeline.schedule.rank_of == tuple(map(int, rank_of.split(",")))


@given(
    st.permutations([0, 0, 1, 1, 2, 2]),
    st.lists(st.integers(1, 9), min_size=18, max_size=18),
    st.integers(0, 4),
    st.integers(2, 6),
    st.sampled_from([None, 0.5, 0.75, 1.0]),
)
def test_auto_on_drawn_maps(rank_of, times, hop, microbatches, limit):
    made = costs(pp=3, vpp=2, f=times[:6], i=times[6:12], w=times[12:], hop=hop)
    found = shardwise.schedule(
        "auto", microbatches=microbatches, costs=made, placement=",".join(map(str, rank_of)), effort=0.01,
        memory_limit=None if limit is None else f"{limit}p",
    )  # fmt: skip
    line = found.timeline
    assert find_fault(line.schedule, line.costs, tuple(rank_of)) is None
    assert found.bound.value <= found.value * (1 + 1e-9)
    assert not check(found.proof)


def test_the_words_of_a_map(tmp_path):
    shape = {"microbatches": 8, "costs": "10,11,9", "hop": 1}
    by_word = shardwise.schedule("auto", pp=4, **shape)
    by_map = shardwise.schedule("auto", placement="0,1,2,3,3,2,1,0", **shape)
    assert by_map.timeline.schedule == by_word.timeline.schedule
    assert by_map.pipeline.placement == "v"
    path = tmp_path / "own.csv"
    path.write_text(shardwise.schedule("auto", placement="0,1,1,0,1,0", **shape).timeline.schedule.csv())
    again = shardwise.schedule("auto", placement=str(path), **shape)
    assert again.timeline.schedule.csv() == path.read_text()
    assert (again.pipeline.pp, again.pipeline.vpp) == (2, 3)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--placement", "w"], "is 'w'; write loop, v, the rank of every chunk"),
        (["--placement", "0,x"], "'x' is not a whole number"),
        (["--placement", "0,1,1"], "puts 2 chunks on rank 1 and 1 on rank 0"),
        (["--placement", "0,2,2,0"], "puts 2 chunks on rank 0 and 0 on rank 1"),
        (["--placement", "0,1,9999999"], "names rank 9999999 and has 3 chunks"),
        (["--placement", "0,1,1,0", "--pp", "4"], "is 4, and the map of --placement has 2"),
        (["--placement", "0,1,1,0", "--vpp", "1"], "is 1, and the map of --placement has 2"),
        (["--placement", "no.csv"], "no such file"),
    ],
)
def test_maps_that_are_none_get_a_sentence(words, told, capsys):
    assert run(["schedule", "auto", "--microbatches", "4", "--costs", "1,1,1", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_named_order_lies_where_it_lies(capsys):
    words = ["--microbatches", "4", "--costs", "1,1,1", "--placement"]
    assert run(["schedule", "zb-v", *words, "0,1,0,1"]) == 2
    assert "zb-v lies on a v; maps are for auto" in capsys.readouterr().err
    assert run(["schedule", "zb-v", *words, "0,1,1,0"]) == 0
