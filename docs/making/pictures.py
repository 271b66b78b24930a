"""Pictures of the pages, drawn by our own commands."""

from __future__ import annotations

import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from shardwise.cli.main import run

PICTURES = {
    "pipeline": "schedule auto --pp 4 --vpp 2 --microbatches 8 --costs 10,11,9 --hop 1 --memory-limit 1p",
    "one-f-one-b": "schedule 1f1b --pp 4 --microbatches 8 --costs 10,11,9",
    "zero-bubble": "schedule zb-h1 --pp 4 --microbatches 8 --costs 10,11,9",
    "v": "schedule zb-v --pp 4 --microbatches 8 --costs 5,5.5,4.5",
}
"""Name -> the command that draws it with --svg."""


def draw(folder: Path) -> None:
    """Draw all pictures anew."""
    folder.mkdir(exist_ok=True)
    for name, command in PICTURES.items():
        told = StringIO()
        with redirect_stdout(told):
            code = run([*shlex.split(command), "--quiet", "--svg", str(folder / f"{name}.svg")])
        if code:
            raise RuntimeError(f"shardwise {command}: exit code {code}")
