"""The probe runs alone, writes one readable file whatever happens, and says why when it measures nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from shardwise.measure.probe import shardwise_probe as probe  # noqa: E402

PROGRAM = Path(probe.__file__)
pytestmark = pytest.mark.torch


QUICK = ("--device", "cpu", "--quick", "--minutes", "60")
"""Few and short cases; the hour only keeps a slow machine from running out of time."""


def started(
    *arguments: object, program: Path = PROGRAM, launcher: tuple[str, ...] = (), patches: Path | None = None
) -> subprocess.Popen[str]:
    """The program by itself; `patches` holds a sitecustomize.py, which runs before it and in each of its children."""
    command = [sys.executable, *launcher, str(program), *map(str, arguments)]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (patches and str(patches), os.environ.get("PYTHONPATH")))),
    }
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def run(*arguments: object, **how) -> subprocess.CompletedProcess[str]:
    with started(*arguments, **how) as process:
        out, err = process.communicate(timeout=1200)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Of a copy without the package around it, as on a GPU node."""
    out, alone = tmp_path_factory.mktemp("probe") / "cpu.json", tmp_path_factory.mktemp("alone") / PROGRAM.name
    alone.write_text(PROGRAM.read_text())
    done = run(*QUICK, "--out", out, program=alone)
    assert done.returncode == 0, done.stderr
    assert list(out.parent.iterdir()) == [out]
    return json.loads(out.read_text())


def test_every_family_is_there_in_order(result):
    assert result["schema"] == "shardwise/probe/1"
    assert result["complete"] is True
    assert list(result["families"]) == list(probe.FAMILIES)
    assert result["software"]["torch"] == torch.__version__


def test_rows_carry_a_time_or_a_reason(result):
    for name, family in result["families"].items():
        for row in family["rows"]:
            assert "skipped" in row or (row["seconds"] > 0 and row["spread"] >= 0), (name, row)


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("gemm", {"dtype", "layout", "m", "n", "k", "how", "load"}),
        ("grouped", {"kernel", "dtype"}),
        ("attention", {"phase", "batch", "seq", "heads", "kv_heads", "dim", "v_dim", "causal", "backend"}),
        ("memory", {"kernel", "phase", "rows", "width", "cache", "bytes", "kernels"}),
        ("optimizer", {"kernel", "how", "dtype", "parameters", "tensors"}),
        ("launch", {"op", "side"}),
        ("step", {"hidden", "layers", "phase", "kernels"}),
    ],
)
def test_a_family_measures_something_with_its_shape(result, family, fields):
    rows = [row for row in result["families"][family]["rows"] if "seconds" in row]
    assert rows
    assert all(fields <= row.keys() for row in rows)


def test_gemm_covers_all_layouts_and_the_gpu_grid_is_wide_enough():
    bench = probe.make_bench("cpu", quick=False)
    shapes = list(probe.gemm_shapes())
    assert {shape[3] for shape in shapes} == set("FIW")
    assert len(set(shapes)) == len(shapes) >= 300
    assert next(probe.gemm_cases(bench)).fields["layout"] == "F"


def test_traffic_of_a_cast_is_six_bytes_an_element():
    x = torch.zeros(8, 16, dtype=torch.bfloat16)
    assert probe.traffic_of(x.float) == {"kernels": 1, "bytes": 6 * x.numel()}
    assert probe.traffic_of(x.t) == {"kernels": 0, "bytes": 0}


def test_a_failing_case_is_skipped_with_its_reason():
    bench = probe.make_bench("cpu", quick=True)

    def fail():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nmore")

    probe.run_cases(bench, [probe.KernelCase(fields={"a": 1}, build=fail)], 1e3)
    assert bench.journal.in_order() == [
        {"a": 1, "skipped": "out of memory: CUDA out of memory. Tried to allocate 9 GiB"}
    ]


def test_passes_that_disagree_are_measured_a_third_time(monkeypatch):
    medians = iter((1.0, 2.0, 1.5))
    monkeypatch.setattr(probe, "attempt", lambda *_: probe.Pass(times=[next(medians)] * 4, calls=4))
    bench = probe.make_bench("cpu", quick=True)
    probe.run_cases(bench, [probe.KernelCase(fields={}, build=list)], 1e3, passes=3)
    (row,) = bench.journal.in_order()
    assert row == {"seconds": 1.5, "spread": 0.0, "passes": 3, "agreement": pytest.approx(2 / 3, abs=1e-4), "calls": 12}


def test_a_family_without_time_says_so(tmp_path):
    out = tmp_path / "late.json"
    assert probe.main([*QUICK[:3], "--minutes", "0", "--families", "optimizer", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["families"]["optimizer"]["rows"]
    assert rows
    assert {row["skipped"] for row in rows} == {"the family's time was used up"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_exits_two_with_a_sentence(tmp_path, capsys):
    assert probe.main(["--out", str(tmp_path / "x.json")]) == 2
    assert "no GPU" in capsys.readouterr().err


def test_an_unknown_family_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        probe.wanted_families("gemm,magic")
    assert stopped.value.code == 2
    assert "magic" in capsys.readouterr().err


def test_torchrun_measures_collectives(tmp_path):
    out = tmp_path / "two.json"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run(*QUICK, "--families", "distributed", "--out", out, launcher=launcher)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["families"]["distributed"]["rows"]
    assert {row["op"] for row in rows} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"}
    assert all(row["ranks"] == 2 for row in rows)
    assert [row for row in rows if row["op"] == "all_reduce" and row["seconds"] > 0]


REQUEST = {
    "format": "shardwise-operator-request", "version": 1, "model": "tiny", "seq": 128,
    "operators": [
        {
            "name": "block", "micro_batch": 1, "tp": 1, "variant": 0, "input_bytes": 1,
            "output_bytes": 2, "weight_bytes": 3,
            "parts": [
                {"kind": "gemm", "m": 64, "n": 32, "k": 16, "batch": 1},
                {"kind": "attention", "batch": 1, "heads": 4, "kv_heads": 2, "seq": 16, "head_dim": 8, "causal": True},
                {"kind": "elementwise", "bytes_read": 4096, "bytes_written": 2048, "name": "gate"},
            ],
        }
    ],
}  # fmt: skip


def test_operators_of_a_request_are_measured(tmp_path):
    asked, out = tmp_path / "request.json", tmp_path / "operators.json"
    asked.write_text(json.dumps(REQUEST))
    assert probe.main(["--device", "cpu", "--quick", "--operators", str(asked), "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["format"], found["version"], found["complete"]) == ("shardwise-operators", 1, True)
    (row,) = found["operators"]
    assert row["forward_seconds"] > 0 < row["backward_seconds"]
    # the product's input, attention's q, k, v, output and sums, and what the gate read
    assert row["saved_bytes"] == 2 * 64 * 16 + 2 * 16 * 8 * (4 + 2 + 2 + 4) + 4 * 4 * 16 + 4096


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "x"}, "no request"),
        ({"version": 2}, "version"),
        ({"operators": []}, "no operators"),
        ({"operators": [{"name": "a", "parts": [{"kind": "magic"}]}]}, "kind must be one of"),
        ({"operators": [{"name": "a", "parts": [{"kind": "gemm", "m": -1, "n": 2, "k": 2.5}]}]}, "m, k must be whole"),
    ],
)
def test_broken_requests_are_told(tmp_path, capsys, change, words):
    asked = tmp_path / "request.json"
    asked.write_text(json.dumps({**REQUEST, **change}))
    with pytest.raises(SystemExit) as stopped:
        probe.main(["--device", "cpu", "--operators", str(asked), "--out", str(tmp_path / "o.json")])
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "o.json").exists()
