"""The three plans of an answer: the order of simplicity, expected regret, and what is recommended."""

import random
from dataclasses import replace
from itertools import permutations
from math import exp, log

import numpy as np
import pytest
from questions import small_question

import shardwise
from shardwise.estimate.intervals import (
    NORMAL,
    layout_distance,
    layout_width,
    likeness,
    pair_width,
    widest_cause,
    within_error,
)
from shardwise.inputs.accuracy import accuracy
from shardwise.inputs.strategy import Strategy
from shardwise.measure.nearest import nearest_run
from shardwise.plan.proof import check_proof
from shardwise.report.data import other_plans, plans_data, regret_text
from shardwise.search.api import answer_of
from shardwise.search.recomputes import AS_NEEDED
from shardwise.search.refine import plainly
from shardwise.search.regret import Rival, regrets, surcharge, weighed
from shardwise.search.simplicity import UNUSUAL, USUAL, kinds_of, plainness, simplicity
from shardwise.search.space import Space

WIDTH = 0.1
TEXTS = (
    "tp1 pp1 dp8 zero1", "tp8 pp1 dp1 zero1", "tp1 pp8 dp1 zero1", "tp4 pp2 dp1 zero1", "tp2 pp2 cp2 dp1 zero1",
    "tp1 pp2x2 dp4 interleaved", "tp1 pp2 dp4 zb-h1", "tp1 pp1 dp8 zero3", "tp1 pp1 dp8 zero1 recompute=full",
    "tp1 pp2 dp4 layers=3,5", "tp1 pp2x2 dp4 interleaved layers=1,3,2,2", "tp8 nosp dp1", "tp1 pp1 dp8 zero3 hsdp4",
    "tp1 pp2 dp4 recompute=full:[2,1]", "tp1 pp1 dp8 offload=optimizer",
)  # fmt: skip


def layouts(count, seed):
    rng = random.Random(seed)  # noqa: S311
    strategies = [Strategy.parse(f"{text} mbs1 gbs64 seq4096") for text in TEXTS]
    return [Rival(one, rng.uniform(1.0, 1.08), False) for one in rng.sample(strategies, count)]


def test_the_order_of_simplicity_is_total_and_the_same_for_any_order_of_its_members():
    ranked = sorted(layouts(len(TEXTS), 0), key=lambda one: one.simplicity)
    assert len({one.simplicity for one in ranked}) == len(ranked)
    for seed in range(3):
        mixed = random.Random(seed).sample(ranked, len(ranked))  # noqa: S311
        assert sorted(mixed, key=lambda one: one.simplicity) == ranked
    assert str(ranked[0].strategy).startswith("tp1 pp1 dp8 cp1 ep1 zero1 mbs1")


@pytest.mark.parametrize(
    ("simpler", "other"),
    [
        ("tp2 pp4 dp1", "tp2 pp2 cp2 dp1"),  # cp at short sequences
        ("tp8 dp1", "tp4 pp2 dp1"),  # one axis before two
        ("tp1 pp2 dp4", "tp1 pp2 dp4 layers=3,5"),  # even stages
        ("tp1 pp2 dp4", "tp1 pp2x2 dp4 interleaved"),
        ("tp1 pp2x2 dp4 interleaved", "tp1 pp2x4 dp4 interleaved"),
        ("tp1 pp2x4 dp4 interleaved", "tp1 pp2 dp4 zb-h1"),
        ("tp2 pp4 dp1", "tp1 pp1 dp8 zero3 hsdp4"),
        ("tp1 pp1 dp8", "tp1 pp1 dp8 recompute=full"),
        ("tp1 pp1 dp8 zero1", "tp1 pp1 dp8 zero3"),
        ("tp4 pp2 dp1", "tp1 pp1 dp8 offload=optimizer"),
    ],
)
def test_what_is_simpler(simpler, other):
    one, two = (plainness(Strategy.parse(f"{text} mbs1 gbs64 seq4096"), experts=False) for text in (simpler, other))
    assert one < two


def test_kinds_are_usual_or_not_and_what_no_kind_speaks_of_is_named_by_its_setting():
    assert not set(USUAL) & set(UNUSUAL)
    assert kinds_of(Strategy(), experts=True) == ()
    found = kinds_of(Strategy.parse("tp2 pp2 cp2 dp1 mbs1 gbs8 seq4096 offload=activations"), experts=False)
    assert found == (
        "tensor parallel",
        "pipeline",
        "context parallel",
        "context parallel at short sequences",
        "offload",
    )
    assert "context parallel at short sequences" not in kinds_of(Strategy(cp=2, seq=32768), experts=False)
    assert "experts gathered by every rank" in kinds_of(Strategy(dp=8, zero=3), experts=True)


@pytest.mark.parametrize("seed", range(4))
def test_regrets_are_those_of_errors_drawn_anew(seed):
    drawn = layouts(5, seed)
    found = regrets(drawn, WIDTH)
    rng, rows = np.random.default_rng(seed), []
    part = accuracy().pairs["one"] * WIDTH / NORMAL / 2**0.5
    names = {}

    def draw(name):
        return names.setdefault(name, rng.standard_normal(200_000))

    for one in drawn:
        s, bar = one.strategy, accuracy().pairs["several"] * WIDTH
        unshown = [kind for kind in one.kinds if kind in UNUSUAL and surcharge((kind,), WIDTH) > bar / 2]
        row = log(one.seconds) + surcharge(one.kinds, WIDTH) + len(one.kinds) * accuracy().kinds.error * draw("kind")
        row = row + part * draw((s.tp, s.sp, s.cp, s.cp_kind, s.ep, s.etp)) + part * draw((s.pp, s.vpp, s.schedule))
        row = row + part * draw((s.micro_batch, s.recompute.full, s.recompute.modules, s.zero, s.zero_group))
        rows.append(row + sum(bar / NORMAL * draw(kind) for kind in unshown))
    logs = np.array(rows)
    wanted = np.exp(logs - logs.min(axis=0)).mean(axis=1) - 1
    assert found == pytest.approx(wanted, abs=0.004)
    assert min(found) >= 0


def test_no_order_of_the_layouts_matters_and_a_layout_alone_has_no_regret():
    some = layouts(4, 1)
    known = dict(zip(some, regrets(some, WIDTH), strict=True))
    for order in permutations(some):
        assert regrets(order, WIDTH) == pytest.approx([known[one] for one in order], rel=1e-12)
    assert regrets(some[:1], WIDTH) == [0.0]


def test_equals_go_to_the_simpler_and_what_nothing_shows_must_gain_more_than_the_error():
    plain, other = (Strategy.parse(f"{text} mbs1 gbs64 seq4096") for text in ("tp8 dp1", "tp4 pp2 dp1"))
    short = Strategy.parse("tp4 cp2 dp1 mbs1 gbs64 seq4096")
    assert weighed([Rival(plain, 1.001, False), Rival(other, 1.0, False)], WIDTH, 0.005).chosen.strategy == plain
    assert weighed([Rival(plain, 1.08, False), Rival(other, 1.0, False)], WIDTH, 0.005).chosen.strategy == other
    bar = accuracy().pairs["several"] * WIDTH
    for gain, chosen in ((0.8 * bar, plain), (1.3 * bar, short)):
        found = weighed([Rival(plain, exp(gain), False), Rival(short, 1.0, False)], WIDTH, 0.005)
        assert found.chosen.strategy == chosen
        assert [one.strategy for one in found.layouts] == [short, plain]


@pytest.fixture(scope="module")
def answer():
    return shardwise.plan("llama-3-8b", "32xh100", global_batch=64, seq=8192)


def test_the_plans_of_an_answer(answer):
    plans = (answer.fastest, answer.recommended, answer.simplest)
    assert answer.best is answer.recommended
    assert answer.fastest.iteration_seconds == min(one.iteration_seconds for one in plans)
    assert all(within_error(answer.fastest, one) for one in plans)
    assert all(one.total_bytes <= answer.question.memory_limit for one in plans)
    ranks = [simplicity(one.strategy, one.iteration_seconds, experts=False) for one in plans]
    assert ranks[2] == min(ranks)
    shown = {one.strategy for one in answer.top}
    assert {one.strategy for one in plans} <= shown & {one.strategy for one in answer.simulated}
    regret = {one.candidate.strategy: one.regret for one in answer.proposals}
    assert regret[answer.recommended.strategy] <= 1.01 * (1 + min(regret.values())) - 1
    assert set(answer.roles(answer.fastest.strategy)) >= {"fastest"}


def test_what_is_likely_slower_is_not_called_equal(answer):
    """Wherever plans are told: beside the fastest, and of a recommended plan that is the simplest."""
    assert likeness(0.5, slower=True) == "equal within the error"
    assert likeness(0.8, slower=True) == "likely slower, though within the error"
    assert likeness(0.8, slower=False) == "likely faster, though within the error"
    assert likeness(1.1, slower=True) == ""
    fastest = answer.fastest
    longer = fastest.iteration_seconds * exp(0.8 * pair_width(fastest))
    other = replace(fastest.strategy, tp=fastest.strategy.tp * 2, dp=fastest.strategy.dp // 2, micro_batch=2)
    slow = replace(fastest, strategy=other, iteration_seconds=longer)
    told = dict(other_plans(replace(answer, recommended=slow, simplest=slow)))
    share = f"{longer / fastest.iteration_seconds - 1:+.1%}"
    assert told["it is also"] == f"the simplest within the error, but likely slower than the fastest ({share})"
    assert "likely faster, though within the error" in told["fastest"]
    told = dict(other_plans(replace(answer, recommended=fastest, simplest=slow)))
    assert f"({share} beside the fastest one, likely slower, though within the error)" in told["simplest"]
    data = plans_data(replace(answer, recommended=fastest, simplest=slow))
    assert (data["simplest"]["within_error"], data["simplest"]["likely"]) == (True, "slower")


def test_regret_is_told_in_whole_percents_with_its_reason(answer):
    assert [regret_text(one) for one in (0.0, 0.0049, 0.0051, 0.404)] == ["under 1%", "under 1%", "1%", "40%"]
    own = replace(answer.proposals[0], regret=0.404, surcharge=0.0)
    assert own.candidate.strategy == answer.best.strategy
    for reason, surcharge_ in (("the error of predictions", 0.0), ("its unusual kinds", 0.3)):
        told = dict(other_plans(replace(answer, proposals=(replace(own, surcharge=surcharge_),) * 2)))
        assert told["regret"] == f"40% expected, mostly from {reason}, the least of 2 plans weighed"
    experts = shardwise.estimate("mixtral-8x7b", "64xh100", "tp2 dp32 ep8 mbs1 gbs128 seq4096")
    assert widest_cause(experts) == "mixture of experts"


def test_the_fastest_is_recommended_where_it_is_asked_for(answer):
    asked = shardwise.plan("llama-3-8b", "32xh100", global_batch=64, seq=8192, fastest=True)
    assert asked.best is asked.fastest
    assert asked.fastest.strategy == answer.fastest.strategy
    assert asked.simplest.strategy == answer.simplest.strategy


def test_whichever_plan_is_written_its_proof_holds():
    answer = shardwise.plan("gpt-3-175b", "64xa100", global_batch=64, seq=2048)
    assert answer.simplest.strategy != answer.fastest.strategy
    for one in (answer.fastest, answer.simplest):
        found = shardwise.api.plan_of(replace(answer, recommended=one))
        assert found.strategy == one.strategy
        assert found.predictions.gap == pytest.approx(one.iteration_seconds / answer.bound - 1)
        assert check_proof(found).fault == ""


@pytest.mark.parametrize("seed", range(12))
def test_the_simplest_is_that_of_all_plain_layouts_not_of_what_survived(seed):
    question = small_question(seed)
    answer = answer_of(question)
    if answer.fastest is None:
        return
    experts, space = question.model.moe is not None, Space(question=question)
    unusual = {*UNUSUAL} - {*kinds_of(question.base, experts=experts)}
    plain = [one for one in map(space.strategy, space.points()) if unusual.isdisjoint(kinds_of(one, experts=experts))]
    cut = (two for one in plain if one.recompute.layers != AS_NEEDED for two in plainly(question, one))
    width, own = layout_width(answer.fastest), answer.best
    most = Rival(own.strategy, own.iteration_seconds, experts).expected(width)
    near = [
        one
        for one in cut
        if one.allowed and layout_distance(answer.fastest, one.strategy, one.seconds) <= 1
        if Rival(one.strategy, one.seconds, experts).expected(width) <= most
    ]
    least = min((simplicity(one.strategy, one.seconds, experts=experts) for one in near), default=("none",))
    found = simplicity(answer.simplest.strategy, answer.simplest.iteration_seconds, experts=experts)
    assert least == ("none",) or found[:-2] <= least[:-2]
    assert answer.best.iteration_seconds >= answer.fastest.iteration_seconds


def test_the_nearest_run(answer):
    run = answer.nearest
    assert run.model.startswith("llama3")
    assert "h100" in run.cluster
    low, high = run.predicted_interval
    assert low < run.predicted_seconds < high
    assert 0.1 < run.mfu < 0.7
    assert run.distance > 0


def test_a_run_of_a_cut_model_is_called_so():
    found = shardwise.estimate("gemma-2-27b", "64xh100", "tp8 dp8 mbs1 gbs128 seq8192")
    assert nearest_run(found).model == "llama3.1-405b cut to 7 layers"
