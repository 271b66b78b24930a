"""Laws over drawn strategies: lanes add up to the ledger, operators fill their pass, allocations reach the peak."""

from __future__ import annotations

import pytest
from drawn import drawn

from shardwise.estimate.allocations import allocations_of
from shardwise.estimate.estimate import assemble
from shardwise.estimate.iteration import iteration_of
from shardwise.estimate.operators import pass_trace
from shardwise.estimate.passes import pass_costs
from shardwise.estimate.setup import setup_of

COUNT = 120


@pytest.fixture(scope="module")
def cases():
    made = []
    for case in drawn(18, COUNT):
        setup = setup_of(*case)
        found = assemble(setup)
        made.append((case, setup, found, iteration_of(setup, found)))
    return made


def ledger_of(found):
    told = {}
    for leaf in (leaf for part in found.time.parts for leaf in part.leaves()):
        told[leaf.name] = told.get(leaf.name, 0.0) + leaf.value
    return told


def test_what_shows_is_what_the_ledger_says(cases):
    for case, _, found, whole in cases:
        told, ranks = ledger_of(found), range(case.strategy.pp)
        shown = [whole.exposed(rank) for rank in ranks]
        costs, schedule = whole.timeline.costs, whole.timeline.schedule
        work = [0.0] * len(ranks)
        for chunk, rank in enumerate(schedule.rank_of):
            work[rank] += costs.f[chunk] + costs.i[chunk] + costs.w[chunk]
        busiest = [rank for rank in ranks if work[rank] >= max(work) * (1 - 1e-9)]
        for name in ("tp communication", "cp communication", "ep communication", "parameter sharding"):
            wanted = pytest.approx(told.get(name, 0.0), rel=1e-6, abs=1e-9)
            assert any(shown[rank].get(name, 0.0) == wanted for rank in busiest), (name, str(case))
        slow = max(ranks, key=lambda rank: sum(p.end - p.start for p in whole.beside[rank] if p.exposed))
        for name in ("gradient reduction", "weight gathering", "optimizer", "framework"):
            wanted = pytest.approx(told.get(name, 0.0), rel=1e-6, abs=1e-9)
            assert shown[slow].get(name, 0.0) == wanted, (name, str(case))


def test_operators_fill_their_pass_and_reach_its_highest_points(cases):
    for case, setup, _, _ in cases:
        costs = pass_costs(setup, split=False)
        for index in {0, len(setup.chunks) - 1}:
            trace, chunk = pass_trace(setup, index), setup.chunks[index]
            assert trace.forward[-1].end == pytest.approx(costs.f[index], rel=1e-9), str(case)
            assert trace.backward[-1].end == pytest.approx(costs.i[index] + costs.w[index], rel=1e-9), str(case)
            assert max(run.level for run in trace.forward) == pytest.approx(chunk.forward, rel=1e-9), str(case)
            high = max(chunk.kept, *(run.level for run in trace.backward))
            assert high == pytest.approx(chunk.backward, rel=1e-9), str(case)


def fullest_backward(whole, rank):
    """The most activations that the rank holds, and the most while it runs a backward pass."""
    costs, held, most, backward = whole.timeline.costs, 0.0, 0.0, 0.0
    for action in whole.timeline.schedule.rows[rank]:
        kept = costs.activation[action.chunk]
        early = kept * costs.free_at_input_grad[action.chunk]
        if action.kind == "F":
            held += kept
        elif action.kind != "W":
            backward = max(backward, held)
        most = max(most, held)
        held -= {"F": 0.0, "I": early, "W": kept - early, "B": kept}[action.kind]
    return most, backward


def test_allocations_reach_the_peak_and_never_pass_it(cases):
    """The estimate takes the worst pass at the fullest moment. Of several unequal chunks, or of an order that runs a W
    at its fullest, the two may not meet.
    """
    for case, setup, found, whole in cases:
        for rank in {0, case.strategy.pp - 1}:
            share = allocations_of(setup, whole, rank).peak / found.memory[rank].peak.value
            assert share <= 1 + 1e-9, str(case)
            most, backward = fullest_backward(whole, rank)
            apart = case.strategy.vpp > 1 or backward < most * (1 - 1e-9)
            assert apart or share >= 1 - 1e-6, str(case)
