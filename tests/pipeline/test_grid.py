"""A fixed sample of the benchmark's grid: never behind a rival, never over a limit, near the bound."""

import csv
import dataclasses
from pathlib import Path

import pytest

from shardwise.pipeline.action import placed
from shardwise.pipeline.costs import costs, limit_of
from shardwise.pipeline.faults import find_fault
from shardwise.pipeline.optimise import optimise

COST_SETS = {
    "unit": (10, 10, 10, 0), "w0.8": (10, 10, 8, 0), "seed": (10, 11, 9, 1), "sail16": (14407, 14380, 9676, 1610),
    "paddle": (61, 72, 71, 3), "recomp": (10, 20, 10, 1),
}  # fmt: skip
TABLE = Path(__file__).parents[2] / "benchmarks" / "schedules_rivals.csv"


def sample():
    """Every eleventh cell up to pp 16."""
    with TABLE.open(encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if not row[0].startswith("#")]
    return [row for row in rows if int(row[0]) <= 16][::11]


@pytest.mark.parametrize("row", sample(), ids=lambda row: "-".join(row[:4]))
def test_cell(row):
    pp, m, (f, i, w, hop) = int(row[0]), int(row[1]), COST_SETS[row[2]]
    given = costs(pp=pp, vpp=2, f=f, i=i, w=w, hop=hop)
    if row[3]:
        given = dataclasses.replace(given, memory_limit=limit_of(given, placed(pp, 2, "v"), float(row[3])))
    answer = optimise(given, pp=pp, vpp=2, microbatches=m, effort=0.1)
    assert answer.value <= float(row[6])
    assert answer.gap <= 0.02
    assert find_fault(answer.schedule, given) is None
