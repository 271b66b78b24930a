from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from questions import asked, small_question

import shardwise
from shardwise.estimate.estimate import estimate
from shardwise.plan.file import plan_text
from shardwise.report import estimate as report
from shardwise.report.markdown import answer_markdown
from shardwise.report.view import plan_view
from shardwise.search.api import plan_file_of
from shardwise.search.recomputes import AS_NEEDED
from shardwise.search.refine import refine
from shardwise.search.screen import Screen
from shardwise.search.search import Search
from shardwise.search.space import Space
from shardwise.web.search import Follower


def by_brute_force(question):
    """Every strategy simulated in full: the seconds of the fastest that fits, and all that take as long."""
    space = Space(question=question)
    found = [refine(question, space.strategy(point)) for point in space.points()]
    fitting = [(one.seconds, one.strategy) for one in found if one and one.allowed]
    least = min((seconds for seconds, _ in fitting), default=None)
    return least, [strategy for seconds, strategy in fitting if seconds <= least * (1 + 1e-12)]


@pytest.mark.parametrize("seed", range(50))
def test_the_best_is_that_of_brute_force(seed):
    question = small_question(seed)
    least, equal = by_brute_force(question)
    answer = Search(question=question, gap=0.0).run()
    assert answer.counts.left_open == 0
    if least is None:
        assert answer.fastest is None
    else:
        # two cuts may take equally long
        assert replace(answer.fastest.strategy, layers=()) in [replace(one, layers=()) for one in equal]
        assert answer.fastest.iteration_seconds == pytest.approx(least, rel=1e-12)
        assert answer.gap == pytest.approx(0.0, abs=1e-8)


def every_cut(question, strategy):
    """Every cut into chunks, with every number of recomputed layers of every chunk."""
    layers, chunks = question.model.layers, strategy.chunks
    mixes = strategy.recompute.layers == AS_NEEDED
    for places in combinations(range(1, layers), chunks - 1):
        counts = tuple(b - a for a, b in pairwise([0, *places, layers]))
        for again in product(*(range(count + 1) for count in counts)) if mixes else [strategy.recompute.layers]:
            yield replace(strategy, layers=counts, recompute=replace(strategy.recompute, layers=again))


def beaten_by(question, best):
    """Cuts of strategies that the bounds leave, faster than the best."""
    space = Space(question=question)
    screen = Screen(space=space)
    for rows in screen.rows_of(space.bases):
        left = (rows.seconds < best * (1 - 1e-9)) & (rows.bytes <= question.memory_limit)
        for place in np.flatnonzero(left).tolist():
            for strategy in every_cut(question, space.strategy(screen.point(rows.base, place))):
                found = estimate(question.model, question.cluster, strategy, runtime=question.runtime, checked=True)
                if found.total_bytes <= question.memory_limit and found.iteration_seconds < best * (1 - 1e-9):
                    yield found.strategy


@pytest.mark.parametrize("seed", [0, 2, 3, 6, 9, 10, 11])
def test_no_cut_of_any_strategy_is_faster(seed):
    """The bounds exclude the others; of those that are left every cut is simulated."""
    question = small_question(seed)
    answer = Search(question=question, gap=0.0).run()
    if answer.fastest is not None:
        assert not list(beaten_by(question, answer.fastest.iteration_seconds))


@pytest.mark.parametrize(("layers", "limit"), [(7, 16e9), (6, 15e9)])
def test_no_mix_of_recomputed_layers_is_faster(layers, limit):
    """Early stages hold more micro batches in flight, and so recompute more layers or have fewer."""
    only = "pp=3 vpp=1 tp=1 cp=1 mbs=1 zero=1 schedule=1f1b hsdp=0 recompute=full:auto"
    question = asked("llama-3-8b", "6xh100", 24, 4096, "mindformers", only)
    question = replace(question, model=replace(question.model, layers=layers), memory_limit=limit)
    answer = Search(question=question, gap=0.0).run()
    again = answer.fastest.strategy.recompute.layers
    assert len(set(again)) > 1
    assert not list(beaten_by(question, answer.fastest.iteration_seconds))


def test_a_runtime_with_one_number_for_all_stages_gets_one():
    question = asked("llama-3-8b", "6xh100", 24, 4096, "megatron", "recompute=full:auto")
    assert not Space(question=question).bases


def test_the_bound_holds_whatever_the_gap():
    question = asked("llama-3-8b", "16xh100", 64, 8192, only="cp=1")
    exact = Search(question=question, gap=0.0).run()
    loose = Search(question=question, gap=0.05).run()
    assert loose.bound <= exact.fastest.iteration_seconds <= loose.fastest.iteration_seconds
    assert loose.gap <= 0.05 + 1e-12
    assert loose.counts.simulated <= exact.counts.simulated


def test_counts_add_up():
    answer = shardwise.plan("llama-3-8b", "16xh100", global_batch=64, seq=4096, only="cp=1")
    counts = answer.counts
    assert counts.simulated + counts.pruned == counts.strategies == Space(question=answer.question).count()[0]
    assert counts.too_large <= counts.screened <= counts.strategies
    assert counts.left_open == 0


def test_what_a_stopped_search_left_open_is_not_pruned():
    """Finding: a search that was stopped counted everything it had not come to as pruned by proof."""
    searches: list[Search] = []
    answer = shardwise.plan(
        "deepseek-v3", "2048xh100", global_batch=16384, seq=4096,
        report=searches.append, stop=lambda: bool(searches and searches[-1].best),
    )  # fmt: skip
    counts = answer.counts
    assert not answer.finished
    assert answer.gap > 0.005
    assert counts.pruned + counts.simulated + counts.left_open == counts.strategies == searches[-1].size
    assert counts.too_large <= counts.pruned
    assert counts.left_open > counts.strategies / 2
    lines = dict(report.searched(answer.counts))
    assert f"{counts.pruned:,} pruned by proof" in lines["search"]
    assert f"{counts.left_open:,} left open" in lines["search"]
    assert lines["search"] in answer_markdown(answer)
    assert dict(map(tuple, plan_view(plan_file_of(answer))["facts"]))["search"] == lines["search"]
    progress = Follower(lambda _: None)._progress(searches[-1])
    assert [progress[name] for name in ("considered", "evaluated", "pruned", "left_open")] == [
        counts.strategies, counts.simulated, counts.pruned, counts.left_open,
    ]  # fmt: skip


def test_the_same_question_gives_the_same_bytes():
    first, second = (shardwise.plan("llama-3-8b", "16xh100", global_batch=64, seq=4096) for _ in range(2))
    texts = [plan_text(plan_file_of(one)).split('"run"')[0] for one in (first, second)]
    assert texts[0] == texts[1]


def test_more_memory_is_never_slower():
    tight = shardwise.plan("llama-3-70b", "64xh100", global_batch=128, seq=8192, gap=0.0, only="cp=1 sp=on hsdp=0")
    roomy = shardwise.plan("llama-3-70b", "64xh100", global_batch=128, seq=8192, gap=0.0, memory_margin=0.0,
                           only="cp=1 sp=on hsdp=0")  # fmt: skip
    assert roomy.fastest.iteration_seconds <= tight.fastest.iteration_seconds


def test_nothing_fits_says_what_would():
    answer = shardwise.plan("llama-3.1-405b", "8xh100", global_batch=64, seq=8192)
    assert answer.fastest is None
    near = answer.closest
    assert near.missing > 100e9
    assert 80 < near.gpus <= 256
    more = shardwise.plan("llama-3.1-405b", f"{near.gpus}xh100", global_batch=64, seq=8192, gap=0.2)
    assert more.fastest is not None


def test_time_that_is_up_gives_the_best_so_far():
    answer = shardwise.plan("llama-3-70b", "1024xh100", global_batch=1024, seq=8192, time_limit=0.0)
    assert not answer.finished


def test_an_interrupt_gives_the_best_so_far():
    question = asked("llama-3-70b", "256xh100", 512, 8192)

    def stop(search):
        if search.best:
            raise KeyboardInterrupt

    answer = Search(question=question, gap=0.0, report=stop).run()
    assert answer.interrupted
    assert not answer.finished
    assert answer.fastest is not None
    assert answer.bound <= answer.fastest.iteration_seconds


def test_uneven_stages_beat_the_even_cut():
    """126 layers on 16 stages, and a vocabulary of 256k on the last."""
    question = asked("llama-3.1-405b", "1024xh100", 512, 8192, only="pp=16 tp=8 cp=1 vpp=1 schedule=1f1b mbs=1 zero=1")
    answer = Search(question=question, gap=0.0).run()
    layers = answer.fastest.strategy.layers
    assert sum(layers) == 126
    assert len(set(layers)) > 1


def test_it_reports_what_it_tried_and_stops_when_told():
    seen = []

    def report(search):
        seen.append(len(search.tried))

    answer = shardwise.plan(
        "llama-3-70b", "256xh100", global_batch=512, seq=8192, gap=0.0, report=report,
        stop=lambda: bool(seen) and seen[-1] > 20,
    )  # fmt: skip
    assert not answer.finished
    assert not answer.interrupted
    assert seen == sorted(seen)
    assert seen[-1] == answer.counts.simulated == len(answer.simulated)
    assert 0 < answer.bound <= answer.fastest.iteration_seconds
    fitting = [one.seconds for one in answer.simulated if one.allowed]
    assert fitting == sorted(fitting)
    assert fitting[0] == pytest.approx(answer.fastest.iteration_seconds)
    assert [one.allowed for one in answer.simulated] == sorted((one.allowed for one in answer.simulated), reverse=True)


def test_stopped_at_once_it_knows_nothing_and_says_so():
    answer = shardwise.plan("llama-3-70b", "256xh100", global_batch=512, stop=lambda: True)
    assert (answer.fastest, answer.bound, answer.finished) == (None, 0.0, False)


def test_what_wins_was_cut_with_care_though_its_bound_was_out_of_reach():
    answer = shardwise.plan("llama-3-8b", "13xh100", global_batch=128)
    for layers in ((3,) * 7 + (2,) * 5 + (1,), (2,) * 5 + (3,) * 7 + (1,), (1, 1, 3, 3, 3, 4, 4, 4, 2, 2, 2, 2, 1)):
        asked_for = answer.question
        other = estimate(asked_for.model, asked_for.cluster, replace(answer.fastest.strategy, layers=layers))
        assert answer.fastest.iteration_seconds <= 1.001 * other.iteration_seconds  # the search ends at a gap of 0.5%
    assert max(answer.fastest.strategy.layers) == 3
    assert len({str(one.strategy) for one in answer.simulated}) == len(answer.simulated) == answer.counts.simulated


def test_the_smallest_cluster_is_found_where_chunks_have_loose_bounds():
    answer = shardwise.plan("llama-3-8b", "16xh100", global_batch=8, seq=2**20)
    assert answer.fastest is None
    assert answer.closest.gpus == 32
