"""Differences of plans as people read them."""

from __future__ import annotations

from shardwise.plan.file import Difference
from shardwise.report.diff import difference_rows, matters


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


def test_lists_of_tables_are_told_as_text():
    stages = [{"rank": 0, "layers": [2, 8]}, {"rank": 1, "layers": [3, 3]}]
    assert told("predictions.stages", stages[:1], stages)[1:3] == ("2+8", "2+8,3+3")
    assert told("predictions.memory", [{"total": 2.0**30}], None)[1] == "1.00 GiB"
    assert told("predictions.time.parts", [{"name": "gemm", "value": 0.5}], None)[1] == "gemm 0.5"
    assert told("predictions.iteration_seconds_interval.0", 2.0, 1.0)[1:] == ("2 s", "1 s", "-50.0%")


def test_hashes_of_a_proof_are_never_shown_and_its_parts_only_with_all():
    assert not matters("proof.of.inputs", everything=True)
    assert [matters("proof.parts.0.bound", everything=one) for one in (False, True)] == [False, True]
    assert matters("predictions.mfu", everything=False)
