"""Seed 000 prints four configurations in full: every figure comes out."""

from __future__ import annotations

import pytest

from shardwise.per_op.evaluate import evaluate
from shardwise.per_op.profiles.table import MB
from shardwise.per_op.start import balanced

from .conftest import question

# stages: time_list, memory_list, compute_time_list, total_gpu_time, ideal, efficiency loss, efficient time (ms, MB)
PRINTED = {
    1: ((129233.4928007565,), (6396.3110000000015,), (126.204114,), 1032858.3057435461, (42.029100500000006,),
        (84.1750135,), (0.0,)),
    2: ((72100.92140351873, 74822.38189657548), (9232.992999999999, 6244.503), (69.42916900000002, 72.08992),
        586546.4947355957, (40.95076300000001, 43.107438), (28.478406000000003, 28.98248200000001),
        (6372.806030262493, 0.0)),
    3: ((47224.83862480315, 80235.5748183377, 87216.65147885989), (8248.962999999998, 11496.618999999999, 9024.362),
        (45.04795700000001, 76.406864, 84.14111499999999), 522129.9118505512,
        (26.963436499999997, 53.92398799999999, 60.26554099999999),
        (18.084520500000014, 22.48287600000001, 23.875574), (94643.60428384252, 9786.917259039516, 0.0)),
    4: ((59380.718671087554, 60727.291861622114, 60727.291861622114, 67708.36852214429),
        (14936.971, 11680.698999999999, 8840.458999999999, 7312.282), (56.898502, 57.305148, 57.305148, 65.039399),
        495151.26649962034, (40.44587599999999, 40.44299099999999, 40.44299099999999, 46.784544),
        (16.452626000000013, 16.862157000000007, 16.862157000000007, 18.25485500000001),
        (11783.980860237996, 9765.321919745102, 9765.321919745102, 0.0)),
}  # fmt: skip
SIZES = {1: (50,), 2: (25, 25), 3: (16, 16, 18), 4: (12, 12, 12, 14)}
GPUS = {1: (8,), 2: (4, 4), 3: (4, 2, 2), 4: (2, 2, 2, 2)}


def close(values, printed, scale):
    assert [value / scale for value in values] == pytest.approx(list(printed), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("stages", PRINTED)
def test_every_printed_figure_comes_out(seed_profile, stages):
    asked = question(seed_profile, layers=24, gpus=8, node=8, memory=28000 * MB, global_batch=1024)
    plan = balanced(asked, stages)
    assert (plan.sizes, plan.gpus) == (SIZES[stages], GPUS[stages])
    cost = evaluate(asked, plan)
    times, memory, compute, total, ideal, lost, spare = PRINTED[stages]
    close(cost.times, times, 1e-3)
    close(cost.memory, memory, MB)
    close([stage.work + stage.recompute for stage in cost.stages], compute, 1e-3)
    close([cost.gpu_seconds], [total], 1e-3)
    close(cost.ideal, ideal, 1e-3)
    close(cost.lost, lost, 1e-3)
    close(cost.spare, spare, 1e-3)
    assert all(stage.recompute == 0 for stage in cost.stages)
