"""A plan file whose operators contradict themselves is refused with all that is wrong, before any verb uses it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from shardwise.errors import InputError
from shardwise.inputs.serialise import to_plain
from shardwise.plan.file import plan_from, plan_table, read_plan


@pytest.fixture(scope="module")
def table():
    """Of the present schema, from a file of the first."""
    return to_plain(plan_table(read_plan(next(Path(__file__).parent.rglob("operators.json")))))


def edited(table, path, value):
    made = copy.deepcopy(table)
    place = made["operators"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return made


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("stages", 0, "ops"), 1, "operators.stages.0.layouts: has"),
        (("stages", 0, "ops"), 1, "operators are named"),
        (("stages", 0, "gpus"), 3, "GPUs are in the cluster"),
        (("stages", 0, "gpus"), 0, "operators.stages.0.gpus: is 0; a stage has at least 1"),
        (("stages", 0, "layouts", 0), [3, 1, 0], "operators.stages.0.layouts.0: is tp 3 x dp 1"),
        (("stages", 0, "layouts", 0), [-1, -1, 0], "operators.stages.0.layouts.0: is tp -1 x dp -1"),
        (("stages", 0, "recompute"), [9999], "operators.stages.0.recompute: names operator 9999"),
        (("stages", 0, "recompute"), [-1], "operators.stages.0.recompute: names operator -1"),
        (("stages", 0, "recompute"), [1, 1], "names an operator twice"),
        (("stages",), [], "operators.stages: have 0 ops in all"),
        (("microbatches",), 0, "operators.microbatches: is 0"),
        (("microbatches",), 1000, "operators.microbatches: is 1000; a global batch of"),
        (("seconds",), -1.0, "operators.seconds: is -1"),
    ],
)
def test_operators_that_contradict_themselves_are_refused(table, path, value, said):
    with pytest.raises(InputError, match=r"plan\.json") as told:
        plan_from(edited(table, path, value), "plan.json")
    assert said in str(told.value)


def test_what_agrees_is_read(table):
    assert plan_from(table, "plan.json").operators.names
