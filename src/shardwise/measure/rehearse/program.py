"""The single-file program with a rank's share written into it, and running it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shardwise.errors import FileError, ShardwiseError
from shardwise.inputs.files import read_json
from shardwise.measure.rehearse.spec import Spec

PROGRAM = Path(__file__).parent / "shardwise_rehearse.py"
MEGATRON = Path(__file__).parent / "shardwise_rehearse_megatron.py"
_MARK = "SPEC: dict[str, Any] = {}\n"


class RehearsalError(ShardwiseError):
    """The program ended without a result."""


def program_of(spec: Spec) -> Path:
    """The program that builds a share: ours, or the one that has Megatron build it."""
    return MEGATRON if spec["style"] == "megatron" else PROGRAM


def program_text(spec: Spec) -> str:
    """The program for one rank; it needs nothing else but torch, and Megatron-Core where that builds the rank."""
    text = program_of(spec).read_text(encoding="utf-8")
    share = json.dumps(spec, separators=(", ", ": "))
    # as a literal of Python's own making: a model's name may hold quotes, and a plan's file is data
    return text.replace(_MARK, f"SPEC: dict[str, Any] = json.loads({share!a})\n", 1)


def run_program(
    spec: Spec, *, device: str, repeats: int = 3, kernels: int = 0, timeout: float = 600.0
) -> dict[str, Any]:
    """Run the program in a process of its own: it takes the GPU and gives it back."""
    with tempfile.TemporaryDirectory() as folder:
        share, out = Path(folder) / "spec.json", Path(folder) / "result.json"
        share.write_text(json.dumps(spec), encoding="utf-8")
        words = [sys.executable, str(program_of(spec)), "--spec", str(share), "--out", str(out), "--device", device]
        words += ["--repeats", str(repeats), *(["--kernels", str(kernels)] if kernels else [])]
        try:
            done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=timeout)  # noqa: S603 - our own
        except subprocess.TimeoutExpired:
            raise RehearsalError(
                f"the rehearsal took longer than {timeout:g} s; rehearse fewer micro batches"
            ) from None
        if not out.is_file():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RehearsalError(f"the rehearsal ended without a result: {last}")
        return read_result(out)


def _fault(data: dict[str, Any]) -> str:
    """What is wrong with a result; empty: nothing."""
    rank, memory, seconds = data["rank"], data.get("memory"), data.get("seconds", {"passes": 1, "optimizer": 1})
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
        return f"its rank is {rank!r}"
    for name, part, wanted in (("memory", memory, {"peak"}), ("seconds", seconds, {"passes", "optimizer"})):
        if not isinstance(part, dict) or not wanted <= part.keys():
            return f"its {name} lacks {', '.join(sorted(wanted))}"
        wrong = [key for key, value in part.items() if not _positive(value)]
        if wrong:
            return f"its {name}.{wrong[0]} is {part[wrong[0]]!r}"
    faked = data.get("faked_seconds", 0.0)
    if faked and (not _positive(faked) or faked >= seconds["passes"]):
        return f"its faked_seconds are {faked!r}, and its passes took {seconds['passes']!r}"
    words = [name for name in ("name", "device") if not isinstance(data.get(name), str)]
    words += [name for name in ("plan", "framework", "with") if not isinstance(data.get(name, ""), str)]
    return f"its {words[0]} is {data.get(words[0])!r}" if words else ""


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1e-9 <= value < 1e18


def read_result(path: str | Path) -> dict[str, Any]:
    """A result of the program, checked to be one."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("schema") != "shardwise/rehearsal/1" or "rank" not in data:
        raise FileError(path, "is no result of a rehearsal; it must come from the program that `rehearse` writes")
    if not data.get("error") and (fault := _fault(data)):
        raise FileError(path, f"is a broken result of a rehearsal: {fault}; run the program again")
    if data.get("error"):
        raise FileError(path, f"says that the rehearsal failed: {data['error']}")
    return data
