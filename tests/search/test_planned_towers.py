"""Plans of models with towers: bounds hold for every cut, and the verbs around a plan take it."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import combinations, pairwise

import pytest
from questions import asked

import shardwise
from shardwise.inputs.model import Model
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.towers import Projector, Stem
from shardwise.search import wishes
from shardwise.search.api import UNSEARCHED
from shardwise.search.space import Space
from shardwise.search.table import table_of, whole_work

VISION = Model(
    name="vision", layers=4, hidden=512, heads=8, kv_heads=8, head_size=64, ffn=2048, causal=False, activation="gelu",
    norm="layernorm", position="learned", max_positions=1024, stem=Stem(size=448, patch=14),
    projector=Projector(merge=2, norm="tokens", inner=(2048,)),
)  # fmt: skip
TEXT = Model(
    name="small-vision", layers=6, hidden=1024, heads=16, kv_heads=4, head_size=64, ffn=4096, vocab=32000,
    towers=(VISION,),
)  # fmt: skip
SOURCE = replace(
    VISION, name="encoder", hidden=1024, heads=16, kv_heads=16, vocab=32000, stem=None, projector=None, position="rope",
    max_positions=0,
)  # fmt: skip
CASES = {
    "pictures": (TEXT, "images=4 pp4"), "frozen": (TEXT, "images=6 frozen=vision pp4"),
    "two towers": (replace(TEXT, towers=(VISION, replace(VISION, name="sound"))), "images=2 pp4"),
    "decoder": (replace(TEXT, towers=(SOURCE,)), "source1024 pp4"),
}  # fmt: skip


def cuts(layers, stages):
    for borders in combinations(range(1, layers), stages - 1):
        yield tuple(end - begin for begin, end in pairwise((0, *borders, layers)))


@pytest.mark.parametrize("name", CASES)
def test_no_cut_through_towers_is_faster_than_the_bound_nor_than_the_best(name):
    model, only = CASES[name]
    answer = shardwise.plan(
        model, "8xh100", global_batch=32, seq=4096, only=f"{only} tp1 mbs1 zero1 recompute=none 1f1b"
    )
    best = answer.best.strategy
    found = [
        shardwise.estimate(model, "8xh100", replace(best, layers=cut)).iteration_seconds
        for cut in cuts(model.depth, best.pp)
    ]  # fmt: skip
    assert answer.bound <= min(found) * (1 + 1e-9)
    assert answer.best.iteration_seconds <= min(found) * 1.005  # the gap that it stops at


def test_layers_that_launches_decide_are_bounded_together_with_those_that_kernels_decide():
    """Of a tower that the host decides, the most common layer, the model behind it would count for next to nothing."""
    space = Space(question=asked("qwen2.5-vl-7b", "64xh100", 256, 8192, only="images=2 tp=1 cp=1 mbs=2 pp=1"))
    table = table_of(space, space.bases[0])
    chunk = table.ground.chunks[0]
    took = chunk.forward_seconds + chunk.backward_seconds
    assert 0.97 * took < whole_work(table) <= took * (1 + 1e-9)


@pytest.mark.filterwarnings("error")
def test_a_tower_that_is_frozen_and_most_of_the_model_is_planned():
    deep = replace(TEXT, layers=2, towers=(replace(VISION, layers=12),))
    answer = shardwise.plan(deep, "8xh100", global_batch=32, seq=4096, only="images=8 frozen=vision tp1 pp<=2 mbs1")
    assert answer.best.strategy.frozen == ("vision",)
    assert answer.bound <= answer.best.iteration_seconds


def test_another_cluster_is_planned_for_the_same_work():
    found = shardwise.estimate(TEXT, "8xh100", "tp1 pp1 mbs1 gbs32 seq4096 images=4 frozen=vision")
    there = shardwise.what_if(shardwise.plan_of(found), gpus=16, only="tp1 pp1 mbs1")
    assert (there.again.best.strategy.images, there.again.best.strategy.frozen) == (4.0, ("vision",))


def test_every_field_of_a_strategy_is_asked_searched_or_decided():
    axes = {wishes._NAMES.get(axis, axis) for axis in wishes.AXES}
    known = axes | {*UNSEARCHED, *wishes._ASKED, *wishes._DECIDED, "runtime"}
    assert {field.name for field in fields(Strategy)} <= known


def test_the_verbs_around_a_plan_take_towers(tmp_path):
    found = shardwise.estimate(TEXT, "8xh100", "tp1 pp4 dp2 mbs1 gbs32 seq4096 images=4 layers=3,3,2,2")
    file = tmp_path / "plan.json"
    shardwise.write_plan(shardwise.plan_of(found), file)
    plan = shardwise.read_plan(file)
    assert shardwise.schedule("1f1b", plan=plan).timeline.makespan > 0
    balanced = shardwise.balance_plan(plan).after
    assert sum(balanced.strategy.layers) == TEXT.depth
    assert balanced.iteration_seconds <= found.iteration_seconds * (1 + 1e-9)
