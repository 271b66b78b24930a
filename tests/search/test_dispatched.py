"""Plans with a dispatcher and with overlap are ones that the runtime can run."""

from __future__ import annotations

import pytest

from shardwise import plan
from shardwise.check.check import check
from shardwise.errors import InputError
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.search.api import question_of
from shardwise.search.space import Space


def test_every_point_of_an_overlapped_space_passes_the_checks():
    asked = question_of("qwen3-30b-a3b", "8xh100", global_batch=16, base=Strategy(dispatcher="deepep", ep_overlap=True))
    space, runtime, count = Space(question=asked), load_runtime("megatron"), 0
    for point in space.points():
        strategy = space.strategy(point)
        assert strategy.ep_overlap
        assert strategy.dispatcher == "deepep"
        faults = [fault for fault in check(asked.model, asked.cluster, strategy, runtime) if "ep_overlap" in fault.path]
        assert not faults, (str(strategy), faults)
        count += 1
    assert count > 100


def test_a_better_dispatcher_makes_no_plan_slower():
    ways = (Strategy(), Strategy(dispatcher="deepep"), Strategy(dispatcher="hybridep"))
    plain, deep, hybrid = (
        plan("qwen3-235b-a22b", "64xh100", global_batch=256, base=base, only="ep32").best.iteration_seconds
        for base in ways
    )
    assert deep <= plain
    assert hybrid <= plain


@pytest.mark.parametrize(
    ("model", "runtime", "base", "word"),
    [
        ("qwen3-30b-a3b", "torchtitan", Strategy(dispatcher="hybridep"), "hybridep is not in runtime torchtitan"),
        ("qwen3-30b-a3b", "torchtitan", Strategy(ep_overlap=True), "does not have it"),
        ("llama-3-8b", "megatron", Strategy(ep_overlap=True), "has no experts"),
    ],
)
def test_what_no_layout_could_have_is_refused(model, runtime, base, word):
    with pytest.raises(InputError, match=word):
        plan(model, "8xh100", global_batch=64, runtime=runtime, base=base)
