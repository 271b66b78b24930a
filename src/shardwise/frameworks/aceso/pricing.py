"""Aceso's time and memory of a stage and of a plan: its tables are its evaluation.

What it gets wrong is kept: the size of a stage's output is read at the tp of its first operator; the reserve does not
look at the last one; sends go one way; there is no update; negative sizes count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.frameworks.aceso.names import compatible_facts, reshards
from shardwise.frameworks.aceso.rules import collective_seconds, send_seconds
from shardwise.inputs.cluster import Gpu
from shardwise.inputs.strategy import Zero
from shardwise.per_op.cut import Arcs, Flow, shortest
from shardwise.per_op.evaluate import PerOpCost, StageCost, crossings, stage_cost, with_spare
from shardwise.per_op.profiled import change, spec
from shardwise.per_op.profiles.facts import OperatorFacts
from shardwise.per_op.profiles.table import Band
from shardwise.per_op.question import OperatorLayout, OperatorQuestion, PerOpPlan, SplitStage
from shardwise.per_op.tables import NEVER, Array, Tables, column, layouts_of, tables_of
from shardwise.pipeline.costs import Costs

MASTER, MOMENTS = {2.0: 2.0, 4.0: 0.0}, {2.0: 4.0, 4.0: 2.0}
"""Bytes of fp32 weights beside the profiled ones, and of optimizer states, per byte of weights that take so many bytes
each (Aceso's `memory_ratio`: Adam beside fp16 weights, and beside fp32 weights, which have no copy)."""
MATRIX = 2.0**17
"""Bytes of weights from which on an operator has a matrix; norms and biases have less."""


def room(gpu: Gpu) -> float:
    """Bytes that a stage may take where nobody says: Aceso's memory has no margin of its own."""
    return 0.96 * (gpu.memory - gpu.reserved)


@dataclass(frozen=True, slots=True)
class Closed(Flow):
    """(passes - 1) x slowest stage + sum of stages; with one pass the slowest counts once, in the sum."""

    def then(self, seconds: Array, rest: Array) -> Array:
        found: Array = seconds + rest
        return found

    def least(self, worst: Array, total: Array) -> Array:
        found: Array = (self.passes - 1) * worst + total if self.passes > 1 else total
        return found

    def joined(self, worst: Array, before: Array, seconds: Array, after: Array) -> Array:
        return self.least(np.maximum(worst, seconds), seconds + before + after)

    def value(self, seconds: Sequence[float]) -> float:
        return float((self.passes - 1) * max(seconds) + sum(seconds)) if self.passes > 1 else float(sum(seconds))

    def best_path(self, arcs: Arcs) -> tuple[float, list[int]]:
        """For a limit on the slowest stage the least sum is a shortest path, and limits fall from what the best known
        plan allows to what is possible at all.
        """
        passes = self.passes
        least, path = shortest(arcs, np.inf, np.maximum)
        if not path:
            return np.inf, []
        best, chosen = self.value(arcs.seconds[arcs.key[path]]), path
        total, path = shortest(arcs, np.inf, np.add)
        limit = np.inf
        while path:
            value = self.value(arcs.seconds[arcs.key[path]])
            if value < best:
                best, chosen = value, path
            largest = arcs.seconds[arcs.key[path]].max()
            if (passes - 1) * least + total >= best or largest <= least:
                break
            # a better plan has a smaller largest stage, and one that pays for the sum found so far
            limit = min(np.nextafter(largest, 0.0), (best - total) / max(passes - 1, 1), limit)
            total, path = shortest(arcs, limit, np.add)
        return best, chosen


@dataclass(frozen=True, slots=True)
class Aceso:
    """The compatible cost model."""

    name: str = "compatible"
    schedule: str = "1f1b"
    zero: Zero = 0

    def in_flight(self, behind: int, passes: int) -> int:
        del passes
        return behind

    def pace(self, passes: int) -> Closed:
        return Closed(passes)

    def beside(self, passes: int) -> float:
        del passes
        return 0.0

    def whole_plans(self, question: OperatorQuestion) -> tuple[PerOpPlan, ...]:
        del question
        return ()

    def tables(self, question: OperatorQuestion, samples: int, gpus: int) -> Tables:
        profile = question.profile
        layouts = layouts_of(question, samples, gpus)
        facts = compatible_facts(profile)

        def stacked(name: str) -> Array:
            rows = [column(profile, name, samples // u.dp, u.tp, u.variant) for u in layouts]
            return np.array(rows).reshape(len(layouts), len(profile.ops))

        forward, weights, inputs = stacked("forward"), stacked("weights"), stacked("input")
        share = np.array([own.keeps for own in facts])
        states = np.array([2.0 + MASTER[own.width] + MOMENTS[own.width] for own in facts])
        act = stacked("activations") * share
        forth, back = _crossings(question, layouts, facts, inputs)
        return Tables(
            layouts=layouts, gpus=gpus, rows=np.array(question.chain.rows), forward=forward,
            work=forward + stacked("backward"), act=act, made=act, sent=np.zeros_like(act), entry=inputs,
            static=weights * states, weights=weights, reserved_f=stacked("reserved_f"),
            reserved_b=stacked("reserved_b"), starts=np.array([own.starts_layer for own in facts]),
            may=np.array([own.recompute for own in facts]), shared=share != 1.0, cross=forth + back, cross_back=back,
            enter=np.array([[[send_seconds(size, band) for size in row] for row in inputs]
                            for band in _bands(question)]).reshape(2, *inputs.shape),
            leave=_leave(question, layouts, samples),
        )  # fmt: skip

    def evaluate(self, question: OperatorQuestion, plan: PerOpPlan) -> PerOpCost:
        passes = question.passes(plan.samples)
        costs, ideals, wholes = [], [], []
        first, count = 0, len(plan.stages)
        for index, (stage, crossing) in enumerate(zip(plan.stages, crossings(question, plan.gpus), strict=True)):
            costs.append(_stage_cost(question, plan, stage, first, count - 1 - index, crossing))
            ideal, whole = _ideal(question, plan, stage, first, crossing)
            ideals.append(ideal)
            wholes.append(whole)
            first += stage.size
        total = sum(cost.seconds for cost in costs)
        times = tuple((passes - 1) * cost.seconds + total for cost in costs)
        gpu_seconds = sum(cost.seconds * stage.gpus for cost, stage in zip(costs, plan.stages, strict=True))
        made = PerOpCost(
            stages=tuple(costs), passes=passes, times=times, seconds=max(times), ideal=tuple(ideals),
            lost=tuple(cost.work - ideal for cost, ideal in zip(costs, ideals, strict=True)), spare=(),
            gpu_seconds=gpu_seconds * (passes - 1), factor=question.memory_factor,
        )  # fmt: skip
        return with_spare(question, plan, made, wholes)

    def pass_costs(self, question: OperatorQuestion, plan: PerOpPlan, *, split: bool) -> Costs:
        """The plan's stages as the simulator's ranks; recompute is done before I, sends belong half to F and half to I.

        Profiles do not split backward: an operator with a weight matrix is taken to spend half of it on its weights.
        """
        del split
        cost, first, passes = self.evaluate(question, plan), 0, []
        for stage, own in zip(plan.stages, cost.stages, strict=True):
            tables, layouts = _indices(question, plan, stage)
            rows = tables.rows[first : first + stage.size]
            forward = tables.forward[layouts, rows]
            back = tables.work[layouts, rows] - forward
            w = float((back * np.where(tables.weights[layouts, rows] >= MATRIX, 0.5, 0.0)).sum())
            f = float(forward.sum()) + (own.receive + own.send) / 2
            passes.append([max(0.0, value) for value in (f, own.seconds - f - w, w)])
            first += stage.size
        kept = [float(stage.peak - stage.recomputed_peak) for stage in cost.stages]
        static = tuple(stage.memory - stage.kept - own for stage, own in zip(cost.stages, kept, strict=True))
        limit, (fs, inputs, ws) = (question.limit,) * len(kept), zip(*passes, strict=True)
        return Costs(f=fs, i=inputs, w=ws, activation=tuple(kept), static=static, memory_limit=limit)

    def iteration(self, question: OperatorQuestion, plan: PerOpPlan, makespan: float) -> float:
        del question, plan
        return makespan


def _crossings(
    question: OperatorQuestion, layouts: tuple[OperatorLayout, ...], facts: tuple[OperatorFacts, ...], inputs: Array
) -> tuple[Array, Array]:
    """Forward and backward seconds of resharding before every row. The row before is the one before it in the
    profile, or the last of the layer where the layer repeats; both have equal forms in every known family.
    """
    profile = question.profile
    count, size = len(profile.ops), len(layouts)
    forth, back = np.zeros((count, size, size)), np.zeros((count, size, size))
    if not reshards(profile):
        return forth, back
    for row in range(1, count):
        for a, have in enumerate(layouts):
            before = spec(facts[row - 1].outputs, *have)
            for b, want in enumerate(layouts):
                step = change(before, spec(facts[row].inputs, *want))
                if step is None:
                    forth[row, a, b] = NEVER
                    continue
                forth[row, a, b] = collective_seconds(step.forward, step.gpus, inputs[b, row], profile)
                back[row, a, b] = collective_seconds(step.backward, step.gpus, inputs[b, row], profile)
    return forth, back


def _bands(question: OperatorQuestion) -> tuple[Band, Band]:
    return question.profile.intra, question.profile.inter or question.profile.intra


def _leave(question: OperatorQuestion, layouts: tuple[OperatorLayout, ...], samples: int) -> Array:
    found = np.zeros((2, len(layouts), len(layouts), len(question.profile.ops)))
    for a, first in enumerate(layouts):
        for b, last in enumerate(layouts):
            sizes = column(question.profile, "output", samples // last.dp, first.tp, last.variant)
            for crossing, band in enumerate(_bands(question)):
                found[crossing, a, b] = [send_seconds(size, band) for size in sizes]
    return found


def _indices(question: OperatorQuestion, plan: PerOpPlan, stage: SplitStage) -> tuple[Tables, Array]:
    tables = tables_of(question, plan.samples, stage.gpus)
    known = {layout: index for index, layout in enumerate(tables.layouts)}
    return tables, np.array([known[layout] for layout in stage.layouts])


def _stage_cost(
    question: OperatorQuestion, plan: PerOpPlan, stage: SplitStage, first: int, behind: int, crossing: tuple[int, int]
) -> StageCost:
    tables, layouts = _indices(question, plan, stage)
    made = stage_cost(question, tables, first, layouts, np.array(stage.recompute), behind, crossing, plan.samples)
    rows = tables.rows[first : first + stage.size]
    own = tables.weights[layouts, rows]
    widths = [fact.width for fact in compatible_facts(question.profile)]
    moments = float((own * np.array([MOMENTS[width] for width in widths])[rows]).sum())
    weights = float(own.sum())
    return replace(made, weights=made.weights - weights - moments, gradients=weights, states=moments)


def _ideal(
    question: OperatorQuestion, plan: PerOpPlan, stage: SplitStage, first: int, crossing: tuple[int, int]
) -> tuple[float, float]:
    """Work of the stage at the least tp (1) over its GPUs; and its work and sends on one GPU."""
    profile, rows = question.profile, np.array(question.chain.rows[first : first + stage.size])
    variants = np.array([layout.variant for layout in stage.layouts])
    tp = profile.tps[0]
    work = np.zeros(stage.size)
    sizes = {}
    for variant in sorted(set(variants.tolist())):
        here = variants == variant
        for name in ("forward", "backward"):
            work[here] += tp * column(profile, name, plan.samples, tp, variant)[rows[here]]
        sizes[variant] = [column(profile, name, plan.samples, tp, variant) for name in ("input", "output")]
    bands = _bands(question)
    total = float(work.sum())
    sent = send_seconds(sizes[variants[0]][0][rows[0]], bands[crossing[0]])
    sent += send_seconds(sizes[variants[-1]][1][rows[-1]], bands[crossing[1]])
    return total / stage.gpus, total + sent
