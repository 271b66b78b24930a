"""Searches that are stopped: by their time limit, by Ctrl-C, in a process of their own."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

import shardwise
from shardwise.per_op.alleviate import HopBudget, alleviate
from shardwise.per_op.answer import Deadline, OutOfTimeError
from shardwise.per_op.search import OperatorSearch, search
from shardwise.per_op.solve import solve

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
        run = OperatorSearch(asked)
        run.deadline = run.stages.deadline = Steps(steps)
        try:
            found = run.run()
        except OutOfTimeError:  # before any plan was met
            continue
        assert found.bound <= best.cost.seconds * (1 + 1e-12) <= found.cost.seconds * (1 + 1e-9)


def test_ctrl_c_in_a_search_keeps_the_best_so_far(monkeypatch):
    asked = middling(0)

    def press(standing):
        if standing.best is not None:
            raise KeyboardInterrupt

    found = search(asked, report=press)
    assert found.interrupted
    assert found.cost.fits(asked.memory)
    between = alleviate(asked, report=press)
    assert between.interrupted
    assert between.cost.fits(asked.memory)
    monkeypatch.setattr("shardwise.per_op.search.MOST_OPS", 10)
    deep = replace(asked, memory=10 * asked.memory)
    assert search(deep).cost.fits(deep.memory)
    assert search(deep, report=press).interrupted


def test_who_asks_from_python_can_stop_a_search():
    seen = []
    found = shardwise.plan_operators(
        "llama-3-8b", "64xh100", global_batch=256, report=seen.append, stop=lambda: len(seen) > 1
    )
    assert found.interrupted
    assert not found.complete
    assert found.bound <= found.cost.seconds
    assert seen[-1].best is not None


def test_alleviation_shares_its_seconds_among_its_starts():
    asked = middling(0)
    found = alleviate(asked, budget=HopBudget(seconds=0.0))
    assert found.cost.fits(asked.memory)
    assert not found.complete
    assert "the time limit ended it" in found.diary[-1]


STAGES = re.compile("stages: [^\r]*best")


@pytest.mark.parametrize(("method", "cluster"), [("exact", "64xh100"), ("alleviate", "16xh100")])
def test_ctrl_c_in_a_real_process_exits_130_with_the_best_so_far(tmp_path, method, cluster):
    """Pressed as soon as its progress, which is for terminals only, tells of a best beside whole strategies."""
    words = [sys.executable, "-m", "shardwise", "plan-operators", "llama-3-8b", "-c", cluster,
             "--global-batch", "256", "--method", method, "--trials", "100000",
             "--json", str(tmp_path / "answer.json")]  # fmt: skip
    terminal, its_end = pty.openpty()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=its_end, text=True) as process:
        os.close(its_end)
        err = ""
        while part := read(terminal):
            before, err = err, err + part
            if STAGES.search(err) and not STAGES.search(before):
                process.send_signal(signal.SIGINT)
        out = process.stdout.read()
    os.close(terminal)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "Ctrl-C" in out
    told = json.loads((tmp_path / "answer.json").read_text())
    assert told["bound"] <= told["cost"]["seconds"]
    assert not told["proven"]


def read(terminal):
    """What a program writes to its terminal next; nothing once it has ended."""
    try:
        return os.read(terminal, 4096).decode(errors="replace")
    except OSError:
        return ""
