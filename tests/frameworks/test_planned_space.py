"""What `plan` may propose for a framework, that framework's own files must say in full."""

import random
from dataclasses import replace

import pytest

from shardwise.frameworks.export import export
from shardwise.plan.plan import Plan
from shardwise.search.api import question_of
from shardwise.search.question import Point
from shardwise.search.recomputes import AS_NEEDED
from shardwise.search.space import Space

QUESTIONS = (
    ("llama-3-8b", "8xh100", 128, 8192),
    ("llama-3-70b", "64xh100", 512, 8192),
    ("mixtral-8x7b", "32xh100", 256, 4096),
    ("qwen3-30b-a3b", "48xh100", 96, 4096),
    ("llama-3-8b", "7xh100", 14, 8192),
)
TARGETS = ("megatron", "torchtitan", "deepspeed", "mindformers", "paddle")


def drawn(space, chance):
    """A strategy of the space, its layers cut as the partition solver might cut them."""
    base = chance.choice(space.bases)
    layout = chance.choice(space.layouts(base))
    sharding = chance.choice(space.shardings(base, layout))
    recompute = chance.choice(space.recomputes(base, layout))
    strategy = space.strategy(Point(base, layout, sharding, recompute))
    chunks, layers = layout.pp * layout.vpp, space.question.model.layers
    cut = [layers // chunks + (chunk < layers % chunks) for chunk in range(chunks)]
    if chunks > 1 and cut[-1] > 1 and space.question.runtime.can.uneven_layers:
        cut[0], cut[-1] = cut[0] + 1, cut[-1] - 1
    if recompute.layers == AS_NEEDED:
        counts = tuple(chance.randint(0, count) for count in cut)
        strategy = replace(strategy, recompute=replace(recompute, layers=counts))
    return replace(strategy, layers=tuple(cut) if len(set(cut)) > 1 else ())


@pytest.mark.parametrize("target", [*TARGETS, "huggingface", "torch-pipelining"])
def test_the_space_of_a_runtime_is_what_its_own_files_can_say(target):
    chance = random.Random(6)  # noqa: S311 - a test, not a secret
    lost = []
    for model, cluster, batch, seq in QUESTIONS:
        question = question_of(model, cluster, global_batch=batch, seq=seq, runtime=target)
        if target == "paddle" and question.model.moe:
            continue  # its program trains Llama alone
        space = Space(question=question)
        for _ in range(30):
            strategy = drawn(space, chance)
            made = export(Plan(model=question.model, cluster=question.cluster, strategy=strategy), target)
            lost += [f"{strategy}: {loss}" for loss in made.losses if str(loss).startswith("strategy")]
    # the space takes zero 0 for zero 2 where there is one replica, though its experts may still be shared: less memory
    lost = [line for line in lost if "expert parallel ranks always shard" not in line]
    assert not lost


@pytest.mark.parametrize("target", TARGETS)
def test_every_runtime_still_has_its_axes(target):
    question = question_of("llama-3-70b", "64xh100", global_batch=512, seq=8192, runtime=target)
    _, axes = Space(question=question).count()
    assert {"1", "2", "4", "8"} <= set(axes["tp"])
    assert {"1", "2", "4", "8", "16"} <= set(axes["pp"])
    assert len(axes["cp"]) > 1
    assert len(axes["zero"]) > 1


def test_a_name_with_control_characters_leaves_the_files_readable():
    question = question_of("llama-3-8b", "8xh100", global_batch=128, seq=8192)
    model = replace(question.model, name="x\x1b[31m\ntouch y")
    strategy = Space(question=question).strategy(next(Space(question=question).points()))
    for file in export(Plan(model=model, cluster=question.cluster, strategy=strategy), "megatron").files:
        assert "\x1b" not in file.text
        assert "\ntouch" not in file.text
