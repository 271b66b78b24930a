"""Limits hold: plans made of drawn rounds of measuring, against the truth that was hidden from them.

`benchmarks/confidence.py` does the same 500 times.
"""

from __future__ import annotations

from drawn_rounds import SHAPES, drawn, outcome

SMALL = (SHAPES[0], SHAPES[1], SHAPES[3], SHAPES[7])


def test_limits_hold_with_the_confidence_that_was_asked_for():
    found = [outcome(drawn(seed, SMALL)) for seed in range(1000, 1020)]
    plans = [one for one in found if one.planned]
    assert len(plans) >= 18
    assert {min(one.spare, 2) for one in plans} == {0, 1, 2}
    assert {one.kinds for one in plans} == {1, 2}
    assert sum(one.over_in_run > 0 for one in plans) <= 1
    assert sum(one.over > 0 for one in plans) <= 1
    assert sum(one.slower for one in plans) <= 0.03 * len(plans)
