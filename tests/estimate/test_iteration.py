"""A whole iteration shows what the ledger of time says: every lane adds up to its part."""

from __future__ import annotations

import json

import numpy as np
import pytest

import shardwise
from shardwise.cost.update import Update
from shardwise.estimate.estimate import assemble
from shardwise.estimate.iteration import LANES, iteration_of
from shardwise.estimate.setup import setup_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy_text import complete, parse
from shardwise.report.svg import timeline_svg
from shardwise.report.svg_lanes import COLOURS
from shardwise.report.trace import iteration_trace

CASES = [
    ("llama-3-8b", "16xh100", "tp2 pp4x2 gbs64 seq4096"),
    ("llama-3-8b", "16xh100", "tp2 cp2 pp2 gbs32 seq16384 recompute=full"),
    ("llama-3-8b", "512xh100@meta-24k", "pp1 gbs512 seq4096 zero3 runtime=torchtitan"),
    ("llama-3-8b", "16xh100", "pp4 gbs16 seq4096 zero2 auto runtime=torchtitan"),
    ("llama-3-8b", "16xh100", "pp4 gbs32 seq4096 seq-1f1b"),
    ("llama-3-8b", "8xh100", "pp1 gbs64 seq4096 zero2"),
    ("mixtral-8x7b", "64xh100", "tp2 ep8 pp2 gbs64 seq4096"),
    ("deepseek-v3", "256xh100", "tp2 ep8 pp16x2 gbs256 seq4096 zb-v runtime=zero-bubble"),
    ("deepseek-v3", "256xh100", "tp2 ep8 pp8x2 gbs256 seq4096 ep-overlap"),
]
INSIDE = {"tp communication", "cp communication", "ep communication", "parameter sharding", "stragglers"}


def made(model, cluster, text):
    model, cluster = shardwise.load_model(model), shardwise.load_cluster(cluster)
    strategy = complete(parse(text), cluster)
    setup = setup_of(model, cluster, strategy, load_runtime(strategy.runtime))
    found = assemble(setup)
    return found, iteration_of(setup, found)


def ledger_of(found):
    """Seconds by name, whichever pass they belong to."""
    told = {}
    for leaf in (leaf for part in found.time.parts for leaf in part.leaves()):
        told[leaf.name] = told.get(leaf.name, 0.0) + leaf.value
    return told


@pytest.mark.parametrize("case", CASES, ids=[text for _, _, text in CASES])
def test_what_shows_adds_up_to_the_ledger(case):
    """Inside the passes on the busiest rank, after them on the rank whose update takes longest, as the ledger says."""
    found, whole = made(*case)
    told, ranks = ledger_of(found), range(found.strategy.pp)
    shown = [whole.exposed(rank) for rank in ranks]
    costs = whole.timeline.costs
    own = [[c for c, r in enumerate(whole.timeline.schedule.rank_of) if r == rank] for rank in ranks]
    work = [sum(costs.f[c] + costs.i[c] + costs.w[c] for c in each) for each in own]
    busiest = work.index(max(work))
    for name in INSIDE:
        assert shown[busiest].get(name, 0.0) == pytest.approx(told.get(name, 0.0), rel=1e-6, abs=1e-9), name
    parts = ("gradient reduction", "weight gathering", "optimizer", "framework")
    slow = max(ranks, key=lambda rank: sum(shown[rank].get(name, 0.0) for name in parts))
    for name in parts:
        assert shown[slow].get(name, 0.0) == pytest.approx(told.get(name, 0.0), rel=1e-6, abs=1e-9), name
    assert set(shown[busiest]) <= set(told) | {"stragglers"}


@pytest.mark.parametrize("case", CASES, ids=[text for _, _, text in CASES])
def test_what_hides_is_the_rest_and_nothing_reaches_beyond_the_iteration(case):
    found, whole = made(*case)
    assert whole.seconds == found.iteration_seconds
    update: Update = found.update
    hidden = [whole.hidden(rank) for rank in range(found.strategy.pp)]
    assert max(one.get("gradient reduction", 0.0) for one in hidden) >= update.reduce - update.reduce_exposed - 1e-12
    assert max(one.get("weight gathering", 0.0) for one in hidden) >= update.gather - update.gather_exposed - 1e-12
    for rank in range(found.strategy.pp):
        assert all(0 <= part.start <= part.end <= whole.seconds * (1 + 1e-9) for part in whole.beside[rank])
        ends = [part.end for part in sorted(whole.beside[rank], key=lambda part: part.start) if part.exposed]
        starts = [part.start for part in sorted(whole.beside[rank], key=lambda part: part.start) if part.exposed]
        assert all(b >= a - 1e-9 for a, b in zip(ends, starts[1:], strict=False))


@pytest.mark.parametrize("case", CASES[:3], ids=[text for _, _, text in CASES[:3]])
def test_lanes_are_in_order_inside_their_passes(case):
    _, whole = made(*case)
    names = None
    for rank in range(whole.timeline.schedule.pp):
        lanes = whole.lanes(rank)
        names = names or [lane.name for lane in lanes]
        assert [lane.name for lane in lanes] == names
        assert set(names) <= set(LANES)
        for lane in lanes:
            assert (lane.end >= lane.start).all()
            assert (np.diff(lane.start) >= -1e-12).all()
            assert (lane.start[1:] >= lane.end[:-1] - 1e-12).all()
    shown = whole.exposed(0)
    for lane in whole.lanes(0):
        drawn = float((lane.end - lane.start)[lane.exposed].sum())
        assert drawn == pytest.approx(shown[lane.name], rel=1e-9)


def test_a_trace_has_a_lane_for_every_kind_and_the_same_seconds():
    found, whole = made(*CASES[1])
    events = json.loads(iteration_trace(whole))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 0}
    assert names == {"passes and optimizer", *(lane.name for lane in whole.lanes(0))}
    told = ledger_of(found)
    busiest = max(range(2), key=lambda rank: whole.timeline.work[rank])
    for name in ("tp communication", "cp communication"):
        own = [e for e in events if e.get("cat") == name and e["pid"] == busiest]
        assert sum(e["args"]["seconds"] for e in own if e["args"]["exposed"]) == pytest.approx(told[name])
        assert sum(e["args"]["seconds"] for e in own if not e["args"]["exposed"]) == pytest.approx(
            whole.hidden(busiest)[name]
        )
    assert max(e["ts"] + e["dur"] for e in events if e["ph"] == "X") == pytest.approx(1e6 * found.iteration_seconds)


def test_figure_and_page_have_the_same_colours():
    from shardwise.report.page import asset_text

    palette = asset_text("palette.js")
    for name in ("cp communication", "gradient reduction", "weight gathering", "optimizer", "stragglers"):
        at = palette.index(name)
        written = palette[at : palette.index(",", at)].split(":")[1].strip()
        names = {"PURPLE": "#cc79a7", "YELLOW": "#f0e442", "SKY": "#56b4e9", "GREY": "#8b949e"}
        assert names.get(written, written.strip('"')) == COLOURS[name]


def test_a_figure_names_its_lanes():
    _, whole = made(*CASES[1])
    text = timeline_svg(whole.timeline, "x < y", seconds=True, whole=whole)
    for name in ("tp communication", "gradient reduction", "optimizer", "hidden behind kernels"):
        assert f">{name}</text>" in text
    assert "x &lt; y" in text
