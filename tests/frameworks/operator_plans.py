"""Per-operator plans that nobody searched for: drawn splits, cuts anywhere, recompute by operator."""

from __future__ import annotations

import random
from itertools import pairwise

from shardwise.api import load_cluster
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.per_op.answer import OperatorAnswer
from shardwise.per_op.as_plan import plan_of
from shardwise.per_op.chain import own_chain
from shardwise.per_op.evaluate import evaluate
from shardwise.per_op.operators import OperatorPricing
from shardwise.per_op.profiles.analytic import make_profile
from shardwise.per_op.question import OperatorLayout, OperatorQuestion, PerOpPlan, SplitStage


def question_of(model, gpus, *, samples, passes, seq=8, **more):
    """On so many H100, for plans of any kind; `samples`: of a micro batch."""
    cluster, runtime = load_cluster(f"{gpus}xh100"), load_runtime("megatron")
    base = Strategy(seq=seq, global_batch=samples * passes, **more)
    sizes = tuple(size for size in range(1, samples + 1) if samples % size == 0)
    profile = make_profile(model, cluster, runtime, seq=seq, micro_batches=sizes, tps=(1, 2, 4))
    return OperatorQuestion(
        profile=profile, chain=own_chain(profile), gpus=gpus, node=8, memory=1e12, global_batch=samples * passes,
        pricing=OperatorPricing(model, cluster, runtime, base), sample_counts=(samples,), space="full", model=model,
        cluster=cluster, runtime=runtime, seq=seq,
    )  # fmt: skip


def drawn_plan(model, gpus, seed, *, samples=4, passes=3, **more):
    """Stages of these GPUs; every few operators another tp, half of a layer's operators recomputed."""
    rng = random.Random(seed)  # noqa: S311
    question = question_of(model, sum(gpus), samples=samples, passes=passes, **more)
    pricing, count = question.pricing, len(question.chain.rows)
    cuts = [0, *sorted(rng.sample(range(1, count), len(gpus) - 1)), count]
    stages = []
    for own, (first, end) in zip(gpus, pairwise(cuts), strict=True):
        tps, layouts = [tp for tp in (1, 2, 4) if own % tp == 0 and samples % (own // tp) == 0], []
        tp = rng.choice(tps)
        for _ in range(first, end):
            tp = rng.choice(tps) if rng.random() < 0.4 else tp
            layouts.append(OperatorLayout(tp, own // tp))
        flags = tuple(pricing.may(row) and rng.random() < 0.5 for row in question.chain.rows[first:end])
        stages.append(SplitStage(gpus=own, layouts=tuple(layouts), recompute=flags))
    return as_plan(question, PerOpPlan(stages=tuple(stages), samples=samples))


def as_plan(question, plan):
    """A plan of operators as the typed plan that `plan-operators --out` writes."""
    cost = evaluate(question, plan)
    return plan_of(OperatorAnswer(question=question, plan=plan, cost=cost, bound=cost.seconds))
