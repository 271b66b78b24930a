"""The C kernels: loaded only if whole and of these sources; without them the same answers, or nearly, and a sentence.

Run as a program, this file answers the problems and prints what came out as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise import kernels
from shardwise.cli.main import run

EXAMPLE = Path(__file__).parents[1] / "docs" / "how-to" / "balance-example.json"
ORDER = "--pp 4 --microbatches 8 --costs 10,11,9 --hop 1"
PROBLEMS = (
    "plan llama-3-8b --cluster 8xh100 --global-batch 64 --seq 4096",
    "plan llama-3-8b --cluster 16xa100-80gb --global-batch 128 --seq 8192",
    "plan llama-3-8b --cluster 16xh100 --global-batch 32 --seq 4096 --only 'tp=2 pp=4 vpp=2 cp=1'",
    "plan gpt-3-13b --cluster 8xa100-80gb --global-batch 64 --seq 2048",
    "plan qwen2.5-7b --cluster 8xh100 --global-batch 32 --seq 4096",
    "plan mixtral-8x7b --cluster 16xh100 --global-batch 64 --seq 4096",
    f"schedule auto {ORDER} --vpp 2",
    f"schedule auto {ORDER} --vpp 2 --memory-limit 0.75p --effort 0.3",
    f"schedule auto {ORDER} --vpp 1 --memory-limit 1p --effort 0.3",
    f"schedule auto {ORDER} --vpp 2 --memory-limit 1.5p",
    f"schedule auto {ORDER} --vpp 2 --objective period --effort 0.1",
    f"schedule auto {ORDER} --vpp 2 --placement loop --effort 0.1",
    f"schedule zb-v {ORDER} --compare 1f1b,interleaved",
    f"schedule interleaved {ORDER} --vpp 2",
    f"balance --problem {EXAMPLE}",
    f"balance --problem {EXAMPLE} --vpp 2 --effort 0.1",
    f"balance --problem {EXAMPLE} --pp 2",
    f"balance --problem {EXAMPLE} --schedule gpipe",
    "estimate llama-3-70b --cluster 64xh100 --tp 8 --pp 4 --global-batch 256 --seq 8192",
    "estimate llama-3-8b --cluster 8xh100 --tp 2 --pp 4 --vpp 2 --global-batch 64 --seq 4096",
)


def answer_all():
    found = []
    for line in PROBLEMS:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([*shlex.split(line), "--json", "-"])
        found.append({"code": code, "answer": json.loads(out.getvalue()), "err": err.getvalue()})
    print(json.dumps(found))


def answers(**environment):
    plain = {name: value for name, value in os.environ.items() if name != "SHARDWISE_NO_KERNELS"}
    done = subprocess.run([sys.executable, __file__], env=plain | environment, capture_output=True, check=True)
    return json.loads(done.stdout)


def value_of(answer):
    """What the verb makes small; an answer that nothing fits is worth nothing, with kernels or without."""
    figures = answer.get("predictions", answer)
    return next(
        (figures[name] for name in ("iteration_seconds", "simulated", "value", "makespan") if name in figures), 0
    )


@pytest.mark.skipif(kernels.library() is None, reason="no C kernels are built here")
def test_without_kernels_answers_are_the_same_or_near_and_say_so(record_property):
    worse = []
    for line, fast, slow in zip(PROBLEMS, answers(), answers(SHARDWISE_NO_KERNELS="1"), strict=True):
        assert fast["code"] == slow["code"], line
        assert fast["answer"].get("run", {}).get("kernels", True) is True, line
        assert slow["answer"]["run"]["kernels"] is False, line
        assert (fast["err"].count(kernels.LACKING), slow["err"].count(kernels.LACKING)) == (0, 1), line
        best, found = value_of(fast["answer"]), value_of(slow["answer"])
        assert best <= found <= 1.02 * best, line
        worse += [line] * (found > best)
    record_property("measured", f"without kernels {len(PROBLEMS) - len(worse)} of {len(PROBLEMS)} answers are the same")
    assert all("schedule auto" in line for line in worse)


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
def test_the_kernels_are_built():
    assert kernels.library(), "run make test, or pip install --editable . once more: a C source has changed"


@pytest.fixture
def package(tmp_path):
    """A copy of the sources and the library of the package."""
    if kernels.library() is None:
        pytest.skip("no C kernels are built here")
    for path in [*kernels._PACKAGE.glob("*/*.c"), *kernels._PACKAGE.glob(f"{kernels.prefix(kernels._PACKAGE)}-*.so")]:
        target = tmp_path / path.relative_to(kernels._PACKAGE)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
    return tmp_path


def loads(package):
    """In a process of its own: loading what is no library may end in a bus error."""
    program = (
        "import pathlib; from shardwise import kernels\n"
        f"kernels._PACKAGE = pathlib.Path({str(package)!r})\n"
        "print(kernels.library() is not None)"
    )
    return (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "True\n"
    )


def test_a_library_that_is_whole_and_of_these_sources_is_loaded(package):
    assert loads(package)


@pytest.mark.parametrize("share", [0, 0.25, 0.9])
def test_a_truncated_library_is_not_loaded(package, share):
    (library,) = package.glob("*.so")
    content = library.read_bytes()
    library.write_bytes(content[: int(share * len(content))])
    assert not loads(package)


def test_a_library_of_other_sources_is_not_loaded(package):
    with (package / "pipeline" / "replay.c").open("a") as source:
        source.write("/* a change */\n")
    assert not loads(package)


def test_what_is_no_library_is_not_loaded_and_no_fault(package):
    content = b"\x7fELF, but not of this machine"
    (library,) = package.glob("*.so")
    library.unlink()
    (package / f"{kernels.prefix(package)}-{kernels.digest(content)}.so").write_bytes(content)
    assert not loads(package)


if __name__ == "__main__":
    answer_all()
