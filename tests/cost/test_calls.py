"""What the host takes call by call: it runs ahead of the kernels, stretch by stretch."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwise
from shardwise.cost.chunk import _longest
from shardwise.cost.seconds import Seconds, meet
from shardwise.estimate.setup import setup_of
from shardwise.inputs.load import load_runtime, load_site
from shardwise.inputs.model import Model
from shardwise.inputs.towers import Projector, Stem
from shardwise.inputs.traced import Traced, TracedBlock, TracedOp
from shardwise.inputs.traced_model import traced_model

TINY = Model(name="tiny", layers=8, hidden=256, heads=4, kv_heads=4, head_size=64, ffn=1024, vocab=4096)


def seconds(model, text, site="virtual-h200"):
    cluster = replace(shardwise.load_cluster("1xh200"), site=load_site(site))
    strategy = shardwise.load_strategy(f"dp1 mbs1 gbs1 {text}", cluster)
    return shardwise.estimate(model, cluster, strategy)


def test_kernels_behind_late_calls_still_run():
    assert _longest([(1.0, 4.0), (3.0, 2.0)]) == 6.0  # the device is never idle but for nothing
    assert _longest([(5.0, 1.0), (1.0, 4.0)]) == 9.0  # five seconds of calls, then four of kernels
    assert _longest([(2.0, 1.0)] * 5) == 10.0
    assert _longest([(1.0, 2.0)] * 5) == 10.0
    assert _longest([]) == 0.0


def test_calls_show_where_they_take_longer_than_kernels_and_launches():
    one = Seconds(gemm=3.0, host=1.0)
    assert one._replace(calls=2.0).total == one.total == pytest.approx(meet(3.0, 1.0))
    assert one._replace(calls=7.0).total == 7.0
    assert one._replace(calls=7.0).launch == 4.0


def test_small_models_of_transformers_take_their_calls_and_a_faster_host_takes_less():
    slow = seconds(TINY, "seq256 runtime=huggingface")
    fast = seconds(TINY, "seq256 runtime=huggingface", "usual")
    assert fast.iteration_seconds < 0.8 * slow.iteration_seconds
    assert "launches may bound it" in slow.time.note
    setup = setup_of(TINY, slow.cluster, slow.strategy, load_runtime("huggingface"))
    calls = sum(part.calls for chunk in setup.chunks for part in (chunk.f, chunk.i, chunk.w))
    assert calls <= slow.iteration_seconds
    assert slow.iteration_seconds_interval[1] > 1.3 * calls


def test_large_batches_and_compiled_or_other_runtimes_wait_for_no_calls():
    wide = replace(TINY, hidden=4096, heads=32, kv_heads=32, head_size=128, ffn=16384)
    assert seconds(wide, "seq8192 runtime=huggingface").time.note == ""
    compiled = seconds(TINY, "seq256 runtime=huggingface compile")
    assert compiled.iteration_seconds < seconds(TINY, "seq256 runtime=huggingface").iteration_seconds
    assert seconds(TINY, "seq256 runtime=torchtitan").time.note == ""


def test_a_tower_is_waited_for_before_its_pictures_stand_among_tokens():
    eye = replace(
        TINY, name="vision", causal=False, stem=Stem(size=224, patch=14, bias=False), vocab=0,
        projector=Projector(merge=2, norm="tokens"),
    )  # fmt: skip
    both = seconds(replace(TINY, towers=(eye,)), "seq512 runtime=huggingface")
    alone = seconds(TINY, "seq512 runtime=huggingface")
    places = load_runtime("huggingface").overheads.tower / both.cluster.site.host
    assert both.forward_seconds - alone.forward_seconds > places


def traced_toy(**calls):
    op = TracedOp(name="mix", kind="memory", bytes_f=(0.0, 1e4), bytes_b=(0.0, 2e4), kernels_f=10, kernels_b=20,
                  params=100, **calls)  # fmt: skip
    block = TracedBlock(name="Block", ops=(op,))
    end = TracedOp(name="end", kind="memory", bytes_f=(0.0, 1e4), kernels_f=1, kernels_b=1)
    return traced_model("toy", Traced(
        inputs="x=1x8", dtype="bf16", seq=1, kinds=(block,), order=(0,) * 6,
        first=TracedBlock(name="first", ops=(end,)),
        last=TracedBlock(name="last", ops=(end,)), border=(0.0, 16.0),
    ))  # fmt: skip


def test_calls_that_a_trace_counted_are_priced_each_and_older_traces_by_their_kernels():
    few, many = traced_toy(calls_f=10, calls_b=20), traced_toy(calls_f=1000, calls_b=2000)
    found = [seconds(one, "seq1 master=pure runtime=huggingface") for one in (few, many)]
    call = load_runtime("huggingface").overheads.call
    more = 6 * (990 * call[0] + 1980 * call[1]) / 0.6
    assert found[1].iteration_seconds - found[0].iteration_seconds == pytest.approx(more, rel=0.05)
    assert seconds(traced_toy(), "seq1 master=pure runtime=huggingface").iteration_seconds > 0
