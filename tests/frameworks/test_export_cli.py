"""The verb: what it writes, over what it does not write, and what it answers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from export_plans import plan_of

from shardwise.cli.export import TARGETS as OFFERED
from shardwise.cli.main import run
from shardwise.frameworks.export import TARGETS
from shardwise.frameworks.folder import MANIFEST
from shardwise.inputs.strategy import Strategy
from shardwise.plan.file import write_plan

PIPED = Strategy(tp=2, pp=4, dp=2, global_batch=16, seq=2048)


@pytest.fixture
def export(tmp_path, capfd):
    """Write a plan, export it, and give the exit code and what was printed."""

    def call(*words, strategy=PIPED):
        write_plan(plan_of(strategy), tmp_path / "plan.json")
        code = run(["export", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out"), *words])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_the_help_offers_what_the_registry_has():
    assert list(OFFERED) == [f"{name}@{version}" for name, target in TARGETS.items() for version in target.versions]


def test_files_and_answer(export, tmp_path):
    code, out, err = export("--to", "megatron", "--json", str(tmp_path / "answer.json"))
    assert (code, err) == (0, "")
    assert "for Megatron-LM, main of August 2026 (d98e8a6): tp2 pp4 dp2" in out
    folder = tmp_path / "out"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README-megatron.md", "model_config.yaml", MANIFEST, "train.env", "train.sh",
    ]  # fmt: skip
    assert (folder / "train.sh").stat().st_mode & 0o111
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["target"] == "megatron@main"
    assert answer["losses"] == []
    listed = json.loads((folder / MANIFEST).read_text())["files"]
    assert listed["train.sh"]["plan"] == answer["plan"]


def test_two_targets_share_a_folder_and_one_is_written_again(export, tmp_path):
    assert export("--to", "megatron")[0] == 0
    assert export("--to", "deepspeed", strategy=replace(PIPED, tp=1, dp=4))[0] == 0
    code, _, _ = export("--to", "megatron", strategy=replace(PIPED, tp=1, dp=4))
    assert code == 0
    assert "--tensor-model-parallel-size 1" in (tmp_path / "out" / "train.sh").read_text()
    listed = json.loads((tmp_path / "out" / MANIFEST).read_text())["files"]
    assert sorted(listed) == [
        "README-deepspeed.md", "README-megatron.md", "config.json", "deepspeed.env", "deepspeed.sh",
        "deepspeed_train.py", "ds_config.json", "model_config.yaml", "shardwise_loop.py", "shardwise_transformers.py",
        "train.env", "train.sh",
    ]  # fmt: skip


def test_foreign_and_edited_files_stay(export, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "train.sh").write_text("my own\n")
    code, _, err = export("--to", "megatron")
    assert code == 2
    assert "train.sh: was not written by Shardwise; move it away, choose another --out, or add --force" in err
    assert [path.name for path in folder.iterdir()] == ["train.sh"]
    assert export("--to", "megatron", "--force")[0] == 0
    (folder / "model_config.yaml").write_text("edited: true\n")
    (folder / "train.sh").write_text("edited\n")
    code, _, err = export("--to", "megatron")
    assert code == 2
    assert err.count("was changed since Shardwise wrote it") == 2
    assert (folder / "train.sh").read_text() == "edited\n"


def test_a_file_of_another_target_stays(export, tmp_path):
    flat = replace(PIPED, tp=1, dp=8, pp=1, zero=0)
    assert export("--to", "megatron", strategy=flat)[0] == 0
    before = (tmp_path / "out" / "train.sh").read_text()
    code, _, err = export("--to", "paddle", strategy=flat)
    assert code == 2
    assert "train.sh: belongs to the export for megatron@main; move it away, choose another --out" in err
    assert (tmp_path / "out" / "train.sh").read_text() == before
    assert not (tmp_path / "out" / "paddle.json").exists()


def test_what_a_target_needs_no_more_goes_and_edited_files_stay(export, tmp_path):
    own = replace(PIPED, zero=0, schedule="zb-h1", runtime="zero-bubble")
    table = tmp_path / "out" / "schedule.csv"
    assert export("--to", "torchtitan", strategy=own)[0] == 0
    assert table.exists()
    assert export("--to", "torchtitan", strategy=replace(own, schedule="1f1b"))[0] == 0
    assert not table.exists()
    assert export("--to", "torchtitan", strategy=own)[0] == 0
    table.write_text("edited")
    assert export("--to", "torchtitan", strategy=replace(own, schedule="1f1b"))[0] == 0
    assert table.read_text() == "edited"


def test_another_programs_list_is_not_ours(export, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / MANIFEST).write_text('{"schema": "other"}')
    code, _, err = export("--to", "megatron")
    assert (code, "is not a list of ours" in err) == (2, True)


def test_losses_are_notes_and_strict_refuses(export, tmp_path):
    v = replace(PIPED, vpp=2, schedule="zb-v", placement="v", runtime="zero-bubble")
    code, out, err = export("--to", "megatron", strategy=v)
    assert code == 0
    assert "interleaved" in out
    assert "note: not as planned: strategy.schedule: zb-v (v placement) is not known here" in err
    assert "by the estimate)" in err
    assert "as written  " in out
    code, _, err = export("--to", "torchtitan@main", "--strict", strategy=replace(PIPED, cp=2, dp=1))
    assert code == 1
    assert "cannot say all of this plan (--strict)" in err
    assert not (tmp_path / "out" / "shardwise_config.py").exists()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--to", "megatorn"], 2, "there is no target named 'megatorn'; did you mean megatron"),
        (["--to", "mindformers@9"], 2, "no version of MindFormers named '9'"),
        (["--to", "megatron", "--out", "/dev/null/x"], 2, "choose another"),
    ],
)
def test_bad_words(export, words, code, text):
    found, _, err = export(*words)
    assert found == code
    assert text in err


@pytest.mark.usefixtures("export")
def test_a_schedule_is_for_torch_only(tmp_path, capfd):
    (tmp_path / "s.csv").write_text("0F0,0B0\n")
    assert run(["export", str(tmp_path / "s.csv"), "--to", "megatron"]) == 2
    assert "is a schedule, not a plan" in capfd.readouterr().err


def test_a_bare_schedule_is_guarded_too(tmp_path, capfd):
    (tmp_path / "s.csv").write_text("0F0,0B0\n")
    words = ["export", str(tmp_path / "s.csv"), "--to", "torch-pipelining", "--out", str(tmp_path / "out")]
    assert run(words) == 0
    assert run(words) == 0
    (tmp_path / "out" / "run_pipeline.py").write_text("mine now\n")
    capfd.readouterr()
    assert run(words) == 2
    assert "run_pipeline.py: was changed since Shardwise wrote it" in capfd.readouterr().err
    assert (tmp_path / "out" / "run_pipeline.py").read_text() == "mine now\n"
    assert run([*words, "--force"]) == 0
    listed = json.loads((tmp_path / "out" / MANIFEST).read_text())["files"]
    assert sorted(listed) == ["run_pipeline.py", "schedule.csv"]


def test_a_file_that_goes_is_told(export, tmp_path):
    assert export("--to", "megatron", "--launcher", "slurm")[0] == 0
    code, out, _ = export("--to", "megatron")
    assert code == 0
    assert f"removed {tmp_path / 'out' / 'train.sbatch'}, of the export before" in out
