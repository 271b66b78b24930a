"""`shardwise balance`: seed 001's workflow through the program, and inputs that are broken in thirty ways."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
import yaml

INIT: dict[str, Any] = {
    "pipeline_config": {
        "pipeline_num": 16, "num_layer": 96, "offset": [0, 0, -4, -2, 2, -2, -2, 10, -2, -2, -2, 0, 2, 2, 0, 0],
    },
    "time_config": {"head": 0.0588, "body": 3.1346, "tail": 3.5158},
    "recompute_config": {
        "recompute": False,
        "select_recompute": [5, 5, 2, 1, 4, 3, 2, 14, 4, 4, 4, 6, 1, 5, 5, 6],
        "select_comm_recompute": [0, 5, 0, 1, 1, 4, 2, 2, 1, 3, 2, 6, 4, 5, 5, 1],
    },
    "memory_usage": {
        "head_memory": 96643, "tail_memory": 23531,
        "body_memories": {
            "stage_id": list(range(1, 15)),
            "memories": [60854, 27620, 54533, 100631, 31713, 38874, 146986, 31713, 24553, 24553, 28484, 45016, 33763,
                         20463],
        },
    },
}  # fmt: skip
PROBLEM: dict[str, Any] = {
    "pp": 4, "vp": 1, "mb": 8, "layers": 16, "mem_limit": 45000,
    "model": {"stage_const_mem": 0, "layers_description": [
        {"name": "HEAD", "type": "HEAD", "time": 2, "memory_parameter": 1459},
        {"name": "BODY", "type": "BODY", "time": 10, "nb_layer": 16, "memory_parameter": 1400,
         "memory_activation": 2743,
         "memory_recompute": 431},
        {"name": "TAIL", "type": "TAIL", "time": 12, "memory_parameter": 3329},
    ]},
}  # fmt: skip
DROP = object()


def changed(data, **changes):
    """A copy with dotted keys (__ for .) set or dropped."""
    made = json.loads(json.dumps(data))
    for path, value in changes.items():
        *way, last = path.split("__")
        place = made
        for key in way:
            place = place[int(key) if isinstance(place, list) else key]
        if value is DROP:
            del place[last]
        else:
            place[last] = value
    return made


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init_file(folder, data=INIT):
    path = folder / "init.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data), encoding="utf-8")
    return path


def test_seed_001s_command_keeps_the_model_and_prints_the_block(shardwise, folder):
    words = ("-m", "demo", "-s", 16, "-i", 1, "-mb", 16, "-mem", 62000, "-naive", 1)
    said = shardwise(
        "balance", "--init", init_file(folder), *words, "--json", "a.json", "--svg", "a.svg", "--html", "a.html"
    )
    assert said.code == 0, said.err
    assert "stage 11 does not fit" in said.err
    assert "select_comm_recompute: [" in said.out
    assert "--pipeline-model-parallel-layout E" in said.out
    assert "naive, all recomputed" in said.out
    answer = json.loads((folder / "a.json").read_text())
    assert {"simulated", "bound", "gap", "proven", "seconds", "counts", "peak"} <= answer.keys()
    assert answer["proven"]
    assert max(p + m for p, m in zip(answer["peak"], answer["margin"], strict=True)) <= 62000 * (1 + 1e-9)
    assert answer["margin"][11] > 1279 + answer["margin"][12]  # what stage 11 held more than is explained is kept free
    assert answer["confidence"] == 0.95
    assert answer["if_known"] < answer["simulated"]
    assert sum(answer["layers"]) == 96
    assert (folder / "a.svg").read_text().count("makespan") == 3
    again = shardwise("balance", "-m", "demo", "-s", 16, "-mb", 16, "-mem", 62000, "--json", "-")
    assert json.loads(again.out)["simulated"] == answer["simulated"]
    surer = shardwise("balance", "-m", "demo", "-s", 16, "-mb", 16, "-mem", 62000, "--confidence", "99%", "--json", "-")
    assert all(a < b for a, b in zip(answer["margin"], json.loads(surer.out)["margin"], strict=True))
    for wrong in ("1", "2", "95", "0.99999999", "0.4"):
        refused = shardwise("balance", "-m", "demo", "-s", 16, "--confidence", wrong)
        assert refused.code == 2
        said = f"{wrong} cannot be meant, outside 0.5 to 0.9999; it is a probability: write 95% or 0.95"
        assert said in refused.err


def test_a_problem_file(shardwise, folder):
    (folder / "p.json").write_text(json.dumps(PROBLEM))
    said = shardwise("balance", "--problem", "p.json", "--json", "-", "-q")
    answer = json.loads(said.out)
    assert said.code == 0
    assert answer["proven"]
    assert answer["mindformers"]["offset"][0]
    assert set(answer["margin"]) == {0}
    assert "changes nothing" in shardwise("balance", "--problem", "p.json", "--confidence", "0.9").err


def test_typed_options_go_before_a_problem_file(shardwise, folder):
    (folder / "p.json").write_text(json.dumps(changed(PROBLEM, layers=12)))
    words = (
        "-s",
        2,
        "-i",
        8,
        "-mb",
        4,
        "-mem",
        "60000,70000",
        "--hop",
        3,
        "--schedule",
        "low-memory",
        "--empty",
        "any",
    )
    said = shardwise("balance", "--problem", "p.json", *words, "--json", "a.json", "-t", 2)
    answer = json.loads((folder / "a.json").read_text())
    assert said.code == 0, said.err
    assert [answer[key] for key in ("pp", "vpp", "microbatches", "schedule")] == [2, 8, 4, "low-memory"]
    assert answer["limits"] == [60000, 70000]
    assert sum(answer["layers"]) == 12
    assert "layers, 12, goes before the 16 of nb_layer" in said.err


def test_other_keys_are_passed_over_with_a_note(shardwise, folder):
    data = changed(PROBLEM, source="a paper", model__layers_description__1__color="red")
    (folder / "p.json").write_text(json.dumps(data))
    said = shardwise("balance", "--problem", "p.json")
    assert said.code == 0
    assert "source means nothing here" in said.err
    assert "model.layers_description.1.color means nothing here" in said.err


@pytest.mark.parametrize("times", [(), ("--times", "0.06,3.1,3.5")])
def test_times_take_the_place_of_traces(shardwise, folder, times):
    """The folder of the traces was asked for all the same, and where it was given too, nothing said which counts."""
    data = changed(INIT, profiling_config={"micro_batch_num": 8})
    words = (*times, "-s", 16, "-mb", 16, "-mem", 62000, "--effort", 0.01)
    said = shardwise("balance", "--init", init_file(folder, changed(data, time_config=DROP) if times else data), *words)
    assert said.code == 0, said.err
    assert "traces" not in said.err
    data = changed(data, profiling_config__folder_path="/timeline")
    said = shardwise("balance", "--init", init_file(folder, data), *words)
    assert "times are given, so the traces in profiling_config.folder_path (/timeline) are not read" in said.err


def test_misspelt_keys_are_named(shardwise, folder):
    """memory_select left that choice out, select_com_recompute made the peaks contradict each other; without a word."""
    wrong = changed(PROBLEM, model__layers_description__1__memory_select=150)
    (folder / "p.json").write_text(json.dumps(wrong))
    said = shardwise("balance", "--problem", "p.json")
    assert said.code == 2
    assert "p.json: model.layers_description.1.memory_select: is not a key here; memory_select_rec may" in said.err
    (folder / "m.json").write_text(json.dumps(wrong["model"]))
    assert "memory_select_rec may be meant" in shardwise("balance", "-m", "m", "-s", 2, "-mb", 4).err
    lists = {**INIT["recompute_config"], "select_com_recompute": INIT["recompute_config"]["select_comm_recompute"]}
    del lists["select_comm_recompute"]
    said = shardwise("balance", "--init", init_file(folder, changed(INIT, recompute_config=lists)), "-s", 16)
    assert said.code == 2
    assert "recompute_config.select_com_recompute: is not a key here; select_comm_recompute may be meant" in said.err
    lists = {**INIT["memory_usage"]["body_memories"], "memory": 1}
    said = shardwise("balance", "--init", init_file(folder, changed(INIT, memory_usage__body_memories=lists)), "-s", 16)
    assert "memory_usage.body_memories.memory means nothing here and is passed over" in said.err


def test_a_plan_gets_the_new_layers(shardwise, folder):
    plan = ("estimate", "llama-3-8b", "-c", "16xh100", "--global-batch", 64, "--seq", 8192, "--out", "plan.json")
    assert shardwise(*plan, "--pp", 4, "--vpp", 2, "--schedule", "interleaved").code == 0
    data = changed(PROBLEM, vp=2, layers=32, mem_limit=90000)
    (folder / "p.json").write_text(json.dumps(data))
    words = ("balance", "--problem", "p.json", "--plan", "plan.json", "--write-plan", "new.json", "--effort", "0.1")
    said = shardwise(*words, "--json", "a.json", "-t", 5)
    assert said.code == 0, said.err
    assert "micro batches are 16 in the plan, but 8" in said.err
    made, answer = (json.loads((folder / name).read_text()) for name in ("new.json", "a.json"))
    assert made["inputs"]["strategy"]["layers"] == answer["layers"]
    assert made["balance"]["recompute"] == answer["counts_by_kind"]
    assert [made["balance"][name] for name in ("simulated", "peak")] == [answer[name] for name in ("simulated", "peak")]
    assert made["predictions"]["iteration_seconds"] > 0  # predicted anew, by the cost model
    shown = shardwise("show", "new.json").out
    assert f"layers={','.join(map(str, answer['layers']))}" in shown
    (folder / "p.json").write_text(json.dumps(changed(data, layers=40)))
    refused = shardwise(*words)
    assert refused.code == 2
    assert "is 32 in the plan, but 40" in refused.err


def test_several_kinds_of_layers(shardwise, folder):
    moe = {**PROBLEM["model"]["layers_description"][1], "name": "MOE", "time": 14, "nb_layer": 12}
    data = changed(PROBLEM, vp=2, layers=28)
    data["model"]["layers_description"].insert(2, moe)
    data["mem_limit"] = 80000
    (folder / "p.json").write_text(json.dumps(data))
    said = shardwise("balance", "--problem", "p.json", "--json", "-", "-q", "--effort", "0.1", "-t", "5")
    kinds = json.loads(said.out)["counts_by_kind"]
    assert [kind["kind"] for kind in kinds] == ["BODY", "MOE"]
    dense, expert = ([sum(x) for x in zip(*kind["choices"].values(), strict=True)] for kind in kinds)
    assert (sum(dense), sum(expert)) == (16, 12)
    last_dense = max(k for k, n in enumerate(dense) if n)
    assert not any(expert[:last_dense])


def test_too_little_memory_is_infeasible(shardwise, folder):
    said = shardwise("balance", "--init", init_file(folder), "-s", 16, "-mb", 16, "-mem", 20000)
    assert said.code == 1
    assert "infeasible" in said.err
    assert "missing" in said.err
    assert "smallest that works is a limit of 34,9" in said.err


def test_manual_strategies_are_compared_and_marked(shardwise, folder):
    init_file(folder)
    blocks = {"even": {"offset": 0, "recompute": False, "select_recompute": True, "select_comm_recompute": True},
              "greedy": {"offset": [[0] * 16], "show": True, "file_name": "greedy.svg"}}  # fmt: skip
    (folder / "manual.yaml").write_text(yaml.safe_dump(blocks))
    said = shardwise(
        "balance", "-init", "init.yaml", "-s", 16, "-mb", 16, "-mem", 62000, "-manual", "manual.yaml", "--svg", "c.svg"
    )
    assert said.code == 0, said.err
    assert "greedy" in said.out
    assert "over" in said.out
    assert (folder / "greedy.svg").exists()
    assert "ideal  imbalance  recompute" in said.out
    ends = dict(_ends(folder / "c.svg"))
    found = (re.search(rf"\n{name} +([\d,.]+)", said.out) for name in ("balanced", "even"))
    balanced, even = (float(one[1].replace(",", "")) for one in found)
    assert ends["balanced"] / ends["even"] == pytest.approx(balanced / even, abs=1e-3)  # one scale of time


def _ends(path):
    """The title of every figure and where its last pass ends, from the beginning of time on."""
    for figure in ET.parse(path).getroot():  # noqa: S314 - our own text
        drawn = [node for node in figure.iter() if node.tag.endswith("rect") and node.find("{*}title") is not None]
        title = next(node.text for node in figure.iter() if node.tag.endswith("text"))
        yield (
            title.partition(":")[0].partition(" (")[0],
            max(float(node.attrib["x"]) + float(node.attrib["width"]) for node in drawn) - 60,
        )


BAD_MANUAL = {
    "offset too short": ({"offset": [0, 0]}, "error: m.yaml: a.offset: has 2 numbers"),
    "negative": ({"recompute": [-3, 0, 0, 0]}, "holds -3"),
    "chunks without number": ({"interleave_num": 10**9}, "too large"),
    "chunks as truth": ({"interleave_num": True}, "interleave_num"),
    "a folder as picture": ({"file_name": ".."}, "file_name"),
    "the picture of all": ({"file_name": "c.svg"}, "another picture"),
    "unlike keys": ({5: 1, "x": 2}, "is not known"),
}


@pytest.mark.parametrize("name", BAD_MANUAL)
def test_a_broken_manual_strategy_is_told_before_solving(shardwise, folder, name):
    block, word = BAD_MANUAL[name]
    (folder / "p.json").write_text(json.dumps(PROBLEM))
    (folder / "m.yaml").write_text(yaml.safe_dump({"a": block}, sort_keys=False))
    said = shardwise("balance", "--problem", "p.json", "-manual", "m.yaml", "--svg", "c.svg")
    assert (said.code, said.out) == (2, "")
    assert word in said.err


def test_other_strategies_of_several_kinds_keep_the_order_of_the_model(shardwise, folder):
    data = changed(PROBLEM)
    body = data["model"]["layers_description"][1]
    data["model"]["layers_description"][1:2] = [body | {"nb_layer": 5}, body | {"nb_layer": 11, "time": 30}]
    (folder / "p.json").write_text(json.dumps(data | {"mb": 1, "mem_limit": 10**6}))
    (folder / "m.yaml").write_text("a: {recompute: true}")
    said = shardwise("balance", "--problem", "p.json", "-naive", 1, "--json", "-", "-q")
    none = next(one for one in json.loads(said.out)["compared"] if one["name"] == "naive, none recomputed")
    assert none["simulated"] == 3 * (2 + 5 * 10 + 11 * 30 + 12)  # one micro batch: all layers once
    (folder / "p.json").write_text(json.dumps(data | {"mb": 64, "mem_limit": 10**6}))
    said = shardwise("balance", "--problem", "p.json", "-naive", 1, "--json", "-", "-q")
    none = next(one for one in json.loads(said.out)["compared"] if one["name"] == "naive, none recomputed")
    assert none["simulated"] >= 64 * 3 * (4 * 30 + 12)  # four of the slow kind on the last stage
    said = shardwise("balance", "--problem", "p.json", "-manual", "m.yaml", "-naive", 1, "--json", "-", "-q")
    every, _, ours = json.loads(said.out)["compared"]
    assert (ours["name"], ours["simulated"], ours["peak"]) == ("a", every["simulated"], every["peak"])


def test_lists_do_not_say_a_v(shardwise, folder):
    (folder / "p.json").write_text(json.dumps(changed(PROBLEM, vp=2, schedule="zb-v", mem_limit=90000)))
    (folder / "m.yaml").write_text("a: {recompute: true}")
    said = shardwise("balance", "--problem", "p.json", "-manual", "m.yaml")
    assert said.code == 2
    assert "in a V" in said.err


def test_guide_designs_and_asks(shardwise, folder, monkeypatch):
    said = shardwise(
        "balance", "guide", "--stages", 16, "--layers", 96, "--select", "--comm", "--both", "--json", "g.json"
    )
    assert said.code == 0, said.err
    made = json.loads((folder / "g.json").read_text())
    assert made["rank"] == 8
    assert sum(made["rounds"][0]["offset"]) == 0
    assert shardwise("balance", "guide", "--stages", 8, "--layers", 8, "--full").code == 2
    said = shardwise("balance", "guide", "--stages", 16, "--layers", 96, "--full", "--rounds", 500)
    assert (said.code, "up to 64 are designed" in said.err) == (2, True)  # they took more than a minute
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("4\n80\ny\nn\nn\n"))
    assert "round 2 of 2" in shardwise("balance", "--guide").out


def test_dryrun_writes_the_script(shardwise, folder):
    said = shardwise("balance", "dryrun", "python run_mindformer.py --config x.yaml", "--ranks", 16384, "--stages", 16)
    assert said.code == 0
    script = (folder / "dryrun.sh").read_text()
    assert all(
        word in script for word in ("MS_SIMULATION_LEVEL=1", "MS_KERNEL_LAUNCH_SKIP=all", "MS_MEMORY_STATISTIC=1")
    )
    assert "stage_15_rank_15360" in said.out
    assert "rank 0, rank 8192, rank 15360" in said.out
    assert shardwise("balance", "dryrun", "x", "--ranks", 10, "--stages", 4).code == 2


def test_quick(shardwise, folder):
    assert folder
    words = ("-l", 80, "-mem", 45000, "--layer", 400, "--kept", 743, "--recomputed", 131)
    said = shardwise("balance", "quick", "-s", 4, *words, "--head-memory", 1459, "--tail-memory", 3329, "--tail", 1.2)
    assert "recompute: [8, 5, 0, 0]" in said.out
    assert shardwise("balance", "quick", "-s", 3, *words).code == 2


def test_peaks_and_times_without_writing_them_into_the_file(shardwise, folder):
    peaks = [96643, *INIT["memory_usage"]["body_memories"]["memories"], 23531]
    for stage, peak in enumerate(peaks):
        place = folder / "output_dryrun" / f"stage_{stage}_rank_{stage * 1024}"
        place.mkdir(parents=True)
        (place / "mindformer.log").write_text(f"Actual peak memory usage (with fragments): {peak}M\n")
    path = init_file(folder, changed(INIT, memory_usage=DROP, time_config=DROP))
    words = ("--peaks", "output_dryrun", "--times", "0.0588,3.1346,3.5158", "-s", 16, "-mb", 16, "-mem", 62000)
    said = shardwise("balance", "--init", path, *words)
    assert said.code == 0, said.err
    assert "2,217.5" in said.out
    assert "low-memory" not in said.err
    init_file(folder, changed(INIT, memory_usage=DROP, colour="red"))
    said = shardwise("balance", "--init", path, *words, "-lm", 1)
    assert "colour means nothing here and is passed over" in said.err
    assert "--low-memory changes nothing: with one chunk a stage the order is 1F1B" in said.err
    assert shardwise("balance", "--init", path, "--times", "1,2", "-s", 16).code == 2
    assert shardwise("balance", "--init", path, "--peaks", "nowhere", "-s", 16).code == 2


def test_two_rounds_with_head_and_tail_of_the_first(shardwise, folder):
    """SAPP took the counts of the last round for head and tail and got a head of -47,508 MB for one of 1,000."""
    design = json.loads(shardwise("balance", "guide", "--stages", 4, "--layers", 80, "--full", "--json", "-").out)
    rounds = design["rounds"]

    def peak(one, stage):
        n, full = 20 + one["offset"][stage], one["recompute"][stage]
        held = 500 + 400 * n + (4 - stage) * (131 * full + 743 * (n - full))
        return held + 1000 * (stage == 0) + 3000 * (stage == 3)

    data = {
        "pipeline_config": {"pipeline_num": 4, "num_layer": 80, "offset": [one["offset"] for one in rounds]},
        "time_config": {"head": 1, "body": 10, "tail": 8},
        "recompute_config": {"recompute": [one["recompute"] for one in rounds],
                             "select_recompute": [one["recompute"] for one in rounds],
                             "select_comm_recompute": [one["recompute"] for one in rounds]},
        "memory_usage": {
            "head_memory": peak(rounds[0], 0), "tail_memory": peak(rounds[0], 3),
            "body_memories": {
                "stage_id": [[1, 2], [1, 2]], "memories": [[peak(one, s) for s in (1, 2)] for one in rounds],
            },
        },
    }  # fmt: skip
    said = shardwise("balance", "--init", init_file(folder, data), "-m", "two", "-s", 4, "-mb", 16, "-mem", 45000)
    assert said.code == 0, said.err
    model = json.loads((folder / "two.json").read_text())
    head, body, tail = model["layers_description"]
    assert model["stage_const_mem"] == pytest.approx(500, abs=0.1)
    assert (head["memory_parameter"], tail["memory_parameter"]) == pytest.approx((1000, 3000), abs=0.1)
    assert (body["memory_activation"], body["memory_recompute"]) == pytest.approx((743, 131), abs=0.1)


def test_a_truth_value_stands_for_all_layers(shardwise, folder):
    data = changed(INIT, recompute_config__select_recompute=True, recompute_config__select_comm_recompute=False)
    said = shardwise("balance", "--init", init_file(folder, data), "-s", 16, "-mb", 16, "-mem", 200000)
    assert said.code == 2
    assert "contradict each other: they are off by 8,047 (13%" in said.err  # these peaks are of other counts


BAD_INIT = {
    "offset too short": (changed(INIT, pipeline_config__offset=[0] * 15), "15 numbers"),
    "offset does not sum": (changed(INIT, pipeline_config__offset=[5] + [0] * 15), "101 layers"),
    "offset is a text": (changed(INIT, pipeline_config__offset="even"), "offset"),
    "stage without layers": (changed(INIT, pipeline_config__offset=[-6, 6] + [0] * 14), "stage 0"),
    "no stages": (changed(INIT, pipeline_config__pipeline_num=DROP), "pipeline_num"),
    "stages as text": (changed(INIT, pipeline_config__pipeline_num="16"), "pipeline_num"),
    "no layers": (changed(INIT, pipeline_config__num_layer=0), "num_layer"),
    "a billion stages": (changed(INIT, pipeline_config__pipeline_num=10**6), "pipeline_num: 1,000,000 is too large"),
    "negative layers, told once": (changed(INIT, pipeline_config__offset=[-8, 8] + [0] * 14), "yaml: pipeline_config"),
    "two stages": (changed(INIT, pipeline_config__pipeline_num=2), "quick"),
    "no pipeline": (changed(INIT, pipeline_config=DROP), "pipeline_config"),
    "no recompute": (changed(INIT, recompute_config=DROP), "recompute_config"),
    "no memory": (changed(INIT, memory_usage=DROP), "memory_usage"),
    "select too short": (changed(INIT, recompute_config__select_recompute=[1] * 14), "14 numbers"),
    "more recomputed than layers": (changed(INIT, recompute_config__recompute=[9] * 16), "recomputes 9 of the 6"),
    "recompute as text": (changed(INIT, recompute_config__recompute="yes"), "true, false"),
    "head memory of 0": (changed(INIT, memory_usage__head_memory=0), "head_memory"),
    "no tail memory": (changed(INIT, memory_usage__tail_memory=DROP), "tail_memory"),
    "unequal lists": (changed(INIT, memory_usage__body_memories__stage_id=[1, 2, 3]), "3 stages but 14 memories"),
    "missing stage lists": (changed(INIT, memory_usage__body_memories=[1, 2]), "body_memories"),
    "stage out of range": (changed(INIT, memory_usage__body_memories__stage_id=list(range(2, 16))), "holds 15"),
    "memory of 0": (changed(INIT, memory_usage__body_memories__memories=[0] * 14), "above 0"),
    "too few stages": (
        changed(INIT, memory_usage__body_memories={"stage_id": [1, 2], "memories": [60854, 27620]}), "cannot tell",
    ),
    "no times": (changed(INIT, time_config=DROP), "no times"),
    "negative time": (changed(INIT, time_config__body=-1), "time_config.body"),
    "no traces": (
        changed(INIT, time_config=DROP, profiling_config={"micro_batch_num": 8, "folder_path": "nowhere"}), "folder",
    ),
    "tabs": (yaml.safe_dump(INIT).replace("  num_layer", "\tnum_layer"), "tab"),
    "a list": ("- 1\n- 2\n", "list"),
    "not YAML": ("pipeline_config: [1, 2", "YAML"),
    "a key twice": ("a: 1\na: 2\n", "twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_INIT)
def test_a_broken_init_file_is_a_sentence(shardwise, folder, name):
    data, word = BAD_INIT[name]
    said = shardwise("balance", "--init", init_file(folder, data), "-s", 16, "-mb", 16, "-mem", 62000)
    assert said.code == 2, said.err
    assert word in said.err
    assert "unexpected" not in said.err


def test_contradicting_measurements_are_pointed_at(shardwise, folder):
    memories = list(INIT["memory_usage"]["body_memories"]["memories"])
    memories[4] *= 3
    data = changed(INIT, memory_usage__body_memories__memories=memories)
    said = shardwise("balance", "--init", init_file(folder, data), "-s", 16, "-mb", 16, "-mem", 150000)
    assert said.code == 2
    assert "off by 13,147" in said.err
    assert "stage 5 most: it was measured at 95,139, 63,480 more" in said.err
    assert "or stage 12 most: it was measured at 45,016, 69,2" in said.err  # only they show what comm alone takes


BAD_TRACES = {
    "cut in half": ('[{"name": "Default/0-LLamaDecodeLayer", "ts": 1, "dur": 2}, {"name": "Def', "ends in the middle"),
    "other names": ('[{"name": "GPTBlock", "ts": 1, "dur": 2}]', "no operator named so"),
    "not a trace": ('{"hello": 1}', "no Chrome trace"),
    "odd count": ('[{"name": "Default/0-LLamaDecodeLayer", "ts": 1, "dur": 2}]', "no multiple"),
}


@pytest.mark.parametrize("name", BAD_TRACES)
def test_a_broken_trace_is_a_sentence(shardwise, folder, name):
    text, word = BAD_TRACES[name]
    (folder / "trace_view0.json").write_text(text)
    data = changed(INIT, time_config=DROP, profiling_config={"micro_batch_num": 8, "folder_path": str(folder)})
    said = shardwise("balance", "--init", init_file(folder, data), "-s", 16)
    assert said.code == 2
    assert word in said.err


BAD_PROBLEM = {
    "misspelt key": (changed(PROBLEM, mem_limits=3), "mem_limit may be meant"),
    "two words for one": (changed(PROBLEM, vpp=2), "vpp, which means the same"),
    "low memory in words": (changed(PROBLEM, low_mem="yes"), "write 0 or 1"),
    "a chunk that is not": (changed(PROBLEM, empty_chunks=[99]), "0 to 3"),
    "all instances": ({"instances": [{"problem": PROBLEM}]}, "one of its `problem` objects"),
    "too many layers": (changed(PROBLEM, layers=10**7), "at most 10,000"),
    "pp 0": (changed(PROBLEM, pp=0), "pp"),
    "no micro batches": (changed(PROBLEM, mb=DROP), "mb"),
    "limit 0": (changed(PROBLEM, mem_limit=0), "above 0"),
    "limits per rank too few": (changed(PROBLEM, mem_limit=[1, 2]), "2 numbers"),
    "unknown recompute": (changed(PROBLEM, recompute_kinds=["some"]), "recompute_kinds"),
    "no model": (changed(PROBLEM, model=DROP), "model"),
    "no body": (changed(PROBLEM, model__layers_description=[]), "BODY"),
    "negative memory": (changed(PROBLEM, model__layers_description__1__memory_activation=-4), "memory_activation"),
    "too few layers": (changed(PROBLEM, layers=3), "3 layers cannot fill"),
    "unknown schedule": (changed(PROBLEM, schedule="best"), "schedule"),
    "a million micro batches": (changed(PROBLEM, mb=10**6), "up to 1,000,000"),
    "empty chunks in words": (changed(PROBLEM, empty_chunks="some"), "ends or any"),
    "pieces with chunks": (changed(PROBLEM, schedule="seq-1f1b", vp=2, seq_split=2), "1 chunk a rank, vpp is 2"),
}


@pytest.mark.parametrize("name", BAD_PROBLEM)
def test_a_broken_problem_is_a_sentence(shardwise, folder, name):
    data, word = BAD_PROBLEM[name]
    (folder / "p.json").write_text(json.dumps(data))
    said = shardwise("balance", "--problem", "p.json")
    assert said.code == 2, said.err
    assert word in said.err


@pytest.mark.parametrize(
    ("words", "code", "word"),
    [
        ((), 2, "nothing to balance"),
        (("-m", "nothing"), 2, "no such file"),
        (("--problem", "p.json", "--init", "x"), 2, "both"),
        (("--problem", "static.json"), 1, "infeasible"),
        (("--problem", "p.json", "--write-plan", "x.json"), 2, "--plan"),
        (("-mem", "much", "-m", "model"), 2, "not a number"),
        (("-mem", "0", "-m", "model"), 2, "above 0"),
        (("-mem", "1,2,3", "-m", "model"), 2, "3 numbers"),
        (("--empty", "99", "-m", "model"), 2, "--empty"),
        (("--hop", "nan", "-m", "model"), 2, "hop"),
        (("--hop", "inf", "-m", "model"), 2, "hop"),
        (("--effort", "inf", "-m", "model"), 2, "effort"),
        (("--problem", "p.json", "-m", "model"), 2, "--model both"),
        (("--problem", "p.json", "-mem", "1,2,3"), 2, "3 numbers"),
        (("--problem", "p.json", "-mem", "2000"), 1, "infeasible"),
        (("quick", "-s", "4", "-l", "100000", "-mem", "1e9", "--layer", "1", "--kept", "1"), 2, "10,000"),
    ],
)
def test_flags_that_cannot_be(shardwise, folder, words, code, word):
    (folder / "p.json").write_text(json.dumps(PROBLEM))
    (folder / "static.json").write_text(json.dumps(changed(PROBLEM, mem_limit=2000)))
    (folder / "model.json").write_text(json.dumps(PROBLEM["model"]))
    said = shardwise("balance", *words)
    assert said.code == code, said.err
    assert word in said.err


def test_figures_say_what_the_table_says(shardwise, folder):
    """The figure called another number the bubble, said "over" of what is so only with its margin, and left the limit
    without a number.
    """
    words = ("--init", init_file(folder), "-s", 16, "-mb", 16, "-mem", 62000, "-i", 3, "-naive", 1, "-t", 1)
    said = shardwise("balance", *words, "--svg", "a.svg", "--json", "a.json")
    row = next(line for line in said.out.splitlines() if line.startswith("naive, all recomputed"))
    assert "not surely" in row
    others = json.loads((folder / "a.json").read_text())["compared"]
    assert [one["fits"] for one in others] == ["close", "no"]
    figure = (folder / "a.svg").read_text()
    assert re.search(rf"naive, all recomputed \(over with its margin\): .* bubble {row.split()[4]} real", figure)
    assert "naive, none recomputed (over the memory limit): " in figure
    assert figure.count("limit 62,000<") == 3
