"""Pictures of the pages, drawn by our own program."""

from __future__ import annotations

import re
import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import shardwise
from making.diagrams import DIAGRAMS
from shardwise.cli.main import run

PICTURES = {
    "pipeline": "schedule auto --pp 4 --vpp 2 --microbatches 8 --costs 10,11,9 --hop 1 --memory 1p",
    "one-f-one-b": "schedule 1f1b --pp 4 --microbatches 8 --costs 10,11,9",
    "zero-bubble": "schedule zb-h1 --pp 4 --microbatches 8 --costs 10,11,9",
    "v": "schedule zb-v --pp 4 --microbatches 8 --costs 5,5.5,4.5",
}
"""Name -> the command that draws it with --svg."""
EXPERTS = "estimate mixtral-8x7b -c 64xh100 -s 'tp2 ep8 pp4x2 gbs64 seq4096 recompute=full:2'"
INSIDE = {"iteration": f"{EXPERTS} --svg", "pass": f"{EXPERTS} --operators"}
"""The same, the option that takes the file being the last word."""
NOTEBOOK = ("llama-3-70b", "64xh100", "tp4 pp4 dp4 mbs1 gbs1024 seq8192 layers=19,21,21,19")
"""The estimate whose bars are shown."""


def draw(folder: Path) -> None:
    """Draw all pictures anew."""
    folder.mkdir(exist_ok=True)
    for name, command in {**{name: f"{text} --svg" for name, text in PICTURES.items()}, **INSIDE}.items():
        with redirect_stdout(StringIO()):
            code = run([*shlex.split(command), str(folder / f"{name}.svg"), "--quiet"])
        if code:
            raise RuntimeError(f"shardwise {command}: exit code {code}")
    for name, drawn in {"notebook": _bars, **DIAGRAMS}.items():
        (folder / f"{name}.svg").write_text(drawn(), encoding="utf-8")


def _bars() -> str:
    """The drawing that a notebook shows, on white."""
    model, cluster, strategy = NOTEBOOK
    found = shardwise.estimate(
        shardwise.load_model(model), shardwise.load_cluster(cluster), shardwise.Strategy.parse(strategy)
    )
    drawn = re.search(r"<svg.*</svg>", found._repr_html_(), re.DOTALL)
    if drawn is None:
        raise RuntimeError("the estimate drew nothing")
    return drawn[0].replace('style="', 'style="background:white;', 1) + "\n"
