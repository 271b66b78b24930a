"""PyTorch runs our schedules on CPU processes, and the gradients equal those of one process."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from shardwise.errors import InputError
from shardwise.frameworks.torch.write import check_torch, export_torch, torch_costs
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.costs import costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.generate import generate
from shardwise.pipeline.optimise import optimise
from shardwise.pipeline.orders.dualpipe import dualpipe_v

from .test_maps import forward_first

SEED = {"f": 10, "i": 11, "w": 9, "hop": 1}
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra torch")


def planned(pp, vpp, placement, limit=None):
    given_costs = costs(pp=pp, vpp=vpp, **SEED, memory_limit=limit)
    options = {"pp": pp, "vpp": vpp, "microbatches": 2 * pp, "placement": placement, "effort": 0.02}
    return optimise(torch_costs(given_costs), **options).schedule


def schedules(pp):
    return {
        "v": planned(pp, 2, "v"),
        "loop": planned(pp, 2, "loop"),
        "vpp3": planned(pp, 3, "v"),
        "limited": planned(pp, 2, "v", limit=pp + 1),
        "full": generate("interleaved", pp=pp, microbatches=2 * pp),
        "mixed": generate("dualpipe-v", pp=pp, microbatches=2 * pp),
        "combined": dualpipe_v(pp, 2 * pp, combined=True),
        "limited-vpp3": planned(pp, 3, "v", limit=2 * pp + 1),
        "map": forward_first([0, 0, *range(1, pp)], 2 * pp),
    }


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("pp", [2, 4])
def test_gradients_equal_one_process(pp, tmp_path):
    tables = []
    for name, schedule in schedules(pp).items():
        table, runner = export_torch(schedule, tmp_path / name)
        tables.append(str(table))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(pp), str(runner),
        *tables, "--check",
    ]  # fmt: skip
    limits = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=os.environ | limits, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # processes share the pipe: a line's end may come after the next line's start
    found = re.findall(r"largest gradient difference (\d[\d.]*(?:e[-+]?\d+)?)", done.stdout)
    assert len(found) == pp * len(tables), done.stdout
    assert all(float(difference) <= 1e-6 for difference in found)


def test_the_orders_that_torch_runs_are_what_they_are_called():
    """Combined passes in the file, and a vpp 3 order that keeps less than 1F1B holds."""
    for pp in (2, 4):
        made = schedules(pp)
        assert made["combined"].csv().count("OVERLAP_F_B") == sum(map(len, made["combined"].pairs)) > pp
        limited, free = made["limited-vpp3"], made["vpp3"]
        peaks = [max(simulate(one, costs(pp=pp, vpp=3, **SEED)).peak) for one in (limited, free)]
        assert peaks[0] <= 2 * pp + 1 < 3 * pp  # 1F1B's memory is pp micro batches of three chunks
        assert peaks[0] < peaks[1]


def test_losses_out_of_order_are_refused():
    swapped = Schedule.parse("0F0,0F1,0I0,0W0,0I1,0W1\n1F1,1F0,1I0,1W0,1I1,1W1\n")
    with pytest.raises(InputError, match="1F1 before 1F0: PyTorch stores the losses"):
        check_torch(swapped)


def test_an_unsound_schedule_is_refused(tmp_path):
    with pytest.raises(InputError, match="missing: 0I0"):
        export_torch(Schedule.parse("0F0,0W0\n1F0,1I0,1W0\n"), tmp_path)


def test_torch_does_chunk_0s_backward_in_w():
    moved = torch_costs(costs(pp=2, f=1, i=2, w=3))
    assert (moved.i, moved.w) == ((0, 2), (5, 3))


def test_files_are_written(tmp_path):
    table, runner = export_torch(generate("zb-v", pp=2, microbatches=4), tmp_path / "new")
    assert Schedule.parse(table.read_text()) == generate("zb-v", pp=2, microbatches=4)
    assert "torch.distributed.pipelining" in runner.read_text()
