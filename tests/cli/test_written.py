"""All files of a command are written or none, whichever verb it is and whatever the disk does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from shardwise.errors import FileError, InfeasibleError
from shardwise.inputs.write import once_written, together, write_text

PLAN = ("estimate", "llama-3-8b", "-c", "8xh100", "-s", "tp2 pp2 mbs1 gbs16 seq4096", "--out", "plan.json")
EXAMPLE = Path(__file__).parents[2] / "docs" / "how-to" / "balance-example.json"
VERBS = {
    "estimate": ((*PLAN, "--json", "a.json", "--md", "m.md", "--svg", "s.svg", "--trace", "t.json", "--html", "p.html"),
                 ("plan.json", "a.json", "m.md", "s.svg", "t.json", "p.html")),
    "plan": (("plan", "llama-3-8b", "-c", "8xh100", "--global-batch", "16", "--only", "tp<=2 pp<=2 vpp=1",
              "--out", "o.json", "--json", "a.json", "--html", "p.html"), ("o.json", "a.json", "p.html")),
    "per-op": (("plan-operators", "llama-3.2-1b", "-c", "2xh100", "--global-batch", "8", "--stages", "1",
                "--microbatches", "4", "--out", "o.json", "--json", "a.json", "--aceso", "c.json", "--save-profiles",
                "set"), ("o.json", "a.json", "c.json", "set/profile.toml")),
    "schedule": (("schedule", "1f1b", "--pp", "4", "--microbatches", "8", "--costs", "1,1,1", "--csv", "c.csv",
                  "--svg", "s.svg", "--html", "p.html", "--trace", "t.json", "--json", "a.json"),
                 ("c.csv", "s.svg", "p.html", "t.json", "a.json")),
    "sweep": (("sweep", "llama-3-8b", "-c", "8xh100", "--global-batch", "16", "--seq", "4096", "--csv", "c.csv",
               "--chart", "s.svg", "--json", "a.json"), ("c.csv", "s.svg", "a.json")),
    "diff": (("diff", "plan.json", "plan.json", "--html", "p.html", "--md", "m.md", "--json", "a.json"),
             ("p.html", "m.md", "a.json")),
    "export": (("export", "plan.json", "--to", "megatron", "--out", "run", "--json", "a.json"),
               ("run/shardwise-export.json", "a.json")),
    "balance": (("balance", "--problem", "problem.json", "--html", "p.html", "--svg", "s.svg", "--json", "a.json"),
                ("p.html", "s.svg", "a.json")),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """`whole(verb)`: where it has written everything, its words, its files, and the size of the largest."""
    place = tmp_path_factory.mktemp("whole")
    (place / "problem.json").write_text(EXAMPLE.read_text())
    assert shardwise(PLAN, place).returncode == 0

    @cache
    def made(verb):
        words, names = VERBS[verb]
        found = shardwise(words, place)
        assert found.returncode == 0, found.stderr
        return place, words, names, max((place / name).stat().st_size for name in names)

    return made


def shardwise(words, folder, largest=None):
    """The program in a folder; a file that grows beyond `largest` bytes fails as on a full disk."""

    def full():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))

    command = [sys.executable, "-B", "-m", "shardwise", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False,
                          preexec_fn=full if largest else None)  # fmt: skip


@pytest.mark.skipif(os.name == "nt", reason="no limit of this kind there")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("older", [True, False], ids=["older files", "new files"])
def test_a_full_disk_writes_nothing(whole, tmp_path, verb, older):
    """The largest file has no room; the smaller ones, which would have, are not written either."""
    place, words, names, largest = whole(verb)
    for name in ("plan.json", "problem.json"):
        (tmp_path / name).write_text((place / name).read_text())
    if older:
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            if not (tmp_path / name).exists() and name != "run/shardwise-export.json":
                (tmp_path / name).write_text("older")
    before = contents(tmp_path)
    found = shardwise(words, tmp_path, largest // 2)
    assert found.returncode == 2, found.stderr
    assert found.stderr.rstrip().endswith("cannot be written: File too large; nothing was written")
    assert "is in" not in found.stderr
    assert "wrote" not in found.stdout
    assert contents(tmp_path) == before


def contents(folder):
    return {str(path.relative_to(folder)): path.read_text() if path.is_file() else None for path in folder.rglob("*")}


def test_an_older_file_comes_back_where_a_later_one_cannot_have_its_name(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("older")
    replace = os.replace

    def refuse(source, target):
        if target.name == "c":
            raise PermissionError(1, "Operation not permitted")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    said = []
    with pytest.raises(FileError, match=r"c: may not be written: permission denied; .*; nothing was written"):
        write_three(tmp_path, said)
    assert (contents(tmp_path), said) == ({"a": "older"}, [])
    monkeypatch.undo()
    write_three(tmp_path, said)
    assert (contents(tmp_path), said) == ({"a": "new", "b": "new", "c": "new"}, ["written"])


def write_three(folder, said):
    with together():
        for name in "abc":
            write_text(folder / name, "new")
        once_written(lambda: said.append("written"))
        assert not (folder / "b").exists()


def write_and_raise(path, error):
    with together():
        write_text(path, "x")
        raise error


def test_what_fails_writes_nothing_and_what_does_not_fit_is_an_answer(tmp_path):
    for error, left in ((KeyboardInterrupt, {}), (ValueError, {}), (InfeasibleError, {"a": "x"})):
        with pytest.raises(error):
            write_and_raise(tmp_path / "a", error)
        assert contents(tmp_path) == left


def write_both(*paths):
    with together():
        for path in paths:
            write_text(path, "x")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_pipes_and_devices_are_written_as_they_are(tmp_path):
    read, write = os.pipe()
    with together():
        write_text(f"/dev/fd/{write}", "text")
        write_text("/dev/null", "text")
    os.close(write)
    assert os.read(read, 10) == b"text"
    os.close(read)
    with pytest.raises(FileError, match="cannot be written: No space left on device; nothing was written"):
        write_both(tmp_path / "a", "/dev/full")
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    "words",
    [
        ("balance", "--problem", "problem.json", "-mem", "2000"),
        ("balance", "quick", "-s", "2", "-l", "8", "-mem", "1", "--layer", "1", "--kept", "1"),
        ("plan-operators", "llama-3-8b", "-c", "1xh100", "--global-batch", "8", "--memory", "100MiB"),
        ("plan", "llama-3-8b", "-c", "1xh100", "--global-batch", "8", "--only", "tp=1 dtype=fp32"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_an_answer_that_nothing_fits_replaces_an_older_file(tmp_path, words):
    (tmp_path / "problem.json").write_text(EXAMPLE.read_text())
    (tmp_path / "a.json").write_text("older")
    found = shardwise((*words, "--json", "a.json"), tmp_path)
    assert found.returncode == 1, found.stderr
    assert json.loads((tmp_path / "a.json").read_text())["fits"] == "no"


def test_two_answers_do_not_go_to_one_file(tmp_path):
    for words, said in (
        ((*PLAN, "--json", "./plan.json"), "--out: and --json both go to plan.json; give each a file of its own"),
        ((*PLAN, "--html", "-"), "--html: - is no file"),
    ):
        found = shardwise(words, tmp_path)
        assert (found.returncode, said in found.stderr) == (2, True), found.stderr
    assert shardwise((*PLAN, "--json", "/dev/null", "--html", "/dev/null"), tmp_path).returncode == 0


def test_an_answer_does_not_replace_what_was_read(tmp_path):
    """`balance patch job.yaml answer.json --json job.yaml` left its answer in place of the user's YAML."""
    (tmp_path / "problem.json").write_text(EXAMPLE.read_text())
    (tmp_path / "link.json").symlink_to("problem.json")
    for name in ("problem.json", "./problem.json", "link.json"):
        found = shardwise(("balance", "--problem", "problem.json", "--json", name), tmp_path)
        assert (found.returncode, f"--json: would replace {name}, which is --problem" in found.stderr) == (2, True)
    found = shardwise(("balance", "patch", "problem.json", "problem.json", "--json", "problem.json"), tmp_path)
    assert (found.returncode, "which is FILE; give another name" in found.stderr) == (2, True), found.stderr
    assert (tmp_path / "problem.json").read_text() == EXAMPLE.read_text()


def test_a_pass_does_not_replace_its_plan(tmp_path):
    """`show plan.json --operators plan.json` left the trace of a pass in place of the plan."""
    assert shardwise((*PLAN, "-q"), tmp_path).returncode == 0
    found = shardwise(("show", "plan.json", "--operators", "plan.json"), tmp_path)
    assert (found.returncode, "--operators: would replace plan.json, which is" in found.stderr) == (2, True)


def test_a_file_that_is_read_may_lie_where_nothing_can_be_written(tmp_path):
    """`calibrate --trace` is read, `estimate --trace` written."""
    found = shardwise(("calibrate", "--name", "x", "--trace", "missing/trace.json"), tmp_path)
    assert (found.returncode, "make it first" in found.stderr) == (2, False)
