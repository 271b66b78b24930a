"""Recomputed runs over many layers: what they save is there again at once, unless operators between are kept."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from shardwise.per_op.breaks import broken, kept_places
from shardwise.per_op.crossover import crossed
from shardwise.per_op.evaluate import saved_and_peak
from shardwise.per_op.search import search
from shardwise.per_op.stage import StageTask
from shardwise.per_op.tables import tables_of

from .test_anytime import encoder_decoder


def parts(made, kept):
    """What is there at once between the operators that are kept."""
    ends = [-1, *kept, len(made) + 1]
    return [made[a + 1 : max(a + 1, b - 1)].sum() for a, b in pairwise(ends)]


@pytest.mark.parametrize("seed", range(8))
def test_the_operators_kept_are_those_that_cost_least(seed):
    """Against all choices of operators of a run of eight pairs."""
    draw = np.random.default_rng(seed)
    made, saved = (draw.integers(1, 20, 8).astype(float) for _ in range(2))
    lost = np.concatenate([[0.0], saved, [0.0]])
    costs = lost[:-1] + lost[1:]
    limit = float(draw.integers(int(made.max()), int(made.sum()) + 1))
    sets = [kept for count in range(10) for kept in combinations(range(9), count)]
    best = min(sum(costs[list(kept)]) for kept in sets if max(parts(made, kept)) <= limit)
    found = sorted(kept_places(made, saved, (0, 8), limit))
    assert max(parts(made, found)) <= limit
    assert sum(costs[found]) == best


@pytest.mark.parametrize("seed", range(3))
def test_a_stage_fits_that_only_broken_runs_make_fit(seed):
    """Of T5's decoder Aceso knows no start of a layer: recomputed whole, it is there again whole."""
    asked = encoder_decoder(seed, layers=8, sample_counts=(1,))
    tables = tables_of(asked, 1, 1)
    rows, layouts = tables.rows, np.zeros(len(tables.rows), dtype=int)
    act, made = tables.act[layouts, rows], tables.made[layouts, rows]
    again = tables.may[rows]
    flags = broken(tables, rows, layouts, again, 1)
    (saved, peak), (less, lower) = (saved_and_peak(tables, rows, act, made, own) for own in (again, flags))
    assert lower < peak / 2
    assert lower - less < peak - saved
    held = [act.sum() - one + other for one, other in ((saved, peak), (less, lower))]
    reserve = max(
        max(tables.reserved_f[0, rows[:-1]]) + max(tables.reserved_b[0, rows[:-1]]), tables.weights[0, rows].sum()
    )
    beside = tables.static[0, rows].sum() + tables.entry[0, rows[0]] - tables.sent[0, rows[-1]] + reserve
    tight = replace(asked, gpus=1, node=1, memory=float(beside + sum(held) / 2))
    task = StageTask(0, len(rows), 1, 0, (0, 0), 1)
    assert np.isfinite(crossed(tight, task).seconds)
    found = search(tight)
    assert found.cost.fits(tight.memory)
    assert found.proven
