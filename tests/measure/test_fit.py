"""Fitting: numbers that made a probe are found again, and what a real probe fits is what it should."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shardwise.cost.network import Network, collective
from shardwise.cost.reach import FAR, kernel_notes, outside
from shardwise.errors import FileError
from shardwise.estimate.setup import setup_of
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.calibrations import load_calibration
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.measure.fit import samples
from shardwise.measure.fit.fit import FitTask, fit_probe, machine_for, tasks
from shardwise.measure.fit.minimise import minimise, number, with_numbers
from shardwise.measure.fit.probe_file import Probe, read_probe

RAW = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_probe_raw.json"
GPU = load_cluster("1xh200").gpu
TRUE = replace(
    load_calibration("h200"), name="true", gemm={"bf16": 0.62, "fp16": 0.62}, gemm_depth=80.0, gemm_fixed=6e-6,
    wave=0.2, bandwidth=0.81, kernel_fixed=3e-6, attention=(0.5, 0.4), grouped=0.8,
)  # fmt: skip


@pytest.fixture(scope="module")
def real() -> Probe:
    return read_probe(RAW)


def made_up(probe: Probe) -> Probe:
    """The same kernels on a machine that follows the model exactly."""
    families: dict[str, tuple[samples.Sample, ...]] = {"step": (), "distributed": (), "launch": ()}
    for task in tasks(probe):
        machine = machine_for(task, GPU, TRUE)
        for sample in task.rows:
            families.setdefault(task.name, ())
            families[task.name] += (sample._replace(seconds=sample.predicted(machine)),)
    return replace(probe, families=families)


def test_the_search_finds_a_minimum():
    found = minimise(
        lambda n: (n["a"] - 3) ** 2 + (n["b"] - 0.5) ** 2, {"a": 1.0, "b": 1.0}, {"a": (0.1, 10), "b": (0.1, 10)}
    )
    assert found["a"] == pytest.approx(3, rel=0.01)
    assert found["b"] == pytest.approx(0.5, rel=0.01)


def test_numbers_by_name():
    changed = with_numbers(TRUE, {"gemm.fp8": 0.5, "attention.1": 0.3, "wave": 0.1})
    assert number(changed, "gemm.fp8") == 0.5
    assert number(changed, "gemm.bf16") == 0.62
    assert changed.attention == (0.5, 0.3)
    assert changed.wave == 0.1


def test_the_numbers_of_an_exact_machine_are_found_again(real, monkeypatch):
    exact = made_up(real).families
    # rows already are samples here: hand them through in place of the readers
    monkeypatch.setattr(samples, "streams", lambda _: list(exact["streaming kernels"]))
    monkeypatch.setattr(
        samples,
        "products",
        lambda _, dtype, odd=False: list(exact["products bf16"]) if (dtype, odd) == ("bf16", False) else [],
    )
    monkeypatch.setattr(samples, "grouped", lambda _: list(exact["grouped products"]))
    monkeypatch.setattr(samples, "attention", lambda _, names: list(exact["attention"]) if "cudnn" in names else [])
    monkeypatch.setattr(samples, "chains", lambda _: iter(()))
    fit = fit_probe(replace(real, families={}), GPU, load_calibration("h200"), "again")
    for name in ("bandwidth", "gemm.bf16", "attention.0", "attention.1", "grouped"):
        assert number(fit.calibration, name) == pytest.approx(number(TRUE, name), rel=0.03), name
    assert all(family.mean < 0.03 for family in fit.families)


@pytest.fixture(scope="module")
def fit(real):
    return fit_probe(real, GPU, load_calibration("hopper"), "my-h200")


def test_a_real_probe(fit):
    errors = {family.name: family for family in fit.families}
    assert errors["products bf16"].median < 0.03
    assert errors["products bf16"].held_out < 0.06
    assert errors["steps of layers"].held_out < 0.05
    assert errors["streaming kernels"].median < 0.04
    assert not errors["norms and rotary"].fitted
    assert 0.65 < fit.calibration.gemm["bf16"] < 0.8
    assert 0.8 < fit.calibration.bandwidth < 0.95
    assert any("collectives" in note for note in fit.notes)


def test_a_shape_far_outside_is_flagged(fit):
    blocks = {}
    for seq in (4096, 4 * 32768 * 2):
        strategy = Strategy(seq=seq)
        setup = setup_of(
            load_model("llama-3-8b"), load_cluster("1xh200"), strategy, load_runtime("megatron"), fit.calibration
        )
        blocks[seq] = [run.block for chunk in setup.chunks for run in chunk.runs]
    near, far = (kernel_notes(found, fit.calibration) for found in blocks.values())
    assert "attention" not in near
    assert "outside the probed range: attention: sequence 262,144" in far["attention"]
    assert FAR == 4.0
    assert not any(outside(block, load_calibration("ampere")) for block in blocks[262144])


def test_a_correction_is_named(fit):
    corrected = replace(fit.calibration, corrections={"gemm": 1.1}, source="trace t.json")
    assert "x1.1 (trace t.json)" in kernel_notes((), corrected)["gemm"]
    task = FitTask(name="", rows=[])
    assert machine_for(task, GPU, corrected).wide == pytest.approx(machine_for(task, GPU, fit.calibration).wide / 1.1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ('{"schema": "shardwise/plan/1"}', "is not a probe's file"),
        ('{"schema": "shardwise/probe/9"}', "update the older"),
        ('{"schema": "shardwise/probe/1"}', "cut short"),
        ('{"schema": "shardwise/probe/1", "families": {"gemm": {"rows": []}}}', "no measured rows"),
        ('{"schema": "shardwise/probe/1", "families": {"gemm": {"rows": [{"died": "of age"}]}}}', "the first of age"),
    ],
)
def test_other_files_are_refused(tmp_path, text, words):
    path = tmp_path / "probe.json"
    path.write_text(text)
    with pytest.raises(FileError, match=words):
        read_probe(path)


def test_collectives_are_fitted(real):
    """A network that follows the model exactly is found again, on GPUs of any maker and over nodes."""
    for name, levels in (("16xh200", ("nvlink", "infiniband")), ("8xa100", ("nvlink",)), ("8xh100-pcie", ("pcie",))):
        cluster = load_cluster(name)
        true = replace(TRUE, network=dict(zip(levels, (0.7, 0.55), strict=False)), collective_fixed=1.2e-5)
        probe = replace(real, families={"distributed": tuple(collectives(Network(cluster, true), cluster.gpus))})
        fit = fit_probe(probe, cluster.gpu, load_calibration("h200"), "links", cluster)
        assert {level: fit.calibration.network[level] for level in levels} == pytest.approx(true.network, rel=0.02)
        assert fit.calibration.collective_fixed == pytest.approx(1.2e-5, rel=0.05)
        assert fit.families[-1].mean < 0.02


def collectives(network: Network, world: int) -> Iterator[dict]:
    """What the probe would measure, as it groups its ranks."""
    for ranks, kind in itertools.product((2, 4, 8, 16), ("neighbours", "strided")):
        stride = world // ranks if kind == "strided" else 1
        for op, size in itertools.product(("all_reduce", "all_gather", "all_to_all"), (2**16, 2**22, 2**28)):
            if ranks <= world:
                seconds = collective(op.replace("_", "-"), network.group(ranks, stride), size)
                yield {"op": op, "groups": kind, "ranks": ranks, "bytes": size, "seconds": seconds}


def test_rows_of_the_shipped_probe_are_read(real):
    raw = json.loads(RAW.read_text())["families"]
    assert len(samples.products(real, "bf16")) > 500
    assert len(samples.grouped(real)) == sum(row["kernel"] == "grouped_mm" for row in raw["grouped"]["rows"])


@pytest.mark.parametrize(
    ("family", "row", "words"),
    [
        ("gemm", {"seconds": -1.0}, r"rows\[0\]: seconds is -1.0"),
        ("gemm", {"seconds": float("nan")}, "holds NaN"),
        ("gemm", {"seconds": 5e9}, "a kernel takes"),
        ("gemm", {"seconds": "fast"}, "seconds is 'fast'"),
        ("gemm", {"m": 0}, "m is 0"),
        ("gemm", {"k": None}, "k is None"),
        ("attention", {}, "lacks batch"),
        ("gemm", {"layout": "Z"}, "layout is 'Z'"),
        ("gemm", {"how": []}, r"how is \[\]"),
        ("step", {"layers": 10**12}, "lacks hidden"),
        ("grouped", {"kernel": "grouped_mm"}, "lacks experts"),
    ],
)
def test_numbers_that_no_probe_measures_are_told(tmp_path, family, row, words):
    whole = {"dtype": "bf16", "layout": "F", "m": 8, "n": 8, "k": 8, "seconds": 1e-3, **row}
    path = tmp_path / "probe.json"
    path.write_text(json.dumps({"schema": "shardwise/probe/1", "families": {family: {"rows": [whole]}}}))
    with pytest.raises(FileError, match=words):
        read_probe(path)
