"""Files of schema 1, as the program of that time wrote them, are the same plans today."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from shardwise.errors import InputError
from shardwise.estimate.estimate import estimate
from shardwise.plan.file import plan_from, plan_table, read_plan
from shardwise.plan.predict import estimate_of
from shardwise.plan.proof import check_proof

FILES = Path(__file__).parent / "schema1"


def held(name):
    return json.loads((FILES / f"{name}.json").read_text(encoding="utf-8"))


def kept(old, new):
    """Whether all values are still there; fields that came later have their defaults."""
    if not isinstance(old, dict):
        return old == new
    return all(key in new and kept(value, new[key]) for key, value in old.items())


@pytest.mark.parametrize("name", ["searched", "ordered", "balanced", "operators"])
def test_it_is_read_and_written_as_schema_2(name):
    plan = read_plan(FILES / f"{name}.json")
    table = plan_table(plan)
    assert table["schema"] == "shardwise/plan/2"
    assert plan_from(table, "plan.json") == plan
    old = held(name)
    assert all(kept(old["inputs"][part], table["inputs"][part]) for part in ("model", "cluster"))
    assert table["run"] == old["run"] if "run" in old else "run" not in table


@pytest.mark.parametrize("name", ["searched", "ordered", "balanced"])
def test_inputs_and_predictions_are_what_the_file_says(name):
    old, plan = held(name), read_plan(FILES / f"{name}.json")
    table = plan_table(plan)
    assert kept(old["inputs"], table["inputs"])
    told = {key: value for key, value in old["predictions"].items() if key in table["predictions"]}
    low, high = table["predictions"].pop("total_bytes_interval")
    assert high / told["total_bytes"] - 1 == pytest.approx(old["predictions"]["memory_error"])
    assert low * high == pytest.approx(told["total_bytes"] ** 2)
    assert table["predictions"].pop("fits_probability") == {"yes": 0.95, "close": 0.5, "no": 0.05}[told["fits"]]
    assert kept(told, table["predictions"])
    assert old["predictions"].keys() - told.keys() <= {
        "tokens_per_iteration", "microbatches", "memory_limit_bytes", "balance", "memory_error",
    }  # fmt: skip
    found = estimate_of(plan)
    assert found == estimate(plan.model, plan.cluster, plan.strategy, order=plan.order)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("searched", lambda old: old["predictions"]["stages"].pop(), "predictions.stages: must have 2 entries"),
        ("searched", lambda old: old["predictions"]["memory"].clear(), "predictions.memory: must have 2 entries"),
        (
            "balanced",
            lambda old: old["partition"]["recompute"][0]["choices"]["full"].pop(),
            "balance.recompute.0.choices.full: must have 4 entries",
        ),
    ],
)
def test_lists_of_another_length_are_refused(name, change, said):
    old = held(name)
    change(old)
    with pytest.raises(InputError, match=said):
        plan_from(old, "plan.json")


def test_an_order_keeps_its_rows():
    plan = read_plan(FILES / "ordered.json")
    assert plan.order.csv().splitlines() == held("ordered")["schedule"]["rows"]
    assert plan.order.name == plan.strategy.schedule == "auto"


def test_a_balance_keeps_its_kinds_and_figures():
    old, balance = held("balanced"), read_plan(FILES / "balanced.json").balance
    (run,) = balance.recompute
    assert {name: list(counts) for name, counts in run.choices.items()} == old["partition"]["recompute"][0]["choices"]
    assert balance.simulated == old["predictions"]["balance"]["simulated"]
    assert list(balance.peak) == old["predictions"]["balance"]["peak"]


def test_operators_keep_their_stages_and_the_order_its_name():
    old, plan = held("operators"), read_plan(FILES / "operators.json")
    stages = plan.operators.stages
    assert [list(map(list, stage.layouts)) for stage in stages] == [s["layouts"] for s in old["partition"]["stages"]]
    assert plan.operators.seconds == old["predictions"]["cost"]["seconds"]
    assert plan.strategy.schedule == old["schedule"]["name"]
    del old["partition"]["microbatches"]
    old["partition"]["micro_batch"] = old["inputs"]["strategy"]["micro_batch"] = 4
    assert plan_from(old, "plan.json").operators.microbatches == 2  # older still: samples of one
    del old["predictions"]["cost"]
    with pytest.raises(InputError, match="plan again"):
        plan_from(old, "plan.json")


def test_a_proof_of_that_time_is_over():
    verdict = check_proof(read_plan(FILES / "searched.json"))
    assert "no proof of it that could be checked" in verdict.fault


def test_older_files_without_makespan_and_counts():
    old = held("searched")
    whole = plan_from(old, "plan.json").predictions
    del old["predictions"]["makespan"]
    del old["predictions"]["search"]["left_open"]
    told = plan_from(old, "plan.json").predictions
    assert told.makespan == pytest.approx(whole.makespan)
    assert told.search.left_open is None


def test_rehearsals_are_kept_by_rank():
    old = held("searched")
    line = {"what": "peak", "predicted": 1.0, "measured": 2.0}
    old["predictions"]["rehearsed"] = {"pp1": {"device": "x", "lines": [line], "corrected": {"peak_bytes": 5.0}}}
    (one,) = plan_from(old, "plan.json").predictions.rehearsed
    assert (one.rank, one.device, one.peak_bytes, one.lines[0].measured) == (1, "x", 5.0, 2.0)
    for rank in ("first", "pp-1", "pp" + "9" * 5000):
        old["predictions"]["rehearsed"] = {rank: {"device": "x", "lines": []}}
        with pytest.raises(InputError, match=r"predictions\.rehearsed\.0\.rank: must be a whole number"):
            plan_from(old, "plan.json")


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("partition", "layers", [1, 31]), ("partition", "layers", ["x"]), ("partition", "recompute", "full"),
        ("schedule", "name", "gpipe"), ("schedule", "pp", 4), ("schedule", "microbatches", 7),
    ],
)  # fmt: skip
def test_what_contradicts_the_strategy_is_refused(part, key, value):
    old = held("searched")
    old[part][key] = value
    with pytest.raises(InputError, match=rf"{part}\.{key}: says .* the strategy .* leave {part} out"):
        plan_from(old, "plan.json")


@pytest.mark.parametrize(
    "junk", [[], "x", 7, None, {"a": {}}, [None], {"layers": "x"}, {"rows": [1]}, {"recompute": [1]}]
)
@pytest.mark.parametrize("part", ["inputs", "partition", "schedule", "predictions", "proof", "provenance", "run"])
def test_junk_is_refused_with_a_sentence_or_passed_over(part, junk):
    with suppress(InputError):
        assert plan_from({**held("searched"), part: junk}, "plan.json").strategy.pp == 2
