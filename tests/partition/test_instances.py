"""SAPP's instances: our simulator agrees with its own on its plans, and our plans are faster, fit and are bounded."""

from __future__ import annotations

import numpy as np
import pytest
from balance_cases import DATA, INSTANCES, counts_of, instance

from shardwise.errors import InfeasibleError
from shardwise.partition import solve
from shardwise.partition.compare import bubble_of
from shardwise.partition.graph import Ready
from shardwise.partition.lists import Lists, from_lists
from shardwise.partition.readers.problem_file import problem_from

OPEN = [name for name in INSTANCES if name != "Q1"]
FAST = {"S1": 1826.0, "T1": 107460.0, "P1": 12448.0, "P3": 179550.0}


@pytest.mark.parametrize("name", OPEN)
def test_their_plans_take_what_their_simulator_says(name):
    sapp, ready = INSTANCES[name]["sapp"], Ready(instance(name))
    found = ready.evaluate(counts_of(ready, sapp["counts"]))
    assert found.simulated == pytest.approx(sapp["sim_end"], rel=1e-9)
    assert found.peak == pytest.approx(sapp["peak"])
    assert found.fits


@pytest.mark.parametrize("name", FAST)
def test_one_chunk_a_rank_is_proven(name):
    answer = solve(instance(name), seconds=1e4)
    assert answer.simulated <= FAST[name]
    assert answer.proven
    assert answer.best.fits


def test_two_chunks_a_rank():
    answer = solve(instance("P4"), seconds=1e4, effort=0.5, prove=False)
    assert answer.simulated <= 53300
    assert answer.gap < 0.1
    assert answer.best.fits


def test_the_same_seed_gives_the_same_answer():
    one, two = (solve(instance("P4"), effort=0.05, prove=False) for _ in range(2))
    assert one.best.partition == two.best.partition


def test_pieces_of_a_sequence_are_simulated_as_such():
    answer = solve(instance("Q1"))
    assert answer.proven
    assert answer.best.timeline.schedule.microbatches == 64
    assert answer.simulated == pytest.approx(54855, abs=1)  # SAPP printed 29489 for half of the micro batches


def test_an_impossible_limit_is_refused_with_the_smallest_that_works():
    problem = problem_from({**INSTANCES["S1"]["problem"], "mem_limit": 20000})
    with pytest.raises(
        InfeasibleError, match=r"infeasible: .*stages .*missing.*smallest that works is a limit of"
    ) as told:
        solve(problem)
    limit = float(str(told.value).rsplit(" ", 1)[1].replace(",", ""))
    solve(problem_from({**INSTANCES["S1"]["problem"], "mem_limit": limit + 1}))
    with pytest.raises(InfeasibleError):
        solve(problem_from({**INSTANCES["S1"]["problem"], "mem_limit": limit - 1}))


SEED = {
    "doc step-5 plan vpp1": (1, 0, {
        "offset": [[-1, 0, 0, -1, -2, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, -1]], "recompute": [[0] * 16],
        "select_recompute": [[5, 6, 5, 5, 0, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 0]],
        "select_comm_recompute": [[5, 4, 5, 0, 0, 3, 0, 0, 1, 4, 0, 0, 0, 0, 0, 0]],
    }),
    "doc vpp1 all-recompute": (1, 0, {
        "offset": [[0] * 16], "recompute": [[0] * 16], "select_recompute": [[6] * 16],
        "select_comm_recompute": [[6] * 16],
    }),
    "doc vpp3 lm all-recompute": (3, 1, {
        "offset": [[0] * 16] * 3, "recompute": [[0] * 16] * 3, "select_recompute": [[2] * 16] * 3,
        "select_comm_recompute": [[2] * 16] * 3,
    }),
    "doc result plan vpp3 lm": (3, 1, {
        "offset": [[-1] + [0] * 15, [0, 0, 0, 0, 0, 0, -1, 0, -1, 0, -1, 0, 0, 0, 0, 0],
                   [0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 0, 0, -1]],
        "recompute": [[0] * 16] * 3,
        "select_recompute": [[1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 2],
                             [2, 2, 2, 2, 2, 2, 1, 2, 1, 2, 1, 2, 2, 2, 2, 2],
                             [1, 2, 2, 2, 1, 1, 3, 3, 0, 2, 0, 0, 0, 0, 1, 1]],
        "select_comm_recompute": [[1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2],
                                  [2, 2, 2, 2, 2, 2, 1, 2, 1, 2, 1, 1, 2, 2, 2, 2],
                                  [2, 2, 2, 2, 2, 2, 3, 3, 3, 0, 0, 2, 0, 0, 1, 0]],
    }),
}  # fmt: skip


def lists(data):
    return Lists(**{name: tuple(map(tuple, rows)) for name, rows in data.items()})


@pytest.mark.parametrize("name", SEED)
def test_the_figures_that_seed_001_prints(name):
    vpp, low, plan = SEED[name]
    printed = DATA["document"][name]
    problem = problem_from({**INSTANCES["S1"]["problem"], "vp": vpp, "low_mem": low, "mem_limit": printed["mem_limit"]})
    ready = Ready(problem)
    found = ready.evaluate(ready.matrix(from_lists(problem, lists(plan))))
    assert found.simulated == pytest.approx(printed["sim_end"], rel=1e-6)
    bubble = bubble_of(problem, found)
    told = printed["bubble"]
    parts = (bubble.real, bubble.ideal, bubble.imbalance, bubble.recompute)
    assert [round(x, 4) for x in parts] == [told["real"], told["ideal"], told["imba"], told["recompute"]]
    assert found.peak == pytest.approx(printed["peak"])
    assert found.fits == (max(printed["peak"]) <= printed["mem_limit"])


MODEL_A = {
    "name": "A", "stage_const_mem": 0, "layers_description": [
        {"name": "HEAD", "type": "HEAD", "time": 30, "memory_parameter": 4245},
        {"name": "BODY", "type": "BODY", "time": 30, "nb_layer": 96, "memory_parameter": 2141, "memory_activation": 852,
         "memory_select_rec": 767, "memory_select_comm": 535, "memory_both_comm_select": 511},
        {"name": "TAIL", "type": "TAIL", "time": 60, "memory_parameter": 1203},
    ],
}  # fmt: skip
MANUAL = {
    "offset": [[-1] * 12 + [0] * 4, [-1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1], [1] * 9 + [0] * 6 + [-1]],
    "recompute": [[0] * 16] * 3,
    "select_recompute": [[1] * 12 + [2] * 4, [1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 2, 2, 3, 3],
                         [3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 0, 1, 0]],
    "select_comm_recompute": [[1] * 11 + [0, 1, 2, 2, 2], [1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 2, 2, 3, 3],
                              [3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 0, 1, 0]],
}  # fmt: skip
ALL = {"offset": [[0] * 16] * 3, "recompute": [[0] * 16] * 3, "select_recompute": [[2] * 16] * 3,
       "select_comm_recompute": [[2] * 16] * 3}  # fmt: skip
NONE = {**ALL, "select_recompute": [[0] * 16] * 3, "select_comm_recompute": [[0] * 16] * 3}


@pytest.mark.parametrize(("name", "plan"), [("manual1", MANUAL), ("naive all", ALL), ("naive none", NONE)])
def test_the_comparison_that_seed_001_prints(name, plan):
    printed = DATA["document"][f"doc {name} on model A"]
    problem = problem_from({"pp": 16, "vp": 3, "mb": 16, "layers": 96, "mem_limit": 62000, "model": MODEL_A})
    ready = Ready(problem)
    found = ready.evaluate(ready.matrix(from_lists(problem, lists(plan))))
    assert found.simulated == pytest.approx(printed["sim_end"])
    assert found.peak == pytest.approx(printed["peak"])
    assert round(bubble_of(problem, found).real, 4) == printed["bubble"]["real"]


@pytest.mark.parametrize(("pp", "vpp", "m"), [(8, 1, 3), (8, 3, 12), (4, 2, 6), (4, 2, 3), (8, 2, 17)])
@pytest.mark.parametrize("low", [0, 1])
def test_any_number_of_micro_batches_is_solved_with_the_true_peak(pp, vpp, m, low):
    problem = problem_from({**INSTANCES["P4"]["problem"], "pp": pp, "vp": vpp, "mb": m, "low_mem": low})
    answer = solve(problem, effort=0.02, prove=False)
    assert answer.best.fits
    assert answer.best.peak == answer.best.timeline.peak
    assert max(answer.best.peak) <= 45000


def test_fewer_layers_than_chunks_where_empty_ones_are_allowed():
    data = {**INSTANCES["P4"]["problem"], "layers": 14, "empty_chunks": [0, 15]}
    answer = solve(problem_from(data), effort=0.05, prove=False)
    assert sum(answer.best.partition.layers) == 14
    assert min(answer.best.partition.layers[1:-1]) >= 1


def test_unequal_memory_limits_hold():
    data = {**INSTANCES["P4"]["problem"], "mem_limit": [60000.0] * 4 + [40000.0] * 4}
    answer = solve(problem_from(data), effort=0.1, prove=False)
    assert (np.array(answer.best.peak) <= data["mem_limit"]).all()
