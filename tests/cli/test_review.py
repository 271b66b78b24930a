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
    return subprocess.run(["bash", "-c", script], cwd=cwd, capture_output=True, text=True, check=False, timeout=600)


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
        _, err = process.communicate(timeout=600)
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


@pytest.fixture
def plan(shardwise, tmp_path):
    """A plan file, as `estimate --out` writes it."""
    path = tmp_path / "plan.json"
    words = ("llama-3-8b", "-c", "8xh100", "-s", "tp2 zero3 mbs1 gbs8 seq2048", "--out", path)
    assert shardwise("estimate", *words).code == 0
    return path


def _valid(shardwise, *words):
    found = shardwise("check", *words)
    assert found.code == 0, found.err
    return found.out.splitlines()[0]


def test_a_plan_stands_for_model_cluster_and_strategy(shardwise, plan):
    line = "valid: tp2 pp1 dp4 cp1 ep1 zero3 mbs1 gbs8 seq2048"
    assert _valid(shardwise, plan) == line
    assert _valid(shardwise, "--from", plan) == line
    assert _valid(shardwise, "--strategy", plan) == line
    assert _valid(shardwise, "llama-3-8b", "-c", "8xh100", "-s", plan) == line
    assert "tp4 pp1 dp2" in _valid(shardwise, plan, "--tp", 4)
    assert "tp1 pp1 dp8" in _valid(shardwise, plan, "-s", "tp1 gbs8")
    assert "llama-3-8b" in shardwise("models", plan).out
    assert "8xh100" in shardwise("clusters", plan).out
    assert shardwise("estimate", plan).code == 0


@pytest.mark.parametrize("words", [["check"], ["check", "--from"], ["check", "-s"], ["models"], ["clusters"]])
def test_a_newer_plan_is_told_as_such_and_once(shardwise, plan, words):
    plan.write_text(plan.read_text().replace("shardwise/plan/2", "shardwise/plan/9"))
    found = shardwise(*words, plan)
    assert found.code == 2
    assert "written by a newer Shardwise (plan schema 9, this one reads up to 2)" in found.err
    assert found.err.count("\n") == 1


def test_who_wins_where_a_file_says_other_gpus(shardwise, plan):
    found = shardwise("check", "--from", plan, "-c", "16xh100")
    assert found.code == 0
    assert "says 8 GPUs, the cluster has 16: the cluster's are taken" in found.err


TORCHTITAN = """
[model]
name = "llama3"
flavor = "{flavor}"
[training]
local_batch_size = 2
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = {pp}
"""


@pytest.mark.parametrize(("pp", "strategy"), [(1, "tp2 pp1 dp8 cp1 ep1 zero3 mbs2 gbs16"), (2, "mbs1 gbs8")])
def test_a_plain_torchtitan_file_is_a_whole_question(shardwise, tmp_path, pp, strategy):
    path = tmp_path / "train.toml"
    path.write_text(TORCHTITAN.format(flavor="8B", pp=pp))
    assert strategy in _valid(shardwise, "--from", path, "-c", "16xh100")
    path.write_text(TORCHTITAN.format(flavor="9B", pp=pp))
    found = shardwise("check", "--from", path, "-c", "16xh100")
    assert found.code == 2
    assert "the catalog has no llama3 9B" in found.err  # the reason is told with the error


def test_a_script_without_a_batch_takes_that_of_the_cluster(shardwise, tmp_path):
    path = tmp_path / "train.sh"
    path.write_text("python pretrain_gpt.py --tensor-model-parallel-size 2 --bf16 --micro-batch-size 2\n")
    assert "dp8" in _valid(shardwise, "llama-3-8b", "--from", path, "-c", "16xh100")
    assert "gbs16" in _valid(shardwise, "llama-3-8b", "--from", path, "-c", "16xh100")


def test_the_simplest_command_answers_and_says_what_it_assumed(shardwise):
    found = shardwise("estimate", "llama-3-8b", "-c", "8xh100", "--tp", 2)
    assert found.code == 0
    assert "global_batch 4 was assumed" in found.err
    assert "gbs32" in _valid(shardwise, "llama-3-8b", "-c", "8xh100", "--pp", 2)


def test_megatrons_flags_can_be_pasted(shardwise):
    words = shlex.split(
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2 "
        "--recompute-granularity selective --recompute-modules core_attn layernorm --context-parallel-size 2 "
        "--cp-comm-type a2a --bf16 --fp8-format hybrid --use-distributed-optimizer --sequence-parallel "
        "--overlap-grad-reduce --overlap-param-gather --transformer-impl transformer_engine --global-batch-size=64"
    )
    found = shardwise("check", "-c", "64xh100", *words, "llama-3-8b")
    assert found.code == 0, found.err
    assert "pp4x4 dp4 cp2:all-to-all" in found.out
    assert "fp8 recompute=core-attention+attention-norm+mlp-norm" in found.out
    assert "ignored: --overlap-grad-reduce; --overlap-param-gather" in found.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--recompute-activations", "recompute=core-attention"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 3", "recompute=full:3"),
        ("--optimizer-cpu-offload", "offload-optimizer"),
        ("--fine-grained-activation-offloading", "offload-activations"),
        ("--transformer-impl local --use-flash-attn", "runtime=megatron-local"),
    ],
)
def test_a_flag_of_megatrons(shardwise, words, text):
    found = shardwise("check", "llama-3-8b", "-c", "8xh100", "--json", "-", *words.split())
    assert text in json.loads(found.out)["strategy"]


def test_a_model_in_megatrons_flags(shardwise):
    words = "--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --swiglu --position-embedding-type rope"
    assert "tp1" in _valid(shardwise, "-c", "8xh100", *words.split())


@pytest.mark.parametrize(
    "words",
    [
        "--tp 8 --tensor-model-parallel-size 4",
        "-s tp8 -s tp4",
        "--sp --no-sp",
        "--recompute none --recompute-granularity full",
        "--pp 2 --vpp 2 --num-layers-per-virtual-pipeline-stage 2",
    ],
)
def test_one_thing_said_in_two_ways_is_refused(shardwise, words):
    found = shardwise("check", "llama-3-8b", "-c", "8xh100", *words.split())
    assert found.code == 2
    assert "keep one" in found.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--tp abc", "strategy.tp: 'abc' is not a whole number; write for example --tp 2"),
        ("--straggler x", "strategy.straggler: 'x' is not a number"),
        ("--tp 99999999999999999999", "20 digits; write a smaller one"),
        ("--lora x", "strategy.lora: 'x' is no rank; write --lora 16"),
        ("--lora 100000", "strategy.lora.rank: 100000 is more than 4096"),
        ("--dtype fp32 --master autocast", "strategy.master: autocast computes in 16 bits"),
    ],
)
def test_a_message_names_the_field_the_limit_and_the_fix(shardwise, words, said):
    found = shardwise("check", "llama-3-8b", "-c", "8xh100", *words.split())
    assert found.code == 2
    assert said in found.err


def test_inputs_that_name_nothing(shardwise, tmp_path):
    assert "'8' names no GPU; write for example 8xh100" in shardwise("check", "llama-3-8b", "-c", "8").err
    assert "a folder without a config.json" in shardwise("models", tmp_path).err
    found = shardwise("check", "llama-3-8b", "-c", "9" * 5000 + "xh100")
    assert found.code == 2


CONFIG = {"model_type": "mixtral", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 2,
          "vocab_size": 100, "intermediate_size": 128, "num_local_experts": 4, "num_experts_per_tok": 2}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts_per_tok": 8}, "a token visits 8 of 4 experts"),
        ({"hidden_size": 4097}, "4097 is not a multiple of 32 heads"),
        ({"hidden_size": -1}, "hidden_size: -1 is too small; it must be at least 1"),
        ({"hidden_size": 0}, "hidden_size: 0 is too small; it must be at least 1"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(shardwise, tmp_path, changes, said):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    assert shardwise("models", path).code == 0
    path.write_text(json.dumps(CONFIG | changes))
    found = shardwise("models", path)
    assert found.code == 2
    assert said in found.err


def test_what_simumax_counts_itself_is_noted(shardwise, tmp_path):
    path = tmp_path / "model.json"
    path.write_text(
        '{"model_name": "m", "hidden_size": 64, "head_num": 4, "kv_head_num": 4, "head_size": 16, "layer_num": 2, '
        '"intermediate_size": 128, "vocab_size": 100, "use_swiglu": true, "param_numel": 5, "layer_act_elements": 7}'
    )
    found = shardwise("models", path)
    assert found.code == 0, found.err
    assert "follow from the rest: layer_act_elements, param_numel" in found.err


@pytest.mark.parametrize(
    "words", [("-s", "tp{}"), ("-s", "pp2x{}"), ("--layers", "{}"), ("--tp", "{}"), ("--lora", "{}")]
)
def test_a_number_without_end_on_the_command_line_is_a_short_sentence(shardwise, words):
    found = shardwise("check", "llama-3-8b", "-c", "8xh100", *(word.format("9" * 5000) for word in words))
    assert found.code == 2
    assert "unexpected" not in found.err
