"""Ctrl-C at any moment from our first line on, once or several times: exit code 130, a sentence or nothing at all."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of another kind there")

HOOK = """
import os, signal, sys
seen, begun, at = 0, False, [int(word) for word in os.environ["INTERRUPT_AT"].split(",")]
def hook(event, words):
    global seen, begun
    if event == "import":
        ours = words[0] == "shardwise.cli.main" and "shardwise" in sys.modules  # called for by our own __main__
        begun = begun or ours or "shardwise.cli.main" in sys.modules
        seen += begun
        if begun and seen in at:
            os.kill(os.getpid(), signal.SIGINT)
    elif event == "os.putenv" and words[0] == b"COUNT_IMPORTS":
        os.write(2, f"{seen} imports".encode())
sys.addaudithook(hook)
import atexit
atexit.register(lambda: os.putenv("COUNT_IMPORTS", ""))
"""
"""Sends the signal where the imports of these numbers begin: the same places on a machine of any speed."""
WAYS = {
    "module": ["-m", "shardwise"],
    "script": ["-c", "import sys; from shardwise.cli.main import main; sys.exit(main())"],
}
VERB = ["estimate", "llama-3-8b", "-c", "8xh100", "-s", "tp2 mbs1 gbs16 seq4096"]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """`interrupted(way, at)`: the program, interrupted at the imports of these numbers."""
    folder = tmp_path_factory.mktemp("hook")
    (folder / "sitecustomize.py").write_text(HOOK)

    def call(way, at):
        paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        changed = {**os.environ, "PYTHONPATH": paths, "INTERRUPT_AT": ",".join(map(str, at))}
        command = [sys.executable, *WAYS[way], *VERB]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=changed)

    return call


@pytest.fixture(scope="module")
def imports(interrupted):
    """How many there are from our first line to the end."""
    found = interrupted("module", [10**9])
    assert found.returncode == 0
    return int(found.stderr.rpartition("\n")[2].split()[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("times", [1, 3], ids=["once", "again and again"])
def test_while_it_loads(interrupted, imports, way, times):
    """The first eight imports, each, and some of all the others."""
    places = [*range(1, 9), *range(9, imports - 2, imports // 8)]
    for place in places:
        found = interrupted(way, [place + each for each in range(times)])
        said = [line for line in found.stderr.splitlines() if not line.endswith(" imports") and line]
        assert (found.returncode, said) in [(130, ["error: interrupted"]), (130, [])], (place, found.stderr)


def test_python_is_not_kept_busy_before_our_first_line():
    """What loads before `main` can answer for Ctrl-C is little more than the files themselves."""
    code = "import sys; before = set(sys.modules); import shardwise.cli.main; print(*set(sys.modules) - before)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    ours = ("", ".check", ".cli", ".cli.main", ".estimate", ".plan", ".version")
    loaded = {name for name in found.stdout.split() if not name.startswith("shardwise.api")}
    assert loaded <= {"__future__", *(f"shardwise{name}" for name in ours)}


def test_who_ignores_it_goes_on_ignoring_it():
    """As under nohup, or in the background of a script."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from shardwise.cli.main import main; "
    code += "import shardwise.cli.main as own, os; run = own.run; "
    code += "own.run = lambda words: (os.kill(os.getpid(), signal.SIGINT), run(words))[1]; main(['--version'])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")
