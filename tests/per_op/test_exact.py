"""The exact engine against brute force on small random spaces."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from shardwise.errors import InfeasibleError
from shardwise.per_op.cut import moves
from shardwise.per_op.evaluate import evaluate, stage_cost
from shardwise.per_op.search import search
from shardwise.per_op.tables import gpu_counts, sample_counts, tables_of

from .conftest import question, random_profile


def stage_options(asked, size, gpus, first, end):
    """Seconds and memory of all choices of a range, by stages behind and crossing; both are linear in what differs."""
    tables = tables_of(asked, size, gpus)
    rows = tables.rows[first:end]
    flags = [(False, True) if tables.may[row] else (False,) for row in rows]
    for layouts in itertools.product(range(len(tables.layouts)), repeat=end - first):
        for again in itertools.product(*flags):
            yield tables, np.array(layouts), np.array(again)


def brute_force(asked):
    best, limit = np.inf, asked.memory / asked.memory_factor
    count = len(asked.chain.rows)
    for size in sample_counts(asked):
        passes = asked.global_batch // size
        known = {}

        def fastest(first, end, gpus, behind, crossing, size=size, known=known):
            key = (first, end, gpus, behind, crossing)
            if key not in known:
                costs = (
                    stage_cost(asked, tables, first, layouts, again, behind, crossing, size)
                    for tables, layouts, again in stage_options(asked, size, gpus, first, end)
                )
                known[key] = min((cost.seconds for cost in costs if cost.memory <= limit), default=np.inf)
            return known[key]

        for stages in asked.stage_range:
            for cuts in itertools.combinations(range(1, count), stages - 1):
                ends = (0, *cuts, count)
                for gpus in itertools.product(gpu_counts(asked), repeat=stages):
                    if sum(gpus) != asked.gpus:
                        continue
                    left, seconds = asked.gpus, []
                    for index, own in enumerate(gpus):
                        legal, receives, sends = moves(asked, own, left)
                        left -= own
                        time = np.inf
                        if legal:
                            time = fastest(ends[index], ends[index + 1], own, stages - 1 - index, (receives, sends))
                        seconds.append(time)
                        if not np.isfinite(time):
                            break
                    if np.isfinite(seconds).all():
                        best = min(best, (passes - 1) * max(seconds) + sum(seconds))
    return best


def asked_for(seed):
    """A limit that binds: between what the leanest and the fastest plans take."""
    draw = np.random.default_rng(1000 + seed)
    gpus, node = ((2, 2), (3, 2), (4, 2), (2, 1))[seed % 4]
    roomy = question(random_profile(seed), gpus=gpus, node=node, sample_counts=(1, 2))
    high = max(search(roomy).cost.memory)
    return replace(roomy, memory=high * float(draw.uniform(0.75, 1.0)))


@pytest.mark.parametrize("seed", range(30))
def test_the_exact_engine_equals_brute_force(seed):
    asked = asked_for(seed)
    wanted = brute_force(asked)
    if not np.isfinite(wanted):
        with pytest.raises(InfeasibleError):
            search(asked)
        return
    found = search(asked)
    assert found.cost.seconds == pytest.approx(wanted, rel=1e-9)
    assert found.proven
    assert found.cost.fits(asked.memory)
    assert evaluate(asked, found.plan) == found.cost
