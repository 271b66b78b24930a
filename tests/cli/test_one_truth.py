"""What an attack found where one answer said two things (findings 8 to 10 of "one truth"); 8 also in test_search."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from shardwise.frameworks.load import load_cluster
from shardwise.inputs.files import read_json
from shardwise.inputs.load import load_runtime
from shardwise.measure.validate.published import _strategy, model_of, simumax_files
from shardwise.measure.validate.rows import read_file, shipped_files
from shardwise.measure.validate.validate import predict
from shardwise.plan.file import read_plan
from shardwise.units import show_seconds

UNEVEN = ("estimate", "llama-3-70b", "-c", "64xh100", "-s", "tp4 pp4 gbs256 seq4096 layers=17,21,21,21")


def test_8_a_stopped_search_says_what_it_left_open(shardwise, tmp_path):
    path = tmp_path / "answer.json"
    shardwise("plan", "deepseek-v3", "-c", "2048xh100", "--global-batch", "16384", "--time", "1ms", "--json", path)
    search = json.loads(path.read_text())["search"]
    assert not search["finished"]
    assert search["left_open"] == search["strategies"] - search["pruned"] - search["simulated"] > 0
    assert search["pruned"] <= search["screened"]


def test_9_one_word_for_the_bubble(shardwise, tmp_path):
    """The "bubble 8.6%" of all ranks stood above a "pipeline bubble and sends 1.4%" of the busiest."""
    report, answer, plan = (tmp_path / name for name in ("report.md", "answer.json", "plan.json"))
    found = shardwise(*UNEVEN, "--explain", "--md", report, "--json", answer, "--out", plan)
    for text in (found.out, report.read_text(), shardwise("show", plan, "--explain").out):
        lines = [line for line in text.splitlines() if "bubble" in line]
        assert len(lines) == 1, lines
        assert re.search(r"\d% synchronous", lines[0])
        assert "pipeline waits and sends" in text
    predictions = json.loads(answer.read_text())["predictions"]
    assert "bubble" not in json.dumps(predictions["time"])
    assert f"{predictions['bubble']:.1%} synchronous" in found.out


def _simumax_rows() -> list[dict]:
    data = next(read_json(path) for path in shipped_files() if "published" in path.name)
    return [row for row in data["rows"] if "simumax" in row["source_key"]]


def test_10_validate_says_of_simumax_rows_what_an_importing_user_gets(shardwise, tmp_path):
    """`validate` had a path of its own for them: a fused loss and no overlap, which no importer gave."""
    cases: dict[str, Any] = {case.id: case for path in shipped_files() for case in read_file(path)}
    rows = _simumax_rows()
    assert len(rows) == 26
    for row in rows[::5]:
        case = cases[row["id"]]
        model = model_of(row)
        runtime = load_runtime("megatron")
        files = dict(zip(("model", "strategy"), simumax_files(model, _strategy(row, model, runtime, [])), strict=True))
        for name, data in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(data))
        found = shardwise(
            "estimate", tmp_path / "model.json", "-c", f"{row['num_gpus']}xb200", "--from", tmp_path / "strategy.json",
            "--json", "-", "--quiet",
        )  # fmt: skip
        outcome: Any = predict(case)
        told, predicted = json.loads(found.out)["predictions"], outcome.predicted
        assert told["iteration_seconds"] == pytest.approx(predicted["iteration_seconds"], rel=1e-12)
        assert told["peak_bytes"] == pytest.approx(predicted["peak_bytes"], rel=1e-12)
        assert case.cluster == load_cluster(f"{row['num_gpus']}xb200")


def test_a_file_with_stale_figures_is_shown_as_the_cost_model_sees_it(shardwise, tmp_path):
    """`show` drew the new figures, while its JSON, `diff` and notebooks told those that somebody had edited."""
    plan, stale = tmp_path / "plan.json", tmp_path / "stale.json"
    shardwise(*UNEVEN, "--out", plan)
    data = json.loads(plan.read_text())
    told = data["predictions"]
    true = told["iteration_seconds"]
    told["iteration_seconds"], told["fits"] = 2 * true, "no"
    told["total_bytes"] *= 1 + 1e-4  # nobody needs to hear of it
    stale.write_text(json.dumps(data))
    shown = shardwise("show", stale, "--json", "-")
    answer = json.loads(shown.out)
    assert answer["predictions"]["iteration_seconds"] == true
    assert [(one["path"], one["left"]) for one in answer["outdated"]] == [
        ("iteration_seconds", 2 * true),
        ("fits", "no"),
    ]
    assert "the file's figures are not those of the cost model in use" in shardwise("show", stale).err
    told = shardwise("diff", plan, stale)
    assert "the plans are the same" in told.out
    assert f"{stale}: the file's figures are not those of the cost model" in told.err
    assert json.loads(shardwise("diff", stale, plan, "--json", "-").out)["outdated"]["right"] == []
    pages = [read_plan(file)._repr_html_() for file in (plan, stale)]
    assert show_seconds(true) in pages[1]
    assert "not those of the cost model" in pages[1]
    assert "not those of the cost model" not in pages[0]


@pytest.mark.parametrize(
    ("order", "legend"),
    [
        ("1f1b", "F forward, B backward, micro batch"),
        ("zb-h1", "F forward, I backward for inputs, W backward for weights, micro batch"),
    ],
)
def test_show_explains_the_letters_that_it_draws(order, legend, shardwise, tmp_path):
    """Of a split backward it drew I and W, and explained B."""
    plan, line = tmp_path / "plan.json", f"tp1 pp4 mbs1 gbs64 seq8192 {order} runtime=zero-bubble"
    shardwise("estimate", "llama-3-8b", "-c", "16xh100", "-s", line, "--out", plan)
    out = shardwise("show", plan).out
    assert f"fills and drains: {legend}\n" in out
    rows = "".join(re.findall("^rank +\\d+ +(.*)$", out, re.MULTILINE))
    assert set(rows) & set("FBIW") == set(re.findall(r"\b([FBIW]) ", legend))


@pytest.mark.parametrize("words", [("plan",), ("plan-operators",), ("estimate", "--tp", 8)])
def test_every_verb_refuses_a_length_in_the_same_words(words, shardwise):
    """No split mends it: `plan` spoke of the batch instead."""
    verb, *more = words
    told = shardwise(verb, "gpt-3-13b", "-c", "8xh100", "--seq", 4096, "--global-batch", 64, *more)
    assert told.code == 2
    assert "strategy.seq: 4096 tokens are more than the 2048 learned positions; use at most 2048" in told.err
