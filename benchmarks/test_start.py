"""How long the program takes to start: at most 0.15 CPU seconds for its help."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest


def cpu_seconds(*words: str) -> float:
    """The best of 7 runs, as other work on the machine only ever adds."""
    best = float("inf")
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "shardwise", *words], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


@pytest.mark.bench
@pytest.mark.parametrize(
    ("words", "limit"), [(("--help",), 0.15), (("check", "--help"), 0.3), (("clusters", "8xh100"), 0.4)]
)
def test_start(words: tuple[str, ...], limit: float) -> None:
    seconds = cpu_seconds(*words)
    print(f"shardwise {' '.join(words)}: {seconds:.3f} CPU s (limit {limit})")
    assert seconds <= limit
