"""What the machine that will run a job has, asked of the very interpreter that will run it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

ANSWER_WITHIN = 180.0
"""Seconds: importing torch from a cold network disk takes minutes."""
_ASK = """
import importlib.metadata as metadata, importlib.util as util, json, os, sys
def version(module):
    try:
        if util.find_spec(module) is None: return None
    except Exception: return None
    names = [module, *metadata.packages_distributions().get(module.partition(".")[0], ())]
    for name in sorted(set(names), key=len, reverse=True):
        try: return metadata.version(name)
        except metadata.PackageNotFoundError: pass
    return ""
def place(module):
    spec = util.find_spec(module.partition(".")[0])
    return os.path.dirname(([*(spec.submodule_search_locations or ()), spec.origin or ""])[0]) if spec else ""
said = {"python": sys.version.split()[0], "executable": sys.executable}
said["modules"] = {module: version(module) for module in sys.argv[1:]}
said["places"] = {module: place(module) for module in sys.argv[1:]}
try:
    import torch
    said["torch"] = torch.__version__
    said["cuda"] = torch.version.cuda or torch.version.hip or ""
    said["nccl"] = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else ""
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        said.setdefault("gpus", []).append({"name": torch.cuda.get_device_name(index), "free": free, "total": total})
except Exception as error:
    said["fault"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
print("shardwise machine " + json.dumps(said))
"""


class FoundGpu(NamedTuple):
    """One GPU as its driver names it."""

    name: str
    free: float
    total: float


class FoundMachine(NamedTuple):
    """What was found. An empty text: it is not there, or does not say."""

    executable: str
    python: str
    torch: str
    cuda: str
    nccl: str
    driver: str
    gpus: tuple[FoundGpu, ...]
    modules: dict[str, str | None]
    """Version of what can be imported; none: it cannot."""
    places: dict[str, str]
    """The folder that each lies in."""
    fault: str
    """Why torch or its GPUs could not be asked."""


UNASKED = FoundMachine("", "", "", "", "", "", (), {}, {}, "")


def ask_machine(
    modules: tuple[str, ...], environment: Mapping[str, str], folder: Path, starter: str = "torchrun"
) -> FoundMachine:
    """Ask the interpreter behind what starts it, or `python3`, as the job's script would find it from its folder."""
    python = interpreter(environment, starter)
    said: dict[str, Any] = {}
    if python:
        said = _answer([python, "-c", _ASK, *modules], environment, folder)
    return FoundMachine(
        executable=said.get("executable", python), python=said.get("python", ""), torch=said.get("torch", ""),
        cuda=said.get("cuda", ""), nccl=said.get("nccl", ""), driver=_driver(environment),
        gpus=tuple(FoundGpu(**gpu) for gpu in said.get("gpus", ())), modules=said.get("modules", {}),
        places=said.get("places", {}), fault=said.get("fault", ""),
    )  # fmt: skip


def _answer(command: list[str], environment: Mapping[str, str], folder: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that will run the job
            command, env=dict(environment), cwd=folder, capture_output=True, text=True, timeout=ANSWER_WITHIN,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"fault": f"{type(error).__name__}: {error}"[:300]}
    lines = [line for line in done.stdout.splitlines() if line.startswith("shardwise machine ")]
    return json.loads(lines[-1].removeprefix("shardwise machine ")) if lines else {"fault": _last(done.stderr)}


def interpreter(environment: Mapping[str, str], starter: str = "torchrun") -> str:
    """The Python that the first line of `torchrun` or its like names, else `python3`; empty: there is none."""
    path = environment.get("PATH", os.defpath)
    script = shutil.which(starter, path=path)
    if script:
        with Path(script).open("rb") as file:
            first = file.readline(1000).decode(errors="replace").strip()
        words = first.removeprefix("#!").split()
        if first.startswith("#!") and words and "python" in words[-1]:
            return shutil.which(words[-1], path=path) or words[-1]
    return shutil.which("python3", path=path) or ""


def host_memory() -> float | None:
    """Bytes that programs can still have here, or in this container; none: the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = float(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(free, float(text)) if text.isdigit() else free


def _driver(environment: Mapping[str, str]) -> str:
    tool = shutil.which("nvidia-smi", path=environment.get("PATH", os.defpath))
    if not tool:
        return ""
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - the driver's own
    return done.stdout.split("\n", maxsplit=1)[0].strip() if done.returncode == 0 else ""


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
