"""Orders held against each other: the fewest actions that moved, what is only in one, and laws over drawn rows."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise import diff_orders
from shardwise.cli.main import run
from shardwise.errors import InputError
from shardwise.pipeline.action import Action, Schedule
from shardwise.pipeline.compare import compare_rows, longest_rising
from shardwise.pipeline.generate import generate

FIRST = "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n"


def rows(text):
    return Schedule.parse(text)


def only(left, right, rank=0):
    return compare_rows(rows(left), rows(right))[rank]


def test_equal_orders_have_no_first_difference():
    assert all(one.equal for one in compare_rows(rows(FIRST), rows(FIRST.replace(",", " , ,"))))


def test_an_action_that_comes_later_is_the_only_one_that_moved():
    found = only(FIRST, FIRST.replace("0W0,0I1,0W1", "0I1,0W1,0W0"))
    assert (found.first, str(found.left), str(found.right)) == (3, "0W0", "0I1")
    assert [(str(m.action), m.left, m.right, m.by) for m in found.moved] == [("0W0", 3, 5, 2)]
    assert found.only_left == found.only_right == ()


def test_a_lost_action_moves_none_of_those_after_it():
    found = only(FIRST, FIRST.replace("0F1,", ""))
    assert (found.first, str(found.left), str(found.right)) == (1, "0F1", "0I0")
    assert found.moved == ()
    assert [str(action) for action in found.only_left] == ["0F1"]


def test_a_row_that_ends_early_says_so():
    found = only(FIRST, FIRST.replace(",0W1\n", "\n"))
    assert (found.first, str(found.left), found.right) == (5, "0W1", None)


def test_a_whole_backward_stands_for_no_i_and_w():
    found = only("0F0,0B0\n1F0,1B0\n", "0F0,0I0,0W0\n1F0,1I0,1W0\n")
    assert ([str(a) for a in found.only_left], [str(a) for a in found.only_right]) == (["0B0"], ["0I0", "0W0"])


def test_orders_of_other_sizes_are_compared_by_their_actions():
    small, large = generate("1f1b", pp=2, microbatches=2), generate("1f1b", pp=4, microbatches=4)
    found = compare_rows(small, large)
    assert len(found) == 4
    assert {str(action) for action in found[0].only_right} == {"0F2", "0F3", "0B2", "0B3"}
    assert found[3].only_left == ()
    assert len(found[3].only_right) == 8


def as_schedule(order):
    return Schedule.of([[Action(0, "F", m) for m in order]])


@given(st.permutations(range(9)))
def test_what_moved_is_the_fewest_and_never_by_nothing(order):
    found = compare_rows(as_schedule(range(9)), as_schedule(order))[0]
    stay = [m for m in order if m not in {moved.action.microbatch for moved in found.moved}]
    assert stay == sorted(stay)
    assert all(moved.by for moved in found.moved)
    assert all(moved.left == moved.action.microbatch and order[moved.right] == moved.left for moved in found.moved)
    assert found.equal == (list(order) == sorted(order)) == (not found.moved)


@given(st.permutations(range(7)))
def test_the_longest_rising_sequence_by_trying_all(values):
    rising = (n for n in range(8, 0, -1) if any(list(c) == sorted(c) for c in combinations(values, n)))
    found = sorted(longest_rising(list(values)))
    assert len(found) == next(rising)
    assert [values[k] for k in found] == sorted(values[k] for k in found)


def test_a_long_order_is_compared_at_once():
    order = generate("zb-h1", pp=4, microbatches=4000)
    turned = Schedule(codes=tuple(np.roll(row, 1) for row in order.codes), chunks=4, microbatches=4000)
    assert [len(one.moved) for one in compare_rows(order, turned)] == [1] * 4


@pytest.fixture
def files(tmp_path):
    texts = {
        "a.csv": generate("zb-v", pp=4, microbatches=8).csv(),
        "b.csv": generate("v-half", pp=4, microbatches=8).csv(),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_times_and_peaks_are_those_that_simulate_gives(files):
    from shardwise import simulate

    found = diff_orders(files / "a.csv", files / "b.csv", costs="10,11,9", hop=1)
    for side, name in ((found.left, "a.csv"), (found.right, "b.csv")):
        again = simulate(files / name, "10,11,9", hop=1).timeline
        assert side.timeline
        assert (side.timeline.makespan, side.timeline.peak) == (again.makespan, again.peak)
    assert (found.costs, found.seconds, found.equal) == ("given", False, False)


def test_an_answer_brings_its_costs(files):
    words = ["schedule", "zb-v", "--pp", "4", "--microbatches", "8", "--costs", "10,11,9", "--hop", "1", "-q"]
    assert run([*words, "--json", str(files / "answer.json")]) == 0
    found = diff_orders(files / "answer.json", files / "b.csv")
    assert [side.timeline.makespan for side in (found.left, found.right)] == [526, 563]
    assert found.costs == "answer.json"
    assert diff_orders(files / "answer.json", files / "a.csv").equal


def test_a_plan_brings_its_seconds_and_its_order(files):
    words = ["estimate", "llama-3-8b", "-c", "8xh100", "-s", "pp4 gbs16 seq4096", "-q", "--out", str(files / "p.json")]
    assert run(words) == 0
    (files / "h1.csv").write_text(generate("zb-h1", pp=4, microbatches=8).csv())
    found = diff_orders(files / "p.json", files / "h1.csv")
    assert (found.seconds, found.costs) == (True, "p.json")
    assert found.right.timeline.makespan < found.left.timeline.makespan
    other = diff_orders(files / "p.json", files / "a.csv")
    assert other.right.timeline is None
    assert not diff_orders(files / "a.csv", files / "p.json").equal


def test_an_order_that_cannot_run_is_compared_and_told(files, capsys):
    (files / "c.csv").write_text((files / "a.csv").read_text().replace(",0W7", ""))
    assert run(["diff", str(files / "a.csv"), str(files / "c.csv"), "--costs", "10,11,9"]) == 0
    out, err = capsys.readouterr()
    assert "the orders differ on 1 of 4 ranks: 1 only in a.csv" in out
    assert "c.csv cannot run: missing: 0W7 is in no row" in err


def test_the_answer_in_json(files):
    words = ["diff", str(files / "a.csv"), str(files / "b.csv"), "--json", str(files / "d.json"), "-q"]
    assert (
        run([*words, "--costs", "10,11,9", "--hop", "1", "--html", str(files / "d.html"), "--md", str(files / "d.md")])
        == 0
    )
    answer = json.loads((files / "d.json").read_text())
    assert (answer["equal"], answer["left"]["makespan"], answer["right"]["makespan"]) == (False, 526, 563)
    first = next(rank for rank in answer["ranks"] if not rank["equal"])
    assert {"rank", "first", "left", "right", "moved", "only_left", "only_right"} <= set(first)
    assert "b.csv" in (files / "d.html").read_text()
    assert "the orders differ" in (files / "d.md").read_text()
    assert run(["diff", str(files / "a.csv"), str(files / "a.csv"), "-q", "--json", str(files / "e.json")]) == 0
    assert json.loads((files / "e.json").read_text())["equal"] is True


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hello", "is not an action"),
        ("", "the schedule has no actions"),
        ("0F999999999", "need at least"),
        ("0F0,0B0\n1F0,1B0\x00", "is not an action"),
        ("0F0,0B0,0F0", "0F0 stands 2 times in the row of rank 0; leave one"),
    ],
)
def test_bad_orders_get_a_sentence_with_their_file(files, text, told):
    (files / "bad.csv").write_text(text)
    with pytest.raises(InputError, match=rf"bad\.csv: .*{told}"):
        diff_orders(files / "a.csv", files / "bad.csv")


def test_costs_of_orders_are_refused_for_plans_and_hops_without_costs(files, capsys):
    (files / "p.json").write_text("{}")
    assert run(["diff", str(files / "p.json"), str(files / "p.json"), "--hop", "1"]) == 2
    assert "--hop: is for orders" in capsys.readouterr().err
    assert run(["diff", str(files / "a.csv"), str(files / "b.csv"), "--hop", "1"]) == 2
    assert "go with --costs" in capsys.readouterr().err
    assert run(["diff", str(files / "a.csv"), str(files / "b.csv"), "--html", str(files / "x.html")]) == 2
    assert "--html: shows the times of both orders" in capsys.readouterr().err


def test_pytorchs_own_order_equals_ours(tmp_path):
    """What seed 002 did by eye: `our order equals the official order`."""
    pytest.importorskip("torch")
    from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble

    made = object.__new__(ScheduleZBVZeroBubble)
    made.pp_group_size, made.num_stages, made._n_microbatches, made.n_local_stages = 4, 8, 8, 2
    lines = []
    for rank in range(4):
        cells = ScheduleZBVZeroBubble._calculate_single_rank_operations(made, rank)
        lines.append(",".join("" if cell is None else str(cell) for cell in cells))
    (tmp_path / "torch.csv").write_text("\n".join(lines))
    found = diff_orders(generate("zb-v", pp=4, microbatches=8), tmp_path / "torch.csv")
    assert found.equal, [one for one in found.ranks if not one.equal][:1]
