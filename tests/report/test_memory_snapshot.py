"""A rank's allocations as PyTorch's memory snapshot: plain values that its own tools read, with the estimate's peak."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

import shardwise
from shardwise.cli.main import run
from shardwise.estimate import allocations
from shardwise.measure.fit.plain_pickle import plain
from shardwise.measure.fit.snapshot import read_snapshot
from shardwise.report.pass_trace import operators_trace
from shardwise.report.snapshot import BASE, snapshot_bytes, snapshot_data
from shardwise.report.svg_pass import pass_svg
from shardwise.units import show_bytes

CASES = [
    ("llama-3-8b", "8xh100", "pp4 gbs16 seq4096"),
    ("llama-3-8b", "16xh100", "tp2 pp4x2 gbs32 seq4096"),
    ("llama-3-8b", "8xh100", "pp2 gbs16 seq4096 offload=activations"),
    ("llama-3-8b", "16xh100", "pp4x2 gbs32 seq4096 zb-v zero2 runtime=torchtitan"),
    ("mixtral-8x7b", "64xh100", "tp2 ep8 pp2 gbs64 seq4096 recompute=full"),
]


def planned(model, cluster, text):
    found = shardwise.estimate(model, cluster, text)
    return found, shardwise.plan_of(found)


class Nothing(pickle.Unpickler):
    """Refuses whatever is not a plain value."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}")


@pytest.mark.parametrize("case", CASES, ids=[text for _, _, text in CASES])
def test_the_highest_point_is_the_estimates_peak(case):
    found, plan = planned(*case)
    for rank in range(found.strategy.pp):
        held = shardwise.rank_allocations(plan, rank=rank)
        memory = found.memory[rank]
        assert held.peak == pytest.approx(memory.peak.value, rel=1e-6)
        assert sum(event.size for event in held.events) == pytest.approx(memory.static, rel=1e-6)
        times = [event.time for event in held.events]
        assert max(times) <= found.iteration_seconds * (1 + 1e-9)


def test_told_by_layer_where_there_are_too_many_operators(monkeypatch):
    found, plan = planned(*CASES[0])
    whole = shardwise.rank_allocations(plan, rank=0)
    monkeypatch.setattr(allocations, "MOST_EVENTS", 1000)
    folded = shardwise.rank_allocations(plan, rank=0)
    assert folded.by_layer
    assert not whole.by_layer
    assert len(folded.events) < len(whole.events) / 3
    assert folded.peak == pytest.approx(found.memory[0].peak.value, rel=1e-6)


def test_the_file_holds_plain_values_only_and_reads_back(tmp_path):
    found, plan = planned(*CASES[1])
    held = shardwise.rank_allocations(plan, rank=0)
    content = snapshot_bytes(held)
    assert {op.name for op, _, _ in pickletools.genops(content)}.isdisjoint(
        {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1"}
    )
    assert Nothing(io.BytesIO(content)).load() == plain(content) == snapshot_data(held)
    path = tmp_path / "memory.pickle"
    path.write_bytes(content)
    read = read_snapshot(path)
    assert read.peak == pytest.approx(found.memory[0].peak.value, rel=1e-6)
    assert read.end == pytest.approx(found.memory[0].static, rel=1e-6)


def test_pieces_that_live_together_never_overlap():
    _, plan = planned(*CASES[3])
    data = snapshot_data(shardwise.rank_allocations(plan))
    segment = data["segments"][0]
    live: dict[int, int] = {}
    for event in data["device_traces"][0][1:]:
        first, last = event["addr"], event["addr"] + event["size"]
        assert BASE <= first < last <= BASE + segment["total_size"]
        if event["action"] == "alloc":
            assert first not in live
            live[first] = last
        elif event["action"] == "free_completed":
            assert live.pop(first) == last
    spans = sorted(live.items())
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    blocks = segment["blocks"]
    assert sum(block["size"] for block in blocks) == segment["total_size"]
    assert {block["address"] for block in blocks if block["state"] == "active_allocated"} == set(live)
    kinds = {type(value) for event in data["device_traces"][0] for value in event.values()}
    assert kinds == {str, int, list}


def test_pytorchs_own_tools_read_it():
    viz = pytest.importorskip("torch.cuda._memory_viz")
    found, plan = planned(*CASES[0])
    data = snapshot_data(shardwise.rank_allocations(plan, rank=0))
    events = [event for event in data["device_traces"][0] if event["action"] == "alloc"]
    told = viz.trace(data)
    assert told.count("# free completed") == sum(e["action"] == "free_completed" for e in data["device_traces"][0])
    assert f"{len(data['device_traces'][0])} entries" in told
    assert "cudaMalloc" in told
    assert viz.calc_active(data["segments"][0]) == pytest.approx(found.memory[0].static, rel=1e-6)
    lines = viz.memory(data, format_flamegraph=lambda text: text).splitlines()
    assert any("weights" in line for line in lines)
    assert "total_reserved" in viz.segsum(data)
    for page in (viz.trace_plot(data), viz.segment_plot(data)):
        assert "snapshot.pickle" in page
    assert len(events) > 500


def test_a_trace_of_operators_reaches_the_peak_and_fills_the_pass():
    found, plan = planned(*CASES[0])
    inside = shardwise.rank_passes(plan, rank=0)
    events = json.loads(operators_trace(inside))["traceEvents"]
    assert max(e["args"]["allocated"] for e in events if e["ph"] == "C") == pytest.approx(
        max(found.memory[0].forward, found.memory[0].backward), rel=1e-9
    )
    costs = shardwise.timeline(plan).costs
    operators = [e for e in events if e["ph"] == "X" and e["tid"] == 1]
    assert sum(e["dur"] for e in operators) == pytest.approx(1e6 * (costs.f[0] + costs.i[0] + costs.w[0]), rel=1e-6)
    names = {e["name"] for e in operators}
    assert {"qkv", "qkv, inputs", "qkv, weights"} <= names


def test_a_figure_of_a_pass_shows_its_layers_and_its_peak():
    found, plan = planned(*CASES[4])
    inside = shardwise.rank_passes(plan, rank=1)
    text = pass_svg(inside, "a <b> & c")
    assert ET.fromstring(text).tag.endswith("svg")  # noqa: S314 - our own text
    assert "a &lt;b&gt; &amp; c" in text
    peak = max(found.memory[1].forward, found.memory[1].backward)
    assert f">{show_bytes(peak)}</text>" in text
    for word in (">20</text>", "<title>head ", "computed again", "attention"):
        assert word in text


def test_the_command_writes_both_and_refuses_a_rank_that_is_not_there(tmp_path, capsys):
    plan = tmp_path / "plan.json"
    words = ["estimate", "llama-3-8b", "-c", "8xh100", "-s", "pp4 gbs16 seq4096", "-q", "--out", str(plan)]
    assert run([*words, "--operators", str(tmp_path / "o.json"), "--snapshot", str(tmp_path / "s.pickle")]) == 0
    assert json.loads((tmp_path / "o.json").read_text())["traceEvents"]
    assert run(["show", str(plan), "-q", "--operators", str(tmp_path / "o.svg"), "--rank", "2"]) == 0
    assert "rank 2, chunk 2" in (tmp_path / "o.svg").read_text()
    assert plain((tmp_path / "s.pickle").read_bytes())["segments"]
    assert run(["show", str(plan), "--snapshot", str(tmp_path / "t.pickle"), "--rank", "4"]) == 2
    assert "--rank: is 4; the plan has pipeline ranks 0 to 3" in capsys.readouterr().err
    assert not (tmp_path / "t.pickle").exists()
    assert run(["show", str(plan), "--rank", "1"]) == 2
    assert "--rank: is of --operators and --snapshot" in capsys.readouterr().err
    assert run(["show", str(plan), "--snapshot", str(tmp_path / "nowhere" / "s.pickle")]) == 2
