"""A part of the bad inputs of `benchmarks/bad_inputs.py`, spread over all verbs and files; `make bench` runs all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "bad_inputs.py"


def test_a_sample_of_bad_inputs():
    done = subprocess.run([sys.executable, PROGRAM, "--sample", "200"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
