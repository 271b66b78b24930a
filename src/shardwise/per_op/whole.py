"""Whole strategies as per-operator plans: every operator in one split, layers recomputed wholly or not at all.

They are evaluated beside what the search finds, so that it is never slower than the best of them.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from shardwise.errors import InfeasibleError, InputError
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.layers import spread
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.per_op.question import OperatorLayout, OperatorQuestion, PerOpPlan, SplitStage
from shardwise.per_op.tables import NEVER, gpu_counts, layouts_of, sample_counts, tables_of

BEST = 16
"""Strategies that are taken over from the search over strategies."""


def whole_plan(
    question: OperatorQuestion,
    layers: tuple[int, ...],
    layout: OperatorLayout,
    samples: int,
    again: tuple[bool, ...] = (),
) -> PerOpPlan | None:
    """Stages of so many layers, all in one split; `again`: stages whose layers are recomputed. None: the model has not
    so many layers.
    """
    gpus = layout.tp * layout.dp
    tables = tables_of(question, samples, gpus)
    rows = question.chain.rows
    starts = [index for index, row in enumerate(rows) if tables.starts[row] and tables.may[row]]
    ends = [sum(layers[: index + 1]) for index in range(len(layers))]
    if len(starts) < ends[-1]:
        return None
    cuts = [0, *(starts[end] for end in ends[:-1]), len(rows)]
    stages = tuple(
        SplitStage(
            gpus=gpus,
            layouts=(layout,) * (end - first),
            recompute=tuple(bool(made and tables.may[row]) for row in rows[first:end]),
        )
        for first, end, made in zip(cuts[:-1], cuts[1:], again or (False,) * len(layers), strict=True)
    )
    return PerOpPlan(stages=stages, samples=samples)


def whole_plans(question: OperatorQuestion) -> tuple[PerOpPlan, ...]:
    """All that the space holds, layers spread evenly."""
    found: list[PerOpPlan | None] = []
    for stages, size in product(question.stage_range, sample_counts(question)):
        gpus, rest = divmod(question.gpus, stages)
        if rest or gpus not in gpu_counts(question) or (question.space == "compatible" and question.node % gpus):
            continue
        allowed = np.all(tables_of(question, size, gpus).work < NEVER, axis=1).tolist()
        layouts = [layout for layout, good in zip(layouts_of(question, size, gpus), allowed, strict=True) if good]
        for layout, again in product(layouts, (False, True)):
            try:
                layers = spread(question.chain.layers, Strategy(pp=stages))
            except InputError:  # fewer layers than stages
                continue
            found.append(whole_plan(question, layers, layout, size, (again,) * stages))
    return tuple(plan for plan in found if plan is not None)


def planned(
    question: OperatorQuestion, model: Model, cluster: Cluster, runtime: Runtime, base: Strategy
) -> tuple[PerOpPlan, ...]:
    """The best that `plan` finds in the same space, its layers cut as it cuts them."""
    from shardwise.search.api import answer_of, question_of

    stages, known = question.stage_range, question.profile.micro_batches
    only = (
        f"cp=1 ep=1 etp=1 vpp=1 hsdp=0 zero={base.zero} schedule={base.schedule} recompute=none,full "
        f"mbs>={known[0]} mbs<={known[-1]} tp<={question.tp_limit} pp>={stages[0]} pp<={stages[-1]}"
    )
    try:
        asked = question_of(
            model, cluster, global_batch=question.global_batch, seq=base.seq, runtime=runtime, base=base, only=only,
            memory_margin=cluster.gpu.memory - question.limit,
        )  # fmt: skip
        answer = answer_of(asked)
    except (InputError, InfeasibleError):  # the runtime has no such strategy
        return ()
    found = []
    for own in (candidate.strategy for candidate in answer.simulated[:BEST]):
        size, layout = own.micro_batch * own.dp, OperatorLayout(own.tp, own.dp)
        if size in sample_counts(question) and layout in layouts_of(question, size, own.tp * own.dp):
            again = (own.recompute.full,) * own.pp
            found.append(whole_plan(question, spread(model.depth, own), layout, size, again))
    return tuple(plan for plan in found if plan is not None)
