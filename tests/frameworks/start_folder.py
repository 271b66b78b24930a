"""Starting an exported folder as it is, on the CPU, and reading what it prints."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import shardwise
from shardwise.frameworks.export import export
from shardwise.frameworks.folder import write_export
from shardwise.inputs.strategy import Strategy


class Run(NamedTuple):
    """What a folder's program printed."""

    parameters: int
    world: int
    losses: list[float]
    log: str


def folder_of(model, words: str, to: str, folder: Path, cluster: str = "") -> Path:
    """A plan's folder for a target."""
    strategy = Strategy.parse(words)
    plan = shardwise.plan_of(shardwise.estimate(model, cluster or f"{strategy.world}xh200", strategy))
    write_export(export(plan, to), folder)
    return folder


def started(folder: Path, *, steps: int = 5, **environment: str) -> Run:
    """Run the folder's script from elsewhere, unedited; torchrun is that of this Python, whatever PATH has."""
    (script,) = (path for path in folder.glob("*.sh") if os.access(path, os.X_OK))
    tools = folder.parent / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "torchrun").write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    (tools / "torchrun").chmod(0o755)
    given = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "STEPS": str(steps), "MASTER_PORT": str(_port()),
        "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", **environment,
    }  # fmt: skip
    done = subprocess.run(
        [str(script)], env={**os.environ, **given}, cwd="/", capture_output=True, text=True, timeout=200, check=False
    )
    log = done.stdout + done.stderr
    assert done.returncode == 0, log[-4000:]
    head = re.search(r"^shardwise parameters=(\d+) world=(\d+) device=cpu", log, re.MULTILINE)
    assert head, log[-4000:]
    rows = re.findall(r"^shardwise step=(\d+) seconds=[\d.]+ loss=([\d.]+)", log, re.MULTILINE)
    assert [int(step) for step, _ in rows] == list(range(1, steps + 1)), log[-4000:]
    return Run(int(head[1]), int(head[2]), [float(loss) for _, loss in rows], log)


def _port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])
