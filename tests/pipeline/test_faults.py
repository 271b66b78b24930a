import pytest

from shardwise.pipeline.action import Schedule
from shardwise.pipeline.costs import Costs, costs
from shardwise.pipeline.faults import ScheduleError, find_fault, validate
from shardwise.pipeline.generate import generate

GOOD = "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1W0,1F1,1I1,1W1\n"


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (("0W1", ""), "missing", "0W1 is in no row; add it to rank 0"),
        (("0F1,", "0F0,"), "duplicate", "0F0 runs 2 times"),
        (("1W0,", "1W0,0W0,"), "duplicate", "0W0 runs 2 times, on rank 0 and rank 1"),
        (("1F0,1I0", "1I0,1F0"), "order", "1I0 comes before 1F0 on rank 1"),
        (("0I0,0W0", "0W0,0I0"), "order", "0W0 comes before 0I0"),
        (("0I1,0W1", "0B1,0W1"), "duplicate", "0W1 and 0B1: a full backward holds it already"),
    ],
)
def test_the_first_fault_is_named(change, kind, words):
    schedule = Schedule.parse(GOOD.replace(*change))
    fault = find_fault(schedule)
    assert fault is not None
    assert fault.kind == kind
    assert words in fault.message


def test_a_sound_schedule_has_no_fault():
    assert find_fault(Schedule.parse(GOOD)) is None


def test_wrong_rank_and_deadlock():
    assert find_fault(Schedule.parse(GOOD), rank_of=(1, 0)).kind == "wrong-rank"
    stuck = Schedule.parse("0F0,0I0,0W0,0F1,0I1,0W1\n1F0,1F1,1I0,1W0,1I1,1W1\n")
    assert find_fault(stuck).kind == "deadlock"


def test_the_grid_marks_the_place():
    with pytest.raises(ScheduleError, match=r"-> rank   0:.*>0W0<") as error:
        validate(Schedule.parse(GOOD.replace("0I0,0W0", "0W0,0I0")))
    assert "rank   1:" in str(error.value)


def test_limit_names_rank_action_and_bytes():
    given = costs(pp=4, f=1, i=1, w=1, memory_limit=3)
    fault = find_fault(generate("1f1b", pp=4, microbatches=8), given)
    assert fault.kind == "limit"
    assert fault.message == "0F3 takes rank 0 to 4 of 3"


def test_static_bytes_count_against_the_limit():
    given = Costs(f=(1, 1), i=(1, 1), w=(1, 1), static=(5, 0), memory_limit=(6, 6))
    assert "0F1 takes rank 0 to 7 of 6" in str(find_fault(Schedule.parse(GOOD), given))
