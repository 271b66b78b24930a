"""Beside `plan`: never slower than its best strategy, which is the answer where it is faster."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import shardwise
from shardwise.api import load_cluster, load_model
from shardwise.api.operators import operator_question, write_aceso
from shardwise.errors import InfeasibleError
from shardwise.per_op.beside import lacking, strategies
from shardwise.per_op.solve import solve
from shardwise.report.operators import answer_data

SHARED = "cp=1 ep=1 etp=1 vpp=1 hsdp=0 schedule=1f1b recompute=none,full sp=true"
ROUNDING = 1e-9


def test_sharded_gradients_are_a_choice():
    """ZeRO 1 was fixed: 11.10 s where `plan` had 10.38 s."""
    asked = {"global_batch": 64, "microbatches": "8,16"}
    found = shardwise.plan_operators("llama-3-8b", "8xascend-910b", **asked)
    best = shardwise.plan("llama-3-8b", "8xascend-910b", global_batch=64, only=f"{SHARED} zero=1,2").fastest
    assert found.question.pricing.zero == 2
    assert found.cost.seconds <= best.iteration_seconds * (1 + ROUNDING)
    assert found.bound <= found.cost.seconds
    alone = shardwise.plan_operators("llama-3-8b", "8xascend-910b", zero=2, **asked)
    assert found.cost.seconds == pytest.approx(alone.cost.seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "cluster", "batch", "seq", "memory"),
    [
        ("llama-3.2-1b", "4xh100", 16, 2048, "70GiB"), ("llama-3.2-1b", "4xh100", 16, 2048, "14GiB"),
        ("bloom-560m", "3xa100-40gb", 12, 1024, "20GiB"), ("llama-3.2-1b", "2xascend-910b", 8, 1024, "24GiB"),
        ("llama-3.2-1b", "4xv100-16gb", 8, 512, "15GiB"),
    ],
)  # fmt: skip
def test_no_strategy_that_both_search_is_faster(model, cluster, batch, seq, memory):
    question = operator_question(**defaults(model, cluster, batch, seq, memory))
    assert question.zeros == (1, 2)
    found = solve(question)
    margin = question.cluster.gpu.memory - question.limit
    for zero in question.zeros:
        only = f"{SHARED} zero={zero} pp<={question.stage_range[-1] if zero == 1 else 1} mbs<=8"
        best = shardwise.plan(
            model, cluster, global_batch=batch, seq=seq, only=only, memory_margin=f"{margin}B"
        ).fastest
        assert best is None or found.cost.seconds <= best.iteration_seconds * (1 + ROUNDING)
    assert found.bound <= found.cost.seconds


def defaults(model, cluster, batch, seq, memory):
    names = ("profiles", "profile", "layers", "layer_ops", "runs_with", "gpus", "gpus_per_node", "microbatches",
             "stages", "zero", "p2p_overlap")  # fmt: skip
    return {
        **dict.fromkeys(names), "model": model, "cluster": cluster, "global_batch": batch, "seq": seq,
        "runtime": "megatron", "memory": memory, "most_tp": 0, "compatible": False, "compatible_space": False,
        "schedule": "1f1b",
    }  # fmt: skip


EXPERTS = {"global_batch": 8, "seq": 1024, "stages": "1", "microbatches": "1"}


def test_a_strategy_with_axes_of_its_own_is_the_answer(tmp_path):
    found = shardwise.plan_operators("deepseek-v2-lite", "8xh100", **EXPERTS)
    best = found.whole.fastest
    assert best.strategy.ep > 1
    assert "expert parallelism" in lacking(found)
    assert found.bound <= found.seconds == best.iteration_seconds < found.cost.seconds
    plan = shardwise.plan_of(found)
    assert plan.operators is None
    assert plan.strategy == best.strategy
    shardwise.write_plan(plan, tmp_path / "plan.json")
    assert shardwise.read_plan(tmp_path / "plan.json").strategy == best.strategy


def test_operators_alone_are_a_choice():
    found = shardwise.plan_operators("deepseek-v2-lite", "8xh100", operators_only=True, **EXPERTS)
    assert found.whole is None
    assert found.seconds == found.cost.seconds
    assert shardwise.plan_of(found).operators
    compatible = shardwise.plan_operators("deepseek-v2-lite", "8xh100", compatible_space=True, **EXPERTS)
    assert compatible.whole is None


def test_where_only_a_strategy_fits_it_is_the_answer():
    asked, splits = {"global_batch": 8, "seq": 512, "memory": "8GiB"}, {"most_tp": 1, "stages": "1"}
    with pytest.raises(InfeasibleError):
        shardwise.plan_operators("llama-3.2-1b", "4xh100", operators_only=True, **splits, **asked)
    heard = []
    found = shardwise.plan_operators("llama-3.2-1b", "4xh100", report=heard.append, **splits, **asked)
    assert "strategies" in {one.of for one in heard}, "the longest part of the search was silent"
    best = shardwise.plan("llama-3.2-1b", "4xh100", only="tp<=1 pp<=1", **asked).fastest
    assert best.strategy.zero == 3
    assert found.plan.stages == ()
    assert found.seconds == best.iteration_seconds
    assert found.bound <= found.seconds
    assert any("no plan of the per-operator space fits" in note for note in found.notes)
    said = answer_data(found)
    assert said["plan"] is said["cost"] is None
    assert said["strategy"] == str(best.strategy)
    with pytest.raises(InfeasibleError, match="operator by operator nothing fits"):
        write_aceso(found, "never.json")


def test_conditions_hold_for_strategies_too():
    asked = operator_question(**defaults("llama-3.2-1b", "4xh100", 16, 2048, None))
    for more, wanted in (
        ({"zero": 1}, lambda s: s.zero == 1), ({"stages": (2, 4)}, lambda s: 2 <= s.pp <= 4),
        ({"most_tp": 1, "stages": (2, 0)}, lambda s: s.tp == 1),
        ({"microbatches": "2,8"}, lambda s: s.microbatches in {2, 8}),
    ):  # fmt: skip
        given = defaults("llama-3.2-1b", "4xh100", 16, 2048, None) | more
        found = strategies(operator_question(**given))
        assert wanted(found.answer.fastest.strategy)
        assert found.bound <= found.seconds
    ordered = strategies(replace(asked, only="pp=4"), "1f1b").answer.fastest.strategy
    assert (ordered.schedule, ordered.vpp) == ("1f1b", 1)


@pytest.mark.parametrize("seed", range(16))
def test_it_is_never_slower_than_plan(seed):
    """Drawn questions, with memory that may bind; also where no plan operator by operator fits."""
    rng = random.Random(seed)  # noqa: S311
    model = load_model(rng.choice(("llama-3-8b", "deepseek-v2-lite", "gemma-2-9b", "mixtral-8x7b", "gpt-2-124m")))
    model = replace(model, layers=rng.randint(2, 4), mtp=0)
    gpu = rng.choice(("h100", "a100-40gb", "ascend-910b", "v100-16gb"))
    asked = {
        "global_batch": rng.choice((4, 8, 16)), "seq": rng.choice((512, 1024)),
        "memory": rng.choice((None, "6GiB", "3GiB")),
        "runtime": rng.choice(("megatron", "megatron", "torchtitan", "megatron-local")),
    }  # fmt: skip
    cluster = load_cluster(f"{rng.choice((1, 2, 3, 4))}x{gpu}")
    best = shardwise.plan(model, cluster, **asked).fastest
    if best is None:
        try:
            found = shardwise.plan_operators(model, cluster, **asked)
        except InfeasibleError:
            return
        assert found.whole is None
        return
    found = shardwise.plan_operators(model, cluster, **asked)
    assert found.bound * (1 - ROUNDING) <= found.seconds <= best.iteration_seconds * (1 + ROUNDING)
    predicted = shardwise.plan_of(found)
    seconds = predicted.operators.seconds if predicted.operators else predicted.predictions.iteration_seconds
    assert seconds == pytest.approx(found.seconds, rel=ROUNDING)


def test_a_choice_that_nothing_fits_does_not_hide_the_other():
    question = operator_question(**defaults("llama-3.2-1b", "4xh100", 8, 1024, "14GiB"))
    (other,) = question.also
    broken = replace(question, also=(replace(other, memory=1e6),))
    found, alone = solve(broken), solve(replace(question, also=()))
    assert found.cost.seconds == pytest.approx(alone.cost.seconds, rel=1e-12)
    assert found.bound == pytest.approx(alone.bound, rel=1e-12)
