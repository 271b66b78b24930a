from __future__ import annotations

import pytest
from questions import asked, small_question

import shardwise
from shardwise.inputs.plan_file import plan_text
from shardwise.plan.search.api import plan_file_of
from shardwise.plan.search.refine import refine
from shardwise.plan.search.search import Search
from shardwise.plan.search.space import Space


def by_brute_force(question):
    """Every strategy simulated in full: the fastest that fits, the first of equals."""
    space = Space(question=question)
    found = [refine(question, space.strategy(point)) for point in space.points()]
    fitting = [(one.seconds, place, one.strategy) for place, one in enumerate(found) if one and one.fits]
    return min(fitting, default=None, key=lambda item: item[:2])


@pytest.mark.parametrize("seed", range(50))
def test_the_best_is_that_of_brute_force(seed):
    question = small_question(seed)
    wanted = by_brute_force(question)
    answer = Search(question=question, gap=0.0).run()
    if wanted is None:
        assert answer.best is None
    else:
        assert answer.best.strategy == wanted[2]
        assert answer.best.iteration_seconds == pytest.approx(wanted[0], rel=1e-12)
        assert answer.gap == pytest.approx(0.0, abs=1e-8)


def test_the_bound_holds_whatever_the_gap():
    question = asked("llama-3-8b", "16xh100", 64, 8192, only="cp=1")
    exact = Search(question=question, gap=0.0).run()
    loose = Search(question=question, gap=0.05).run()
    assert loose.bound <= exact.best.iteration_seconds <= loose.best.iteration_seconds
    assert loose.gap <= 0.05 + 1e-12
    assert loose.counts.points <= exact.counts.points


def test_counts_add_up():
    answer = shardwise.plan("llama-3-8b", "16xh100", global_batch=64, seq=4096, only="cp=1")
    counts = answer.counts
    assert counts.points + counts.pruned == counts.space == Space(question=answer.question).count()[0]
    assert counts.too_large <= counts.screened <= counts.space


def test_the_same_question_gives_the_same_bytes():
    first, second = (shardwise.plan("llama-3-8b", "16xh100", global_batch=64, seq=4096) for _ in range(2))
    texts = [plan_text(plan_file_of(one)).split('"run"')[0] for one in (first, second)]
    assert texts[0] == texts[1]


def test_more_memory_is_never_slower():
    tight = shardwise.plan("llama-3-70b", "64xh100", global_batch=128, seq=8192, gap=0.0, only="cp=1 sp=on hsdp=0")
    roomy = shardwise.plan("llama-3-70b", "64xh100", global_batch=128, seq=8192, gap=0.0, memory_margin=0.0,
                           only="cp=1 sp=on hsdp=0")  # fmt: skip
    assert roomy.best.iteration_seconds <= tight.best.iteration_seconds


def test_nothing_fits_says_what_would():
    answer = shardwise.plan("llama-3.1-405b", "8xh100", global_batch=64, seq=8192)
    assert answer.best is None
    near = answer.closest
    assert near.missing > 100e9
    assert 80 < near.gpus <= 256
    more = shardwise.plan("llama-3.1-405b", f"{near.gpus}xh100", global_batch=64, seq=8192, gap=0.2)
    assert more.best is not None


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
    assert answer.best is not None
    assert answer.bound <= answer.best.iteration_seconds


def test_uneven_stages_beat_the_even_cut():
    """126 layers on 16 stages, and a vocabulary of 256k on the last."""
    question = asked("llama-3.1-405b", "1024xh100", 512, 8192, only="pp=16 tp=8 cp=1 vpp=1 schedule=1f1b mbs=1 zero=1")
    answer = Search(question=question, gap=0.0).run()
    layers = answer.best.strategy.layers
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
    assert seen[-1] == answer.counts.points == len(answer.simulated)
    assert 0 < answer.bound <= answer.best.iteration_seconds
    fitting = [one.seconds for one in answer.simulated if one.fits]
    assert fitting == sorted(fitting)
    assert fitting[0] == pytest.approx(answer.best.iteration_seconds)
    assert [one.fits for one in answer.simulated] == sorted((one.fits for one in answer.simulated), reverse=True)


def test_stopped_at_once_it_knows_nothing_and_says_so():
    answer = shardwise.plan("llama-3-70b", "256xh100", global_batch=512, stop=lambda: True)
    assert (answer.best, answer.bound, answer.finished) == (None, 0.0, False)
