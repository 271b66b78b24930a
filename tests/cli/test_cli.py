from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from shardwise.cli import progress as progress_module
from shardwise.cli.main import run
from shardwise.cli.program import VERBS, group
from shardwise.cli.progress import progress
from shardwise.errors import InfeasibleError

PROGRAM = (sys.executable, "-m", "shardwise")
LLAMA = ("check", "llama-3-8b", "--cluster", "16xh100", "--tp", "2", "--pp", "2", "--global-batch", "32")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_the_table_is_there_and_helps(shardwise, verb):
    assert isinstance(importlib.import_module(VERBS[verb][0]).command, click.Command)
    result = shardwise(verb, "--help")
    assert result.code == 0
    assert "--json" in result.out


def test_help_lists_the_verbs_and_imports_none(shardwise):
    result = shardwise("--help")
    assert result.code == 0
    told = " ".join(result.out.split())
    assert all(text in told for _, text in VERBS.values())


@pytest.mark.bench
def test_help_is_quick():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(5):
        subprocess.run([*PROGRAM, "--help"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 5
    assert seconds < 0.3  # 0.15 on a quiet machine


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from shardwise.cli.main import run; run(['--help'])\n"
        "print([n for n in ('numpy', 'pydantic', 'rich', 'yaml', 'shardwise.inputs') if n in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1] == "[]"


def test_the_version(shardwise):
    assert shardwise("--version").out.startswith("shardwise, version 0.")


def test_a_valid_strategy(shardwise):
    result = shardwise(*LLAMA)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("valid: tp2 pp2 dp4 cp1 ep1 zero1 mbs1 gbs32 seq4096\n")
    assert "layers of the chunks: 16,16" in result.out


def test_all_faults_at_once_without_a_traceback(shardwise):
    result = shardwise(
        "check", "llama-3-8b", "--cluster", "16xh100", "--tp", "3", "--pp", "2", "--dtype", "fp4", "--seq", "0"
    )
    assert result.code == 2
    assert result.out == ""
    assert all(name in result.err for name in ("strategy.tp:", "strategy.dtype:", "strategy.seq:"))
    assert "Traceback" not in result.err


def test_wrong_names_of_all_inputs_are_told_together(shardwise):
    result = shardwise("check", "lama-3-8b", "--cluster", "16xh10", "-s", "tpp8")
    assert result.code == 2
    assert all(word in result.err for word in ("llama-3-8b", "h100", "did you mean tp"))


def test_what_is_missing_is_said(shardwise):
    result = shardwise("check")
    assert result.code == 2
    assert "MODEL: is missing" in result.err
    assert "--cluster: is missing" in result.err


def test_the_same_strategy_in_three_spellings(shardwise):
    ours = shardwise(*LLAMA).out
    text = shardwise("check", "llama-3-8b", "-c", "16xh100", "-s", "tp2 pp2 gbs32").out
    theirs = shardwise(
        "check", "llama-3-8b", "-c", "16xh100", "--tensor-model-parallel-size", 2, "--pipeline-model-parallel-size", 2,
        "--global-batch-size", 32, "--use-distributed-optimizer", "--bf16", "--sequence-parallel",
    ).out  # fmt: skip
    assert ours == text == theirs


def test_megatrons_spellings_are_not_shown(shardwise):
    assert "--tensor-model-parallel-size" not in shardwise("check", "--help").out


def test_flags_go_before_the_text_and_micro_batches_before_its_batch(shardwise):
    result = shardwise("check", "llama-3-8b", "-c", "16xh100", "-s", "tp2 pp2 gbs32", "--tp", 4, "--microbatches", 6)
    assert "valid: tp4 pp2 dp2 cp1 ep1 zero1 mbs1 gbs12" in result.out


def test_every_kind_of_flag(shardwise):
    result = shardwise(
        "check", "llama-3-8b", "-c", "16xh100", "--pp", 2, "--vpp", 2, "--schedule", "zb-v", "--microbatches", 8,
        "--recompute", "full:4", "--layers", "8,8,8,8", "--lora", "16:qkv", "--no-flash", "--straggler", "1.05",
        "--runtime", "zero-bubble",
    )  # fmt: skip
    assert result.code == 0, result.err
    for word in ("zb-v", "noflash", "layers=8,8,8,8", "recompute=full:4", "lora16:qkv", "straggler1.05", "gbs64"):
        assert word in result.out


def test_a_strategy_file(shardwise, tmp_path):
    path = tmp_path / "strategy.toml"
    path.write_text('tp = 2\npp = 2\nglobal_batch = 32\nrecompute = "full"\n')
    assert "recompute=full" in shardwise("check", "llama-3-8b", "-c", "16xh100", "--strategy", path).out


def test_json_for_programs(shardwise, tmp_path):
    on_screen = shardwise(*LLAMA, "--json", "-")
    answer = json.loads(on_screen.out)
    assert answer["valid"]
    assert answer["inputs"]["strategy"]["dp"] == 4
    assert shardwise(*LLAMA, "--json", tmp_path / "a.json").out.startswith("valid")
    assert (tmp_path / "a.json").read_text() == on_screen.out


def test_json_of_a_strategy_that_cannot_run(shardwise):
    result = shardwise(*LLAMA, "--zero", "3", "--json", "-")
    assert result.code == 2
    answer = json.loads(result.out)
    assert not answer["valid"]
    assert answer["faults"][0]["path"] == "strategy.zero"


@pytest.mark.parametrize("place", [".", "no/such/folder/a.json"])
def test_json_that_cannot_be_written(shardwise, place):
    result = shardwise(*LLAMA, "--json", place)
    assert result.code == 2
    assert "folder" in result.err


def test_models_and_clusters(shardwise):
    assert "llama-3-8b" in shardwise("models").out
    assert "8,030,261,248 parameters" in shardwise("models", "llama-3-8b").out
    assert json.loads(shardwise("models", "--json", "-").out)[0]["parameters"] > 0
    assert "h100" in shardwise("clusters").out
    assert "infiniband" in shardwise("clusters", "64xh100").out
    assert json.loads(shardwise("clusters", "64xh100", "--json", "-").out)["gpus"] == 64


@pytest.mark.parametrize("verb", ["models", "clusters"])
def test_an_unknown_entry(shardwise, verb):
    result = shardwise(verb, "h1000")
    assert result.code == 2
    assert "there is no" in result.err


def test_an_unknown_verb_and_option(shardwise):
    assert "did you mean models?" in shardwise("modles").err
    result = shardwise("check", "--tpp", "3")
    assert result.code == 2
    assert "See: shardwise check --help" in result.err
    assert "strategy.tp: 'x' is not a whole number" in shardwise("check", "--tp", "x").err


def test_no_colour_when_piped():
    for words in (("models",), ("--help",), ("check", "nonsense")):
        done = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False)
        assert "\x1b" not in done.stdout + done.stderr


def test_a_reader_that_goes_away_is_no_error():
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m shardwise models | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (InfeasibleError("nothing fits in 80 GB"), 1, "nothing fits"),
        (
            ZeroDivisionError("division\nby zero"),
            70,
            "ZeroDivisionError: division by zero. This is a fault of Shardwise",
        ),
    ],
)
def test_exit_codes(shardwise, monkeypatch, error, code, said):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(group, "invoke", fails)
    result = shardwise("models")
    assert result.code == code
    assert said in result.err
    assert "Traceback" not in result.err


def test_debug_shows_the_traceback(monkeypatch):
    def fails(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(group, "invoke", fails)
    with pytest.raises(ZeroDivisionError):
        run(["--debug", "models"])


def test_shell_completion():
    asked = {"_SHARDWISE_COMPLETE": "bash_complete", "COMP_WORDS": "shardwise check lla", "COMP_CWORD": "2"}
    program = Path(sys.executable).parent / "shardwise"
    done = subprocess.run([program], env={**os.environ, **asked}, capture_output=True, text=True, check=False)
    assert "plain,llama-3-8b" in done.stdout


def test_progress_tells_how_far_and_how_good(capfd, monkeypatch):
    monkeypatch.setattr(progress_module, "_PERIOD", 0)
    with progress("search", total=200) as state:
        state.live = True
        state.update(evaluated=100, best=12.5, bound=10.0)
        state.update(evaluated=50, best=13.0, bound=9.0)
    assert str(state) == "search: 150 of 200 evaluated, best 12.5, bound 10, gap 25.0%"
    assert "150 of 200" in capfd.readouterr().err
    assert not state.interrupted


@pytest.fixture
def ctrl_c():
    """Python's own handler, also where the tests were started with SIGINT ignored (a background job)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_keeps_the_best_so_far():
    with progress("search", quiet=True) as state:
        state.update(best=1.0)
        signal.raise_signal(signal.SIGINT)
    assert state.interrupted
    with pytest.raises(KeyboardInterrupt), progress("search", quiet=True):
        signal.raise_signal(signal.SIGINT)


SCRIPT = """#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --tensor-model-parallel-size 4 \\
  --pipeline-model-parallel-size 2 \\
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \\
  --ffn-hidden-size 14336 --swiglu --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 \\
  --global-batch-size 64 --bf16 --use-distributed-optimizer --sequence-parallel --vocab-size 128256 \\
  --position-embedding-type rope --normalization RMSNorm --disable-bias-linear --lr 1e-4
"""


def test_a_launch_script_gives_strategy_gpus_and_model(shardwise, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    result = shardwise("check", "--from", path, "--cluster", "h100")
    assert result.code == 0, result.err
    assert "valid: tp4 pp2 dp4 cp1 ep1 zero1 mbs1 gbs64 seq8192" in result.out
    assert "32xh100" in result.out
    assert "understood: " in result.err
    assert "ignored: " in result.err
    assert shardwise("check", "--from", path, "--cluster", "h100", "--quiet").err == ""


def test_flags_change_what_a_script_says(shardwise, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    result = shardwise(
        "check", "llama-3-8b", "--from", path, "--cluster", "64xh100", "--tp", 8, "--vpp", 2, "--microbatches", 8
    )
    assert "valid: tp8 pp2x2 dp4 cp1 ep1 zero1 mbs1 gbs32 seq8192 interleaved" in result.out
    assert "leave one out" in shardwise("check", "llama-3-8b", "--from", path, "-s", "tp8", "-c", "h100").err
