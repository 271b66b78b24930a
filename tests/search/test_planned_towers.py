"""Plans of models with towers: bounds hold for every cut, and the verbs around a plan take it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest

import shardwise
from shardwise.inputs.model import Model
from shardwise.inputs.towers import Projector, Stem

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


def test_the_verbs_around_a_plan_take_towers(tmp_path):
    found = shardwise.estimate(TEXT, "8xh100", "tp1 pp4 dp2 mbs1 gbs32 seq4096 images=4 layers=3,3,2,2")
    file = tmp_path / "plan.json"
    shardwise.write_plan(shardwise.plan_of(found), file)
    plan = shardwise.read_plan(file)
    assert shardwise.schedule("1f1b", plan=plan).timeline.makespan > 0
    balanced = shardwise.balance_plan(plan).after
    assert sum(balanced.strategy.layers) == TEXT.depth
    assert balanced.iteration_seconds <= found.iteration_seconds * (1 + 1e-9)
