"""`shardwise plan-operators` from the command line."""

from __future__ import annotations

import json
import zipfile

import pytest

from shardwise.cli.main import run
from shardwise.frameworks.aceso.write_profile import write_profile
from shardwise.plan.file import read_plan

from .conftest import random_profile


@pytest.fixture
def folder(tmp_path):
    write_profile(random_profile(3, tps=(1, 2)), tmp_path / "set")
    return tmp_path / "set"


@pytest.fixture
def plan(capfd, folder):
    """Run the verb on the small profile: exit code, output, errors."""

    def call(*words, profiles=folder, layers=2):
        given = ["plan-operators", "--gpus", "2", "--memory", "4000MiB", "--global-batch", "8"]
        given += ["--profiles", str(profiles), "--layers", str(layers)] if profiles else []
        code = run([*given, *map(str, words)])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_the_answer_says_bound_gap_and_seconds(plan):
    code, out, err = plan("--compatible")
    assert code == 0
    fixed = "ZeRO 0, cp 1, one chunk a rank"
    assert f"proven best of all splits with {fixed} in the compatible space, under the compatible cost model" in out
    assert "CPU s" in err


def test_json_is_the_same_twice_but_for_the_run(plan, tmp_path):
    told = []
    for name in ("a", "b"):
        assert plan("--json", tmp_path / name)[0] == 0
        told.append(json.loads((tmp_path / name).read_text()))
        told[-1].pop("run")
    assert told[0] == told[1]
    assert 0 <= told[0]["gap"] < 0.01


def test_plans_for_aceso_go_out_and_come_back_as_starts(plan, tmp_path):
    path = tmp_path / "config.json"
    assert plan("--compatible", "--aceso", path, "--best", 2)[0] == 0
    assert (tmp_path / "config-2.json").exists()
    code, out, _ = plan("--compatible", "--method", "alleviate", "--start", path, "--explain")
    assert code == 0
    assert "start with" in out
    code, _, err = plan("--compatible", "--start", path, "--measured-memory", "stage0=1GiB")
    assert code == 0
    assert "multiplied by" in err


@pytest.mark.parametrize("model", ["llama-3.2-1b", "deepseek-v2-lite", "gemma-2-2b"])
def test_a_saved_profile_gives_the_same_answer(capfd, tmp_path, model):
    """One kind of layers, two kinds one after the other, and two kinds by turns; few of each."""
    path = tmp_path / "model.toml"
    path.write_text(f'base = "{model}"\nlayers = 6\n')
    words = ["plan-operators", str(path), "-c", "8xh100", "--global-batch", "16", "--microbatches", "1"]
    words += ["--stages", "2", "--quiet", "--time-limit", "1000s", "--operators-only"]
    told = []
    for name, more in (("made", ["--seq", "2048", "--save-profiles"]), ("read", ["--profiles"])):
        files = {flag: tmp_path / f"{name}-{flag}.json" for flag in ("json", "out")}
        given = [word for flag, path in files.items() for word in (f"--{flag}", str(path))]
        assert run([*words, *more, str(tmp_path / "set"), *given]) == 0, capfd.readouterr().err
        told.append(json.loads(files["json"].read_text()))
        assert read_plan(files["out"]).strategy.seq == 2048
    made, read = told
    assert read["plan"] == made["plan"]
    assert read["cost"]["seconds"] == pytest.approx(made["cost"]["seconds"], rel=1e-12)
    assert read["bound"] == pytest.approx(made["bound"], rel=1e-12)


def test_a_saved_profile_is_of_its_model_and_its_length(capfd, tmp_path):
    words = ["plan-operators", "-c", "2xh100", "--global-batch", "8", "--microbatches", "1", "--stages", "1"]
    folder = str(tmp_path / "set")
    assert run([*words, "llama-3.2-1b", "--seq", "2048", "--save-profiles", folder, "--show-start"]) == 0
    capfd.readouterr()
    for more, said in (
        (["--layers", "4"], "--layers: has 4 layers, but the profile says itself which 16 layers llama-3.2-1b has"),
        (["llama-3-8b"], "MODEL: has 32 layers"),
        (["--layer-ops", "a,b"], "--layer-ops: is a,b, but"),
        (["--seq", "4096"], "--seq: is 4096, but llama-3.2-1b was profiled with 2048"),
    ):
        assert run([*words, "--profiles", folder, *more]) == 2
        assert said in capfd.readouterr().err
    assert run([*words[:2], "8xh100", *words[3:], "llama-3-8b", "--save-profiles", folder, "--show-start"]) == 2
    assert "which would be read as part of the profile; choose another folder" in capfd.readouterr().err


def test_a_deep_model_of_two_kinds_of_layers(capfd, monkeypatch):
    """Its coarse sketch has both kinds."""
    monkeypatch.setattr("shardwise.per_op.search.MOST_OPS", 100)
    words = [
        "plan-operators",
        "deepseek-v3",
        "-c",
        "128xh100",
        "--global-batch",
        "128",
        "--microbatches",
        "128",
    ]
    assert run([*words, "--stages", "8", "--time-limit", "1s", "--quiet"]) in {0, 1}
    assert "--layer-ops" not in capfd.readouterr().err


def test_starts_are_shown_without_a_search(plan):
    code, out, _ = plan("--compatible", "--show-start")
    assert code == 0
    assert out.count("stage") >= 4
    assert "CPU s" not in out


def test_a_model_and_a_cluster_are_enough(capfd, tmp_path):
    words = ["plan-operators", "llama-3-8b", "-c", "8xh100", "--global-batch", "16", "--microbatches", "4,8"]
    words += ["--stages", "1-2", "--quiet", "--out", str(tmp_path / "plan.json")]
    assert run(words) == 0
    told = capfd.readouterr().out
    assert "every operator split alike: tp" in told
    assert "of all strategies that `plan` searches and all splits of operators" in told
    assert "for want of several chunks a rank" in told
    assert read_plan(tmp_path / "plan.json").strategy.vpp > 1
    assert run([*words, "--operators-only"]) == 0
    told = capfd.readouterr().out
    assert "per iteration" in told
    assert "of all splits with ZeRO 1 or 2, cp 1, one chunk a rank" in told
    made = read_plan(tmp_path / "plan.json")
    assert len(made.operators.stages) <= 2
    assert run(["show", str(tmp_path / "plan.json")]) == 0
    shown = capfd.readouterr().out
    assert "operator by operator" in shown
    assert "of all splits with ZeRO 1 or 2, cp 1, one chunk a rank, under the full cost model" in shown
    assert run(["export", str(tmp_path / "plan.json"), "--to", "megatron", "--out", str(tmp_path / "run")]) == 0
    assert "tp2 pp1 dp4" in capfd.readouterr().out  # all operators alike: it is that strategy
    broken = json.loads((tmp_path / "plan.json").read_text())
    del broken["operators"]["stages"]
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    assert run(["show", str(tmp_path / "broken.json")]) == 2
    assert "operators.stages: is missing" in capfd.readouterr().err
    assert made.operators.bound <= made.operators.seconds


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "0", "--memory", "many"), "--gpus"),
        (("--memory", "many"), "--memory"),
        (("--stages", "8"), "--stages"),
        (("--stages", "3-1"), "--stages"),
        (("--microbatches", "1,x"), "--microbatches"),
        (("--micro-batch", "2"), "say how many micro batches an iteration has with --microbatches"),
        (("--global-batch", "0"), "--global-batch"),
        (("--microbatches", "3"), "does not divide the global batch 8"),
        (("--gpus-per-node", "0"), "0 is too small; it must be at least 1"),
        (("--most-tp", "-1"), "-1 is too small"),
        (("--seq", "0"), "0 is too small"),
        (("--gpus", "2000"), "up to 1,024"),
        (("--layers", "1000000000"), "at most 10,000"),
        (("--runs-with", "flash"), "--runs-with"),
        (("--layer-ops", "a"), "--layer-ops"),
        (("--start", "nowhere"), "--start"),
        (("--measured-memory", "stage0=1GB"), "--start"),
        (("--profile", "gpt_smal"), "gpt_small"),
        (("--out", "plan.json"), "MODEL and --cluster"),
    ],
)
def test_bad_options_are_refused_with_a_sentence(plan, words, said):
    code, _, err = plan(*words)
    assert code == 2
    assert said in err


def test_what_does_not_fit_is_told_with_exit_1(plan):
    code, _, err = plan("--memory", "10MiB")
    assert code == 1
    assert "no plan of the per-operator space fits" in err


def test_broken_profiles_end_with_exit_2(plan, folder, tmp_path):
    (folder / "gpt_small_mbs1_tp2_algo0.csv").unlink()
    (folder / "p2p_intra_node.csv").write_text("letters")
    code, _, err = plan()
    assert code == 2
    assert "mbs1_tp2_algo0.csv: is missing" in err
    assert "p2p_intra_node.csv" in err
    (tmp_path / "bomb.zip").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gpt_small_mbs1_tp1_algo0.csv", b"0" * (80 * 2**20))
    assert plan(profiles=tmp_path / "bomb.zip")[0] == 2
    assert plan(profiles=None)[0] == 2


def test_a_run_that_differs_from_its_profile_is_warned_of(plan, folder):
    (folder / "profile.toml").write_text(
        '[tags]\nattention = "flash"\nlayers = "2"\nseq = "2048"\nhidden = "512"\nheads = "8"\n'
        .replace("[tags]", 'layer_ops = ["enc-1st-layernorm", "enc-attention-dropout"]\n[tags]')
    )  # fmt: skip
    code, _, err = plan("--runs-with", "attention=plain")
    assert code == 0
    assert "will run out of memory" in err


def test_a_plan_that_was_edited_shows_no_bound():
    """The bound of a per-operator plan is about its own operators: `show` checks the hashes before it prints one."""
    from dataclasses import replace

    from shardwise.frameworks.load import load_cluster, load_model
    from shardwise.inputs.strategy import Strategy
    from shardwise.plan.plan import Operators, Plan, ProofPart
    from shardwise.plan.proof import ended, proof_of

    plan = Plan(
        model=load_model("llama-3-8b"), cluster=load_cluster("8xh100"), strategy=Strategy(dp=8, global_batch=8),
        operators=Operators(
            names=("a",), microbatches=1, stages=(), seconds=2.0, gpu_seconds=2.0, bound=1.0, gap=1.0,
            profile={"name": "p"},
        ),
    )  # fmt: skip
    proven = replace(plan, proof=proof_of(plan, [ProofPart(bound=1.0)]))
    assert ended(proven) == ""
    assert "inputs changed" in ended(replace(proven, operators=replace(plan.operators, microbatches=2)))
    assert "no proof" in ended(plan)


def test_other_gpus_than_the_clusters_are_the_plans_cluster(tmp_path):
    """`--gpus` beside a cluster: the file is for so many, and can be read."""
    out = tmp_path / "plan.json"
    words = ["plan-operators", "llama-3.2-1b", "-c", "8xh100", "--gpus", "2", "--global-batch", "8", "--stages", "1"]
    words += ["--microbatches", "4", "--seq", "1024", "--quiet", "--out", str(out)]
    assert run(words) == 0
    assert read_plan(out).cluster.gpus == 2
    assert run([*words, "--operators-only"]) == 0
    found = read_plan(out)
    assert (found.cluster.gpus, found.cluster.name) == (2, "2xh100")
    assert sum(stage.gpus for stage in found.operators.stages) == 2
