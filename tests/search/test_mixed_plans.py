"""Clusters of several kinds of GPU: what is planned is what brute force finds, and bounds are never above it."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, pairwise, product

import pytest
from questions import small_model

import shardwise
from shardwise.api import check_proof
from shardwise.check.check import check
from shardwise.errors import InputError
from shardwise.estimate.estimate import estimate, room
from shardwise.inputs.load import load_runtime, mixed_of, named_cluster
from shardwise.inputs.mixed import Mixed, orders_of, replicas_of, shared_batches
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import Strategy
from shardwise.report.data import alone, facts
from shardwise.report.markdown import answer_markdown
from shardwise.search.api import answer_of, question_of
from shardwise.search.balance_plan import balanced
from shardwise.search.mixed_screen import MixedScreen
from shardwise.search.nothing_fits import why_nothing
from shardwise.search.question import Question
from shardwise.search.recomputes import AS_NEEDED
from shardwise.search.space import Space
from shardwise.search.wishes import read_wishes

KINDS = ("h100", "a100", "v100", "h20", "a100-40", "l40s")


def drawn(seed):
    """A small model on a few GPUs of two kinds, whose memory may be short."""
    rng = random.Random(seed)  # noqa: S311 - a test draws
    model = small_model(rng)
    model = replace(model, layers=min(model.layers, 6))
    first, second = rng.sample(KINDS, 2)
    counts = rng.choice([(2, 2), (4, 2), (2, 4), (4, 4)])
    parts = [named_cluster(f"{count}x{gpu}") for count, gpu in zip(counts, (first, second), strict=True)]
    if rng.random() < 0.5:
        small = [rng.choice([4e9, 8e9, 16e9]) for _ in parts]
        parts = [replace(one, gpu=replace(one.gpu, memory=size)) for one, size in zip(parts, small, strict=True)]
    cluster = mixed_of(parts)
    runtime = load_runtime(rng.choice(["megatron", "torch-pipelining", "deepspeed"]))
    dtype = "bf16" if cluster.gpu.has("bf16") else "fp16" if "fp16" in runtime.can.dtypes else "fp32"
    base = Strategy(global_batch=rng.choice([8, 12, 24]), seq=1024, runtime=runtime.name, dtype=dtype)
    only = rng.choice(["mbs<=2 cp=1", "mbs=1 cp=1", "mbs<=2 cp=1 tp<=2"])
    wishes = read_wishes(f"{only} recompute=none,full,full:auto hsdp=0")[0]
    return Question(
        model=model, cluster=cluster, runtime=runtime, base=base, wishes=wishes, memory_limit=cluster.gpu.memory * 0.9
    )


def every_way(question, strategy):
    """Every cut and every number of recomputed layers of every chunk, or every share of the batch."""
    layers, mixes = question.model.layers, strategy.recompute.layers == AS_NEEDED
    shares = [()]
    if strategy.pp == 1 and "batches" in question.runtime.can.mixed:
        total = strategy.global_batch // strategy.micro_batch
        shares = list(shared_batches(replicas_of(question.cluster, strategy), total))
    even = not question.runtime.can.uneven_layers
    for places in combinations(range(1, layers), strategy.chunks - 1):
        counts = tuple(b - a for a, b in pairwise([0, *places, layers]))
        if even and len(set(counts)) > 1:
            continue
        for again in product(*(range(count + 1) for count in counts)) if mixes else [strategy.recompute.layers]:
            for batches in shares:
                recompute = Recompute() if mixes and not any(again) else replace(strategy.recompute, layers=again)
                unequal = batches if len(set(batches)) > 1 else ()
                yield replace(strategy, layers=counts if strategy.pp > 1 else (), recompute=recompute, batches=unequal)


def simulated(question, strategy):
    found = estimate(question.model, question.cluster, strategy, runtime=question.runtime, checked=True)
    return found.iteration_seconds if found.total_bytes <= room(found, question.memory_limit) else float("inf")


@pytest.mark.parametrize("seed", [3, 7, 11, 15, 20, 22, 25, 27, 31])
def test_a_mixed_plan_is_that_of_brute_force(seed):
    question = drawn(seed)
    least = float("inf")
    for cluster in orders_of(question.cluster):
        asked = replace(question, cluster=cluster)
        space = Space(question=asked)
        screen = MixedScreen(space=space)
        for rows in screen.rows_of(space.bases):
            for place, (bound, size) in enumerate(zip(rows.seconds, rows.bytes, strict=True)):
                strategy = space.strategy(screen.point(rows.base, place))
                times = [simulated(asked, one) for one in every_way(asked, strategy)]
                assert bound <= min(times), strategy
                assert size <= asked.memory_limit or min(times) == float("inf"), strategy
                least = min(least, *times)
    answer = answer_of(question, gap=0.0)
    if answer.fastest is None:
        assert least == float("inf")
        return
    assert answer.fastest.iteration_seconds == pytest.approx(least, rel=1e-9)
    assert answer.bound <= least * (1 + 1e-9)
    assert answer.gap == pytest.approx(0.0, abs=1e-6)
    assert not check(question.model, answer.question.cluster, answer.fastest.strategy, question.runtime)


def asked(cluster, only="tp<=4 cp=1 mbs<=2 recompute=none,full fp16", runtime="megatron"):
    return question_of("gpt-3-2.7b", cluster, global_batch=32, seq=2048, only=only, runtime=runtime)


def best(cluster, **options):
    found = answer_of(asked(cluster, **options), gap=0.0)
    assert found.bound <= found.fastest.iteration_seconds
    return found


def test_kinds_that_are_alike_are_planned_as_one_cluster():
    """Restricted to what both search: 1F1B, and stages of whole nodes, whose sends leave them either way."""
    other = named_cluster("8xa100")
    other = replace(other, gpu=replace(other.gpu, name="a100-other"))
    only = "schedule=1f1b cp=1 mbs<=2 recompute=none,full pp=2"
    mixed, plain = (
        best(one, only=only) for one in (mixed_of([named_cluster("8xa100"), other]), named_cluster("16xa100"))
    )
    assert mixed.fastest.strategy == plain.fastest.strategy
    assert mixed.fastest.iteration_seconds == plain.fastest.iteration_seconds
    assert mixed.bound == pytest.approx(plain.bound, rel=1e-6)


def changed(cluster, place, **gpu):
    """One kind of a cluster with another GPU."""
    kinds = list(cluster.kinds)
    kinds[place] = replace(kinds[place], gpu=replace(kinds[place].gpu, **gpu))
    return mixed_of(kinds, cluster.join)


def test_more_memory_and_faster_parts_never_make_the_best_slower():
    cluster = named_cluster("4xa100 + 4xv100-16")
    assert isinstance(cluster, Mixed)
    before = best(cluster).fastest.iteration_seconds
    v100 = cluster.kinds[1].gpu
    for better in (
        changed(cluster, 1, memory=2 * v100.memory),
        changed(cluster, 1, flops={name: 1.3 * peak for name, peak in v100.flops.items()}),
        changed(cluster, 1, bandwidth=1.5 * v100.bandwidth),
        mixed_of(cluster.kinds, replace(cluster.join, bandwidth=4 * cluster.join.bandwidth)),
    ):
        assert best(better).fastest.iteration_seconds <= before * (1 + 1e-9)


def test_a_larger_space_is_never_worse_and_orders_that_are_named_are_searched():
    cluster = named_cluster("4xh100 + 4xa100")
    plain = best(cluster, only="mbs=1 cp=1 recompute=none pp=4", runtime="torch-pipelining").fastest.iteration_seconds
    more = answer_of(
        asked(cluster, only="mbs=1 cp=1 recompute=none pp=4 schedule=1f1b,zb-h1", runtime="torch-pipelining"), gap=0.0
    )
    assert more.fastest.iteration_seconds <= plain
    assert more.bound <= more.fastest.iteration_seconds


def test_every_verb_says_the_same_of_a_mixed_plan(tmp_path):
    answer = best(named_cluster("4xh100 + 4xa100"))
    plan = shardwise.plan_of(answer)
    path = tmp_path / "plan.json"
    shardwise.write_plan(plan, path)
    read = shardwise.read_plan(path)
    assert read.cluster == plan.cluster
    assert shardwise.estimate(path).iteration_seconds == plan.predictions.iteration_seconds
    assert shardwise.timeline(path).makespan == pytest.approx(plan.predictions.makespan)
    assert not check_proof(path).fault
    again = balanced(read)
    assert again.after.iteration_seconds == pytest.approx(plan.predictions.iteration_seconds)
    assert again.bound <= again.after.iteration_seconds * (1 + 1e-9)
    made = shardwise.export(path, "megatron")
    assert made.as_written == f"{made.prediction} (runtime megatron)"
    assert not made.losses
    readme = next(file.text for file in made.files if file.name.startswith("README"))
    assert "NODE_RANK 0 must be nodes of" in readme


def test_the_closest_of_what_does_not_fit_is_lean():
    answer = answer_of(question_of("llama-3-70b", "1xh100 + 1xa100", global_batch=4, only="mbs=1 cp=1 tp=1"))
    assert answer.fastest is None
    assert answer.closest.strategy.recompute.full
    assert why_nothing(answer).endswith("use more GPUs of either kind, or larger ones, or shorten the sequence")


def test_three_kinds_are_estimated_and_not_planned():
    three = named_cluster("4xh100 + 4xa100 + 4xv100")
    assert shardwise.estimate("gpt-3-2.7b", three, "pp3 tp4 gbs12 seq2048 fp16 layers=14,12,6").fits == "yes"
    with pytest.raises(InputError, match="has 3 kinds of GPU, and 2 are searched together"):
        asked(three)


def test_a_kind_that_is_faster_alone_is_told():
    slow = named_cluster("4xv100-16")
    slow = replace(slow, gpu=replace(slow.gpu, name="slow", flops={"fp32": 1e12, "fp16": 1e12}))
    found = best(mixed_of([named_cluster("4xa100"), slow]))
    said = [text for name, text in facts(found) if name == "alone"]
    assert found.alone[0].seconds < found.fastest.iteration_seconds < found.alone[1].seconds
    assert said[0].startswith("4xa100 takes")
    assert [text.endswith("faster: leave the others out") for text in said] == [True, False]
    assert all(text in answer_markdown(found) for text in said)
    near = replace(found, alone=(found.alone[0]._replace(seconds=0.99 * found.best.iteration_seconds),))
    assert next(text for _, text in alone(near)).endswith("; equal within the error")


def test_the_kind_that_lacks_a_number_format_is_named():
    answer = shardwise.plan("llama-3-8b", "8xh100 + 8xa100", global_batch=64, only="fp8 tp1 cp1")
    assert "a100 has no fp8 hardware" in why_nothing(answer)
