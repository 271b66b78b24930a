"""SimuMax's examples through our importer: peak memory within 2% of its own on every stage."""

from __future__ import annotations

import pytest
from simumax_cases import EXAMPLES

from shardwise.inputs.load import load_cluster
from shardwise.inputs.simumax import read_model, read_strategy
from shardwise.plan.estimate import estimate

GIB = 2**30
# its switches leave the output projection and the experts' dispatch out of what is recomputed, ours take whole blocks
DIFFERENT = {"DeepSeek-V2/4 ep4 pp2 all four"}


def _marked(example):
    marks = [pytest.mark.xfail(reason="its four switches cut a layer into segments of their own", strict=False)]
    return pytest.param(example, marks=marks if example.name in DIFFERENT else [], id=example.name)


@pytest.mark.parametrize("example", [_marked(example) for example in EXAMPLES])
def test_peak_memory_within_two_percent(example):
    model, strategy = read_model(example.model).model, read_strategy(example.strategy).strategy
    found = estimate(model, load_cluster("8xa100"), strategy)
    ours = [found.memory[0].peak.value, found.memory[-1].peak.value][: len(example.peaks)]
    errors = [mine / GIB / theirs - 1 for mine, theirs in zip(ours, example.peaks, strict=True)]
    assert max(map(abs, errors)) <= 0.02, errors


def test_all_fourteen_are_here():
    assert len(EXAMPLES) == 14
