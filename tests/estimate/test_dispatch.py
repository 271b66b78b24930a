"""How tokens reach their experts: a copy for each place that they visit, and what the host does on the way."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from math import isclose

import pytest

from shardwise.check.check import check
from shardwise.cost.network import all_to_all, dispatch, network_of
from shardwise.estimate.advice import advise
from shardwise.estimate.estimate import estimate
from shardwise.estimate.setup import setup_of
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.calibrations import calibration_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.ops.op import Routing


def drawn(routing: Routing, rng: random.Random) -> set[int]:
    """The experts of one token: groups first, then experts out of them."""
    each = routing.experts // routing.groups
    groups = rng.sample(range(routing.groups), routing.top_groups)
    return set(rng.sample([group * each + i for group in groups for i in range(each)], routing.top_k))


@pytest.mark.parametrize(
    "routing",
    [Routing(16, 1, 1, 1), Routing(64, 6, 1, 1), Routing(128, 8, 1, 1), Routing(256, 8, 8, 4), Routing(160, 6, 8, 3)],
)
@pytest.mark.parametrize("places", [2, 4, 8, 16])
def test_places_that_a_token_visits(routing, places):
    rng = random.Random(places)  # noqa: S311 - a draw, no secret
    held, draws = routing.experts // places, 4000
    visited = sum(len({expert // held for expert in drawn(routing, rng)}) for _ in range(draws)) / draws
    assert places * routing.reached(1 / places) == pytest.approx(visited, rel=0.03)


def test_places_by_counting_all_tokens():
    routing = Routing(8, 3, 1, 1)
    tokens = list(combinations(range(8), 3))
    for places in (2, 4, 8):
        visited = sum(len({expert // (8 // places) for expert in token}) for token in tokens) / len(tokens)
        assert places * routing.reached(1 / places) == pytest.approx(visited)


def test_all_experts_in_one_place_are_always_reached():
    assert Routing(256, 8, 8, 4).reached(1.0) == pytest.approx(1.0)


@pytest.mark.parametrize("ranks", [8, 16, 32, 64])
@pytest.mark.parametrize("gpu", ["h100", "gb200"])
def test_one_copy_for_a_node_never_takes_longer_than_one_for_an_expert(ranks, gpu):
    cluster = load_cluster(f"256x{gpu}")
    group = network_of(cluster, calibration_of(cluster.gpu)).group(ranks, 1)
    tokens = 4096 * 7168 * 2.0
    for top_k in (1, 2, 4, 8):
        once = dispatch(group, tokens, Routing(256, top_k, 1, 1))
        assert once <= all_to_all(group, top_k * tokens) * 1.0001
        assert once >= dispatch(group, tokens, Routing(256, max(1, top_k // 2), 1, 1))


def test_groups_limit_the_nodes_that_a_token_visits():
    cluster = load_cluster("64xh100")
    group = network_of(cluster, calibration_of(cluster.gpu)).group(64, 1)
    free, limited = (dispatch(group, 1e8, Routing(256, 8, groups, top)) for groups, top in ((1, 1), (8, 4)))
    assert limited < 0.75 * free


def seconds(text: str, **model: object) -> float:
    given = load_model("deepseek-v3")
    given = replace(given, layers=8, moe=replace(given.moe, **model)) if model else replace(given, layers=8)
    return estimate(given, load_cluster("64xh100"), Strategy.parse(text)).iteration_seconds


LAYOUT = "dp64 ep64 zero1 mbs1 gbs256 seq4096"


def test_dispatchers_in_order_across_nodes():
    plain, deep, overlapped = (
        seconds(f"{LAYOUT} {words}") for words in ("", "dispatch=deepep", "dispatch=deepep ep-overlap")
    )
    assert overlapped < deep < 0.8 * plain


def test_gathering_all_tokens_pays_only_within_few_ranks():
    far = {name: seconds(f"{LAYOUT} dispatch={name}") for name in ("all-to-all", "all-gather")}
    assert far["all-gather"] > far["all-to-all"]
    near = {
        name: seconds(f"dp64 ep2 zero1 mbs1 gbs256 seq4096 dispatch={name}", top_k=8)
        for name in ("all-to-all", "all-gather")
    }
    assert near["all-gather"] < near["all-to-all"]


def test_without_experts_on_other_ranks_the_dispatcher_is_of_no_matter():
    alone = [seconds(f"dp64 ep1 zero1 mbs1 gbs64 seq4096 dispatch={name}") for name in ("all-to-all", "all-gather")]
    assert isclose(*alone)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("dp8 ep8 gbs8 dispatch=hybridep runtime=torchtitan zero3", "hybridep is not in runtime torchtitan"),
        ("dp8 ep1 gbs8 ep-overlap", "with ep 1 no tokens travel"),
        ("dp8 ep8 gbs16 ep-overlap recompute=full", "does not go with recompute full"),
        ("pp2 dp4 ep4 gbs16 ep-overlap", "it needs chunks"),
        ("dp8 ep8 gbs8 ep-overlap", "one micro batch has no other to hide behind"),
        ("dp8 ep8 gbs16 ep-overlap dispatch=all-gather", "does not go with dispatch=all-gather"),
        ("dp8 ep8 gbs16 graphs=layer", "captured for a fixed number of tokens"),
        ("dp8 ep8 gbs16 graphs=layer runtime=torchtitan zero3", "graphs=layer is not in runtime torchtitan"),
        ("dp8 ep8 gbs8 ep-overlap runtime=torchtitan zero3", "does not have it"),
    ],
)
def test_what_cannot_be_is_said(text, word):
    strategy = Strategy.parse(text)
    runtime = load_runtime(strategy.runtime)
    found = check(load_model("qwen3-30b-a3b"), load_cluster("8xh100"), strategy, runtime)
    assert any(word in fault.message for fault in found), [fault.message for fault in found]


def host(model: str, text: str) -> float:
    """Seconds of the host in one layer's passes."""
    strategy = Strategy.parse(text)
    setup = setup_of(load_model(model), load_cluster("64xh100"), strategy, load_runtime(strategy.runtime))
    block = setup.chunks[0].runs[-2].block
    return block.f.host + block.i.host + block.w.host


def test_experts_cost_the_host_time_and_more_of_them_more():
    dense = host("qwen3-32b", "dp64 gbs64 seq4096")
    few, many = (host("qwen3-30b-a3b", f"dp64 ep{ep} gbs64 seq4096") for ep in (32, 8))
    assert dense < few < many
    # 128 experts over 8 ranks: an H200's host took 13 to 16 ms, a dense layer 5
    assert 2.0 < many / dense < 3.5


def test_graphs_take_the_experts_host_time_away():
    given = "dp64 ep8 gbs64 seq4096"
    plain, attention, layer = (
        host("qwen3-30b-a3b", f"{given}{words}") for words in ("", " graphs=attention", " graphs=layer")
    )
    assert layer == 0
    assert 0.2 * plain < attention < 0.8 * plain


def test_a_routers_statistics_make_the_busiest_rank():
    given = load_model("qwen3-30b-a3b")
    even, skewed = (1.0,) * 128, (2.0,) * 16 + (1.0,) * 112

    def passes(loads, ep=8):
        model = replace(given, moe=replace(given.moe, loads=loads))
        return estimate(model, load_cluster("8xh100"), Strategy.parse(f"dp8 ep{ep} gbs64 seq4096")).iteration_seconds

    assert passes(even) == passes(())
    assert passes(skewed) > passes(())
    assert passes(skewed, ep=1) == passes((), ep=1)
    stated = replace(given, moe=replace(given.moe, imbalance=replace(given.moe, loads=skewed).busiest(8)))
    other = estimate(stated, load_cluster("8xh100"), Strategy.parse("dp8 ep8 gbs64 seq4096")).iteration_seconds
    assert passes(skewed) == pytest.approx(other)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"loads": (1.0, 2.0)}, "2 numbers that add up to 3 for 128 experts"),
        ({"loads": (0.0,) * 128}, "not all of them 0"),
        ({"groups": 3}, "3 does not divide 128 experts"),
        ({"groups": 4, "top_groups": 5}, "5 of 4 groups"),
        ({"groups": 64, "top_groups": 2}, "8 experts do not come out of 2 groups of 2"),
    ],
)
def test_experts_that_cannot_be_are_told(fields, word):
    given = load_model("qwen3-30b-a3b")
    model = replace(given, moe=replace(given.moe, **fields))
    found = check(model, load_cluster("8xh100"), Strategy.parse("dp8 ep8 gbs8"), load_runtime("megatron"))
    assert any(word in fault.message for fault in found), [fault.message for fault in found]


def test_a_better_dispatcher_is_advised():
    model = replace(load_model("deepseek-v3"), layers=8)
    found = estimate(model, load_cluster("64xh100"), Strategy.parse("dp64 ep64 zero1 mbs1 gbs256 seq4096"))
    text = next(change.text for change in advise(found) if change.kind == "experts")
    assert text.startswith("dispatcher all-to-all -> ")


def needed(words: str) -> float:
    model = replace(load_model("qwen3-30b-a3b"), layers=8, vocab=1024)  # else the output layer is highest
    return estimate(model, load_cluster("64xh100"), Strategy.parse(f"dp64 ep64 gbs512 seq8192 {words}")).total_bytes


def test_dispatch_takes_memory():
    plain = needed("")
    # all tokens of 64 ranks: 64 x 8192 x 2048 x 2 bytes, where the passes are highest
    assert needed("dispatch=all-gather") - plain > 1.5 * 2**30
    assert needed("dispatch=deepep") == plain
    # a layer's forward runs beside another one's backward: one of eight layers stands twice
    assert 0.05 < (needed("ep-overlap") - plain) / (plain - needed("recompute=full")) < 0.3


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("", 41.25),
        ("ep-overlap", 31.31),
        ("dispatch=hybridep graphs=attention", 24.71),
        ("dispatch=hybridep graphs=attention ep-overlap", 20.99),
    ],
)
def test_nvidias_own_comparison_of_dispatchers(words, seconds):
    """Qwen3-30B-A3B on 16 H100s, EP 16, one sample, batch 1024, forced balance (Megatron Bridge's pages on expert
    parallel overlap, 2026-05 and 2026-07). None of it was fitted but the share that overlap hides.
    """
    strategy = Strategy.parse(f"dp16 ep16 mbs1 gbs1024 seq4096 grad-bf16 {words}")
    found = estimate(load_model("qwen3-30b-a3b"), load_cluster("16xh100"), strategy)
    assert found.iteration_seconds == pytest.approx(seconds, rel=0.15)
    if words.endswith("graphs=attention ep-overlap"):
        assert found.peak_bytes == pytest.approx(62.166 * 2**30, rel=0.03)
