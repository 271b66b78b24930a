"""Whatever kills the probe's process costs one case: real children die here by real signals, on any CPU."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

torch = pytest.importorskip("torch")
from test_probe import QUICK, REQUEST, run, started  # noqa: E402

from shardwise.errors import InputError  # noqa: E402
from shardwise.measure.probe import shardwise_probe as probe  # noqa: E402
from shardwise.per_op.profiles.operators import read_operators  # noqa: E402

pytestmark = pytest.mark.torch
BY_SIGILL = "    os.kill(os.getpid(), signal.SIGILL)\n"


@pytest.fixture
def patched(tmp_path):
    """A folder whose sitecustomize.py puts a function that does `body` in the place of one of torch's."""

    def write(name, body):
        text = f"import os, signal, sys, time\nimport torch\n\ndef instead(*_, **__):\n{body}\ntorch.{name} = instead\n"
        (tmp_path / "sitecustomize.py").write_text(text)
        return tmp_path

    return write


def families(out):
    return {name: family["rows"] for name, family in json.loads(out.read_text())["families"].items()}


def test_a_kernel_that_no_child_survives_costs_its_own_rows_only(tmp_path, patched):
    """As torch's grouped product on a CPU with AMX: the batched products after it are still measured."""
    out = tmp_path / "cpu.json"
    done = run(*QUICK, "--families", "grouped,attention", "--out", out, patches=patched("_grouped_mm", BY_SIGILL))
    assert done.returncode == 0, done.stderr
    assert "grouped: process 1 of at most 4 died by SIGILL in kernel grouped_mm, dtype bf16, layout F" in done.stderr
    assert json.loads(out.read_text())["complete"] is True
    rows = families(out)
    products = [row for row in rows["grouped"] if row["kernel"] == "grouped_mm"]
    died = [row for row in products if row.get("died") == "died by SIGILL" == row["skipped"]]
    assert len(died) == probe.LIVES
    rest = {row["skipped"] for row in products if row not in died}
    assert rest == {"not tried: 4 of the family's processes died before"}
    assert all(row["seconds"] > 0 for row in rows["grouped"] if row["kernel"] != "grouped_mm")
    assert any("seconds" in row for row in rows["attention"])


def test_what_came_before_and_after_a_death_is_kept_in_order(tmp_path, patched):
    out = tmp_path / "cpu.json"
    done = run(*QUICK, "--families", "grouped", "--out", out, patches=patched("baddbmm", "    os._exit(3)\n"))
    assert (done.returncode, done.stderr.count("process 1 of at most 4 died with exit code 3")) == (0, 1)
    rows = families(out)["grouped"]
    assert [row["kernel"] for row in rows][-4:] == ["bmm_qk", "baddbmm_qk", "bmm_pv", "bmm_ptx"]
    assert [row["kernel"] for row in rows if "died" in row] == ["baddbmm_qk"]
    assert all("seconds" in row for row in rows if "died" not in row)


def test_where_nothing_could_be_measured_the_exit_code_says_so(tmp_path):
    out = tmp_path / "cpu.json"
    dies = f"import os, sys\nif {probe.CHILD!r} in sys.orig_argv:\n    os._exit(3)\n"
    (tmp_path / "sitecustomize.py").write_text(dies)
    done = run(*QUICK, "--families", "launch", "--out", out, patches=tmp_path)
    assert done.returncode == 1
    assert "launch: process 1 of at most 4 died with exit code 3 before any case" in done.stderr
    assert families(out)["launch"] == [{"skipped": "died with exit code 3", "died": "died with exit code 3"}]


def test_a_child_that_hangs_is_stopped(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(1e6)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(probe, "SILENCE", 0.2)
    journal = probe.Journal()
    probe.supervise({"family": "launch", "device": "cpu", "quick": True, "request": ""}, journal, 1e3)
    assert journal.in_order()[0]["died"] == "was stopped after 0.2 s of silence"


def test_a_poisoned_gpu_is_left_to_a_fresh_process(monkeypatch):
    """After an illegal access every call fails, also a plain wait; another error leaves the GPU as it was."""
    bench = probe.make_bench("cpu", quick=True)

    def fail():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    case = probe.KernelCase(fields={"a": 1}, build=fail)
    assert "illegal" in probe.attempt(bench, case, 1.0).skipped
    monkeypatch.setattr(probe.KernelBench, "synchronize", lambda _: fail())
    with pytest.raises(probe.PoisonedError, match="illegal memory access"):
        probe.attempt(bench, case, 1.0)
    with pytest.raises(probe.PoisonedError, match="illegal memory access"):
        bench.once({"a": 1}, fail)


@pytest.mark.parametrize(
    ("kind", "launcher"),
    [(signal.SIGINT, ()), (signal.SIGTERM, ()), (signal.SIGINT, ("-m",))],
    ids=["SIGINT", "SIGTERM", "SIGINT to shardwise probe"],
)
def test_an_interrupt_keeps_what_was_measured_and_ends_the_child(tmp_path, patched, kind, launcher):
    out, sign = tmp_path / "part.json", tmp_path / "child"
    waits = f"    open({str(sign)!r}, 'w').write(f'{{os.getpid()}}.')\n    time.sleep(1e6)\n"
    words = (*QUICK, "--families", "grouped") if launcher == () else ("probe", *QUICK)
    program = {} if launcher == () else {"launcher": launcher, "program": "shardwise"}
    with started(*words, "--out", out, patches=patched("baddbmm", waits), **program) as process:
        while process.poll() is None and not (sign.exists() and sign.read_text().endswith(".")):
            time.sleep(0.05)
        process.send_signal(kind)
        _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    kept = json.loads(out.read_text())
    assert kept["complete"] is False
    kernels = [row["kernel"] for row in kept["families"]["grouped"]["rows"] if "seconds" in row]
    assert "grouped_mm" in kernels
    assert kernels[-1] == "bmm_qk"
    with pytest.raises(ProcessLookupError):
        os.kill(int(sign.read_text()[:-1]), 0)


def test_an_operator_that_dies_is_told_and_the_others_are_kept(tmp_path, patched):
    asked, out = tmp_path / "request.json", tmp_path / "operators.json"
    (block,) = REQUEST["operators"]
    plain = {**block, "name": "plain", "parts": block["parts"][2:]}
    product = {**block, "name": "product", "parts": block["parts"][:1]}
    asked.write_text(json.dumps({**REQUEST, "operators": [plain, product, {**plain, "name": "last"}]}))
    done = run(*QUICK, "--operators", asked, "--out", out, patches=patched("mm", BY_SIGILL))
    assert done.returncode == 1
    assert "died by SIGILL in name product, micro_batch 1, tp 1" in done.stderr
    found = json.loads(out.read_text())
    assert [row["name"] for row in found["operators"]] == ["plain", "last"]
    with pytest.raises(InputError, match=r"1 operators could not be measured, the first name product.*died by SIGILL"):
        read_operators(str(out))
