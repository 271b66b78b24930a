"""--html, --svg and --trace of plan, estimate, show, schedule and balance."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import pytest

from shardwise.cli.main import run


def data_of(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)[1])


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    words = [
        "plan",
        "llama-3-8b",
        "-c",
        "8xh100",
        "--global-batch",
        "16",
        "--seq",
        "4096",
        "--only",
        "tp<=2 pp=2 vpp=1",
    ]
    assert run([*words, "-q", "--out", str(path), "--html", str(path.with_suffix(".html"))]) == 0
    return path


def test_a_search_keeps_its_candidates_its_plan_and_every_targets_files(plan):
    data = data_of(plan.with_suffix(".html"))
    assert len(data["views"][0]["candidates"]) > 3
    assert data["plans"] == [json.loads(plan.read_text())]
    targets = {one["target"]: one for one in data["exports"][0]}
    assert "train.sh" in {file["name"] for file in targets["megatron@main"]["files"]}
    assert all("files" in one or "error" in one for one in targets.values())


def test_show_writes_all_three(plan, tmp_path, capsys):
    paths = {name: tmp_path / f"out.{name}" for name in ("html", "svg", "trace")}
    assert run(["show", str(plan), *(word for name, path in paths.items() for word in (f"--{name}", str(path)))]) == 0
    capsys.readouterr()
    assert data_of(paths["html"])["views"][0]["title"] == "llama-3-8b"
    text = paths["svg"].read_text()
    assert ET.fromstring(text).tag.endswith("svg")  # noqa: S314 - our own text
    assert " GiB</text>" in text
    events = json.loads(paths["trace"].read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}


def test_an_estimate_that_does_not_fit_is_shown_too(tmp_path, capsys):
    path = tmp_path / "e.html"
    words = ["estimate", "llama-3-70b", "-c", "8xh100", "-s", "tp8 mbs1 gbs8 seq8192", "-q", "--html", str(path)]
    assert run(words) == 1
    capsys.readouterr()
    assert data_of(path)["views"][0]["numbers"]["fits"] == "no"


def test_compared_schedules_stand_side_by_side(tmp_path, capsys):
    path = tmp_path / "s.html"
    words = ["schedule", "zb-v", "--pp", "4", "--microbatches", "8", "--costs", "10,11,9", "--compare", "1f1b,gpipe"]
    assert run([*words, "-q", "--html", str(path)]) == 0
    capsys.readouterr()
    assert [view["axes"]["schedule"] for view in data_of(path)["views"]] == ["zb-v", "1f1b", "gpipe"]


@pytest.mark.parametrize("option", ["--html", "--svg", "--trace"])
def test_a_place_that_cannot_be_written_is_told_before_the_work(plan, option, tmp_path, capsys):
    assert run(["show", str(plan), option, str(tmp_path / "no" / "x")]) == 2
    assert "does not exist; make it first" in capsys.readouterr().err


def test_per_op_plans_have_no_page(capsys):
    assert run(["plan-operators", "llama-3-8b", "-c", "8xh100", "--html", "x.html"]) == 2
    assert "--html" in capsys.readouterr().err


def test_two_plans_stand_side_by_side(plan, tmp_path, capsys):
    other, page = tmp_path / "other.json", tmp_path / "both.html"
    words = ["estimate", "llama-3-8b", "-c", "8xh100", "-s", "tp2 pp2 dp2 mbs1 gbs16 seq4096", "-q"]
    assert run([*words, "--out", str(other)]) == 0
    assert run(["diff", str(plan), str(other), "-q", "--html", str(page)]) == 0
    capsys.readouterr()
    data = data_of(page)
    assert [view["kind"] for view in data["views"]] == ["plan", "plan"]
    assert len(data["exports"]) == len(data["plans"]) == 2
