"""What a hostile reviewer found: each of it stays mended."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = f"{shlex.quote(sys.executable)} -m shardwise"


def shell(line, cwd):
    """Run a line of a shell, `shardwise` being ours; the exit code is that of the first command of a pipe."""
    script = f'shardwise() {{ {PROGRAM} "$@"; }}; {line}; exit ${{PIPESTATUS[0]}}'
    return subprocess.run(["bash", "-c", script], cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


def test_a_reader_that_leaves_changes_neither_the_exit_code_nor_the_files(tmp_path):
    fits = shell("shardwise models --json m.json | head -1", tmp_path)
    assert (fits.returncode, fits.stderr) == (0, "")
    assert json.loads((tmp_path / "m.json").read_text())
    line = "shardwise estimate llama-3-70b -c 8xh100 -s gbs8 --json e.json --out p.json -q | head -1"
    assert shell(line, tmp_path).returncode == 1  # the answer: it does not fit
    assert json.loads((tmp_path / "e.json").read_text())["predictions"]
    assert json.loads((tmp_path / "p.json").read_text())["schema"]
    assert shell("shardwise --help | true", tmp_path).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", ["models", "--help", "clusters h100"])
def test_a_full_disk_is_a_sentence(tmp_path, words):
    found = shell(f"shardwise {words} > /dev/full", tmp_path)
    assert found.returncode == 2
    assert found.stderr.startswith("error: standard output")
    assert found.stderr.count("\n") == 1


def test_closed_streams_are_quiet(tmp_path):
    assert shell("shardwise models >&-", tmp_path).returncode == 0
    assert shell("shardwise models nothing-like-it >&- 2>&-", tmp_path).returncode == 2


def test_no_verb_at_all_is_a_question_for_help(shardwise):
    found = shardwise()
    assert found.code == 0
    assert "Verbs" in found.out
    assert found.err == ""


def test_an_interruption_while_loading_is_no_traceback():
    for delay in (0.03, 0.06, 0.1):
        process = subprocess.Popen(
            [sys.executable, "-c", "from shardwise.cli.main import main; print(1, flush=True); main(['models'])"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert "Traceback" not in err
        assert process.returncode in {0, 130}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--json", ""], "--json: is empty"),
        (["--json", "no/such/x.json"], "does not exist"),
        (["--json", "."], "is a folder"),
    ],
)
def test_a_target_that_cannot_be_written_is_told_before_the_work(shardwise, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    found = shardwise("models", *words)
    assert (found.code, found.out) == (2, "")
    assert said in found.err


def test_a_plan_does_not_go_to_a_file_called_dash(shardwise, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = shardwise("estimate", "llama-3-8b", "-c", "8xh100", "-s", "tp2 gbs8", "--out", "-")
    assert found.code == 2
    assert "--out: - is no file" in found.err
    assert not list(tmp_path.iterdir())


def test_a_name_cannot_move_the_cursor_or_turn_the_text(shardwise, tmp_path):
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
              "vocab_size": 100, "intermediate_size": 128, "_name_or_path": "a\u202e\x1b[31mb"}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = shardwise("models", tmp_path / "config.json")
    assert found.code == 0, found.err
    assert "\x1b" not in found.out
    assert "\u202e" not in found.out
    assert r"a\u202e\x1b[31mb" in found.out
