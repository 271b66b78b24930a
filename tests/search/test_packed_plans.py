"""Plans of packed documents: bounds stay below every estimate, and files say what estimates of them say."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from questions import asked, small_question

import shardwise
from shardwise.errors import InputError
from shardwise.estimate.estimate import assemble, estimate
from shardwise.estimate.setup import setup_of
from shardwise.inputs.documents import Documents
from shardwise.inputs.layers import is_uneven, with_layers
from shardwise.inputs.strategy import Strategy
from shardwise.plan.proof import check_proof
from shardwise.search.recomputes import AS_NEEDED
from shardwise.search.screen import Screen
from shardwise.search.search import Search
from shardwise.search.space import Space

WEB = Documents(lengths=(40, 200, 700, 2500, 9000, 60000), counts=(300.0, 500.0, 400.0, 120.0, 20.0, 1.0))
ROUNDING = 1 + 1e-9
REAL = (
    ("llama-3-70b", "1024xh100", 1024, 32768, "megatron"),
    ("gemma-2-9b", "32xh100", 128, 8192, "deepspeed"),
    ("qwen3-30b-a3b", "32xh200", 256, 8192, "megatron"),
    ("llama-3-8b", "64xh100", 256, 8192, "torchtitan"),
    ("deepseek-v3.2", "512xh100", 1024, 16384, "megatron"),
)


def packed(question, packing="packed"):
    return replace(question, base=replace(question.base, documents=WEB, packing=packing))


@pytest.mark.parametrize("case", REAL, ids=lambda case: f"{case[0]}-{case[4]}")
def test_bounds_are_never_above_the_full_path(case):
    rng = random.Random(7)  # noqa: S311
    question = packed(asked(*case), rng.choice(("packed", "balanced")))
    space = Space(question=question)
    screen = Screen(space=space)
    rows = screen.rows_of(rng.sample(space.bases, min(8, len(space.bases))), most=1e6)
    for _ in range(80):
        row = rng.choice(rows)
        place = rng.randrange(len(row.seconds))
        strategy = space.strategy(screen.point(row.base, place))
        layers = question.model.layers
        even = with_layers(layers, strategy) if is_uneven(layers, strategy) else strategy
        if strategy.recompute.layers == AS_NEEDED:
            continue
        found = assemble(setup_of(question.model, question.cluster, even, question.runtime))
        assert row.bytes[place] <= found.total_bytes * ROUNDING, str(even)
        if found.total_bytes <= question.memory_limit:
            assert row.seconds[place] <= found.iteration_seconds * ROUNDING, str(even)
            assert screen.glance(row.base) <= found.iteration_seconds * ROUNDING


@pytest.mark.parametrize("seed", [0, 2, 3, 6, 9, 14])
def test_no_point_of_a_small_space_beats_the_plan(seed):
    question = packed(small_question(seed))
    answer = Search(question=question, gap=0.0).run()
    if answer.fastest is None:
        return
    space, rng = Space(question=question), random.Random(seed)  # noqa: S311
    points = list(space.points())
    for point in rng.sample(points, min(150, len(points))):
        strategy = space.strategy(point)
        layers = question.model.layers
        if strategy.recompute.layers == AS_NEEDED or strategy.pp * strategy.vpp > layers:
            continue
        even = with_layers(layers, strategy) if is_uneven(layers, strategy) else strategy
        found = estimate(question.model, question.cluster, even, runtime=question.runtime, checked=True)
        if found.total_bytes <= question.memory_limit:
            assert answer.bound <= found.iteration_seconds * ROUNDING
            assert answer.fastest.iteration_seconds <= found.iteration_seconds * ROUNDING, str(even)


@pytest.fixture(scope="module")
def lengths(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "lengths.csv"
    path.write_text("length,count\n40,300\n200,500\n700,400\n2500,120\n9000,20\n60000,1\n", encoding="utf-8")
    return path


def test_a_plan_keeps_its_documents_without_their_file(lengths, tmp_path):
    answer = shardwise.plan("llama-3-8b", "16xh100", global_batch=64, seq=8192, documents=lengths, packing="balanced")
    plan = shardwise.plan_of(answer)
    assert plan.strategy.documents.lengths == WEB.lengths
    file = tmp_path / "plan.json"
    shardwise.write_plan(plan, file)
    lengths.rename(lengths.with_suffix(".gone"))
    try:
        again = shardwise.read_plan(file)
        assert again.strategy == plan.strategy
        assert shardwise.estimate(again).iteration_seconds == answer.best.iteration_seconds
        assert not check_proof(again).fault
        other = shardwise.what_if(again, gpus=32)
        assert other.again.best.strategy.documents == again.strategy.documents
        assert shardwise.plan(again).best.strategy == answer.best.strategy
    finally:
        lengths.with_suffix(".gone").rename(lengths)


def test_documents_reach_the_search_by_every_way(lengths):
    given = {"global_batch": 64, "seq": 8192}
    one = shardwise.plan("llama-3-8b", "16xh100", documents=lengths, **given)
    written = replace(one.best.strategy.documents, source="")
    other = shardwise.plan("llama-3-8b", "16xh100", only=f"documents={written}", **given)
    third = shardwise.plan("llama-3-8b", "16xh100", base=Strategy.parse(f"dp16 documents={lengths}"), **given)
    assert one.best.strategy == replace(other.best.strategy, documents=one.best.strategy.documents)
    assert one.best.strategy == third.best.strategy
    whole = shardwise.plan("llama-3-8b", "16xh100", **given)
    assert one.best.iteration_seconds < whole.best.iteration_seconds


def test_what_cannot_be_planned_for_is_said(lengths):
    with pytest.raises(InputError, match="there are none; give documents FILE"):
        shardwise.plan("llama-3-8b", "16xh100", packing="balanced")
    with pytest.raises(InputError, match="no list of lengths; write 512x3,2048, or give a file by"):
        shardwise.plan("llama-3-8b", "16xh100", only=f"documents={lengths}")
    with pytest.raises(InputError, match="neither a file nor lengths"):
        shardwise.plan("llama-3-8b", "16xh100", documents="nowhere.csv")
    with pytest.raises(InputError, match="'sorted' is not known; choose packed, balanced, unmasked or padded"):
        shardwise.plan("llama-3-8b", "16xh100", documents=lengths, packing="sorted")
