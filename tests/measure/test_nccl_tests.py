"""Logs of nccl-tests: read safely, and what they measured is what estimates take."""

from __future__ import annotations

from itertools import pairwise

import pytest

from shardwise.cost.network import all_reduce, network_of, ring
from shardwise.errors import FileError, InputError
from shardwise.estimate.intervals import causes_of, spread_of
from shardwise.frameworks.load import load_cluster
from shardwise.inputs.calibrations import calibration_of
from shardwise.measure.calibrate import calibrate, stored
from shardwise.measure.fit.nccl_tests import read_log

HEAD = """# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 4(factor) warmup iters: 5 iters: 20
#
# Using devices
"""
COLUMNS = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
FOOT = """# Out of bounds values : 0 OK
# Avg bus bandwidth    : 200.1
"""
SIZES = tuple(2**power for power in range(20, 31, 2))


def log(ranks: int, hosts: int, micros, redop: str = "sum") -> str:
    """What nccl-tests prints; `micros`: time of a size."""
    each = ranks // hosts
    devices = [
        f"#  Rank {rank:2} Group  0 Pid {1000 + rank} on  node{rank // each} device {rank % each:2} [0x{rank:02x}] "
        "NVIDIA H100 80GB HBM3\n" for rank in range(ranks)
    ]  # fmt: skip
    rows = [
        f"{size:12} {size // 4:13} {'float':>9} {redop:>7} {-1:7} {micros(size):8.1f} {size / micros(size) / 1e3:7.2f} "
        f"{size / micros(size) / 1e3:7.2f} {0:6} {micros(size):8.1f} {1:7.2f} {1:7.2f} {0:6}\n" for size in SIZES
    ]  # fmt: skip
    return HEAD + "".join(devices) + COLUMNS + "".join(rows) + FOOT


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWISE_HOME", str(tmp_path / "home"))
    (tmp_path / "all_gather_perf.log").write_text(log(8, 1, lambda size: 40 + size / 300e3, "none"))
    (tmp_path / "all_reduce_perf.log").write_text(log(16, 2, lambda size: 90 + size / 100e3))
    return tmp_path


def test_a_log_is_read(folder):
    rows, gpu = read_log(folder / "all_reduce_perf.log")
    assert gpu == "NVIDIA H100 80GB HBM3"
    assert [row["bytes"] for row in rows] == list(SIZES)
    assert {(row["op"], row["ranks"], row["hosts"]) for row in rows} == {("all_reduce", 16, 2)}
    assert rows[0]["seconds"] == pytest.approx((90 + 2**20 / 100e3) * 1e-6, abs=1e-7)


def test_what_was_measured_is_what_an_estimate_takes(folder):
    logs = [folder / f"{name}_perf.log" for name in ("all_gather", "all_reduce")]
    found = calibrate("our-h100", nccl=logs)
    assert found.base == "h100"
    assert len(found.measured) == 2
    stored(found)
    cluster = load_cluster("16xour-h100")
    network = network_of(cluster, calibration_of(cluster.gpu))
    near, far = network.group(8, 1), network.group(16, 1)
    assert ring(near, 2**22) == pytest.approx((40 + 2**22 / 300e3) * 1e-6, rel=0.01)
    assert all_reduce(far, 2**28) == pytest.approx((90 + 2**28 / 100e3) * 1e-6, rel=0.01)
    # between two sizes, below the first, above the last
    assert ring(near, 2**22) < ring(near, 2**23) < ring(near, 2**24)
    assert ring(near, 1024) == pytest.approx(ring(near, 2**20))
    assert ring(near, 2**32) == pytest.approx(4 * ring(near, 2**30))
    times = [ring(near, size) for size in range(2**20, 2**24, 2**18)]
    assert all(low <= high for low, high in pairwise(times))
    # another kind and another group follow the model
    usual = network_of(load_cluster("16xh100"), calibration_of(load_cluster("16xh100").gpu))
    assert ring(near, 2**28, "reduce-scatter") != pytest.approx(ring(near, 2**28), rel=1e-6)
    assert 0.2 < ring(network.group(4, 1), 2**28) / ring(usual.group(4, 1), 2**28) < 5


def test_one_gpu_of_each_node_is_a_group_of_its_own(folder):
    path = folder / "strided.log"
    path.write_text("# Collective test starting: reduce_scatter_perf\n" + log(2, 2, lambda size: 50 + size / 40e3))
    found = calibrate("our-h100", nccl=[path])
    line = next(line for line in found.calibration.collectives if line.kind == "reduce-scatter")
    assert (line.size, line.stride) == (2, 8)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nothing\n", "holds no table"),
        (COLUMNS + "1048576 262144 float sum -1 50.1 20.9 36.6 0 50.2 20.8 36.5 0\n", "does not say which test"),
        ("all_reduce_perf\n" + COLUMNS + "1048576 262144 float sum -1 50.1 20.9 25.0 0\n", "two ranks or more"),
        ("sendrecv_perf\n" + COLUMNS + "1048576 262144 float sum -1 50.1 20.9 20.9 0\n", "two ranks or more"),
        ("all_reduce_perf\n" + COLUMNS + "1048576 262144 float sum -1 -50.1 20.9 36.6 0\n", "0 and above"),
        ("all_reduce_perf\n" + COLUMNS + "1048576 262144 float sum -1 nan 20.9 36.6 0\n", "0 and above"),
        ("9" * 100_000 + " 1 float sum -1 5 5 5\n", "holds no table"),
        (" 1" * 2_000_000, "holds no table"),
    ],
)  # fmt: skip
def test_other_files_are_refused(tmp_path, text, told):
    path = tmp_path / "some.log"
    path.write_text(text)
    with pytest.raises(FileError, match=told):
        read_log(path)


def test_a_log_needs_a_gpu_and_goes_alone(folder, tmp_path):
    path = tmp_path / "all_gather_perf_2.log"
    path.write_text((folder / "all_gather_perf.log").read_text().replace("NVIDIA H100 80GB HBM3", "Some GPU"))
    with pytest.raises(InputError, match="no GPU of the catalog"):
        calibrate("ours", nccl=[path])
    with pytest.raises(InputError, match="each calibrates by itself"):
        calibrate("ours", nccl=[path], probe="probe.json")


def width(cluster: str, runtime: str = "megatron") -> float:
    machines = load_cluster(cluster)
    calibration = calibration_of(machines.gpu)
    return spread_of(causes_of(None, machines, "bf16", runtime, calibration), runtime, calibration).time


def test_collectives_alone_make_no_interval_narrower_that_they_say_nothing_of(folder):
    """A log of one node knows nothing of many, and none knows a kernel."""
    found = calibrate("our-h100", nccl=[folder / "all_gather_perf.log"])
    assert (found.calibration.time_error, found.calibration.kernels) == (0.0, "hopper")
    stored(found)
    assert width("64xour-h100") == width("64xh100")
    assert width("8xour-h100") == width("8xh100")
    assert width("8xour-h100", "mindformers") == width("8xh100", "mindformers") > width("8xh100")
    stored(calibrate("their-h100", nccl=[folder / "all_reduce_perf.log"], base="our-h100"))
    assert width("8xh100") == width("64xtheir-h100") < width("64xh100")


@pytest.mark.parametrize(
    ("base", "micros", "told"),
    [
        ("h100", lambda size: (40 + size / 260e3) / 1000, "at the very least"),
        ("h100", lambda size: (40 + size / 260e3) * 100, "it takes"),
        ("a100", lambda size: 40 + size / 268e3, "nvlink of a100, 300 GB/s a GPU"),  # 470 GB/s of bus bandwidth
    ],
)
def test_what_no_link_gives_is_refused(tmp_path, base, micros, told):
    path = tmp_path / "all_reduce_perf.log"
    path.write_text(log(8, 1, micros))
    with pytest.raises(InputError, match=told) as error:
        calibrate("ours", nccl=[path], base=base)
    assert "bus bandwidth" in str(error.value)


def test_sums_made_in_switches_and_two_nodes_are_possible(tmp_path):
    """NVLink's switches were seen at 480 GB/s of 450, and two nodes need send no more than half of a message each."""
    path, two = tmp_path / "all_reduce_perf.log", tmp_path / "all_reduce_perf_2.log"
    path.write_text(log(8, 1, lambda size: 30 + size / (480e3 / 1.75)))
    two.write_text(log(16, 2, lambda size: 60 + size / (480e3 / 1.875)))
    assert len(calibrate("ours", nccl=[path, two]).measured) == 2


def test_without_lines_of_ranks_base_names_the_gpu(tmp_path):
    """And bus over algorithm bandwidth their number."""
    path = tmp_path / "all_gather_perf.log"
    row = f"{2**28:12} {2**26:13} float none -1 {2**28 / 300e3:.1f} 300.00 262.50 0 1 1 1 0\n"
    small = f"{2**20:12} {2**18:13} float none -1 40.0 26.21 22.94 0 1 1 1 0\n"
    path.write_text(HEAD + COLUMNS + small + row)
    found = calibrate("ours", nccl=[path], base="h100")
    assert [line.size for line in found.calibration.collectives if line.sizes] == [8]
    assert any("8 ranks" in note for note in found.notes)
    with pytest.raises(InputError, match="--base"):
        calibrate("ours", nccl=[path])


def test_some_gpus_of_each_node_alone_say_nothing(tmp_path):
    path = tmp_path / "all_reduce_perf.log"
    path.write_text(log(8, 2, lambda size: 90 + size / 100e3))
    with pytest.raises(InputError, match="one GPU of each node"):
        calibrate("ours", nccl=[path], base="h100")
