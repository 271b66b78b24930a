"""A run by its log: slow phases are told within 20 steps, with the part that grew, and noise is none."""

from __future__ import annotations

import json
import random
import threading
import time

import pytest

import shardwise
from shardwise.cli.main import run
from shardwise.errors import FileError, InputError
from shardwise.measure.logs.record import StepRecord
from shardwise.measure.watch.drift import DriftWatch

PARTS = {"data": 0.05, "forward": 0.6, "backward": 1.2, "optimizer": 0.1}


def steps(count, slow=None, *, noise=0.01, seed=1, reserved=None, parts=True):
    """A run whose parts grow by the factors that `slow` gives of a step; `extra` seconds lie outside of them."""
    rng = random.Random(seed)  # noqa: S311
    for step in range(1, count + 1):
        grown = slow(step) if slow else {}
        jitter = rng.lognormvariate(0, noise)
        own = {name: jitter * size * grown.get(name, 1.0) for name, size in PARTS.items()}
        seconds = sum(own.values()) + 0.03 + grown.get("extra", 0.0)
        seconds *= 8 if step == 1 else 1
        yield StepRecord(step, seconds, parts=tuple(own.items()) if parts else (), reserved=reserved and reserved(step))


def watched(found):
    seen = DriftWatch()
    for one in found:
        seen.add(one)
    return seen.drifts


@pytest.mark.parametrize(
    ("kind", "grown"),
    [
        ("data loader", {"data": 8.0}),
        ("compute", {"forward": 1.25, "backward": 1.25, "optimizer": 1.2}),
        ("outside", {"extra": 0.4}),
        ("part", {"optimizer": 5.0}),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_a_slow_phase_is_told_within_20_steps_and_which_part(kind, grown, seed):
    drifts = watched(steps(120, lambda step: grown if 60 <= step < 90 else {}, seed=seed, noise=0.02))
    assert [one.kind for one in drifts] == [kind]
    assert 58 <= drifts[0].first <= 62
    assert drifts[0].told <= 60 + 20
    assert 88 <= drifts[0].last <= 91


@pytest.mark.parametrize("seed", range(10))
def test_a_faint_slow_phase_is_told_within_20_steps(seed):
    slow = {"forward": 1.08, "backward": 1.08, "optimizer": 1.08}
    (drift,) = watched(steps(120, lambda step: slow if step >= 80 else {}, noise=0.02, seed=seed))
    assert drift.kind == "compute"
    assert drift.told <= 100


def test_communication():
    def one(step):
        slow = 1.6 if step > 50 else 1.0
        parts = (("forward", 0.6), ("backward", 1.0), ("gradient reduction", 0.3 * slow), ("optimizer", 0.1))
        return StepRecord(step, 1.8 + 0.3 * (slow - 1) + 0.001 * (step % 3), parts=parts)

    (drift,) = watched(map(one, range(1, 80)))
    assert (drift.kind, drift.first) == ("communication", 51)


def test_a_log_without_parts_says_so():
    (drift,) = watched(steps(80, lambda step: {"forward": 1.4} if step > 40 else {}, parts=False))
    assert drift.kind == "unknown"
    assert "no times of parts" in drift.text
    for framework, words in (("trainer", "Trainer prints none"), ("megatron", "--timing-log-level 2 prints")):
        seen = DriftWatch(framework)
        for one in steps(80, lambda step: {"forward": 1.4} if step > 40 else {}, parts=False):
            seen.add(one)
        assert words in seen.drifts[0].text


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05, 0.15])
def test_noise_is_no_drift(seed, noise):
    assert watched(steps(400, noise=noise, seed=seed)) == []


def test_single_pauses_are_no_drift_and_returning_ones_are_told_apart():
    assert watched(steps(100, lambda step: {"extra": 9.0} if step in {40, 41, 77} else {})) == []
    (drift,) = watched(steps(200, lambda step: {"extra": 9.0} if step % 25 == 0 else {}))
    assert drift.kind == "periodic"
    assert "every 25 steps one takes" in drift.text


def test_memory_that_creeps_and_memory_that_settles():
    (drift,) = watched(steps(200, reserved=lambda step: 60e9 + 0.05e9 * step))
    assert drift.kind == "memory"
    assert "grows without end" in drift.text
    assert watched(steps(200, reserved=lambda step: 60e9 + 1e9 * min(step, 8))) == []


@pytest.fixture
def plan(tmp_path):
    told = shardwise.estimate("llama-3.2-1b", "1xh200", "mbs8 gbs32 seq4096")
    path = tmp_path / "plan.json"
    shardwise.write_plan(shardwise.plan_of(told), path)
    return path, told.iteration_seconds


def megatron(seconds, count, slow):
    for step in range(1, count + 1):
        factor = (6 if step == 1 else 1) * (1.2 if slow <= step else 1) * (1 + 0.001 * (step % 3))
        yield (
            f" [2026-08-01 10:00:00] iteration {step:8d}/{count:8d} | elapsed time per iteration (ms): "
            f"{1e3 * seconds * factor:.1f} | global batch size:    32 | lm loss: 1.0E+01 |\n"
            "(min, max) time across ranks (ms):\n"
            f"    forward-compute ................................: ({0.3e3 * seconds * factor:.2f}, "
            f"{0.3e3 * seconds * factor:.2f})\n"
            f"    backward-compute ...............................: ({0.6e3 * seconds * factor:.2f}, "
            f"{0.6e3 * seconds * factor:.2f})\n"
        )


def test_the_verb(plan, tmp_path, capfd):
    path, seconds = plan
    log = tmp_path / "train.log"
    log.write_text("".join(megatron(seconds, 60, slow=40)))
    assert run(["watch", str(log), "--plan", str(path), "--json", str(tmp_path / "answer.json")]) == 0
    out = capfd.readouterr().out
    assert "drift: from step 40 on iterations take" in out
    assert "all compute grew alike (" in out
    answer = json.loads((tmp_path / "answer.json").read_text())
    found = shardwise.watch(log, path)
    assert answer["drifts"] == [json.loads(json.dumps(one._asdict())) for one in found.drifts]
    assert answer["lines"][0]["measured"] == found.lines[0].measured
    assert found.drifts[0].told <= 60
    assert "now: " in out
    assert found.present.seconds == pytest.approx(1.2 * seconds, rel=0.01)
    log.write_text("".join(megatron(1.3 * seconds, 30, slow=99)))
    assert run(["watch", str(log), "--plan", str(path)]) == 0
    out = capfd.readouterr().out
    assert "the run is 30.1% slower than the plan, outside what nine runs in ten take" in out
    assert "no drift within the run" in out
    log.write_text("".join(megatron(seconds, 30, slow=99)).replace("size:    32", "size:    64"))
    assert run(["watch", str(log), "--plan", str(path)]) == 2
    assert "is the log of another run" in capfd.readouterr().err


def test_a_slow_phase_is_not_learnt(plan, tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWISE_HOME", str(tmp_path / "home"))
    path, seconds = plan
    log = tmp_path / "train.log"
    log.write_text("".join(megatron(seconds, 60, slow=40)) * 2)
    found = shardwise.calibrate("our_gpu", log=log, plan=shardwise.read_plan(path))
    assert found.correction.rows[0][2] == pytest.approx(seconds, rel=0.01)
    assert found.notes == (
        "the run begins 2 times in it; the last is shown",
        "steps 40 to 60 took x1.20 as long: left out",
        "our_gpu is stored as our-gpu, by which --cluster finds it",
    )


OWN = "shardwise parameters=1235814400 world=1 device=cuda dtype=bf16 runtime={}\n"


@pytest.mark.parametrize("target", ["torchtitan", "deepspeed", "huggingface", "torch-pipelining"])
def test_a_log_of_the_plans_own_export_is_held_against_what_was_exported(plan, tmp_path, target):
    path, seconds = plan
    log = tmp_path / "train.log"
    lines = [f"shardwise step={step} seconds={seconds} loss=3.1\n" for step in range(1, 6)]
    if target == "torchtitan":
        lines = [f"step: {step}  loss: 3.1  memory: 11GiB  tps: {32 * 4096 / seconds}\n" for step in range(1, 6)]
    log.write_text("".join(([] if target == "torchtitan" else [OWN.format(target)]) + lines))
    found = shardwise.watch(log, path)
    assert f"predicted is the plan as exported to {target}" in found.notes[0]
    exported = shardwise.export(path, target).strategy
    assert found.predicted.strategy == exported
    assert shardwise.watch(log, path, follow=False).predicted.iteration_seconds == pytest.approx(
        shardwise.estimate("llama-3.2-1b", "1xh200", exported).iteration_seconds
    )


def test_a_log_of_what_the_plan_cannot_run_on(tmp_path):
    told = shardwise.estimate("llama-3.2-1b", "4xh200", "tp2 pp2 gbs32 seq4096")
    (tmp_path / "log").write_text(OWN.format("huggingface") + "shardwise step=1 seconds=1 loss=3\n")
    with pytest.raises(
        InputError, match="is a log of huggingface, and the plan, which is for megatron, cannot run there"
    ):
        shardwise.watch(tmp_path / "log", shardwise.plan_of(told))


def test_what_is_no_log_is_not_followed(plan, tmp_path):
    for path, words in ((tmp_path, "no plain file"), (tmp_path / "none" / "log", "does not exist")):
        with pytest.raises(FileError, match=words):
            shardwise.watch(path, plan[0], follow=True)


def test_a_log_that_grows_is_followed_to_its_last_step(plan, tmp_path):
    path, seconds = plan
    log = tmp_path / "train.log"
    told = []

    def write():
        with log.open("w") as file:
            for text in megatron(seconds, 50, slow=30):
                file.write(text[: len(text) // 2])
                file.flush()
                time.sleep(0.005)
                file.write(text[len(text) // 2 :])
                file.flush()

    writer = threading.Thread(target=write)
    writer.start()
    found = shardwise.watch(log, path, follow=True, tell=told.append)
    writer.join()
    assert len(found.log.steps) == 50
    assert [one.kind for one in found.drifts] == ["compute"]
    assert told.index(found.drifts[0]) < len(told) - 10
