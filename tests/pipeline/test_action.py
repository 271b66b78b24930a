import pytest

from shardwise.errors import InputError
from shardwise.pipeline.action import Action, Schedule, placed

TEXT = "0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,2W0,1I0,1W0\n"


def test_action_prints_and_parses_as_torch_does():
    assert str(Action(2, "F", 0)) == "2F0"
    assert Action.parse("13W7") == Action(13, "W", 7)


@pytest.mark.parametrize("text", ["", "F0", "0X0", "0F0xyz", "0F", "-1F0", "9" * 5000 + "F0"])
def test_junk_is_no_action(text):
    with pytest.raises(InputError, match="is not an action"):
        Action.parse(text)


def test_csv_round_trip():
    schedule = Schedule.parse(TEXT)
    assert schedule.csv() == TEXT
    assert Schedule.parse(schedule.csv()) == schedule
    assert (schedule.pp, schedule.vpp, schedule.microbatches, schedule.actions) == (2, 2, 1, 12)
    assert schedule.rank_of == (0, 1, 1, 0)
    assert not schedule.fused


def test_blank_cells_mean_nothing():
    assert Schedule.parse("0F0,,0B0\n\n") == Schedule.parse("0F0,0B0")


def test_a_chunk_out_of_all_proportion_is_refused():
    with pytest.raises(InputError, match="names chunk 99999999 and micro batch 0 but has 2 actions"):
        Schedule.parse("0F0,99999999F0")


def test_placements():
    assert placed(3, 2, "loop") == (0, 1, 2, 0, 1, 2)
    assert placed(3, 3, "v") == (0, 1, 2, 2, 1, 0, 0, 1, 2)
    with pytest.raises(InputError, match="use loop or v"):
        placed(2, 2, "zigzag")
