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
TORCHTITAN = Path(__file__).parent / "shardwise_rehearse_torchtitan.py"
_BELOW = "# --- a rank of torchtitan's own modules "
"""What stands above it in that file is for those who check it."""
_START = 'if __name__ == "__main__":\n    sys.exit(main())\n'
_MARK = "SPEC: dict[str, Any] = {}\n"


class RehearsalError(ShardwiseError):
    """The program ended without a result."""


def program_text(spec: Spec) -> str:
    """The program for one rank; it needs nothing else but torch, and the framework whose modules build the rank."""
    text = _text(spec["style"])
    share = json.dumps(spec, separators=(", ", ": "))
    # as a literal of Python's own making: a model's name may hold quotes, and a plan's file is data
    return text.replace(_MARK, f"SPEC: dict[str, Any] = json.loads({share!a})\n", 1)


def _text(style: str) -> str:
    """Ours; Megatron's, which has a loop of its own; or ours with torchtitan's rank put in before it starts."""
    ours = (MEGATRON if style == "megatron" else PROGRAM).read_text(encoding="utf-8")
    if style != "torchtitan":
        return ours
    about, _, rank = TORCHTITAN.read_text(encoding="utf-8").partition(_BELOW)
    told, below = about.split('"""')[1], ours.split('"""', 2)[2].removesuffix(_START)
    return f'"""{told}"""{below}{_BELOW}{rank}\n\n{_START}'


def run_program(
    spec: Spec, *, device: str, repeats: int = 3, kernels: int = 0, timeout: float = 600.0
) -> dict[str, Any]:
    """Run the program in a process of its own: it takes the GPU and gives it back."""
    with tempfile.TemporaryDirectory() as folder:
        program, out = Path(folder) / "rehearse.py", Path(folder) / "result.json"
        program.write_text(program_text(spec), encoding="utf-8")
        words = [sys.executable, str(program), "--out", str(out), "--device", device]
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
