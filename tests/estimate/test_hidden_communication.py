"""What hides is not free: kernels beside collectives are slower, links are shared, and all wait for the latest host."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from shardwise.cost.network import network_of, ring
from shardwise.cost.overlap import covered
from shardwise.estimate.estimate import estimate
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.calibrations import calibration_of
from shardwise.inputs.site import Site, harmonic
from shardwise.inputs.strategy import Strategy

MEASURED = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_overlap.json"
LARGE = {"product 8192 8192 8192", "product 8192 8192 3584", "product 8192 3584 8192"}
MIX = {"product": 0.75, "attention": 0.12, "norm": 0.065, "addition": 0.065}
"""Shares of a large layer's time."""


def lost(blocks, rate):
    """Share of their speed that a layer's kernels lose beside so many blocks that copy at this rate."""
    rows = [dict(zip(DATA["columns"], row, strict=True)) for row in DATA["rows"]]
    slow = 0.0
    for kind, share in MIX.items():
        own = [row for row in rows if row["work"].startswith(kind) and (row["blocks"], row["asked"]) == (blocks, rate)]
        own = [row for row in own if kind != "product" or row["work"] in LARGE]
        slow += share * fmean(row["beside"] / row["alone"] - 1 for row in own)
    return slow / (1 + slow)


DATA = json.loads(MEASURED.read_text(encoding="utf-8"))


def test_contention_is_what_the_h200_measured():
    inside, between = calibration_of(load_cluster("8xh200").gpu).contended
    assert inside == pytest.approx(fmean((lost(16, 400e9), lost(32, 400e9))), abs=0.01)  # 24 channels
    assert between == pytest.approx(fmean((lost(8, 50e9), lost(16, 50e9))), abs=0.01)


def test_covered_never_falls_and_never_hides_a_second_twice():
    draw = Random(7)  # noqa: S311
    for _ in range(500):
        kernels, traffic = draw.random(), draw.random()
        wire = draw.random() * kernels
        overlap, taken = draw.random(), draw.random() * 0.5
        found = covered(kernels, traffic, overlap, taken, wire)
        assert max(kernels, traffic) <= found <= kernels + traffic + wire
        more = [(kernels * 1.1, traffic, wire), (kernels, traffic * 1.1, wire), (kernels, traffic, wire * 1.1)]
        for longer, busier, shared in more:
            assert covered(longer, busier, overlap, taken, shared) >= found
    assert covered(3.0, 1.0, 1.0, 0.2) == pytest.approx(3.2)  # slower for as long as it runs
    assert covered(1.0, 3.0, 1.0, 0.2) == pytest.approx(3.0)  # slower kernels still end first
    assert covered(3.0, 2.0, 1.0, 0.0, 2.0) == pytest.approx(4.0)  # the links carry one after the other


def with_calibration(cluster, **changes):
    calibration = replace(calibration_of(cluster.gpu), **changes)
    return replace(cluster, gpu=replace(cluster.gpu, calibration=calibration))


@pytest.mark.parametrize(
    "text",
    ["dp64 zero3 gbs64 seq8192", "tp8 dp8 gbs64 seq8192", "tp4 cp2 dp8 gbs64 seq8192", "dp64 zero1 gbs64 seq8192"],
)
def test_the_ledger_names_what_contention_costs(text):
    model, cluster = load_model("llama-3-8b"), load_cluster("64xh100")
    runs = [
        estimate(model, with_calibration(cluster, contended=each), Strategy.parse(text), checked=True)
        for each in ((0.0, 0.0), (0.28, 0.20))
    ]
    free, charged = (one.time.part("hidden communication") for one in runs)
    assert free == 0 < charged
    longer = runs[1].iteration_seconds - runs[0].iteration_seconds
    assert 0.7 * charged < longer < 1.001 * charged  # slower passes wait less for launches


def test_the_latest_of_many_hosts():
    for count in (2, 3, 16, 2048):
        assert harmonic(count) == pytest.approx(sum(1 / k for k in range(1, count + 1)), rel=1e-3)
    assert Site().slowest(1) == Site().slowest(8) == 1.0
    grows = [Site(jitter=0.007).slowest(8 * 2**k) for k in range(14)]
    assert grows == sorted(grows)
    assert Site(jitter=0.0).slowest(16384) == 1.0


@pytest.mark.parametrize(
    ("model", "text", "sizes"),
    [
        ("llama-3-70b", "tp8 pp4x5 interleaved mbs1 seq8192", (1024, 4096, 16384)),
        ("llama-3.1-405b", "tp8 pp14 mbs1 seq8192", (1008, 4032, 16128)),
    ],
)
def test_mfu_falls_with_the_number_of_gpus(model, text, sizes):
    """The batch is fixed per GPU. Published: 70B takes 1.0% (bf16) and 4.5% (fp8) longer on 2,048 than on 128 H100s,
    405B 1.1% and 1.8% longer on 2,304 than on 576 (DGX Cloud recipes).
    """
    found = []
    for gpus in sizes:
        strategy = Strategy.parse(text)
        dp = gpus // (strategy.tp * strategy.pp)
        strategy = replace(strategy, dp=dp, global_batch=16 * dp)
        found.append(estimate(load_model(model), load_cluster(f"{gpus}xh100"), strategy))
    mfus = [one.mfu for one in found]
    assert mfus == sorted(mfus, reverse=True)
    assert 0.01 < 1 - mfus[-1] / mfus[0] < 0.04
    stragglers = [one.time.part("stragglers") / one.iteration_seconds for one in found]
    assert stragglers == sorted(stragglers)


def test_a_ring_takes_a_step_for_every_rank():
    network = network_of(load_cluster("64xh100"), calibration_of(load_cluster("64xh100").gpu))
    inner, outer = (level.latency for level, _ in network.levels)
    assert ring(network.group(64, 1), 0.0) == pytest.approx(56 * inner + 7 * outer + network.fixed)
    assert ring(network.group(8, 8), 0.0) == pytest.approx(7 * outer + network.fixed)


def test_pods_limit_what_leaves_them():
    flat, pods = (load_cluster(f"16384xh100{site}") for site in ("", "@meta-24k"))
    networks = [network_of(one, calibration_of(one.gpu)) for one in (flat, pods)]
    assert [network.sending(4096)[0] for network in networks] == pytest.approx([42.5e9, 42.5e9 / 7])
    assert networks[0].sending(64) == networks[1].sending(64)
    within = [ring(network.group(64, 8), 1e9) for network in networks]
    assert within[0] == within[1]
