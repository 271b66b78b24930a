"""Differences of plans as people read them."""

from __future__ import annotations

from shardwise.plan.file import Difference
from shardwise.report.diff import difference_rows


def told(path, left, right):
    return difference_rows([Difference(path=path, left=left, right=right)])[0]


def test_numbers_carry_units_and_changes():
    assert told("predictions.iteration_seconds", 2.0, 1.0) == ("iteration_seconds", "2 s", "1 s", "-50.0%")
    assert told("predictions.total_bytes", 2.0**30, 2.0**31) == ("total_bytes", "1.00 GiB", "2.00 GiB", "+100.0%")
    assert told("predictions.mfu", 0.4, 0.5) == ("mfu", "40.00%", "50.00%", "+10.0 points")
    assert told("predictions.bubble", 0, 0.5)[3] == "+50.0 points"
    assert told("predictions.host_bytes", 0, 5)[3] == ""


def test_inputs_are_told_as_they_are():
    assert told("strategy.tp", 8, 4) == ("strategy.tp", "8", "4", "")
    assert told("strategy.layers", [], [9, 11]) == ("strategy.layers", "none", "9,11", "")
    assert told("strategy.sp", True, False) == ("strategy.sp", "True", "False", "")
    assert told("partition", {"layers": [1]}, None) == ("partition", "given", "absent", "")
    assert len(told("model.name", "x" * 500, "y")[1]) == 60
