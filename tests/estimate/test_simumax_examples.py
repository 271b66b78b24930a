"""SimuMax's examples through our importer: peak memory within 2% of its own on every stage."""

from __future__ import annotations

import pytest
from simumax_cases import EXAMPLES

from shardwise.estimate.estimate import estimate
from shardwise.frameworks.load import load_cluster
from shardwise.frameworks.simumax.read import read_model, read_strategy

GIB = 2**30


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_peak_memory_within_two_percent(example):
    model, strategy = read_model(example.model).model, read_strategy(example.strategy).strategy
    found = estimate(model, load_cluster("8xa100"), strategy)
    ours = [found.memory[0].peak.value, found.memory[-1].peak.value][: len(example.peaks)]
    errors = [mine / GIB / theirs - 1 for mine, theirs in zip(ours, example.peaks, strict=True)]
    assert max(map(abs, errors)) <= 0.02, errors


def test_all_fourteen_are_here():
    assert len(EXAMPLES) == 14
