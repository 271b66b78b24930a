"""Plans with a dispatcher and with overlap are ones that the runtime can run."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from questions import asked, small_model

from shardwise import plan
from shardwise.check.check import check
from shardwise.cost.network import all_reduce
from shardwise.cost.update import data_groups
from shardwise.errors import InputError
from shardwise.estimate.estimate import estimate
from shardwise.estimate.passes import hop_seconds
from shardwise.estimate.setup import setup_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Moe
from shardwise.inputs.strategy import Strategy
from shardwise.search.api import question_of
from shardwise.search.refine import refine
from shardwise.search.search import Search
from shardwise.search.space import BEATEN, Space
from shardwise.search.table import table_of


def test_every_point_of_an_overlapped_space_passes_the_checks():
    asked = question_of("qwen3-30b-a3b", "8xh100", global_batch=16, only="ep-overlap")
    space, runtime, count = Space(question=asked), load_runtime("megatron"), 0
    for point in space.points():
        strategy = space.strategy(point)
        assert strategy.ep_overlap
        assert strategy.dispatcher == "deepep"
        faults = [fault for fault in check(asked.model, asked.cluster, strategy, runtime) if "ep_overlap" in fault.path]
        assert not faults, (str(strategy), faults)
        count += 1
    assert count > 100


@pytest.mark.parametrize(
    ("model", "cluster"), [("deepseek-v3", "2048xh100"), ("gpt-oss-120b", "64xh100"), ("mixtral-8x7b", "64xa100")]
)
def test_dispatchers_that_are_left_out_are_never_better(model, cluster):
    """Operator by operator, so that it holds whatever is recomputed."""
    space = Space(question=question_of(model, cluster, global_batch=1024))
    bases = [base for base in space.bases if base.ep > 1 and not base.ep_overlap]
    assert {base.dispatcher for base in bases} == {"deepep"}
    for base in random.Random(3).sample(bases, 60):  # noqa: S311
        best = _taken(table_of(space, base).main.blocks[0])
        for way in BEATEN:
            other = _taken(table_of(space, base._replace(dispatcher=way)).main.blocks[0])
            assert all(own <= theirs for own, theirs in zip(best, other, strict=True)), (base, way)


def _taken(block):
    passes = [part for one in (*block.forwards, block.i, block.w) for part in (one.device, one.host, one.wire)]
    return [*passes, *(part for op in block.ops for part in (op.kept, op.extra_f, op.extra_b))]


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-30b-a3b"])
def test_graphs_that_cover_less_are_never_faster_or_leaner(model):
    """So that the search looks at those that cover most alone."""
    question = question_of(model, "8xh100", global_batch=32, only="graphs=none,attention,layer")
    space, rng = Space(question=question), random.Random(4)  # noqa: S311
    captured = [point for point in space.points() if point.base.cuda_graphs != "none"]
    assert not any(point.recompute.full for point in captured)
    for point in rng.sample(captured, 40):
        strategy = space.strategy(point)
        most = priced(question, strategy)
        for graphs in ("none", "attention"):
            less = priced(question, replace(strategy, cuda_graphs=graphs))
            assert most.iteration_seconds <= less.iteration_seconds * (1 + 1e-12)
            assert most.total_bytes <= less.total_bytes * (1 + 1e-12)


def priced(question, strategy):
    return estimate(question.model, question.cluster, strategy, runtime=question.runtime, checked=True)


def test_graphs_that_bring_nothing_are_dropped():
    best = plan(
        "llama-3-8b", "8xh100", global_batch=64, seq=8192, gap=0.05, only="tp=1 pp=1 cp=1 graphs=none,layer"
    ).fastest
    assert best.strategy.cuda_graphs == "none"


def test_the_simplest_has_no_graphs_where_they_may_be_left_out():
    options = {"global_batch": 256, "seq": 4096, "gap": 0.01}
    plain = plan("llama-3-8b", "64xh100", **options, only="tp=1 pp=1 cp=1")
    named = plan("llama-3-8b", "64xh100", **options, only="tp=1 pp=1 cp=1 graphs=none,attention,layer")
    assert named.simplest.strategy == plain.simplest.strategy


@pytest.mark.parametrize("gpu", ["ascend-910b", "tpu-v5p", "trainium2"])
def test_kernels_that_a_chip_lacks_are_neither_proposed_nor_taken(gpu):
    found = plan("qwen3-30b-a3b", f"64x{gpu}", global_batch=64, gap=0.2, only="tp=1 cp=1 mbs=1 vpp=1")
    assert {one.strategy.dispatcher for one in found.simulated} <= {"all-to-all", "all-gather"}
    with pytest.raises(InputError, match=f"deepep is not written for {gpu}; use all-to-all or all-gather"):
        plan("qwen3-30b-a3b", f"64x{gpu}", global_batch=64, only="dispatch=deepep")


def test_all_that_is_named_is_searched_and_numbers_change_only_where_they_are():
    asked = {"global_batch": 64, "gap": 0.05}
    only = "tp=1 cp=1 pp=1 mbs=1"
    plain = plan("llama-3-8b", "8xh100", only=only, **asked)
    wider = plan("llama-3-8b", "8xh100", only=f"{only} grad=fp32,bf16 optimizer=adamw,adamw-bf16", **asked)
    assert set(plain.counts.axes["grad_dtype"]) == {"fp32"}
    assert set(wider.counts.axes["grad_dtype"]) == {"fp32", "bf16"}
    assert set(wider.counts.axes["optimizer"]) == {"adamw", "adamw-bf16"}
    assert wider.fastest.iteration_seconds <= plain.fastest.iteration_seconds
    host = plan("llama-3-8b", "8xh100", only=f"{only} offload=none,optimizer,activations", **asked)
    assert set(host.counts.axes["offload"]) == {"none", "optimizer", "activations"}
    assert host.fastest.iteration_seconds <= plain.fastest.iteration_seconds


@pytest.mark.parametrize("seed", range(6))
def test_switches_are_searched_as_by_brute_force(seed):
    """Dispatchers, overlap, graphs, offload and formats of a small model with experts, all of them."""
    rng = random.Random(seed)  # noqa: S311
    model = small_model(rng)
    model = replace(model, moe=Moe(experts=8, top_k=2, expert_ffn=1024, first_dense=0), mtp=0)
    words = rng.sample(["offload=none,optimizer", "grad=fp32,bf16", "optimizer=adamw,adamw-bf16"], 1)
    only = "tp<=2 cp=1 mbs=1 zero=1 hsdp=0 etp=1 sp=on recompute=none,mlp graphs=none,attention ep_overlap=off,on "
    only += " ".join(words)
    question = replace(asked(model, "4xh100", 8, 2048, "megatron", only), memory_limit=rng.uniform(8e9, 30e9))
    every = f"{only} dispatch=all-to-all,all-gather,deepep,hybridep"
    whole = replace(asked(model, "4xh100", 8, 2048, "megatron", every), memory_limit=question.memory_limit)
    least = min((found for found in map(_cut(whole), Space(question=whole).points()) if found), default=None)
    answer = Search(question=question, gap=0.0).run()
    assert (answer.fastest is None) == (least is None)
    if least is not None:
        assert answer.fastest.iteration_seconds == pytest.approx(least, rel=1e-9)
        assert answer.bound <= least * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_orders_of_ranks_and_rounds_are_searched_as_by_brute_force(seed):
    rng = random.Random(100 + seed)  # noqa: S311
    model = replace(small_model(rng), moe=None, mtp=0, layers=rng.choice((4, 6, 8)))
    only = "tp<=2 cp=1 mbs=1 zero=1 hsdp=0 sp=on recompute=none order=dp-pp,pp-dp group=0,3,4,8"
    question = replace(asked(model, "16xh100", 32, 2048, "megatron", only), memory_limit=rng.uniform(4e9, 20e9))
    points = list(Space(question=question).points())
    strategies = [Space(question=question).strategy(point) for point in points]
    assert {one.rank_order for one in strategies} == {"dp-pp", "pp-dp"}
    assert {one.group for one in strategies} >= {0, 4}
    faults = [fault for one in strategies for fault in check(model, question.cluster, one, question.runtime)]
    assert {fault.path for fault in faults} <= {"strategy.vpp", "strategy.pp"}  # until their layers are cut
    least = min((found for found in map(_cut(question), points) if found), default=None)
    answer = Search(question=question, gap=0.0).run()
    assert (answer.fastest is None) == (least is None)
    if least is not None:
        assert answer.fastest.iteration_seconds == pytest.approx(least, rel=1e-9)
        assert answer.bound <= least * (1 + 1e-9)


def test_a_pipeline_that_stays_together_sends_inside_a_node_and_reduces_between_nodes():
    question = asked("llama-3-8b", "64xh100", 64, 4096, "megatron")
    apart, together = (
        setup_of(question.model, question.cluster, Strategy.parse(f"tp2 pp4 dp8 gbs64 order={order}"), question.runtime)
        for order in ("dp-pp", "pp-dp")
    )
    assert (apart.strategy.between_stages, together.strategy.between_stages) == (16, 2)
    assert hop_seconds(together) < hop_seconds(apart)
    near, far = (data_groups(one.network, one.strategy).dense for one in (apart, together))
    assert (near.stride, far.stride) == (2, 8)
    assert all_reduce(near, 1e9) < all_reduce(far, 1e9)


def _cut(question):
    def seconds(point):
        found = refine(question, Space(question=question).strategy(point))
        return found.seconds if found and found.allowed else 0.0

    return seconds


@pytest.mark.parametrize(
    ("model", "runtime", "only", "word"),
    [
        ("qwen3-30b-a3b", "torchtitan", "dispatch=hybridep", "hybridep is not in runtime torchtitan"),
        ("qwen3-30b-a3b", "torchtitan", "ep-overlap", "does not have it"),
        ("llama-3-8b", "megatron", "ep-overlap", "has no experts"),
        ("llama-3-8b", "megatron", "dispatch=deepep", "has no experts; drop dispatch=deepep"),
    ],
)
def test_what_no_layout_could_have_is_refused(model, runtime, only, word):
    with pytest.raises(InputError, match=word):
        plan(model, "8xh100", global_batch=64, runtime=runtime, only=only)
