"""What runs teach: of their runtime alone, of what they can tell, and better with more of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwise
from shardwise.errors import InputError
from shardwise.inputs.calibration import Learnt
from shardwise.inputs.calibrations import as_run_by, calibration_of, load_calibration
from shardwise.measure.learn import learn, predicted, with_learnt
from shardwise.measure.validate.case import MeasuredRun

BUSY = "mbs8 gbs32 seq4096"
"""Kernels keep an H200 busy."""
HOST = "mbs1 gbs16 seq512"
"""They wait for their launches."""


def ran(line, truth, model="llama-3.2-1b", **more):
    """A run as it would be if the truth were so."""
    told = shardwise.estimate(model, "1xh200", line)
    run = MeasuredRun(
        id=line, source="test", gpu="H200", precision="bf16", complete=True, model=told.model, cluster=told.cluster,
        strategy=told.strategy, runtime=shardwise.load_runtime(told.strategy.runtime),
    )  # fmt: skip
    seconds = predicted(run, truth).iteration_seconds
    return replace(run, measured={"iteration_seconds": seconds, "spread": 0.01, **more})


def error(run, learnt):
    return predicted(run, learnt).iteration_seconds / run.measured["iteration_seconds"] - 1


def truth(**corrections):
    return Learnt(runtime="megatron", corrections=corrections)


def test_a_busy_gpu_teaches_its_kernels_and_a_waiting_one_its_host():
    slow = truth(gemm=1.1, attention=1.1, memory=1.1)
    found = learn([ran(BUSY, slow)])
    assert found.corrections["gemm"] == pytest.approx(1.1, rel=0.01)
    assert found.corrections["host"] == pytest.approx(1.0, abs=0.02)
    assert abs(error(ran("mbs4 gbs16 seq8192", slow), found)) < 0.02
    host = truth(host=1.4)
    found = learn([ran(HOST, host)])
    assert found.corrections["host"] == pytest.approx(1.4, rel=0.08)
    assert found.corrections["gemm"] == pytest.approx(1.0, abs=0.03)
    assert abs(error(ran(BUSY, host), found)) < 0.02


def test_a_run_with_experts_teaches_them_more_than_dense_models():
    found = learn([ran("mbs8 gbs16 seq4096", truth(experts=1.3), model="deepseek-v2-lite")])
    assert found.corrections["experts"] > 1.12
    assert found.corrections["gemm"] < 1.1
    dense = predicted(ran(BUSY, None), found).iteration_seconds
    assert dense == pytest.approx(predicted(ran(BUSY, None)).iteration_seconds, rel=0.1)


def test_several_runs_tell_kinds_of_kernels_apart():
    slow = truth(gemm=1.0, attention=1.15, memory=1.0)
    lines = [BUSY, "mbs1 gbs4 seq32768 recompute=full", "mbs2 gbs16 seq8192", "mbs16 gbs32 seq2048"]
    found = learn([ran(line, slow) for line in lines])
    assert found.corrections["attention"] > found.corrections["gemm"] + 0.05
    assert abs(error(ran("mbs1 gbs4 seq65536 recompute=full", slow), found)) < 0.04
    assert 0 < found.time_error < 0.05
    assert len(found.runs) == 4


def test_times_of_passes_count():
    told = predicted(ran(BUSY, None))
    run = ran(BUSY, None, forward_seconds=told.forward_seconds * 1.1, backward_seconds=told.backward_seconds * 1.1)
    assert learn([run]).corrections["gemm"] > 1.01


def test_a_noisy_run_teaches_little_and_an_absurd_one_nothing():
    slow = truth(gemm=1.2, attention=1.2, memory=1.2)
    calm, noisy = (learn([ran(BUSY, slow, spread=spread)]).corrections["gemm"] for spread in (0.01, 1.0))
    assert 1 < noisy < calm
    run = ran(BUSY, None)
    with pytest.raises(InputError, match="is it a run of this plan"):
        learn([replace(run, measured={"iteration_seconds": 1e-3})])


def test_what_was_learnt_is_applied_once_and_named():
    base = calibration_of(shardwise.load_cluster("1xh200").gpu)
    own = with_learnt(base, replace(truth(gemm=1.1, host=2.0), runs=("a",)))
    once = as_run_by(own, "megatron+kernels.loss=fused", experts=False)
    assert once.corrections["gemm"] == 1.1
    assert once.host == base.host / 2
    assert f"{base.name} learnt from a run of megatron: a" in once.source
    assert as_run_by(once, "megatron", experts=False) == once
    assert as_run_by(own, "torchtitan", experts=False) is own


def test_a_runtime_that_was_learnt_is_no_longer_unseen(tmp_path, monkeypatch):
    """An interval without the runtime's own runs is wider; only the learnt runtime's narrows."""
    monkeypatch.setenv("SHARDWISE_HOME", str(tmp_path))
    load_calibration.cache_clear()
    line = "zero3 gbs8 seq4096 runtime=mosaic"
    plan = shardwise.plan_of(shardwise.estimate("llama-3.2-1b", "8xh200", line))
    took = 1e3 * plan.predictions.iteration_seconds
    (tmp_path / "log").write_text(f"elapsed time per iteration (ms): {took}\n" * 6)
    shardwise.store_calibration(shardwise.calibrate("ours", log=tmp_path / "log", plan=plan))

    def width(gpu, runtime):
        found = shardwise.estimate("llama-3.2-1b", f"8x{gpu}", f"zero3 gbs8 seq4096 runtime={runtime}")
        low, high = found.iteration_seconds_interval
        return high / low

    assert width("ours", "mosaic") < width("h200", "mosaic")
    assert width("ours", "fsdp") == pytest.approx(width("h200", "fsdp"))
    load_calibration.cache_clear()
