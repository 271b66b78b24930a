"""Rounds that go on from what was measured, and layers of several kinds from the guide to the answer."""

from __future__ import annotations

import json

import pytest
import yaml

from test_balance import DROP, INIT, changed, init_file

CONST, HEAD, TAIL = 700.0, 2600.0, 3900.0
LAYER = {"dense": (900.0, 500.0, 40.0), "moe": (2100.0, 640.0, 55.0), "mtp": (1300.0, 300.0, 30.0)}
"""MB; of a layer of each kind parameters, activation kept and recomputed."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_guide_goes_on_from_what_was_measured(shardwise, folder):
    said = shardwise("balance", "guide", "--after", init_file(folder), "--json", "g.json")
    assert said.code == 0, said.err
    made = json.loads((folder / "g.json").read_text())
    assert made["degrees_of_freedom"] == 24
    assert made["worst_stage_per_100_mb"] < 0.5 * made["worst_stage_before"]
    worst, before = (made[name] * made["noise_mb"] / 100 for name in ("worst_stage_per_100_mb", "worst_stage_before"))
    assert f"even splits is off by {before:,.0f} MB with what is measured, and is off by {worst:,.0f} MB" in said.out
    again = shardwise("balance", "--init", "init.yaml", "-m", "demo", "-s", 16, "-mb", 16, "-mem", 62000)
    assert f"a peak is taken to be off by {made['noise_mb']:,.0f}; " in again.out
    again = shardwise("balance", "guide", "--after", "demo.json", "--full")
    assert "cannot be predicted with what is measured" in again.out  # full was not
    for words, word in (
        (("--after", "init.yaml", "--layers", 5), "init.yaml has 96"),
        (("--stages", 8, "--layer-kinds", "dense3"), "dense:3,moe:58"),
        (("--stages", 8, "--layers", 9, "--full", "--layer-kinds", "dense:3,moe:5"), "8 layers together"),
    ):
        refused = shardwise("balance", "guide", *words)
        assert refused.code == 2
        assert word in refused.err


def kinds_file(folder, shardwise, each):
    """An init file whose rounds the guide designed, and whose peaks are those of LAYER."""
    kinds = ",".join(f"{name}:{count}" for name, count in each.items())
    words = ("balance", "guide", "--stages", 6, "--layer-kinds", kinds, "--full", "--json", "-", "-q")
    rounds = json.loads(shardwise(*words).out)["rounds"]
    base, layers = sum(each.values()) // 6, [name for name, count in each.items() for _ in range(count)]

    def peak(one, stage):
        first = sum(base + n for n in one["offset"][:stage])
        own = layers[first : first + base + one["offset"][stage]]
        held = CONST + HEAD * (stage == 0) + TAIL * (stage == 5)
        for place, name in enumerate(own):
            parameters, kept, recomputed = LAYER[name]
            held += parameters + (6 - stage) * (recomputed if place < one["recompute"][stage] else kept)
        return held

    lists = {name: [one[name] for one in rounds] for name in rounds[0] if name != "offset"}
    body = {"stage_id": [[1, 2, 3, 4]] * len(rounds), "memories": [[peak(r, s) for s in (1, 2, 3, 4)] for r in rounds]}
    return init_file(folder, {
        "pipeline_config": {"pipeline_num": 6, "num_layer": len(layers), "kinds": each,
                            "offset": [one["offset"] for one in rounds]},
        "time_config": {"head": 1, "body": dict(zip(each, (9, 14, 12), strict=False)), "tail": 8},
        "recompute_config": lists,
        "memory_usage": {"head_memory": [peak(one, 0) for one in rounds],
                         "tail_memory": [peak(one, 5) for one in rounds], "body_memories": body},
    })  # fmt: skip


def test_kinds_of_layers_are_told_apart_and_balanced_in_order(shardwise, folder):
    path = kinds_file(folder, shardwise, {"dense": 3, "moe": 26, "mtp": 1})
    words = ("-s", 6, "-mb", 12, "-mem", 27000)
    said = shardwise("balance", "--init", path, "-m", "kinds", *words, "--json", "a.json")
    assert said.code == 0, said.err
    assert "the one layer of mtp is always with the tail" in said.err
    fitted = {e["name"]: e for e in json.loads((folder / "kinds.json").read_text())["layers_description"]}
    for name in ("dense", "moe"):
        found = [fitted[name][key] for key in ("memory_parameter", "memory_activation", "memory_recompute")]
        assert found == pytest.approx(LAYER[name], abs=0.1)
    assert fitted["TAIL"]["memory_parameter"] == pytest.approx(3900 + 1300 + 300, abs=0.1)
    assert [fitted[name]["time"] for name in ("dense", "moe", "mtp")] == [9, 14, 12]
    answer = json.loads((folder / "a.json").read_text())
    assert all(p + m <= 27000.001 for p, m in zip(answer["peak"], answer["margin"], strict=True))
    kinds = [[sum(x) for x in zip(*one["choices"].values(), strict=True)] for one in answer["counts_by_kind"]]
    assert [sum(one) for one in kinds] == [3, 26, 1]
    for stage, full in enumerate(answer["mindformers"]["recompute"][0]):  # read as MindFormers does: from the front
        here = [one[stage] for one in kinds]
        recomputed = [one["choices"].get("full", [0] * 6)[stage] for one in answer["counts_by_kind"]]
        assert recomputed == [max(0, min(full - sum(here[:k]), n)) for k, n in enumerate(here)]
    refused = shardwise("balance", "-m", "kinds", *words, "--empty", "ends")
    assert refused.code == 2
    assert "mtp was measured with the tail and stays there" in refused.err


def test_a_first_layer_of_its_own_kind_stays_as_it_was_measured(shardwise, folder):
    path = kinds_file(folder, shardwise, {"dense": 1, "moe": 29})
    words = ("balance", "--init", path, "-s", 6, "-mb", 12, "-mem", 30000)
    assert shardwise(*words).code == 0
    refused = shardwise(*words, "-i", 2)
    assert refused.code == 2
    assert "measured with the head" in refused.err


BAD_KINDS = {
    "no table": ({"pipeline_config__kinds": [3, 58]}, "dense: 3, moe: 58"),
    "other total": ({"pipeline_config__kinds": {"dense": 3, "moe": 58}}, "61 layers together, num_layer is 96"),
    "times of one": ({"pipeline_config__kinds": {"dense": 3, "moe": 93}}, "forward time of every kind"),
    "never apart": (
        {"pipeline_config__kinds": {"dense": 3, "moe": 93}, "time_config__body": [2, 3]}, "mixed up",
    ),
    "names of one": (
        {"pipeline_config__kinds": {"dense": 3, "moe": 93}, "time_config": DROP,
         "profiling_config": {"micro_batch_num": 8, "folder_path": "."}}, "operators of every kind",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_KINDS)
def test_kinds_that_cannot_be_are_a_sentence(shardwise, folder, name):
    changes, word = BAD_KINDS[name]
    said = shardwise("balance", "--init", init_file(folder, changed(INIT, **changes)), "-s", 16)
    assert said.code == 2
    assert word in said.err


def test_layers_that_were_always_recomputed_stay_so(shardwise, folder):
    """What a layer holds that keeps everything is not known then: it counted as nothing, and all plans kept all."""
    path = kinds_file(folder, shardwise, {"moe": 30})
    data = yaml.safe_load(path.read_text())
    data["recompute_config"] = dict.fromkeys(("recompute", "select_recompute", "select_comm_recompute"), True)
    sizes = [[5 + n for n in row] for row in data["pipeline_config"]["offset"]]
    peaks = [[700 + 2000 * n + (6 - s) * 60 * n for s, n in enumerate(row)] for row in sizes]
    data["memory_usage"] = {
        "head_memory": peaks[0][0] + 900, "tail_memory": peaks[0][5] + 1900,
        "body_memories": {"stage_id": [[1, 2, 3, 4]] * len(peaks), "memories": [row[1:5] for row in peaks]},
    }  # fmt: skip
    data["time_config"]["body"] = 14
    said = shardwise("balance", "--init", init_file(folder, data), "-s", 6, "-mb", 12, "--json", "a.json")
    assert said.code == 0, said.err
    assert json.loads((folder / "a.json").read_text())["counts"].keys() == {"full"}
