"""A per-operator plan with one split for all operators is a strategy, and goes where strategies go."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwise
from shardwise.api import export, load_model, plan_of, read_plan, write_plan
from shardwise.check.check import check
from shardwise.errors import InfeasibleError
from shardwise.estimate.estimate import estimate
from shardwise.frameworks.operators import lowered, stage_rows
from shardwise.inputs.layers import spread
from shardwise.inputs.recompute import Recompute
from shardwise.per_op.answer import OperatorAnswer
from shardwise.per_op.evaluate import evaluate
from shardwise.per_op.question import OperatorLayout
from shardwise.per_op.whole import whole_plan

from .conftest import random_profile
from .test_one_cost_model import asked, drawn_strategies


def answered(question, model, cluster, runtime, strategy, plan):
    """The plan as `plan-operators --out` writes it."""
    question = replace(question, model=model, cluster=cluster, runtime=runtime, seq=strategy.seq)
    cost = evaluate(question, plan)
    return plan_of(OperatorAnswer(question=question, plan=plan, cost=cost, bound=cost.seconds))


def uniform(model, cluster, strategy, runtime, change=lambda plan: plan):
    base = replace(strategy, tp=1, dp=1, pp=1, micro_batch=1, layers=(), recompute=Recompute())
    question = asked(model, cluster, runtime, base, (strategy.micro_batch,), (strategy.tp,))
    layout, size = OperatorLayout(strategy.tp, strategy.dp), strategy.micro_batch * strategy.dp
    again = (strategy.recompute.full,) * strategy.pp
    plan = whole_plan(question, spread(model.layers, strategy), layout, size, again)
    return answered(question, model, cluster, runtime, strategy, change(plan))


def test_a_uniform_plan_is_its_strategy_to_the_second():
    """Of drawn strategies: the same split, layers and recompute, and the seconds of an estimate."""
    count = 0
    for model, cluster, drawn, runtime in drawn_strategies(23, 120):
        common = {
            "optimizer": "adamw",
            "grad_dtype": "fp32",
            "master": "mixed",
            "dtype": "bf16",
            "sp": True,
            "flash": True,
        }
        strategy = replace(drawn, **common)  # what a plan of `plan-operators` always has
        if model.mtp or check(model, cluster, strategy, runtime):
            continue
        count += 1
        plan = uniform(model, cluster, strategy, runtime)
        made, told = lowered(plan)
        assert told == ()
        axes = ("tp", "dp", "pp", "micro_batch", "global_batch", "zero", "schedule", "recompute")
        assert [getattr(made.strategy, one) for one in axes] == [getattr(strategy, one) for one in axes]
        assert spread(model.layers, made.strategy) == spread(model.layers, strategy)
        found = estimate(model, cluster, made.strategy, runtime=runtime, checked=True)
        assert found.iteration_seconds == pytest.approx(plan.operators.seconds, rel=1e-9)
    assert count > 30


CASE = ("llama-3-8b", "8xh100", "tp2 dp2 pp2 mbs1 gbs16 seq4096 zero1")


def case(change=lambda plan: plan):
    model, cluster = load_model(CASE[0]), shardwise.load_cluster(CASE[1])
    strategy = shardwise.Strategy.parse(CASE[2])
    return uniform(model, cluster, strategy, shardwise.load_runtime("megatron"), change)


def changed(plan, index, **more):
    stages = list(plan.stages)
    stages[index] = replace(stages[index], **more)
    return replace(plan, stages=tuple(stages))


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "megatron-bridge"])
def test_it_is_exported_like_its_strategy(tmp_path, target):
    plan, file = case(), tmp_path / "plan.json"
    write_plan(plan, file)
    strategy = shardwise.estimate(*CASE)
    ours, theirs = export(str(file), target), export(plan_of(strategy), target)
    assert ours.strategy == theirs.strategy
    assert ours.as_written == theirs.as_written
    assert ours.losses == theirs.losses
    assert [file.name for file in ours.files] == [file.name for file in theirs.files]
    assert read_plan(file) == plan


def test_a_plan_without_a_strategy_says_why():
    def other(plan):
        stage = plan.stages[1]
        return changed(plan, 1, layouts=(OperatorLayout(1, 4),) * stage.size)

    with pytest.raises(InfeasibleError, match="splits differ: stage 0 tp2 dp2, stage 1 tp1 dp4"):
        export(case_of(other, tps=(1, 2)), "megatron")

    def cut(plan):
        first, second = plan.stages
        moved = {name: (*getattr(first, name), getattr(second, name)[0]) for name in ("layouts", "recompute")}
        left = {name: getattr(second, name)[1:] for name in ("layouts", "recompute")}
        return replace(plan, stages=(replace(first, **moved), replace(second, **left)))

    with pytest.raises(InfeasibleError, match=r"stage 0 ends inside layer 16, after attention-norm\.norm"):
        export(case(cut), "megatron")

    def odd(plan):
        flags = [index == 3 for index in range(plan.stages[0].size)]
        return changed(plan, 0, recompute=tuple(flags))

    with pytest.raises(InfeasibleError, match="operators are recomputed that make up no module"):
        export(case(odd), "torchtitan")


def case_of(change, tps):
    """As `case`, with splits of these tps to choose from."""
    model, cluster, runtime = load_model(CASE[0]), shardwise.load_cluster(CASE[1]), shardwise.load_runtime("megatron")
    strategy = shardwise.Strategy.parse(CASE[2])
    base = replace(strategy, tp=1, dp=1, pp=1, micro_batch=1)
    question = asked(model, cluster, runtime, base, (1, 2), tps)
    question = replace(question, profile=question.profile)
    plan = whole_plan(question, (16, 16), OperatorLayout(2, 2), 4, (False, False))
    return answered(question, model, cluster, runtime, strategy, change(plan))


UNITS = ("norm", "qkv", "rope", "core", "output", "residual", "norm2", "up", "act", "down", "residual2")


def alone(units, layers):
    """One stage."""
    model, cluster = load_model(CASE[0]), shardwise.load_cluster("4xh100")
    strategy = shardwise.Strategy.parse("tp2 dp2 mbs1 gbs16 seq4096 zero1")
    runtime = shardwise.load_runtime("megatron")
    return uniform(model, cluster, strategy, runtime, lambda plan: flagged(plan, units, layers))


def flagged(plan, units, layers):
    """Recompute of these operators in these layers of the first stage, whose layers have 11 operators."""
    flags = [0 < index <= 11 * 32 and UNITS[(index - 1) % 11] in units and (index - 1) // 11 in layers
             for index in range(plan.stages[0].size)]  # fmt: skip
    return changed(plan, 0, recompute=tuple(flags))


def test_modules_and_first_layers_are_recomputed_as_a_strategy_says():
    made, told = lowered(alone(("core",), range(32)))
    assert made.strategy.recompute == Recompute(modules=("core-attention",))
    assert told == ()
    made, told = lowered(alone(UNITS, (3, 7)))
    assert made.strategy.recompute == Recompute(full=True, layers=(2,))
    assert [fault.path for fault in told] == ["operators.recompute"]
    assert "2 layers of stage 0 are recomputed, not its first ones" in told[0].message


def test_a_strategy_that_the_runtime_has_not_says_so():
    with pytest.raises(InfeasibleError, match=r"(?s)full:\[2,0\].*of kind per-stage, which runtime megatron does not"):
        lowered(case(lambda plan: flagged(plan, UNITS, range(2))))


def test_operators_of_a_profile_are_those_of_no_model():
    plan = case()
    strange = replace(plan, operators=replace(plan.operators, names=tuple(random_profile(3).ops)))
    with pytest.raises(InfeasibleError, match="operators are those of llama-3-8b, not the ones"):
        export(strange, "megatron")
    assert sum(map(len, stage_rows(plan))) == len(plan.operators.names)


def test_seconds_that_an_estimate_does_not_say_are_named():
    plan = case()
    slow = replace(plan, operators=replace(plan.operators, seconds=2 * plan.operators.seconds))
    assert [fault.path for fault in export(slow, "megatron").losses] == ["operators.seconds"]
