"""The API as the page uses it, over real HTTP against a real process."""

from __future__ import annotations

import json

import pytest
from serving import LONG, SMALL, wait_for

from shardwise import __version__
from shardwise.plan.file import plan_from


@pytest.fixture(scope="module")
def planned(server):
    """A whole search: every event of it."""
    return list(server.plan(SMALL))


@pytest.fixture(scope="module")
def plan(planned):
    return planned[-1][1]["plan"]


def test_the_catalog_lists_what_can_be_chosen(server):
    found = server.get("/api/catalog").data
    assert {"name", "title", "parameters", "layers"} == found["models"][0].keys()
    assert "llama-3-70b" in {model["name"] for model in found["models"]}
    assert {"name", "title", "memory"} == found["gpus"][0].keys()
    assert "megatron" in found["runtimes"]
    assert "torchtitan@0.3" in found["targets"]
    assert "zb-v" in found["schedules"]
    assert found["version"] == __version__


def test_a_search_is_told_from_its_start_to_its_plan(planned):
    words = [word for word, _ in planned]
    assert words[0] == "started"
    assert words[-1] == "done"
    assert {"progress", "point"} <= set(words)
    progress = [data for word, data in planned if word == "progress"]
    assert [one["evaluated"] for one in progress] == sorted(one["evaluated"] for one in progress)
    assert progress[-1]["best"]["seconds"] >= progress[-1]["bound"]
    done = planned[-1][1]
    assert done["finished"]
    assert done["closest"] is None
    assert str(plan_from(done["plan"], "plan").strategy) == progress[-1]["best"]["strategy"] == done["view"]["strategy"]
    points = [point for word, data in planned if word == "point" for point in data["points"]]
    assert done["top"][0]["strategy"] in {point["strategy"] for point in points}
    assert {point["strategy"] for point in points} == {point["strategy"] for point in done["view"]["candidates"]}


def test_a_plan_is_shown_again_as_its_search_showed_it(server, planned, plan):
    found = server.post("/api/view", {"plan": plan}).data
    done = planned[-1][1]["view"]
    assert found["plan"] == plan
    searched = {"candidates": [], "plans": {}}
    assert {**found["view"], **searched} == {**done, **searched}


def test_a_strategy_under_a_question_is_shown(server, planned):
    other = planned[-1][1]["top"][1]
    found = server.post("/api/view", {"question": SMALL, "strategy": other["strategy"]}).data
    assert found["view"]["strategy"] == other["strategy"]
    assert found["view"]["numbers"]["iteration_seconds"] == pytest.approx(other["seconds"])
    assert found["view"]["numbers"]["total_bytes"] == pytest.approx(other["total_bytes"])
    assert found["view"]["numbers"]["fits"] == other["fits"] == "yes"


def test_a_view_leaves_the_error_of_its_own_runtime_free(server):
    words = "tp1 zero2 mbs1 runtime=torchtitan"
    found, plain = (
        server.post("/api/view", {"question": {**SMALL, **own}, "strategy": words}).data
        for own in ({}, {"runtime": "torchtitan"})
    )
    limits = [one["view"]["numbers"]["usable_memory"] for one in (found, plain)]
    assert limits[0] == limits[1]


def test_why_not(server, plan):
    found = server.post("/api/why", {"plan": plan, "strategy": "tp8 pp1"}).data
    assert found["slower"] > 0
    assert "slower" in found["sentence"]
    assert found["parts"][0].keys() == {"name", "plan", "other", "lost"}
    large = server.post("/api/why", {"plan": plan, "strategy": "tp1 pp1 zero0 mbs2 recompute=none"}).data
    assert large["fits"] == "no"
    assert large["missing_bytes"] > 0
    assert "does not fit" in large["sentence"]


def test_every_target_is_exported_or_refused_with_its_reason(server, plan):
    for target in server.get("/api/catalog").data["targets"]:
        found = server.post("/api/export", {"plan": plan, "target": target})
        if found.status == 422:
            assert "cannot say this plan" in found.message, target
        else:
            assert found.status == 200, found.message
            assert all(file["name"] and file["text"] for file in found.data["files"]), target


def test_a_report_is_one_file_to_save(server, plan):
    found = server.post("/api/report", {"plans": [plan, plan]})
    assert found.status == 200
    assert "attachment" in found.headers["Content-Disposition"]
    assert found.body.lstrip().lower().startswith(b"<!doctype html>")


def test_a_dropped_model_can_be_planned_with(server):
    config = {
        "model_type": "llama", "_name_or_path": "me/mine", "hidden_size": 1024, "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 4096, "vocab_size": 32000,
    }  # fmt: skip
    found = server.post("/api/model", config).data
    assert (found["name"], found["layers"]) == ("mine", 8)
    events = server.plan({**SMALL, "model": found["model"], "cluster": "2xh100"})
    assert events.until("done")["plan"]["inputs"]["model"] == found["model"]


def test_nothing_fits_is_an_answer(server):
    question = {"model": "llama-3-70b", "cluster": "8xa100-40", "global_batch": 8, "seq": 4096, "only": "tp=8 mbs=1"}
    done = server.plan(question).until("done")
    assert done["plan"] is None
    assert done["closest"]["missing_bytes"] > 0
    assert done["closest"]["gpus"] > 8
    assert "none of" in done["message"]


def test_a_stopped_search_keeps_the_best_so_far(server):
    events = server.plan({**LONG, "model": "llama-3-70b", "cluster": "512xh100", "global_batch": 1024})
    name = events.until("started")["id"]
    assert next(data for word, data in events if word == "progress" and data["best"])
    assert server.post(f"/api/plan/{name}/stop", "").data == {"stopped": True}
    done = events.until({"done", "failed"})
    assert not done["finished"]
    assert done["plan"]["predictions"]["gap"] >= 0
    assert server.post(f"/api/plan/{name}/stop", "").status == 404


def test_a_search_ends_when_its_reader_goes(server):
    before = server.children()
    events = server.plan(LONG)
    events.until("progress")
    started = server.children() - before
    busy = started or before
    events.close()
    assert wait_for(lambda: len(server.children() & busy) < len(busy)), "the child still searches"
    assert server.get("/api/catalog").status == 200


def test_the_page_and_its_files(server):
    page = server.get("/")
    assert page.status == 200
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert "unsafe" not in page.headers["Content-Security-Policy"]
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    again = server.get("/", **{"If-None-Match": page.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    assert "Server" not in page.headers


def test_answers_are_the_same_bytes(server, plan):
    question = json.dumps({"plan": plan})
    first, second = (server.post("/api/view", question) for _ in range(2))
    assert first.body == second.body
