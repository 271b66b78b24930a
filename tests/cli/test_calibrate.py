"""`calibrate` and `probe` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwise.inputs import lookup
from shardwise.inputs.calibrations import load_calibration

RAW = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_probe_raw.json"
QUESTION = ("llama-3-8b", "--tp", 2, "--global-batch", 32, "--seq", 4096)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWISE_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    load_calibration.cache_clear()
    lookup.forget()


def test_cases_that_killed_the_probe_are_told_and_the_others_used(shardwise, tmp_path):
    data = json.loads(RAW.read_text())
    rows = data["families"]["grouped"]["rows"]
    for row in rows[:2]:
        row |= {"skipped": "died by SIGILL", "died": "died by SIGILL"}
        del row["seconds"]
    rows[2] |= {"died": 7}  # in a later pass: its time stands
    (tmp_path / "died.json").write_text(json.dumps(data))
    result = shardwise("calibrate", tmp_path / "died.json", "--name", "my-h200", "--dry-run")
    assert result.code == 0, result.err
    told = f"grouped: measuring 3 of {len(rows)} cases killed the process, the first died by SIGILL; the other cases"
    assert told in result.err
    assert "grouped products" in result.out


def test_a_calibrated_gpu_is_found_by_name(shardwise, tmp_path):
    svg = tmp_path / "fit.svg"
    result = shardwise("calibrate", RAW, "--name", "my-h200", "--svg", svg, "--json", tmp_path / "fit.json")
    assert result.code == 0, result.err
    assert "products bf16" in result.out
    assert svg.read_text().startswith("<svg")
    answer = json.loads((tmp_path / "fit.json").read_text())
    assert answer["base"] == "h200"
    told = shardwise("estimate", *QUESTION, "--cluster", "8xmy-h200", "--json", "-")
    assert told.code == 0, told.err
    assert json.loads(told.out)["provenance"]["calibration"].startswith("my-h200: operator probe")


def test_a_log_makes_the_plan_take_as_long_as_the_run(shardwise, tmp_path):
    plan, log = tmp_path / "plan.json", tmp_path / "train.log"
    assert shardwise("estimate", *QUESTION, "--cluster", "8xh200", "--out", plan).code == 0
    log.write_text("elapsed time per iteration (ms): 2500.0\n" * 5)
    result = shardwise("calibrate", "--log", log, "--plan", plan, "--name", "ours")
    assert result.code == 0, result.err
    told = shardwise("estimate", *QUESTION, "--cluster", "8xours", "--json", "-")
    assert json.loads(told.out)["predictions"]["iteration_seconds"] == pytest.approx(2.5, rel=0.01)
    assert "corrected x" in told.err


def test_a_run_of_something_else_is_refused(shardwise, tmp_path):
    plan, log = tmp_path / "plan.json", tmp_path / "train.log"
    assert shardwise("estimate", *QUESTION, "--cluster", "8xh200", "--out", plan).code == 0
    for milliseconds in ("2.5", "2500000000.0"):
        log.write_text(f"elapsed time per iteration (ms): {milliseconds}\n" * 5)
        result = shardwise("calibrate", "--log", log, "--plan", plan, "--name", "ours")
        assert result.code == 2
        assert "is it a run of this plan" in result.err


def test_a_trace_corrects_kind_by_kind(shardwise, tmp_path):
    plan, trace = tmp_path / "plan.json", tmp_path / "trace.json"
    assert shardwise("estimate", *QUESTION, "--cluster", "8xh200", "--out", plan).code == 0
    rows = [{"ph": "X", "cat": "kernel", "name": "nvjet_gemm", "ts": 0, "dur": 2e6, "pid": 0}]
    trace.write_text(json.dumps({"traceEvents": rows}))
    asked = ("calibrate", "--trace", trace, "--plan", plan, "--name", "ours")
    assert "--steps" in shardwise(*asked).err
    result = shardwise(*asked, "--steps", 1, "--json", "-")
    assert list(json.loads(result.out)["calibration"]["corrections"]) == ["gemm"]
    rows[0]["dur"] = -5
    rows += [{**rows[0], "dur": 1, "name": "nvjet_gemm"}]
    trace.write_text(json.dumps({"traceEvents": rows}))
    assert "dur: -5 is too small" in shardwise(*asked, "--steps", 1).err


def test_questions_that_cannot_be_answered(shardwise, tmp_path):
    assert "give one of" in shardwise("calibrate", "--name", "x").err
    assert "own base" in shardwise("calibrate", RAW, "--name", "h200").err
    for taken in ("a100", "hopper"):
        assert "ships itself" in shardwise("calibrate", RAW, "--name", taken).err
    assert "letters" in shardwise("calibrate", RAW, "--name", "a/b$").err
    assert "--plan" in shardwise("calibrate", "--log", tmp_path / "l", "--name", "x").err


@pytest.mark.parametrize(
    ("factor", "base", "words"), [(1e3, "h200", "slower than h200"), (1, "a100", "faster than a100")]
)
def test_measurements_of_something_else_are_not_stored(shardwise, tmp_path, home, factor, base, words):
    data = json.loads(RAW.read_text())
    for family in data["families"].values():
        family["rows"] = [
            {**row, "seconds": row["seconds"] * factor} for row in family["rows"][::8] if row.get("seconds")
        ]
    probe = tmp_path / "probe.json"
    probe.write_text(json.dumps(data))
    result = shardwise("calibrate", probe, "--name", "ours", "--base", base)
    assert result.code == 2
    assert words in result.err
    assert not home.exists()
    data["hardware"]["device"] = "cpu"
    probe.write_text(json.dumps(data))
    assert "run it on a GPU" in shardwise("calibrate", probe, "--name", "ours").err


def test_a_run_is_of_the_gpu_that_is_corrected(shardwise, tmp_path, home):
    plan, log = tmp_path / "plan.json", tmp_path / "train.log"
    assert shardwise("estimate", *QUESTION, "--cluster", "8xh200", "--out", plan).code == 0
    log.write_text("elapsed time per iteration (ms): 2500.0\n" * 5)
    asked = ("calibrate", "--log", log, "--plan", plan, "--name", "ours")
    assert "no GPU named 'nope'" in shardwise(*asked, "--base", "nope").err
    assert "was on h200, another GPU" in shardwise(*asked, "--base", "a100").err
    assert "--steps: says nothing to --log" in shardwise(*asked, "--steps", 2).err
    assert not home.exists()


def test_the_probe_is_written(shardwise, tmp_path):
    path = tmp_path / "probe.py"
    assert shardwise("probe", "--write", path).code == 0
    assert "SCHEMA" in path.read_text()
    assert "torchrun" in shardwise("probe").out


def test_a_snapshot_corrects_memory(shardwise, tmp_path):
    plan, snapshot = tmp_path / "plan.json", tmp_path / "snapshot.json"
    assert shardwise("estimate", *QUESTION, "--cluster", "8xh200", "--out", plan).code == 0
    before = json.loads(plan.read_text())["predictions"]["memory"][0]
    size = int(before["peak"]["value"]) + 2**30
    blocks = [{"size": size, "state": "active_allocated"}]
    snapshot.write_text(json.dumps({"segments": [{"device": 0, "blocks": blocks}], "device_traces": [[]]}))
    result = shardwise("calibrate", "--snapshot", snapshot, "--plan", plan, "--name", "ours")
    assert result.code == 0, result.err
    assert "more is kept back" in result.out
    told = json.loads(shardwise("estimate", *QUESTION, "--cluster", "8xours", "--json", "-").out)
    assert told["predictions"]["memory"][0]["total"] == pytest.approx(before["total"] + 2**30, rel=1e-4)
    assert "+1.00 GiB of memory" in told["provenance"]["calibration"]
    for other, words in ((int(before["peak"]["value"] / 3), "over 2 times off"), (2**40, "and h200 has")):
        blocks[0]["size"] = other
        snapshot.write_text(json.dumps({"segments": [{"device": 0, "blocks": blocks}], "device_traces": [[]]}))
        assert words in shardwise("calibrate", "--snapshot", snapshot, "--plan", plan, "--name", "ours").err
    blocks[0]["size"] = int(before["peak"]["value"]) - 2**32
    snapshot.write_text(json.dumps({"segments": [{"device": 0, "blocks": blocks}], "device_traces": [[]]}))
    result = shardwise("calibrate", "--snapshot", snapshot, "--plan", plan, "--name", "less")
    assert "MiB less is kept back" in result.out
    assert "is not corrected" in result.err
    assert "pp0" in shardwise("calibrate", "--snapshot", snapshot, "--plan", plan, "--name", "x", "--rank", "pp7").err
    assert "--plan" in shardwise("calibrate", "--snapshot", snapshot, "--name", "x").err
