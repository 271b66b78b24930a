from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from questions import REAL, asked

from shardwise.estimate.estimate import assemble
from shardwise.estimate.setup import setup_of
from shardwise.inputs.layers import is_uneven, spread, with_layers
from shardwise.search.recomputes import AS_NEEDED
from shardwise.search.refine import refine
from shardwise.search.screen import Screen
from shardwise.search.space import Space

EACH = 2000 // len(REAL)
NARROW = (
    ("llama-3-8b", "16xb200", 64, 8192, "megatron", "fp8 fp8-weights grad-bf16 graphs=layer"),
    ("llama-3-70b", "64xgb300", 64, 8192, "megatron", "nvfp4 fp8-weights fp8-attention"),
    ("llama-3-8b", "16xh100", 16, 8192, "torchtitan", "fp8 fp8-weights scaling=row"),
    ("qwen3-30b-a3b", "8xh200", 32, 4096, "torchtitan", "cp=1"),
    ("llama-3-8b", "64xh100", 256, 4096, "megatron", "order=dp-pp,pp-dp group=0,8,24 pp>1"),
)
"""Products below 16 bit: weights that are smaller than the bound on 16-bit ones would have them; and axes by name."""
ROUNDING = 1 + 1e-9
ORDERS, LONG = 6, 1e6


def random_cut(rng, question, strategy):
    """Any cut that leaves every chunk a layer."""
    layers, chunks = question.model.layers, strategy.chunks
    if strategy.pp == 1 or not question.runtime.can.uneven_layers:
        return strategy
    places = sorted(rng.sample(range(1, layers), chunks - 1))
    return replace(strategy, layers=tuple(b - a for a, b in pairwise([0, *places, layers])))


def random_mix(rng, question, strategy):
    """As many layers of every chunk recomputed as chance has it, or as few as may fit."""
    if strategy.recompute.layers != AS_NEEDED:
        return strategy
    counts = spread(question.model.layers, strategy)
    again = tuple(rng.randint(0, count) for count in counts)
    return replace(strategy, recompute=replace(strategy.recompute, layers=again))


@pytest.mark.parametrize("case", [*REAL, *NARROW], ids=lambda case: f"{case[0]}-{case[4]}{'-'.join(case[5:])}")
def test_bounds_are_never_above_the_full_path(case):
    """2,000 random strategies in all, a third of them cut at random places."""
    question, rng = asked(*case), random.Random(2)  # noqa: S311
    space = Space(question=question)
    screen = Screen(space=space)
    bases = rng.sample(space.bases, min(12, len(space.bases)))
    # where it is known what to beat, orders are bounded by their paths, too
    rows = [*screen.rows_of(bases[:ORDERS], most=LONG), *screen.rows_of(bases[ORDERS:])]
    bounds, values = [], []
    for turn in range(EACH):
        row = rng.choice(rows)
        place = rng.randrange(len(row.seconds))
        strategy = space.strategy(screen.point(row.base, place))
        layers = question.model.layers
        even = with_layers(layers, strategy) if is_uneven(layers, strategy) else strategy
        cut = random_mix(rng, question, even if turn % 3 else random_cut(rng, question, even))
        found = assemble(setup_of(question.model, question.cluster, cut, question.runtime))
        assert row.bytes[place] <= found.total_bytes * ROUNDING, str(cut)
        if found.total_bytes > question.memory_limit:
            continue  # the bound on time is that of cuts that fit
        assert row.seconds[place] <= found.iteration_seconds * ROUNDING, str(cut)
        if turn % 3 and strategy.recompute.layers != AS_NEEDED:
            bounds.append(row.seconds[place])
            values.append(found.iteration_seconds)
    correlation = rank_correlation(bounds, values)
    print(f"{case[0]} with {case[4]}: rank correlation of bound and value {correlation:.3f}")
    assert correlation > 0.4


@pytest.mark.parametrize("case", REAL[:3], ids=lambda case: case[0])
def test_cuts_of_the_search_stay_above_the_bounds(case):
    question, rng = asked(*case), random.Random(5)  # noqa: S311
    space = Space(question=question)
    screen = Screen(space=space)
    rows = screen.rows_of(rng.sample(space.bases, 4), most=LONG)
    for _ in range(40):
        row = rng.choice(rows)
        place = rng.randrange(len(row.seconds))
        found = refine(question, space.strategy(screen.point(row.base, place)))
        if found is not None:
            assert not found.allowed or row.seconds[place] <= found.seconds * ROUNDING
            assert row.bytes[place] <= found.total_bytes * ROUNDING


@pytest.mark.parametrize("case", REAL[:4], ids=lambda case: f"{case[0]}-{case[4]}")
def test_looks_at_a_base_are_below_all_its_strategies(case):
    space = Space(question=asked(*case))
    screen = Screen(space=space)
    for base in random.Random(1).sample(space.bases, 6):  # noqa: S311
        least = screen.rows(base).seconds.min()
        assert screen.glance(base) <= least * ROUNDING
        assert screen.glance(base) <= screen.least(base) * ROUNDING <= least * ROUNDING * ROUNDING


def rank_correlation(a, b):
    a, b = (np.argsort(np.argsort(values)) for values in (a, b))
    return float(np.corrcoef(a, b)[0, 1])
