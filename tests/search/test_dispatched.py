"""Plans with a dispatcher and with overlap are ones that the runtime can run."""

from __future__ import annotations

import pytest

from shardwise import plan, plan_of
from shardwise.check.check import check
from shardwise.errors import InputError
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.report.data import answer_data, unsearched
from shardwise.report.markdown import answer_markdown
from shardwise.search.api import question_of, unsearched_of
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
        plan("qwen3-235b-a22b", "64xh100", global_batch=256, base=base, only="ep32").fastest.iteration_seconds
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


def test_a_plan_says_what_of_its_experts_was_not_searched():
    found = plan("qwen3-30b-a3b", "64xh100", global_batch=512, only="ep=8", gap=0.05)
    told = unsearched_of(found)
    assert told.asked == "dispatch=all-to-all graphs=none"
    assert told.words.startswith("dispatch=deepep")
    there = plan("qwen3-30b-a3b", "64xh100", global_batch=512, only=f"ep=8 {told.words}", gap=0.05)
    assert there.fastest.iteration_seconds < found.fastest.iteration_seconds - 0.5 * told.better.seconds
    ((name, text),) = unsearched(found)
    assert name == "not searched"
    assert f'--fix "{told.words}"' in text
    assert f'--fix "{told.words}"' in answer_markdown(found)
    assert answer_data(found, plan_of(found), 1)["not_searched"]["better"]["words"] == told.words


def test_where_no_tokens_travel_the_other_dispatchers_are_named():
    ((_, text),) = unsearched(plan("qwen3-30b-a3b", "64xh100", global_batch=512, only="ep=1", gap=0.05))
    assert "dispatch=deepep" in text
    assert not list(unsearched(plan("llama-3-8b", "8xh100", global_batch=64, gap=0.05)))
