from __future__ import annotations

import json

import pytest

QUICK = ("--cluster", "16xh100", "--global-batch", "64", "--seq", "4096", "--only", "cp=1 mbs<=2")


@pytest.fixture
def plan_file(shardwise, tmp_path):
    path = tmp_path / "plan.json"
    found = shardwise("plan", "llama-3-8b", *QUICK, "--out", path, "--quiet")
    assert found.code == 0, found.err
    return path


def test_the_answer_says_what_is_proven(shardwise):
    found = shardwise("plan", "llama-3-8b", *QUICK, "--explain")
    assert found.code == 0
    for word in ("best", "proof", "gap", "pruned by proof", "under the cost model in use", "strategies of the space"):
        assert word in found.out


def test_the_plan_file_holds_the_proof_and_is_shown(shardwise, plan_file):
    data = json.loads(plan_file.read_text())
    predictions = data["predictions"]
    assert predictions["bound"] <= predictions["iteration_seconds"] * (1 + 1e-9)
    assert predictions["gap"] == pytest.approx(predictions["iteration_seconds"] / predictions["bound"] - 1)
    assert predictions["search"]["strategies"] > 1000
    assert sum(sum(stage["layers"]) for stage in predictions["stages"]) == 32
    shown = shardwise("show", plan_file, "--explain")
    assert shown.code == 0
    assert "gap" in shown.out
    assert "where the memory goes" in shown.out


def test_json_goes_to_standard_output(shardwise):
    found = shardwise("plan", "llama-3-8b", *QUICK, "--json", "-", "--quiet")
    assert json.loads(found.out)["top"]


def test_conditions_bind(shardwise):
    found = shardwise("plan", "llama-3-8b", *QUICK, "--fix", "pp=2 tp4", "--json", "-", "--quiet")
    strategy = json.loads(found.out)["inputs"]["strategy"]
    assert (strategy["tp"], strategy["pp"]) == (4, 2)


def test_nothing_fits_is_exit_code_1(shardwise):
    found = shardwise("plan", "llama-3.1-405b", "-c", "8xh100", "--global-batch", "64")
    assert found.code == 1
    for word in ("fits", "lacks", "ways out, cheapest first", "- more GPUs", ": at most ",
                 "may find a faster plan"):  # fmt: skip
        assert word in found.err


def test_no_valid_strategy_is_told_apart(shardwise):
    found = shardwise("plan", "llama-3-8b", "-c", "16xh100", "--global-batch", "64", "--only", "tp=3")
    assert found.code == 1
    assert "no strategy is valid" in found.err
    found = shardwise("plan", "llama-3-8b", "-c", "16xv100", "--global-batch", "64")
    assert "v100 has no bf16 hardware; use fp32 or fp16" in found.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("llama-3-8b",), "--cluster"),
        (("llama-3-8b", "-c", "16xh100", "--only", "frobnicate<3"), "axis"),
        (("llama-3-8b", "-c", "16xh100", "--gap", "lots"), "--gap"),
        (("llama-3-8b", "-c", "16xh100", "--global-batch", "-4"), "-4 is too small"),
        (("llama-3-8b", "-c", "16xh100", "--memory-margin", "200GiB"), "leaves nothing of the 79.20 GiB"),
        (("llama-3-8b", "-c", "16xh100", "--space", "per-op"), "shardwise plan-operators"),
        (("llama-3-8b", "-c", "16xh100", "--trials", "3"), "--trials"),
        (("no-such-model", "-c", "16xh100"), "no-such-model"),
    ],
)
def test_bad_input_is_exit_code_2(shardwise, words, said):
    found = shardwise("plan", *words)
    assert found.code == 2
    assert said in found.err


def test_two_plans_are_compared(shardwise, plan_file, tmp_path):
    assert "the same" in shardwise("diff", plan_file, plan_file).out
    other = tmp_path / "other.json"
    shardwise("plan", "llama-3-8b", *QUICK, "--fix", "tp=4", "--out", other, "--quiet")
    assert "strategy.tp" in shardwise("diff", plan_file, other).out


def test_why_another_strategy_lost(shardwise, plan_file):
    found = shardwise("why", plan_file, "tp4 pp4")
    assert found.code == 0
    assert "slower" in found.out
    assert "tp communication" in found.out
    large = shardwise("why", plan_file, "zero0 mbs4")
    assert "does not fit" in large.out


def test_what_if_plans_again(shardwise, plan_file):
    found = shardwise("what-if", plan_file, "--gpus", "32", "--net", "2x", "--memory", "141GB")
    assert found.code == 0
    assert "the best there" in found.out
    assert shardwise("what-if", plan_file).code == 2


def test_what_if_of_the_same_cluster_recommends_the_same_plan(shardwise, tmp_path):
    path = tmp_path / "plan.json"
    options = ("--global-batch", "256", "--seq", "8192", "--only", "tp=4 cp=1 vpp=1")
    assert shardwise("plan", "llama-3-70b", "-c", "64xh100", *options, "--out", path, "--quiet").code == 0
    told = json.loads(shardwise("what-if", path, "--net", "1x", "--json", "-", "--quiet").out)
    assert told["schema"] == "shardwise/answer/what-if/1"
    assert told["the best there"]["strategy"] == told["the plan as it is"]["strategy"]


def test_nothing_fits_in_markdown_too(shardwise, tmp_path):
    page = tmp_path / "plan.md"
    found = shardwise("plan", "llama-3-70b", "-c", "1xh100", "--global-batch", "1", "--md", page)
    assert found.code == 1
    assert "nothing fits" in page.read_text()
    assert "the closest lacks" in page.read_text()


def test_sweep_writes_a_table_and_a_chart(shardwise, tmp_path):
    csv, chart = tmp_path / "grid.csv", tmp_path / "grid.svg"
    found = shardwise(
        "sweep", "llama-3-8b", "-c", "8xh100,16xh100", "--global-batch", "64", "--seq", "4096", "--only", "cp=1",
        "--tokens", "1T", "--price", "2.5/h", "--mtbf", "50000h", "--csv", csv, "--chart", chart,
    )  # fmt: skip
    assert found.code == 0
    assert "days" in found.out
    assert csv.read_text().count("\n") == 3
    assert chart.read_text().startswith("<svg")


def test_a_plan_can_be_planned_again(shardwise, plan_file, tmp_path):
    """Model, cluster and batch are the plan's, unless they are typed."""
    again = tmp_path / "again.json"
    found = shardwise("plan", plan_file, "--only", "tp=2 cp=1 mbs=1", "--global-batch", "32", "--out", again, "--quiet")
    assert found.code == 0, found.err
    strategy = json.loads(again.read_text())["inputs"]["strategy"]
    assert (strategy["tp"], strategy["global_batch"], strategy["seq"]) == (2, 32, 4096)


def test_why_cuts_the_other_strategy_as_well_as_it_can(shardwise, plan_file):
    found = shardwise("why", plan_file, "tp1 pp4 mbs1")
    assert found.code == 0
    assert "layers=" in found.out.split("other", 1)[1].splitlines()[0]


def test_the_condition_in_the_way_is_named(shardwise):
    found = shardwise("plan", "llama-3-8b", *QUICK, "--fix", "tp=3")
    assert found.code == 1
    assert "tp=3: here tp can be 1, 2, 4, 8" in found.err


def test_a_plan_keeps_the_conditions_that_it_was_made_under(shardwise, plan_file, tmp_path):
    assert json.loads(plan_file.read_text())["provenance"]["conditions"] == "cp=1 mbs<=2"
    fixed = tmp_path / "fixed.json"
    assert shardwise("plan", plan_file, "--fix", "pp=2 bf16", "--out", fixed, "--quiet").code == 0
    assert json.loads(fixed.read_text())["provenance"]["conditions"] == "cp=1 mbs<=2 pp=2 bf16"
    found = shardwise("plan", fixed, "--only", "mbs=1")
    assert "the search keeps the conditions of the plan: cp=1 pp=2 mbs=1" in found.err
    assert " pp2" in found.out
    found = shardwise("what-if", fixed, "--net", "0.5x", "--json", "-", "--quiet")
    told = json.loads(found.out)
    assert told["conditions"] == "cp=1 mbs<=2 pp=2"
    assert " pp2" in told["the best there"]["strategy"]
    assert "within_error" not in told["the plan as it is"]
    assert "within_error" in told["the best there"]
    found = shardwise("what-if", fixed, "--net", "0.5x", "--only", "pp=1")
    assert "the best there keeps the conditions of the plan: cp=1 mbs<=2 pp=1" in found.err


def test_every_figure_of_a_layout_has_its_interval(shardwise, plan_file, tmp_path):
    found = shardwise("plan", plan_file, "--md", "-", "--json", tmp_path / "answer.json")
    for told, again in (("answer.json", "shown.json"), ("shown.json", "last.json")):
        said = shardwise("show", tmp_path / told, "--json", tmp_path / again)
        assert said.code == 0, "an answer that says it is a plan is read as one"
    assert "nine runs in ten" in found.out
    assert "under the cost model in use: about the model, not a run" in found.out
    for one in json.loads((tmp_path / "answer.json").read_text())["top"]:
        low, high = one["iteration_seconds_interval"]
        assert low < one["iteration_seconds"] < high
        assert 0 <= one["fits_probability"] <= 1
    told = json.loads(shardwise("why", plan_file, "tp2", "--json", "-", "--quiet").out)
    for name in ("iteration_seconds", "plan_iteration_seconds"):
        low, high = told[f"{name}_interval"]
        assert low < told[name] < high
    assert 0 <= told["fits_probability"] <= 1
    found = shardwise("export", plan_file, "--to", "megatron", "--out", tmp_path / "run")
    lines = [line for line in found.out.splitlines() if line.startswith(("predicted", "as written"))]
    assert len(lines) == 2
    assert all(" s to " in line for line in lines)


def test_a_sweep_has_intervals(shardwise, tmp_path):
    grid = ("sweep", "llama-3-8b", "-c", "8xh100", "--global-batch", "64", "--gap", "5%")
    found = shardwise(*grid, "--json", tmp_path / "sweep.json")
    assert "nine runs in ten" in found.out
    assert "searched to 5%, where plan searches to 0.5% and may find a faster one" in found.out
    assert "may find a faster" not in shardwise(*grid[:-1], "0.5%", "--only", "tp1 cp1 pp1").out
    (cell,) = json.loads((tmp_path / "sweep.json").read_text())["cells"]
    low, high = cell["iteration_seconds_interval"]
    assert low < cell["seconds"] < high
    assert cell["fits_probability"] > 0.5


def test_recompute_of_a_plan_is_shortened_to_the_stages_of_another(shardwise, tmp_path):
    path = tmp_path / "plan.json"
    words = ("estimate", "llama-3-8b", "-c", "16xh100", "-s", "dp16 gbs64 zero3 recompute=full:30", "--out", path)
    assert shardwise(*words).code == 0
    found = shardwise("why", path, "pp2")
    assert found.code == 0, found.err
    assert "the plan's recompute=full:30 is full:16 here: a stage has 16 layers" in found.err
    assert "recompute full:30 -> full:16" in found.out
    assert "use at most" in shardwise("why", path, "pp2 recompute=full:30").err


@pytest.mark.parametrize(
    ("gpu", "runtime", "said"),
    [
        ("tpu-v5p", "megatron", "no measured run supports megatron on tpu-v5p; --runtime maxtext is what runs there"),
        ("trainium2", "megatron", "no measured run supports megatron on trainium2; of the runtimes known here"),
        ("tpu-v5p", "maxtext", ""),
        ("h100", "megatron", ""),
    ],
)
def test_chips_that_a_runtime_does_not_know_are_named(shardwise, gpu, runtime, said):
    question = ("llama-3.2-1b", "-c", f"8x{gpu}", "--runtime", runtime)
    for words in (
        ("plan", *question, "--global-batch", "64", "--gap", "5%"),
        ("estimate", *question, "-s", "dp8 gbs8 zero2"),
    ):
        found = shardwise(*words)
        assert found.code == 0, found.err
        assert (said in found.err) if said else ("no measured run supports" not in found.err)
