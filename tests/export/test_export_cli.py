"""The verb: what it writes, over what it does not write, and what it answers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from export_plans import plan_of

from shardwise.cli.export import TARGETS as OFFERED
from shardwise.cli.main import run
from shardwise.export.folder import MANIFEST
from shardwise.export.registry import TARGETS
from shardwise.inputs.plan_file import write_plan
from shardwise.inputs.strategy import Strategy

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
    assert sorted(path.name for path in folder.iterdir()) == ["model_config.yaml", MANIFEST, "train.sh"]
    assert (folder / "train.sh").stat().st_mode & 0o111
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["target"] == "megatron@main"
    assert answer["losses"] == []
    listed = json.loads((folder / MANIFEST).read_text())["files"]
    assert listed["train.sh"]["plan"] == answer["plan"]


def test_two_targets_share_a_folder_and_one_is_written_again(export, tmp_path):
    assert export("--to", "megatron")[0] == 0
    assert export("--to", "deepspeed")[0] == 0
    code, _, _ = export("--to", "megatron", strategy=replace(PIPED, tp=1, dp=4))
    assert code == 0
    assert "--tensor-model-parallel-size 1" in (tmp_path / "out" / "train.sh").read_text()
    listed = json.loads((tmp_path / "out" / MANIFEST).read_text())["files"]
    assert sorted(listed) == ["ds_config.json", "model_config.yaml", "train.sh"]


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
    assert "note: not as planned: as written it is estimated at" in err
    code, _, err = export("--to", "torchtitan@main", "--strict", strategy=replace(PIPED, cp=2, dp=1))
    assert code == 1
    assert "cannot say all of this plan (--strict)" in err
    assert not (tmp_path / "out" / "shardwise_config.py").exists()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--to", "megatorn"], 2, "there is no target named 'megatorn'; did you mean megatron?"),
        (["--to", "mindformers@9"], 2, "no version of MindFormers named '9'"),
        (["--to", "deepspeed", "--out", "/dev/null/x"], 2, "choose another"),
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
