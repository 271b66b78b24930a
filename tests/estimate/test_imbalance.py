"""Documents in whole estimates: equal to samples of one document where they are, never slower, waiting as drawn."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from drawn import drawn

from shardwise.cost.sequences import loads_of
from shardwise.estimate.estimate import assemble, estimate
from shardwise.estimate.imbalance import NAME, in_step, varying, waiting_of
from shardwise.estimate.iteration import iteration_of
from shardwise.estimate.packings import ONE, packings, told
from shardwise.estimate.passes import footprints_of, order_of, pass_costs, passes_of, seconds_of
from shardwise.estimate.setup import setup_of
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.documents import Documents
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.engine import Prepared, replay, replay_slowly
from shardwise.pipeline.generate import generate

WEB = Documents(lengths=(40, 200, 700, 2500, 9000, 60000), counts=(300.0, 500.0, 400.0, 120.0, 20.0, 1.0))
CASES = [case for case in drawn(seed=11, count=120) if case.runtime.kernels.masked_windows is False]
PIPELINE = "tp8 pp8 dp8 mbs1 gbs128 seq32768"


def asked(model, cluster, text, **changes):
    strategy = replace(Strategy.parse(text), **changes)
    return estimate(load_model(model), load_cluster(cluster), strategy)


def waits(found):
    return {part.name: part.value for top in found.time.parts if top.name == NAME for part in top.parts}


def test_documents_as_long_as_samples_are_samples_of_one_document_to_the_last_bit():
    for case in CASES:
        seq = case.strategy.seq
        whole = Documents(lengths=(seq, 2 * seq), counts=(2.0, 1.0))
        plain = assemble(setup_of(*case))
        for packing in ("packed", "balanced"):
            found = assemble(setup_of(*case.having(documents=whole, packing=packing)))
            assert (found.time, found.memory, found.mfu) == (plain.time, plain.memory, plain.mfu)


def test_no_documents_are_slower_than_samples_of_one():
    """Whatever waits for whatever: the longest document that a sample can hold is the sample."""
    rng = random.Random(4)  # noqa: S311
    cases = [case for case in CASES if case.strategy.schedule not in {"auto", "zb-1p", "zb-2p"}]
    for case in cases:
        lengths = sorted({max(1, round(10 ** rng.uniform(1, 5.5))) for _ in range(5)})
        documents = Documents(lengths=tuple(lengths), counts=tuple(1e6 / length**1.5 for length in lengths))
        packing = rng.choice(("packed", "balanced", "unmasked", "padded"))
        plain = assemble(setup_of(*case))
        found = assemble(setup_of(*case.having(documents=documents, packing=packing)))
        assert found.iteration_seconds <= plain.iteration_seconds * (1 + 1e-9), f"{case} {packing} {documents}"
        assert found.total_bytes == plain.total_bytes


@pytest.mark.parametrize("text", ["mbs1 gbs{} seq8192", "zero3 mbs2 gbs{} seq16384", "pp2 mbs1 gbs{} seq8192"])
def test_more_replicas_never_wait_less(text):
    runtime = "runtime=torchtitan" if "zero3" in text else ""
    found = []
    for dp in (1, 2, 4, 8, 32):
        gpus = dp * (2 if "pp2" in text else 1)
        words = f"dp{dp} {text.format(8 * dp)} {runtime}"
        found.append(waits(asked("llama-3-8b", f"{gpus}xh200", words, documents=WEB)).get("replicas", 0.0))
    assert found[0] == 0
    assert found == sorted(found)


def test_one_step_of_many_replicas_waits_for_the_busiest_of_drawn_sums():
    """Replicas with four micro batches each, drawn ten thousand times."""
    found = asked("llama-3-8b", "64xh200", "dp64 zero1 mbs1 gbs256 seq8192", documents=WEB)
    setup = setup_of(found.model, found.cluster, found.strategy, load_runtime("megatron"))
    own = varying(setup, setup.chunks[0])
    values, rng = loads_of(WEB, 8192, 1, 1, ((0, 1.0),)).values, np.random.default_rng(9)
    busiest = np.mean([rng.choice(values, (64, 4)).sum(axis=1).max() for _ in range(4000)])
    assert waits(found)["replicas"] == pytest.approx((own.forward + own.backward) * (busiest - 4), rel=0.02)


@pytest.mark.parametrize(
    "text", [PIPELINE, f"{PIPELINE} zb-h1 runtime=zero-bubble", "tp8 pp4x2 dp16 mbs1 gbs256 seq32768"]
)
def test_pipelines_wait_as_drawn_ones_do(text):
    """Every replica draws its micro batches by itself; all wait for the longest of their pipelines."""
    model, cluster = load_model("llama-3-70b"), load_cluster("512xh200")
    strategy = replace(Strategy.parse(text), documents=WEB)
    setup = setup_of(model, cluster, strategy, load_runtime(strategy.runtime))
    each, footprints = seconds_of(setup), footprints_of(setup)
    done = passes_of(setup, each, footprints)
    waiting = waiting_of(setup, done, each, footprints)
    assert {part.name for part in waiting.parts} == {"replicas", "pipeline"}
    spans = [max(_drawn_spans(setup, done, seed, strategy.dp)) for seed in range(40)]
    assert waiting.value == pytest.approx(np.mean(spans) - done.makespan, rel=0.15)


def _drawn_spans(setup, done, seed, replicas):
    strategy, values = setup.strategy, loads_of(WEB, 32768, 1, 1, ((0, 1.0),)).values
    rng = np.random.default_rng(seed)
    schedule = done.timeline.schedule if done.timeline else order_of(strategy)
    split = not schedule.fused
    costs = pass_costs(setup, split=split)
    slopes = [varying(setup, chunk) for chunk in setup.chunks]
    for _ in range(replicas):
        drawn_loads = rng.choice(values, strategy.microbatches)
        data = Prepared(schedule, costs)
        rows = []
        for base, name in (
            (costs.f, "forward"),
            (costs.i, "backward"),
            (costs.w, ""),
            ([a + b for a, b in zip(costs.i, costs.w, strict=True)], "backward"),
        ):
            for chunk, seconds in enumerate(base):
                slope = getattr(slopes[chunk], name) if name else 0.0
                rows.append(seconds + slope * (drawn_loads - 1))
        data.duration, data.each = np.concatenate(rows), True
        replay_slowly(data)
        yield data.end.max()


def test_the_kernel_and_its_twin_time_unequal_micro_batches_alike():
    rng = np.random.default_rng(1)
    for name, pp, vpp in (("1f1b", 4, 1), ("zb-v", 3, 2), ("dualpipe-v", 4, 2), ("interleaved", 2, 2)):
        order = generate(name, pp=pp, vpp=vpp, microbatches=12)
        costs = Costs(f=(1.0,) * pp * vpp, i=(1.0,) * pp * vpp, w=(1.0,) * pp * vpp, hop=(0.1,) * (pp * vpp - 1))
        both = [Prepared(order, costs) for _ in range(2)]
        lengths = rng.uniform(0.5, 2.0, 4 * pp * vpp * 12)
        for data in both:
            data.duration, data.each = lengths, True
        assert replay(both[0]) == replay_slowly(both[1]) == order.actions
        assert (both[0].end == both[1].end).all()


def test_replicas_in_step_wait_in_every_layer():
    sharded, whole = (
        asked("llama-3-8b", "64xh200", f"dp64 zero{zero} mbs1 gbs512 seq8192 runtime=torchtitan", documents=WEB)
        for zero in (3, 2)
    )
    assert waits(sharded)["replicas"] > 1.5 * waits(whole)["replicas"]
    setup = setup_of(
        load_model("mixtral-8x7b"), load_cluster("64xh200"), Strategy.parse("tp2 ep8 dp32"), load_runtime("megatron")
    )
    assert in_step(setup) == 4


def test_gathered_keys_leave_ranks_of_context_parallel_waiting():
    found = {
        kind: waits(asked("llama-3-8b", "64xh200", f"cp8:{kind} dp8 mbs1 gbs64 seq65536", documents=WEB))
        for kind in ("ring", "all-gather", "all-to-all")
    }
    assert found["all-gather"]["context parallel"] > 0
    assert "context parallel" not in found["ring"]
    assert "context parallel" not in found["all-to-all"]


def test_windows_and_indexers_leave_less_to_wait_for():
    full, windowed = (
        asked(name, "64xh200", "dp64 zero1 mbs1 gbs256 seq32768", documents=WEB)
        for name in ("llama-3-8b", "mistral-7b")
    )
    share = [waits(one)["replicas"] / one.iteration_seconds for one in (full, windowed)]
    assert share[1] < share[0]
    sparse = asked("deepseek-v3.2", "512xh200", "tp8 dp64 ep64 mbs1 gbs1024 seq32768 recompute=full", documents=WEB)
    assert waits(sparse)["replicas"] > 0


def test_masks_over_the_whole_sample_save_nothing():
    plain, packed = (
        asked("llama-3-8b", "8xh200", "dp8 zero3 mbs1 gbs8 seq8192 runtime=huggingface", documents=one)
        for one in (None, WEB)
    )
    assert packed.iteration_seconds > plain.iteration_seconds
    assert waits(packed) == {}
    stored = [asked("llama-3-8b", "8xh200", "tp8 mbs1 gbs8 seq4096 noflash", documents=one) for one in (None, WEB)]
    assert stored[0].iteration_seconds == stored[1].iteration_seconds


def test_padding_is_no_work():
    found = asked("llama-3-8b", "64xh200", "dp64 zero1 mbs1 gbs256 seq8192", documents=WEB, packing="padded")
    plain = asked("llama-3-8b", "64xh200", "dp64 zero1 mbs1 gbs256 seq8192")
    share = WEB.within(8192) / 8192
    assert found.iteration_seconds == plain.iteration_seconds
    assert found.tokens_per_second_per_gpu == pytest.approx(share * plain.tokens_per_second_per_gpu)
    assert found.mfu < share * plain.mfu


def test_the_iteration_shows_what_the_ledger_says():
    for text in ("dp64 zero1 mbs1 gbs256 seq8192", "tp2 pp4 dp8 mbs1 gbs64 seq8192", "pp4x2 dp16 mbs1 gbs64 seq8192"):
        found = asked("llama-3-8b", "64xh200", text, documents=WEB)
        assert found.time.value == pytest.approx(found.iteration_seconds)
        setup = setup_of(found.model, found.cluster, found.strategy, load_runtime("megatron"))
        whole = iteration_of(setup, found)
        for rank in range(found.strategy.pp):
            assert whole.exposed(rank)[NAME] == pytest.approx(found.time.part(NAME))


def test_ways_to_pack_stand_beside_each_other():
    found = asked("llama-3-8b", "64xh200", "dp64 zero1 mbs1 gbs512 seq8192", documents=WEB)
    rows = {row.packing: row for row in packings(found)}
    assert list(rows) == [ONE, "packed", "balanced", "unmasked", "padded"]
    assert rows["balanced"].seconds < rows["packed"].seconds < rows[ONE].seconds == rows["unmasked"].seconds
    assert rows["packed"].seconds == found.iteration_seconds
    assert "keys on average" in told(found)
    assert packings(asked("llama-3-8b", "64xh200", "dp64 mbs1 gbs512")) == ()


@pytest.mark.parametrize("name", ["llama-3-8b", "mistral-7b", "gemma-2-9b", "deepseek-v2-lite"])
def test_packed_documents_of_one_length_are_as_many_short_samples(name):
    """Attention kernels are fitted to runs of short samples, which is what they see."""
    short = asked(name, "16xh200", "dp16 mbs8 gbs128 seq1024 recompute=full")
    packed = asked(name, "16xh200", "dp16 mbs1 gbs16 seq8192 recompute=full", documents=Documents.parse("1024"))
    for part in ("forward", "backward", "recompute"):
        one, other = (
            next(p for p in found.time.parts if p.name == part).part("attention") for found in (short, packed)
        )
        assert one == pytest.approx(other, rel=1e-9)
    assert short.mfu == pytest.approx(packed.mfu, rel=1e-3)
    assert waits(packed) == {}
