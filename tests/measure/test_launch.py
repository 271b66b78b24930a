"""Plans as jobs: real processes, with a stand-in for the framework and its GPUs; the launcher is what is tested."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import shardwise
from shardwise.cli.main import run
from shardwise.inputs import lookup
from shardwise.inputs.calibrations import load_calibration
from shardwise.measure.launch.failure import cause_of, failure
from shardwise.measure.launch.process import run_batch

LINE = "mbs2 gbs8 seq2048 runtime=megatron"
TORCH = """
    __version__ = "2.11.0"
    class version: cuda, hip = "13.0", None
    class cuda:
        class nccl: version = staticmethod(lambda: (2, 28, 3))
        device_count = staticmethod(lambda: {gpus})
        mem_get_info = staticmethod(lambda index: ({free}, 150_000_000_000))
        get_device_name = staticmethod(lambda index: "{name}")
    class distributed: is_nccl_available = staticmethod(lambda: True)
"""
JOB = """
    import os, sys, time
    seconds, die, sleep = {seconds}, {die}, {sleep}
    print("using world size: 1, data-parallel size: 1, ")
    for step in range(1, int(os.environ["STEPS"]) + 1):
        if step > die > 0:
            print("[rank0]: Traceback (most recent call last):")
            print("[rank0]: {error}")
            print("{end}")
            print("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
            print("============================================================")
            sys.exit(1)
        took = seconds * (9 if step == 1 else 1 + 0.002 * (step % 3))
        batch = {batch}
        print(f" iteration {{step:8d}}/{{os.environ['STEPS']:>8}} | elapsed time per iteration (ms): "
              f"{{1e3 * took:.1f}} | global batch size: {{batch:5d}} | lm loss: 1.08E+01 |", flush=True)
        if step == 1:
            print("[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.00 | max allocated: 24000.00 | "
                  "reserved: 1.00 | max reserved: 26000.00", flush=True)
        time.sleep(sleep)
"""


@pytest.fixture
def here(tmp_path, monkeypatch, capfd):
    """A machine with a framework: `job` says what torchrun does, `gpus` what torch sees, `module` what is installed."""
    site, tools = tmp_path / "site", tmp_path / "bin"
    site.mkdir(), tools.mkdir()

    def job(seconds=0.33, die=0, sleep=0.0, error="RuntimeError: the run broke", batch=8, end=""):
        told = JOB.format(seconds=seconds, die=die, sleep=sleep, error=error, batch=batch, end=end)
        (tools / "torchrun").write_text(f"#!{sys.executable}\n{textwrap.dedent(told)}")
        (tools / "torchrun").chmod(0o755)

    def gpus(count=1, free=149e9, name="NVIDIA H200"):
        (site / "torch.py").write_text(textwrap.dedent(TORCH.format(gpus=count, free=int(free), name=name)))

    def module(name, version=""):
        path = site / name.replace(".", "/")
        path.mkdir(parents=True, exist_ok=True)
        (path / "__init__.py").touch()
        if version:
            info = site / f"{name}-{version}.dist-info"
            info.mkdir(exist_ok=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            (info / "top_level.txt").write_text(f"{name}\n")

    def call(*words):
        code = run([str(word) for word in words])
        out, err = capfd.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    for name in ("megatron.core", "transformer_engine", "fused_weight_gradient_mlp_cuda"):
        module(name)
    (site / "pretrain_gpt.py").touch()
    job(), gpus()
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("SHARDWISE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MASTER_PORT", raising=False)
    monkeypatch.chdir(tmp_path)
    shardwise.write_plan(shardwise.plan_of(shardwise.estimate("llama-3.2-1b", "1xh200", LINE)), "plan.json")
    yield SimpleNamespace(
        job=job, gpus=gpus, module=module, call=call, site=site, tools=tools, home=tmp_path / "home", path=tmp_path
    )
    load_calibration.cache_clear()
    lookup.forget()


def test_a_run_is_measured_compared_kept_and_learnt(here):
    told = here.call("launch", "plan.json", "--to", "megatron", "--learn", "ours", "--json", "answer.json")
    assert told.code == 0, told.err
    answer = json.loads(Path("answer.json").read_text())
    assert answer["measured"]["warm_up"] == 1
    assert answer["measured"]["steps"] == 11
    assert answer["measured"]["seconds"] == pytest.approx(0.3307, rel=1e-3)
    lines = {line["what"]: line for line in answer["lines"]}
    assert lines["peak allocated"]["measured"] == 24000 * 2**20
    assert lines["peak reserved"]["measured"] == 26000 * 2**20
    assert "step 12 of 12" in told.err
    again = shardwise.estimate("llama-3.2-1b", "1xours", LINE)
    assert again.iteration_seconds == pytest.approx(0.3307, rel=0.01)
    assert "ours learnt from a run of megatron: llama-3.2-1b" in again.calibration
    other = [
        shardwise.estimate("llama-3.2-1b", f"1x{gpu}", "zero2 gbs8 runtime=torchtitan") for gpu in ("ours", "h200")
    ]
    assert other[0].iteration_seconds == other[1].iteration_seconds
    measured = Path("plan.megatron/run-001/measured.json")
    found = here.call("validate", "--data", measured)
    assert found.code == 0, found.err
    assert "1 predicted, 0 skipped" in found.out
    here.job(seconds=0.332)
    told = here.call("launch", "plan.json", "--to", "megatron", "--learn", "ours")
    assert Path("plan.megatron/run-002/train.log").is_file()
    assert "learnt from 2 runs" in shardwise.estimate("llama-3.2-1b", "1xours", LINE).calibration


def test_python_and_the_terminal_launch_alike(here):
    found = shardwise.launch("plan.json", "megatron", steps=6)
    told = here.call("launch", "plan.json", "--to", "megatron", "--steps", 6, "--json", "-")
    answer = json.loads(told.out)
    assert [line["measured"] for line in answer["lines"]] == [line.measured for line in found.lines]
    assert [line["predicted"] for line in answer["lines"]] == [line.predicted for line in found.lines]


def test_a_learnt_gpu_goes_on_learning_under_its_name(here):
    told = here.call("launch", "plan.json", "--to", "megatron", "--steps", 6, "--learn")
    assert "learnt: --cluster 8xour-h200" in told.out
    shardwise.write_plan(shardwise.plan_of(shardwise.estimate("llama-3.2-1b", "1xour-h200", LINE)), "again.json")
    here.job(seconds=0.36)
    told = here.call("launch", "again.json", "--to", "megatron", "--steps", 6, "--learn")
    assert told.code == 0, told.err
    assert "learnt: --cluster 8xour-h200" in told.out
    assert "learnt from 2 runs" in shardwise.estimate("llama-3.2-1b", "1xour-h200", LINE).calibration
    told = here.call("launch", "plan.json", "--to", "megatron", "--learn", "h200")
    assert "is its own base 'h200'" in told.err
    assert not Path("plan.megatron/run-002").exists()


def test_all_that_is_missing_is_told_at_once_and_nothing_is_written(here):
    (here.site / "transformer_engine" / "__init__.py").unlink()
    (here.site / "transformer_engine").rmdir()
    here.gpus(count=0)
    told = here.call("launch", "plan.json", "--to", "megatron")
    assert told.code == 2
    assert "nothing was started: 2 faults" in told.err
    assert "transformer_engine: cannot be imported by" in told.err
    assert "plan for megatron-local" in told.err
    assert "GPUs: torch sees none" in told.err
    assert not Path("plan.megatron").exists()
    (here.site / "pretrain_gpt.py").unlink()
    told = here.call("launch", "plan.json", "--to", "megatron")
    assert "MEGATRON: pretrain_gpt.py is not in" in told.err
    (here.tools / "torchrun").unlink()
    assert "pip install torch" in here.call("launch", "plan.json", "--to", "megatron").err


def test_another_version_of_the_framework(here):
    line = "mbs2 gbs8 seq2048 runtime=deepspeed"
    shardwise.write_plan(shardwise.plan_of(shardwise.estimate("llama-3.2-1b", "1xh200", line)), "ds.json")
    here.module("deepspeed", "0.14.2"), here.module("transformers")
    told = here.call("launch", "ds.json", "--to", "deepspeed", "--dry-run")
    assert told.code == 2
    assert "deepspeed: is 0.14.2 here, and the files are for DeepSpeed 0.19.8" in told.err
    assert "pip install 'deepspeed==0.19.*'" in told.err


def test_the_gpu_is_the_plans_and_has_room(here):
    here.gpus(free=3e9)
    told = here.call("launch", "plan.json", "--to", "megatron", "--dry-run")
    assert "memory: GPU 0 has 2.79 GiB free" in told.err
    here.gpus(name="NVIDIA A100-SXM4-80GB")
    told = here.call("launch", "plan.json", "--to", "megatron", "--dry-run")
    assert "GPU: is NVIDIA A100-SXM4-80GB" in told.err
    assert "--cluster 1xa100" in told.err


def test_a_port_that_is_taken(here, monkeypatch):
    with socket.socket() as one:
        one.bind(("", 0))
        one.listen()
        port = str(one.getsockname()[1])
        monkeypatch.setenv("MASTER_PORT", port)
        told = here.call("launch", "plan.json", "--to", "megatron", "--dry-run")
        assert f"MASTER_PORT: is {port}, which another program uses; leave it out, or set" in told.err
    monkeypatch.setenv("MASTER_PORT", "none")
    assert "give a port" in here.call("launch", "plan.json", "--to", "megatron", "--dry-run").err


def test_a_dry_run_writes_and_starts_nothing(here):
    told = here.call("launch", "plan.json", "--to", "megatron", "--dry-run")
    assert told.code == 0, told.err
    assert "would start  bash train.sh  in plan.megatron" in told.out
    assert not Path("plan.megatron").exists()


def test_a_job_that_dies_at_step_3(here):
    here.job(die=3)
    told = here.call("launch", "plan.json", "--to", "megatron", "--learn", "ours")
    assert told.code == 3
    assert "the job died after step 3 with exit code 1: RuntimeError: the run broke" in told.err
    assert "nothing was stored" in told.err
    assert not here.home.exists()
    assert not Path("plan.megatron/run-001/measured.json").exists()
    assert Path("plan.megatron/run-001/train.log").is_file()


def test_a_job_that_runs_out_of_memory_names_a_smaller_plan(here):
    here.job(
        die=2,
        error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of "
        "139.80 GiB of which 1.00 GiB is free.",
    )
    told = here.call("launch", "plan.json", "--to", "megatron")
    assert told.code == 3
    assert "the GPU lacked 2.00 GiB; predicted were" in told.err
    assert "the nearest that needs less: " in told.err


@pytest.mark.parametrize(("number", "words"), [(9, "SIGKILL\nthe system killed it"), (7, "SIGBUS\nmostly /dev/shm")])
def test_a_process_that_a_signal_ends(here, number, words):
    here.job(
        die=3,
        error="torch.distributed.DistNetworkError: Connection closed by peer",
        end=f"E1116 12:00:00 multiprocessing/api.py:984] failed (exitcode: -{number}) local_rank: 0 (pid: 7)",
    )
    told = here.call("launch", "plan.json", "--to", "megatron")
    assert told.code == 3
    assert f"died after step 3 with exit code 1: a process was killed by {words}" in told.err


def test_an_exception_explains_what_a_signal_ends_later():
    lines = ["[rank0]: KeyError: 'rope'", "failed (exitcode: 1) local_rank: 0", "Signal 15 (SIGTERM) received by PID 8"]
    told = shardwise.estimate("llama-3.2-1b", "1xh200", LINE)
    assert "KeyError: 'rope'" in str(failure(1, 2, lines, told, "log"))
    assert "killed by SIGTERM" in str(failure(143, 2, ["step 2"], told, "log"))


def test_the_cause_is_found_among_the_launchers_noise():
    noise = [
        "[rank1]: torch.distributed.DistNetworkError: Connection reset by peer",
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "train.py", line 3, in <module>',
        "[rank0]: KeyError: 'rope'",
        "E1116 12:00:00 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 0",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    ]
    assert cause_of(noise[:3]) == "torch.distributed.DistNetworkError: Connection reset by peer"
    noise.insert(4, "[rank1]: RuntimeError: NCCL error: remote process exited")
    assert cause_of([*noise[:3], "[rank0]: ValueError: no", *noise[4:]]) == "ValueError: no"
    assert cause_of(["pretrain_gpt.py: error: unrecognized arguments: --x", "======", ""]).endswith("arguments: --x")
    assert cause_of([]) == "it printed nothing"
    report = [
        "the plan is for 4 processes and 2 were started; set GPUS_PER_NODE",
        "E1116 14:34:46.1 1 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 0",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "train.py FAILED",
        "  host      : localhost",
    ]
    assert cause_of(report) == report[0]


def test_a_log_that_cannot_be_written_ends_the_job(here):
    """A device that is always full stands where the log would be."""
    here.job(sleep=0.2)
    place = Path("plan.megatron/run-001")
    made = Path.mkdir

    def mkdir(self, *args, **kwargs):
        made(self, *args, **kwargs)
        if self.name == place.name:
            (self / "train.log").symlink_to("/dev/full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", mkdir)
        told = here.call("launch", "plan.json", "--to", "megatron", "--learn", "ours", "--steps", 100)
    assert told.code == 2
    assert "cannot be written: No space left on device; the job was ended, nothing was stored" in told.err
    assert not here.home.exists()


def test_a_run_of_something_else_is_not_compared(here):
    here.job(batch=16)
    told = here.call("launch", "plan.json", "--to", "megatron", "--learn", "ours")
    assert told.code == 2
    assert "is the log of another run" in told.err
    assert "global_batch: is 16 in the log and 8 in the plan" in told.err
    assert not here.home.exists()


SIZES = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_size": 16, "ffn": 128, "vocab": 512}
TINY = replace(shardwise.load_model("llama-3.2-1b"), name="tiny", **SIZES)


def write_tiny(line=LINE):
    shardwise.write_plan(shardwise.plan_of(shardwise.estimate(TINY, "1xh200", line)), "plan.json")


def test_cpus_only_show_that_it_starts(here):
    write_tiny()
    told = here.call("launch", "plan.json", "--to", "megatron", "--cpu", "--steps", 3)
    assert told.code == 0, told.err
    assert "3 steps on CPUs: it starts; nothing is compared or learnt" in told.err
    assert "1 step on CPUs" in here.call("launch", "plan.json", "--to", "megatron", "--cpu", "--steps", 1).err
    assert "predicted" not in told.out
    assert here.call("launch", "plan.json", "--to", "megatron", "--cpu", "--learn").code == 2


def test_what_does_not_start_on_cpus_is_said(here):
    write_tiny("zero2 mbs2 gbs8 seq2048 runtime=torchtitan")
    here.module("torchtitan", "0.2.2")
    told = here.call("launch", "plan.json", "--to", "torchtitan", "--cpu", "--dry-run")
    assert told.code == 2
    assert "--cpu: torchtitan imports triton and asks for a GPU" in told.err
    large = shardwise.estimate("llama-3-405b", "1152xh200", "tp8 pp9 gbs128 seq4096")
    shardwise.write_plan(shardwise.plan_of(large), "plan.json")
    told = here.call("launch", "plan.json", "--to", "megatron", "--cpu", "--dry-run")
    assert "memory: 1152 processes would keep" in told.err


@pytest.mark.parametrize(
    ("target", "packages"), [("paddle", "paddlenlp paddle"), ("mindformers", "mindformers mindspore")]
)
def test_frameworks_without_torch_are_asked_for_their_own(here, target, packages):
    here.gpus(count=0)
    told = here.call("launch", "plan.json", "--to", target, "--dry-run")
    assert told.code == 2
    assert all(f"{package}: cannot be imported by" in told.err for package in packages.split())
    assert "torch" not in told.err


def test_a_folder_that_only_seems_writable(here):
    told = here.call("launch", "plan.json", "--to", "megatron", "--out", "/proc/foo", "--dry-run")
    assert "--out: /proc may not be written" in told.err


@pytest.mark.parametrize("cpu", [False, True])
def test_ctrl_c_ends_the_job_and_keeps_what_was_measured(here, cpu):
    write_tiny()
    here.job(sleep=0.1)
    words = [sys.executable, "-m", "shardwise", "launch", "plan.json", "--to", "megatron", "--steps", "1000"]
    words += ["--cpu"] if cpu else []
    source = str(Path(shardwise.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": f"{source}:{here.site}"}
    job = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert job.stderr is not None
    seen = 0
    while seen < 6:
        seen += "step " in job.stderr.readline()
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 130
    assert re.search(r"interrupted after step \d+ of 1000", err)
    if not cpu:
        assert "peak allocated" in out
        assert "what was measured until then is shown" in err
    assert Path("plan.megatron/run-001/measured.json").is_file() is not cpu
    time.sleep(0.1)
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(here.tools / "torchrun") not in left


def test_slurm_is_waited_for_and_its_log_read(here):
    sbatch = f"""#!{sys.executable}
import subprocess, sys
print("4711", flush=True)
log = next(word.partition("=")[2] for word in sys.argv if word.startswith("--output="))
with open(log, "w") as file:
    sys.exit(subprocess.run(["bash", "train.sh"], stdout=file, stderr=subprocess.STDOUT).returncode)
"""
    told = here.call("launch", "plan.json", "--to", "megatron", "--launcher", "slurm")
    assert "sbatch is not on PATH" in told.err
    (here.tools / "sbatch").write_text(sbatch)
    (here.tools / "sbatch").chmod(0o755)
    told = here.call("launch", "plan.json", "--to", "megatron", "--launcher", "slurm", "--json", "-")
    assert told.code == 0, told.err
    assert json.loads(told.out)["measured"]["steps"] == 11
    here.job(die=3)
    told = here.call("launch", "plan.json", "--to", "megatron", "--launcher", "slurm")
    assert told.code == 3
    assert "after step 3" in told.err
    (here.tools / "sbatch").write_text("#!/bin/bash\necho 'sbatch: error: invalid partition specified: gpu'; exit 1\n")
    told = here.call("launch", "plan.json", "--to", "megatron", "--launcher", "slurm")
    assert "died before its first step with exit code 1: sbatch: error: invalid partition" in told.err


def test_ctrl_c_cancels_a_job_of_slurms(here):
    waiting = f"#!{sys.executable}\nimport time\nprint('4711', flush=True)\ntime.sleep(60)\n"
    cancel = f"#!{sys.executable}\nimport sys\nopen('cancelled', 'w').write(sys.argv[1])\n"
    for name, text in (("sbatch", waiting), ("scancel", cancel)):
        (here.tools / name).write_text(text)
        (here.tools / name).chmod(0o755)
    log = here.path / "job.log"
    log.write_text("shardwise step=1 seconds=1\n")

    def read(piece):
        if piece:
            raise KeyboardInterrupt

    ended = run_batch(["sbatch"], here.path, os.environ, log, read)
    assert ended.interrupted
    assert (here.path / "cancelled").read_text() == "4711"


@pytest.mark.torch
def test_a_real_folder_starts_on_cpus(tmp_path, monkeypatch):
    """PyTorch's pipelining, two processes, unedited: nothing stands in for the job here."""
    torch = pytest.importorskip("torch")
    tools = Path(torch.__file__).parents[4] / "bin"
    if not (tools / "torchrun").is_file():
        pytest.skip(f"no torchrun beside torch ({tools})")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    plan = shardwise.plan_of(shardwise.estimate(TINY, "2xh200", "pp2 mbs1 gbs4 seq64"))
    found = shardwise.launch(plan, "torch-pipelining", cpu=True, steps=3, out="run")
    assert [step.step for step in found.steps] == [1, 2, 3]
    assert found.steps[0].loss == pytest.approx(6.24, abs=0.2)  # of 512 words, little learnt
    assert not found.lines
