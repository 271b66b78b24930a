"""What starts an export: the script from any folder, Slurm's and Kubernetes' jobs that call it."""

from __future__ import annotations

import subprocess

import export_readers as readers
import pytest
import yaml
from export_plans import plan_of

from shardwise.errors import InputError
from shardwise.frameworks.export import export
from shardwise.inputs.strategy import Strategy

PLAN = plan_of(Strategy(tp=2, pp=4, dp=2, global_batch=16, seq=2048))


def made(launcher):
    return readers.texts(export(PLAN, "megatron", launcher=launcher))


def test_one_file_starts_the_job():
    assert [file.name for file in export(PLAN, "megatron").files if file.program] == ["train.sh"]


def test_the_script_runs_from_any_folder_and_heeds_the_environment(tmp_path):
    words = readers.run_script(made("torchrun"), "train.sh", tmp_path, "torchrun")
    assert words[words.index("--train-iters") + 1] == "20"
    assert words[words.index("--nnodes") + 1] == "2"
    told = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "STEPS": "7",
        "NODE_RANK": "1",
        "MASTER_ADDR": "head",
        "MEGATRON": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", tmp_path / "train.sh", "--lr", "3"], capture_output=True, text=True, env=told, check=True
    )
    words = done.stdout.splitlines()
    assert words[words.index("--train-iters") + 1] == "7"
    assert words[words.index("--master-addr") + 1] == "head"
    assert words[-2:] == ["--lr", "3"]


def test_slurm_tells_each_node_its_rank_and_where_to_meet(tmp_path):
    files = made("slurm")
    assert "#SBATCH --nodes=2\n" in files["train.sbatch"]
    readers.run_script(files, "train.sh", tmp_path, "torchrun")
    (tmp_path / "train.sh").chmod(0o755)
    for name, text in {"scontrol": "echo head\necho other", "srun": 'shift; SLURM_NODEID=1 "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    told = {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_ID": "12", "SLURM_NNODES": "2",
    }  # fmt: skip
    done = subprocess.run(["bash", tmp_path / "train.sbatch"], capture_output=True, text=True, env=told, check=True)
    words = done.stdout.splitlines()
    given = {
        name: words[words.index(f"--{name}") + 1] for name in ("node-rank", "master-addr", "master-port", "nnodes")
    }
    assert given == {"node-rank": "1", "master-addr": "head", "master-port": "6012", "nnodes": "2"}


def test_kubernetes_starts_a_pod_for_each_node():
    service, job = yaml.safe_load_all(made("kubernetes")["train.yaml"])
    assert job["spec"]["completions"] == 2
    pod = job["spec"]["template"]["spec"]
    values = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    assert values["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert values["STEPS"] == "20"
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}


def test_kubernetes_says_where_steps_and_image_go():
    told = export(PLAN, "megatron", launcher="kubernetes")
    assert any("train.yaml: put your image and the claim" in note for note in told.by_hand)
    assert "STEPS of train.yaml at 100 trains 100 steps" in readers.texts(told)["README-megatron.md"]


def test_another_launcher_is_refused():
    with pytest.raises(InputError, match="no launcher named 'mpirun'"):
        export(PLAN, "megatron", launcher="mpirun")
