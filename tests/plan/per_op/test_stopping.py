"""Searches that are stopped: by their time limit, by Ctrl-C, in a process of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shardwise.plan.per_op.alleviate import Budget, alleviate
from shardwise.plan.per_op.deadline import Deadline, OutOfTimeError
from shardwise.plan.per_op.deep import search_deep
from shardwise.plan.per_op.search import Search, search
from shardwise.plan.per_op.solve import solve

from .test_engines import middling


def test_without_time_the_balanced_start_is_the_answer_and_the_bound_holds():
    asked = middling(1)
    best = search(asked)
    for method in ("exact", "alleviate", "auto"):
        found = solve(asked, method, limit=0.0)
        assert found.cost.fits(asked.memory)
        assert not found.proven or found.cost.seconds == pytest.approx(best.cost.seconds)
        assert found.bound <= best.cost.seconds * (1 + 1e-12)
        assert not found.complete


def test_a_deadline_in_the_middle_keeps_best_and_bound():
    asked = middling(2)
    best = search(asked)

    class Steps(Deadline):
        """Is over after so many questions, so that every place to stop is met."""

        def __init__(self, steps):
            super().__init__()
            self.steps = steps

        @property
        def over(self):
            self.steps -= 1
            return self.steps < 0

    for steps in (1, 5, 20, 60, 200, 600):
        run = Search(asked)
        run.deadline = run.stager.deadline = Steps(steps)
        try:
            found = run.run()
        except OutOfTimeError:  # before any plan was met
            continue
        assert found.bound <= best.cost.seconds * (1 + 1e-12) <= found.cost.seconds * (1 + 1e-9)


def test_ctrl_c_in_a_search_keeps_the_best_so_far():
    asked = middling(0)

    def press(standing):
        if standing.best is not None:
            raise KeyboardInterrupt

    found = search(asked, report=press)
    assert found.interrupted
    assert found.cost.fits(asked.memory)
    deep = replace(asked, memory=10 * asked.memory)
    assert search_deep(deep).cost.fits(deep.memory)


def test_alleviation_shares_its_seconds_among_its_starts():
    asked = middling(0)
    found = alleviate(asked, budget=Budget(seconds=0.0))
    assert found.cost.fits(asked.memory)
    assert not found.complete
    assert "the time limit ended it" in found.diary[-1]


def cpu_seconds(pid):
    """CPU seconds that a process has had so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="waits by the CPU time of another process")
@pytest.mark.parametrize("method", ["exact", "alleviate"])
def test_ctrl_c_in_a_real_process_exits_130_with_the_best_so_far(tmp_path, method):
    words = [sys.executable, "-m", "shardwise", "plan", "llama-3-8b", "-c", "64xh100", "--space", "per-op",
             "--global-batch", "256", "--method", method, "--trials", "100000",
             "--json", str(tmp_path / "answer.json")]  # fmt: skip
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and cpu_seconds(process.pid) < 4:  # the first plan is there after one
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "Ctrl-C" in out
    told = json.loads((tmp_path / "answer.json").read_text())
    assert told["bound"] <= told["cost"]["seconds"]
    assert not told["proven"]
